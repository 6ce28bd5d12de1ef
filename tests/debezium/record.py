"""Records what a real Debezium engine says of a real PostgreSQL, in files beside this one: `make debezium-events`.

    shop.jsonl.gz      a shop's transactions, cut by batches of four events, with an engine that is killed in between
    plain.jsonl.gz     the same without schemas in the events
    types.jsonl.gz     rows of all common types
    unsent.jsonl.gz    an update that leaves a large value alone
    altered.jsonl.gz   columns that are added, with defaults and without
    nulled.jsonl.gz    the same for types of which the engine says null, and with REPLICA IDENTITY FULL

Each file has the engine's events in the order in which it handed them over, verbatim, and behind them one line
`{"truth": [...]}`: what the tables had in PostgreSQL after each commit, in the order of the commits. Tests read the
files (`recordings.py`); no test needs the engine.
"""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate.bench.pg_server import Server

HERE = Path(__file__).parent
WAIT_S = 120.0
SHOP = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(10,2))",
    "CREATE TABLE items (id bigint PRIMARY KEY, order_id bigint, what text)",
    "CREATE TABLE visits (id bigint PRIMARY KEY)",  # Not captured.
    "ALTER TABLE items REPLICA IDENTITY FULL",
    "INSERT INTO orders VALUES (1, 'ann', 10.00)",
    "INSERT INTO items VALUES (10, 1, 'tea'), (11, 1, NULL)",
)
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    """CREATE TABLE kinds (
        id bigint PRIMARY KEY, flag boolean, small smallint, mid integer, single real, "double" double precision,
        price numeric(12,3), anything numeric, words text, short varchar(20), fixed char(5), raw bytea, day date,
        clock time, zoned_clock timetz, at timestamp, at_ms timestamp(3), zoned timestamptz, span interval, uid uuid,
        doc json, docb jsonb, host inet, numbers integer[], names text[], feeling mood)""",
    "CREATE TABLE pairs (b text, a integer, v text, PRIMARY KEY (a, b))",
)
LETTERS = (
    """CREATE TABLE letters (id bigint PRIMARY KEY, read boolean, body text, raw bytea, doc jsonb, words text[],
        small integer[], big bigint[], uids uuid[], days date[])""",
    """INSERT INTO letters SELECT id, false, repeat('x', 3000), decode(repeat('ab', 3000), 'hex'),
        jsonb_build_object('a', repeat('y', 3000)), array_fill('word'::text, '{600}'), array_fill(7, '{600}'),
        array_fill(8::bigint, '{600}'), array_fill('8c5df0f5-52ea-4b17-8d2e-6e0a6f1e5d11'::uuid, '{600}'),
        array_fill('2024-02-29'::date, '{600}') FROM generate_series(1, 2) id""",
    "CREATE TABLE kept (id bigint PRIMARY KEY, read boolean, body text)",
    "ALTER TABLE kept REPLICA IDENTITY FULL",
    "INSERT INTO kept VALUES (1, false, repeat('z', 3000))",
)
LARGE = ("body", "raw", "doc", "words", "small", "big", "uids", "days")
ADDED = (
    "stars integer DEFAULT 5", "kind text NOT NULL DEFAULT 'tea'", "price numeric(10,2) DEFAULT 1.50",
    "is_new boolean DEFAULT false", "day date DEFAULT '2024-02-29'", "note text",
)  # fmt: skip
NULLED = (
    "numeric", "bit varying", "numeric(10,2)[]", "float8[]", "real[]", "boolean[]", "smallint[]", "timestamp[]",
    "timestamptz[]", "time[]", "inet[]",
)  # fmt: skip
"""Types whose values the engine replaces by null where it did not get them."""
TOLD = ("bytea[]", "varchar(9)[]", "jsonb[]", "json", "varchar", "tsvector")
"""Types that have a placeholder, beside those of the letters."""
PAPERS = (
    """INSERT INTO papers SELECT 1, false, (repeat('9', 6000) || '.5')::numeric, repeat('10', 12000)::bit varying,
        array_fill(1.25, '{900}'), array_fill(1.5, '{600}'), array_fill(1.5, '{900}'), array_fill(true, '{2500}'),
        array_fill(3, '{1500}'), array_fill('2024-02-29 12:00'::timestamp, '{400}'),
        array_fill('2024-02-29 12:00+00'::timestamptz, '{400}'), array_fill('10:00'::time, '{400}'),
        array_fill('10.0.0.1'::inet, '{400}'), array_fill('\\xab'::bytea, '{600}'),
        array_fill('abc'::varchar, '{600}'), array_fill('{"a": 1}'::jsonb, '{300}'),
        json_build_object('a', repeat('y', 3000)), repeat('v', 3000),
        (SELECT string_agg('w' || n, ' ') FROM generate_series(1, 500) n)::tsvector""",
    "INSERT INTO papers (id) VALUES (2)",
    "INSERT INTO papers_full SELECT * FROM papers",
)
ROWS = (
    """INSERT INTO kinds VALUES (1, true, -32768, 2147483647, 1.5, -0.1, 123456789.125, 1.50, 'wörds
        ''x''', 'short', 'ab', '\\x00ff10', '2024-02-29', '23:59:59.123456', '12:00:00+02',
        '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789012+02',
        '1 year 2 days 03:04:05.6', '8c5df0f5-52ea-4b17-8d2e-6e0a6f1e5d11', '{"a": [1, 2]}', '{"b": null}',
        '10.0.0.1/8', '{1,NULL,3}', '{a,NULL,"c d"}', 'ok')""",
    "INSERT INTO kinds (id) VALUES (2)",
    """INSERT INTO kinds (id, flag, small, mid, single, "double", price, anything, words, raw, day, at, zoned)
        VALUES (3, false, 0, -2147483648, 'NaN', '-Infinity', -0.001, -12345678901234567890.123456789, '', '',
        '0001-01-01', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999+00')""",
)


class Engine:
    """Debezium's engine, as a process that writes to a file."""

    def __init__(self, port: int, database: str, folder: Path, *settings: str) -> None:
        self.events = folder / "events.jsonl"
        self._log = folder / "engine.log"
        self._command = [sys.executable, str(HERE / "engine.py"), str(port), database, str(self.events)]
        self._command += [str(folder / "offsets"), *settings]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *settings: str) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*self._command, *settings], cwd=self._log.parent, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def values(self) -> list[Any]:
        lines = self.events.read_text().splitlines(keepends=True) if self.events.exists() else []
        found = [json.loads(line)["value"] for line in lines if line.endswith("\n")]
        return [each.get("payload", each) if isinstance(each, dict) else each for each in found]

    def wait(self, what: str, is_there: Any) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_there(self.values()):
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"no {what} came\n{self._log.read_text()[-4000:]}")
            time.sleep(0.1)

    def wait_for_snapshot(self) -> None:
        self.wait("snapshot", lambda values: any(_source(each).get("snapshot") == "last" for each in values))

    def wait_for_all(self, truth: Truth, *, but: int = 0) -> None:
        """For the ENDs of all transactions of a history, but so many."""
        count = len(truth.states) - 1 - but
        self.wait(f"{count} ends", lambda values: len(_ended(values)) >= count)


def _source(value: Any) -> dict[str, Any]:
    return (value or {}).get("source") or {}


def _ended(values: list[Any]) -> set[str]:
    return {each["id"].split(":")[0] for each in values if each and each.get("status") == "END"}


def _resent(values: list[Any]) -> bool:
    """Whether something was sent again from within a transaction."""
    boundaries = [(each["id"].split(":")[0], each["status"]) for each in values if each and "status" in each]
    return any(boundaries.count((txn, "END")) > boundaries.count((txn, "BEGIN")) for txn, _ in boundaries)


class NothingAgain(Exception):
    """The engine had noted all that it had sent when it was killed."""


class Truth:
    """What the tables have after each commit."""

    def __init__(self, connection: Any, *tables: str) -> None:
        self._connection = connection
        self._tables = tables
        self.states: list[dict[str, list[Any]]] = []
        self.note()

    def note(self) -> None:
        found = {}
        for table in self._tables:
            rows = self._connection.execute(f"SELECT to_jsonb(t) FROM {table} t ORDER BY t::text").fetchall()
            found[table] = [row for (row,) in rows]
        self.states.append(found)

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[Any]:
        """A transaction of the history, which changes captured tables, and what is there when it has committed."""
        with connection.transaction():
            yield connection
        self.note()


def shop(server: Server, database: str, engine: Engine) -> list[Any]:
    with server.connect(database) as app, server.connect(database) as other, server.connect(database) as reader:
        for each in SHOP:
            app.execute(each)
        truth = Truth(reader, "orders", "items")
        engine.start()
        engine.wait_for_snapshot()
        with truth.transaction(app):
            app.execute("INSERT INTO orders VALUES (2, 'bo', 25.99)")
            app.execute("INSERT INTO items VALUES (20, 2, 'cup'), (21, 2, 'pot'), (22, 2, 'tray')")
        with truth.transaction(app):
            app.execute("DELETE FROM items WHERE order_id = 1")
            app.execute("DELETE FROM orders WHERE id = 1")
        with truth.transaction(app):  # It begins first and commits last.
            app.execute("INSERT INTO orders VALUES (5, 'di', 5)")
            with truth.transaction(other):
                other.execute("INSERT INTO orders VALUES (6, 'ed', 6)")
                other.execute("INSERT INTO items VALUES (60, 6, 'jar')")
            app.execute("INSERT INTO items VALUES (50, 5, 'lid')")
        with truth.transaction(app):  # A key.
            app.execute("UPDATE orders SET id = 3 WHERE id = 2")
            app.execute("UPDATE items SET order_id = 3 WHERE order_id = 2")
        engine.wait_for_all(truth)
        with app.transaction():  # Nothing is said of these two.
            app.execute("INSERT INTO visits VALUES (1)")
        with app.transaction(force_rollback=True):
            app.execute("INSERT INTO orders VALUES (99, 'nobody', 1)")
        with truth.transaction(app):
            app.execute("INSERT INTO orders VALUES (7, 'fi', 7)")
            with app.transaction(force_rollback=True):  # A savepoint.
                app.execute("INSERT INTO items VALUES (70, 7, 'never')")
            app.execute("INSERT INTO items VALUES (71, 7, 'always')")
        with truth.transaction(app):  # Many batches.
            app.execute("INSERT INTO orders VALUES (8, 'gus', 40)")
            app.execute("INSERT INTO items SELECT 800 + n, 8, 'bean ' || n FROM generate_series(1, 40) n")
        engine.wait_for_all(truth)
        time.sleep(2.5)  # How far it is is noted every second.
        engine.kill()
        engine.start("offset.flush.interval.ms=600000")
        for round in range(6):
            with truth.transaction(app):
                app.execute("UPDATE orders SET total = total + 1")
                app.execute("DELETE FROM items WHERE id = %s", [801 + round])
                app.execute("INSERT INTO items VALUES (%s, 8, 'new')", [900 + round])
        engine.wait_for_all(truth, but=2)
        engine.kill()  # What it has sent and not noted comes again.
        engine.start()
        with truth.transaction(app):
            app.execute("ALTER TABLE orders ADD COLUMN paid boolean")
            app.execute("INSERT INTO orders VALUES (9, 'hal', 9, true)")
        with truth.transaction(app):
            app.execute("TRUNCATE items")
            app.execute("INSERT INTO items VALUES (1000, 9, 'last')")
        engine.wait_for_all(truth)
        if not _resent(engine.values()):
            raise NothingAgain
        return truth.states


def types(server: Server, database: str, engine: Engine) -> list[Any]:
    with server.connect(database) as app, server.connect(database) as reader:
        for each in (*TYPES, *ROWS[:1], "INSERT INTO pairs VALUES ('x', 1, 'first')"):
            app.execute(each)
        truth = Truth(reader, "kinds", "pairs")
        engine.start()
        engine.wait_for_snapshot()
        for each in (*ROWS[1:], "UPDATE kinds SET mid = mid - 1, words = NULL WHERE id = 1"):
            with truth.transaction(app):
                app.execute(each)
        with truth.transaction(app):
            app.execute("UPDATE pairs SET v = 'second'")
            app.execute("UPDATE pairs SET a = 2")
        engine.wait_for_all(truth)
        return truth.states


def unsent(server: Server, database: str, engine: Engine) -> list[Any]:
    with server.connect(database) as app, server.connect(database) as reader:
        app.execute(LETTERS[0])
        for each in LARGE:  # Not packed, but laid aside.
            app.execute(f"ALTER TABLE letters ALTER COLUMN {each} SET STORAGE EXTERNAL")
        for each in LETTERS[1:]:
            app.execute(each)
        app.execute("ALTER TABLE kept ALTER COLUMN body SET STORAGE EXTERNAL")
        truth = Truth(reader, "letters", "kept")
        engine.start()
        engine.wait_for_snapshot()
        with truth.transaction(app):
            app.execute("UPDATE letters SET read = true")
            app.execute("UPDATE kept SET read = true")
        with truth.transaction(app):  # The key goes, and the values stay.
            app.execute("UPDATE letters SET id = id + 10")
        with truth.transaction(app):  # New, and left alone in the same transaction.
            app.execute("INSERT INTO letters (id, body) VALUES (3, repeat('new', 1000))")
            app.execute("UPDATE letters SET read = true WHERE id = 3")
            app.execute("UPDATE letters SET body = 'short' WHERE id = 11")
            app.execute("UPDATE letters SET id = 4 WHERE id = 3")
        engine.wait_for_all(truth)
        return truth.states


def nulled(server: Server, database: str, engine: Engine) -> list[Any]:
    with server.connect(database) as app, server.connect(database) as reader:
        columns = ", ".join(f"c{number} {type}" for number, type in enumerate((*NULLED, *TOLD)))
        for table in ("papers", "papers_full"):
            app.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, read boolean, {columns})")
            for number in range(len((*NULLED, *TOLD))):
                app.execute(f"ALTER TABLE {table} ALTER COLUMN c{number} SET STORAGE EXTERNAL")
        app.execute("ALTER TABLE papers_full REPLICA IDENTITY FULL")
        for each in PAPERS:
            app.execute(each)
        truth = Truth(reader, "papers", "papers_full")
        engine.start()
        engine.wait_for_snapshot()
        with truth.transaction(app):
            app.execute("UPDATE papers SET read = true")
            app.execute("UPDATE papers_full SET read = true")
        with truth.transaction(app):
            app.execute("UPDATE papers_full SET id = id + 10")
        engine.wait_for_all(truth)
        return truth.states


def altered(server: Server, database: str, engine: Engine) -> list[Any]:
    with server.connect(database) as app, server.connect(database) as reader:
        app.execute("CREATE TABLE goods (id bigint PRIMARY KEY, name text)")
        app.execute("INSERT INTO goods VALUES (1, 'old')")
        truth = Truth(reader, "goods")
        engine.start()
        engine.wait_for_snapshot()
        with truth.transaction(app):
            for each in ADDED:
                app.execute(f"ALTER TABLE goods ADD COLUMN {each}")
            app.execute("INSERT INTO goods (id, name) VALUES (2, 'new')")
        with truth.transaction(app):
            app.execute("ALTER TABLE goods ADD COLUMN since timestamptz DEFAULT now()")
            app.execute("INSERT INTO goods (id, name, stars) VALUES (3, 'third', NULL)")
        engine.wait_for_all(truth)
        return truth.states


RECORDINGS = {
    "shop": (shop, ("table.include.list=public.orders,public.items",)),
    "plain": (shop, ("table.include.list=public.orders,public.items", "converter.schemas.enable=false")),
    "types": (types, ()),
    "unsent": (unsent, ()),
    "altered": (altered, ("converter.replace.null.with.default=false",)),
    "nulled": (nulled, ()),
}


def record(server: Server, port: int, name: str) -> None:
    history, settings = RECORDINGS[name]
    with server.database() as database, tempfile.TemporaryDirectory() as folder:
        engine = Engine(port, database, Path(folder), *settings)
        try:
            truth = history(server, database, engine)
        finally:
            engine.kill()
        lines = [*engine.events.read_text().splitlines(), json.dumps({"truth": truth})]
    target = HERE / f"{name}.jsonl.gz"
    target.write_bytes(gzip.compress("".join(f"{each}\n" for each in lines).encode(), 9, mtime=0))
    print(f"{target.name}: {len(lines) - 1} events, {len(truth)} states")


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(listen_addresses="127.0.0.1", port=str(port))
    try:
        for name in sys.argv[1:] or RECORDINGS:
            while True:
                try:
                    record(server, port, name)
                    break
                except NothingAgain:
                    print(f"{name}: it sent nothing again when it was killed; once more")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
