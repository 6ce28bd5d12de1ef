"""`tidegate demo shop`: it ends, it is right, it leaves nothing behind, and it would notice if it were not right.

A thread takes the place of Spark; the application and the capture are the real ones, in processes of their own.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest
from click.testing import CliRunner
from rich.console import Console

import tidegate as tidegate_package
from tidegate.cli import demo_shop, demo_shop_app, demo_shop_view, demo_tables
from tidegate.cli.demo_shop import Shop
from tidegate.cli.demo_shop_actor import DEAD, LIVES, STARTS, Actor, Kill, Lane
from tidegate.cli.demo_shop_app import Till, open_shop
from tidegate.cli.demo_shop_books import (
    ASK_TABLES,
    ASK_VIEW,
    NEWEST,
    RECEIPTS,
    VIEWS,
    Books,
    Read,
    differences,
    read_of,
    torn,
)
from tidegate.cli.demo_shop_reader import Reader
from tidegate.cli.main import tidegate
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import InvariantBroken

TESTS = Path(__file__).parents[2]
CAPTURE = [sys.executable, str(TESTS / "mortal_folding.py")]
PATCHED = (
    "import sys; from tidegate.cli import demo_shop, demo_tables; demo_tables.what_is_missing = lambda _: None;"
    f"demo_shop._CAPTURE = {CAPTURE!r}; demo_shop._BARRIER_MS = 100;"
    "from tidegate.cli import demo; demo._LINE_S = 0.2; from tidegate.cli.main import main; main()"
)
WHOLE = Read(at=10, orders=3, receipts=3, items=7, total=900, paid=900, newest=5, wrong=0)


def flat(text: str) -> str:
    """As one line: where lines are broken depends on the terminal."""
    return " ".join(text.split())


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread folds in place of Spark."""
    monkeypatch.setattr(demo_tables, "what_is_missing", lambda _: None)
    monkeypatch.setattr(demo_shop, "_CAPTURE", CAPTURE)
    monkeypatch.setattr(demo_shop, "_BARRIER_MS", 100)


# -- what it checks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (WHOLE, None),
        (WHOLE._replace(wrong=2), "2 orders are not whole at 10"),
        (WHOLE._replace(receipts=2), "3 orders and 2 with items and payment"),
        (WHOLE._replace(paid=899), "items for 900 and payments of 899"),
    ],
)
def test_an_answer_with_a_part_of_an_order_is_torn(read: Read, why: str | None) -> None:
    """Promise 2."""
    assert torn(read) is None if why is None else why in (torn(read) or "")
    reader = Reader("strong", "view")
    reader.take(read)
    assert (reader.torn, reader.answers) == (0 if why is None else 1, 1)


@pytest.mark.parametrize("later", [WHOLE._replace(at=9), WHOLE._replace(at=11, newest=4)])
def test_an_answer_that_is_older_than_the_one_before_is_wrong(later: Read) -> None:
    """Promise 5: neither the cut goes back nor what is in it."""
    reader = Reader("eventual", "view")
    reader.take(WHOLE)
    assert reader.wrong is None
    reader.take(later)
    assert reader.torn == 0 and "after 5 at 10" in (reader.wrong or "")


def test_the_books_know_what_was_sold_and_what_was_under_way() -> None:
    books = Books()
    for line in ("try placed 1", "placed 1", "try changed 1", "changed 1", "try declined 2", "declined 2"):
        assert books.hear(line)
    assert books.done == {"placed": 1, "changed": 1, "cancelled": 0, "declined": 1}
    assert (books.committed, books.newest, books.under_way) == (2, 1, None)
    books.hear("try cancelled 1")
    assert books.lose() == ("cancelled", 1) and books.lose() is None
    assert not books.hear("Traceback (most recent call last):") and not books.hear("placed in the midst")
    books.hear("error the disk is full")
    assert books.errors == ["the application stopped: the disk is full"]


@pytest.mark.parametrize(
    ("here", "wrong"),
    [
        ([(1, "ann"), (2, "bo")], []),
        ([(1, "ann")], ["1 rows of orders are missing: (2, 'bo')"]),
        ([(1, "ann"), (2, "bo"), (2, "bo")], ["1 rows of orders are there twice"]),
        (
            [(1, "ann"), (2, "cy")],
            [
                "1 rows of orders are missing: (2, 'bo')",
                "1 rows of orders are there that the source does not have: (2, 'cy')",
            ],
        ),
    ],
)
def test_the_comparison_finds_what_is_missing_double_or_different(
    here: list[tuple[int, str]], wrong: list[str]
) -> None:
    """Promise 7."""
    assert differences("orders", [(1, "ann"), (2, "bo")], here) == wrong


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        (None, 0),
        ("DELETE FROM payments WHERE order_id = 1", 1),
        ("DELETE FROM items WHERE order_id = 1", 1),
        ("DELETE FROM items WHERE order_id = 1 AND n = 2", 1),
        ("UPDATE payments SET cents = cents + 1 WHERE order_id = 2", 1),
        ("DELETE FROM orders WHERE id = 1", 1),
    ],
)
def test_tables_and_view_show_every_way_in_which_an_order_can_be_torn(
    tmp_path: Path, statement: str | None, wrong: int
) -> None:
    """Promises 2 and 4. Of an order that is gone its parts are found where they are looked for: in the tables."""
    with tidegate_package.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as db:
        db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer STRING)")
        db.sql(
            "CREATE TABLE items (order_id BIGINT, n BIGINT, product STRING, cents BIGINT, PRIMARY KEY (order_id, n))"
        )
        db.sql("CREATE TABLE payments (order_id BIGINT PRIMARY KEY, cents BIGINT)")
        for name, sql in VIEWS.items():
            db.sql(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
        assert read_of(7, db.query(ASK_TABLES, "strong").rows()[0]) == Read(7, 0, 0, 0, 0, 0, 0, 0)
        with db.transaction() as txn:
            txn.insert("orders", [(1, "ann"), (2, "bo")])
            txn.insert("items", [(1, 1, "figs", 5), (1, 2, "tea", 7), (2, 1, "salt", 1)])
            txn.insert("payments", [(1, 12), (2, 1)])
        if statement is not None:
            db.sql(statement)
        tables, view = (read_of(7, db.query(sql, "strong").rows()[0]) for sql in (ASK_TABLES, ASK_VIEW))
        assert (torn(tables) is None) == (not wrong)
        if statement is None or "orders" not in statement:
            assert (torn(view) is None) == (not wrong) and view.wrong == wrong
        if statement is None:
            assert tables == view == Read(7, 2, 2, 3, 13, 13, 2, 0)
            assert [each["id"] for each in db.query(NEWEST, "strong").rows()] == [2, 1]


def test_the_application_sells_in_whole_transactions_and_what_it_rolls_back_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_shop_app, "_THINK_S", 0.0)
    said: list[tuple[object, ...]] = []
    with closing(open_shop(tmp_path / "shop.db")) as db:
        till = Till(db, random.Random(3), lambda *words: said.append(words))
        books = Books()
        for _ in range(150):
            till.serve()
            receipts = db.execute(RECEIPTS).fetchall()
            assert all(total == paid and items for _, _, items, total, paid in receipts)
            assert len(receipts) == db.execute("SELECT count(*) FROM orders").fetchone()[0]
        for words in said:
            books.hear(" ".join(map(str, words)))
        assert all(books.done.values()) and books.under_way is None
        assert len(receipts) == books.done["placed"] - books.done["cancelled"]
        recorded = db.execute("SELECT count(DISTINCT change_txn_id) FROM turso_cdc WHERE change_type <> 2").fetchone()[
            0
        ]
        assert recorded == books.committed, "a transaction is recorded as one, and one that was rolled back not at all"
        with closing(open_shop(tmp_path / "shop.db")) as again:
            Till(again, random.Random(4), lambda *words: said.append(words))._placed()
        assert said[-1] == ("placed", books.newest + 1), "another life goes on behind the newest order"


# -- who lives ---------------------------------------------------------------------------------------------------------


def test_a_lane_shows_every_death_however_short() -> None:
    lane = Lane("capture")
    assert lane.cells(4, 8.0, 3.0) == [None, None]
    for at, state in ((0.0, STARTS), (1.0, LIVES), (4.1, DEAD), (4.2, STARTS), (4.3, LIVES)):
        lane.turn(at, state)
    assert lane.cells(4, 8.0, 8.0) == [LIVES, LIVES, DEAD, LIVES]
    assert lane.cells(8, 8.0, 8.0) == [STARTS, LIVES, LIVES, LIVES, DEAD, LIVES, LIVES, LIVES]
    assert (lane.deaths, lane.state, lane.since) == ([4.1], LIVES, 4.3)
    lane.turn(5.0, LIVES)
    assert lane.since == 4.3, "it has lived on"
    with pytest.raises(InvariantBroken, match="capture"):
        lane.turn(4.0, DEAD)


def test_a_process_is_heard_to_its_last_whole_line() -> None:
    heard: list[str] = []
    code = "import os, sys; os.write(1, b'one\\nwhat?\\ntw'); sys.stdin.read()"

    def hear(line: str) -> bool:
        heard.append(line)
        return line == "one\n"

    actor = Actor("capture", [sys.executable, "-c", code], hear)
    actor.start()
    _until(lambda: len(heard) == 2)
    assert actor.look() is None
    pid = actor.kill()
    assert heard == ["one\n", "what?\n"] and list(actor.words) == ["what?"] and actor.pids == [pid]
    assert actor.pid is None and actor.kill() is None and actor.stop() is None


# -- the picture -------------------------------------------------------------------------------------------------------


def _shop(path: Path) -> Shop:
    """As it might be in the middle, with large numbers."""
    shop = Shop(path, 50.0)
    shop.began = shop.started = monotonic() - 40.0
    shop.phase = "running"
    shop.samples.extend((shop.started + n / 2, n * n * 10) for n in range(80))
    shop.books.done.update(placed=99_999, changed=99_999, cancelled=99_999, declined=99_999)
    shop.kills = [Kill("application", 10.0, back_s=0.3), Kill("capture", 20.0, back_s=12.3), Kill("pipeline", 35.0)]
    shop.status = {"checkpoint": 9_999, "worker": 4_194_304, "transactions": 1}
    for name, deaths in (("application", [10.0]), ("capture", [20.0]), ("pipeline", [25.0, 35.0]), ("answers", [])):
        shop.lanes[name].turn(0.0, LIVES)
        for at in deaths:
            shop.lanes[name].turn(at, DEAD)
            shop.lanes[name].turn(at + 1, LIVES)
    for reader in shop.readers:
        reader.take(Read(470498990590525482, 99_999, 99_999, 999_999, 999_999_999, 999_999_999, 999_999, 0))
        reader.answers, reader.age_ms = 999_999, 99_900
    shop.visible_s.append(12.3)
    shop.receipts = [{"id": 999_999, "customer": "Flo", "items": 4, "total": 9_999, "paid": 9_999}] * 2
    shop._tell(20.0, "SIGKILL for the capture, process 4194303; its pipeline goes with it")
    shop._tell(23.0, "process 4194304 captures on, from exactly there, 12.3 s later")
    shop._tell(35.0, "SIGKILL for the application, process 4194303, in the midst of order 999,999: no trace of it")
    return shop


def _text(shop: Shop, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(demo_shop_view.frame(shop))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_picture_of_the_shop_fits_the_terminal(tmp_path: Path, width: int) -> None:
    text = _text(_shop(tmp_path), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and len(lines) <= 23, "80 columns and 24 lines, one of them for the cursor"
    assert {len(each) for each in lines[1:]} == {width}, "nothing wraps"
    lanes = [each for each in lines if each.startswith("│ ") and "━" in each]
    assert [each.count("✗") for each in lanes] == [1, 1, 2, 0]
    for part in ("checkpt 9,999", "9,999,999.99", "99.9 s", "order 999,999 Flo  4 items", "99.99  paid    99.99  ✓"):
        assert part in text


@pytest.mark.parametrize("missing", [None, "it needs Spark, and the package pyspark is not installed; run `pip ...`"])
def test_there_is_a_picture_of_the_shop_before_anything_is_there(tmp_path: Path, missing: str | None) -> None:
    shop = Shop(tmp_path, 50.0)
    assert "opening" in _text(shop, 80) and "opening" in demo_shop_view.line(shop)
    shop.without_spark, shop.started, shop.phase = missing, monotonic(), "running"
    assert ("no pipeline: it needs Spark" in _text(shop, 80)) == (missing is not None)
    assert ("pipeline" in demo_shop_view.line(shop)) == (missing is None)


def test_a_torn_order_is_seen_in_the_picture_the_line_and_the_verdict(tmp_path: Path) -> None:
    shop = _shop(tmp_path)
    shop.readers[-1].take(shop.readers[-1].last._replace(wrong=1))  # type: ignore[union-attr]
    shop.receipts = [{**shop.receipts[0], "paid": 1}]
    assert "✗" in _text(shop, 80).splitlines()[-2] and "1 torn" in demo_shop_view.line(shop)
    shop.phase = "done"
    shop.equal.update(strong=None, eventual=None)  # type: ignore[arg-type]
    shop.kills = []
    assert not shop.is_right and "1 orders are not whole" in shop.errors[0]


def test_it_says_why_it_takes_longer(tmp_path: Path) -> None:
    """Promise 8."""
    shop = _shop(tmp_path)
    shop.started = monotonic() - 160.0
    assert _text(shop, 80).splitlines()[0].rstrip().endswith("160.0 of 50 s, not all are back")


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = CliRunner().invoke(tidegate, ["demo", "shop", "--dir", str(tmp_path)])
    assert result.exit_code == 1 and "holds no shop" in result.output
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
def test_application_capture_and_pipeline_are_killed_and_no_order_is_ever_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promises 2, 5, 6 and 7; seed 003. Then the same directory, without Spark: no checkpoints, and it says so."""
    path = tmp_path / "shop"
    result = CliRunner().invoke(tidegate, ["demo", "shop", "--json", "--dir", str(path), "--seconds", "3"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["good"] and found["errors"] == [] and found["torn"] == 0 and not found["interrupted"]
    assert found["transactions"] > 5 and found["checkpoints"] > 0 and all(found["answers"].values())
    assert found["equal_to_sqlite"].keys() == {"strong", "eventual"} and found["rows_compared"] > 20
    assert [each["who"] for each in found["kills"]] == ["application", "capture", "pipeline"]
    assert all(each["back_after_s"] > 0 and not _is_alive(each["process"]) for each in found["kills"])
    assert _processes(tmp_path) == []

    monkeypatch.undo()
    monkeypatch.setattr(demo_tables, "find_spec", lambda _: None)
    result = CliRunner().invoke(
        tidegate, ["demo", "shop", "--plain", "--dir", str(path), "--no-kill", "--seconds", "0.3"]
    )
    assert result.exit_code == 0, result.output
    assert "pip install 'tidegate[spark]'" in flat(result.stdout) and "killed" not in result.stdout
    assert demo_shop_view.GOOD in flat(result.stdout) and "equal to SQLite's" in result.stdout
    with tidegate_package.open(path / "shop.tide", settings=DatabaseSettings(pipeline=False)) as db:
        sql = "SELECT count(*) AS n, count(DISTINCT source_txn) AS ids FROM capture_transactions"
        taken = db.query(sql, "strong").rows()[0]
    with closing(sqlite3.connect(path / "shop.db")) as shop:
        sql = "SELECT count(DISTINCT change_txn_id) FROM turso_cdc WHERE change_type <> 2"
        committed = shop.execute(sql).fetchone()[0]
    assert 0 < taken["n"] == taken["ids"] <= committed, "none was taken twice; those before the snapshot not at all"


@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
def test_an_application_that_pays_later_is_found_torn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 2: the readers do see what an application commits halfway."""
    code = (
        "import sys, time; from tidegate.cli import demo_shop_app as app; write = app.Till._write_order\n"
        "def careless(self, id):\n"
        "    write(self, id); self._db.execute('UPDATE payments SET cents = 0 WHERE order_id = ?', (id,))\n"
        "    self._db.commit(); time.sleep(0.2)\n"
        "    total = '(SELECT sum(cents) FROM items WHERE order_id = payments.order_id)'\n"
        "    self._db.execute(f'UPDATE payments SET cents = {total} WHERE order_id = ?', (id,))\n"
        "app.Till._write_order = careless; app.ENDS = {'placed': 1}; sys.exit(app.main(sys.argv[1:]))"
    )
    monkeypatch.setattr(demo_shop, "_APPLICATION", [sys.executable, "-c", code])
    began = monotonic()
    result = CliRunner().invoke(tidegate, ["demo", "shop", "--json", "--no-kill", "--seconds", "300"])
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and not found["good"] and found["torn"] >= 1 and monotonic() - began < 100
    assert "not whole" in found["errors"][0]


@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
def test_a_row_that_did_not_come_through_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 7: no answer is torn, and yet one order of SQLite is not here: nothing has recorded it."""
    compare = Shop._compare

    def careless(self: Shop, level: str) -> None:
        with closing(sqlite3.connect(self.source)) as shop, shop:
            shop.execute("INSERT INTO orders VALUES (1000000, 'nobody')")
        compare(self, level)

    monkeypatch.setattr(Shop, "_compare", careless)
    result = CliRunner().invoke(tidegate, ["demo", "shop", "--plain", "--no-kill", "--seconds", "0.3"])
    assert result.exit_code == 1 and demo_shop_view.GOOD not in flat(result.stdout)
    assert "1 rows of orders are missing: (1000000, 'nobody')" in flat(result.stdout)
    assert "0 torn" in result.stdout and demo_shop_view.BAD in flat(result.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("who", ["_APPLICATION", "_CAPTURE"])
def test_a_process_that_ends_by_itself_is_the_end_of_it(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """Promise 8: it says so instead of waiting for ever."""
    monkeypatch.setattr(demo_shop, who, [sys.executable, "-c", "import sys; print('no paper'); sys.exit(7)"])
    result = CliRunner().invoke(tidegate, ["demo", "shop", "--json", "--seconds", "300"])
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and "ended with 7: no paper" in found["errors"][0]
    assert who.strip("_").lower() in found["errors"][0]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["opening", "orders in the view"])
def test_an_interrupt_ends_the_shop_with_a_summary_and_leaves_nothing(tmp_path: Path, when: str) -> None:
    process = _start(tmp_path)
    try:
        processes = _running(process, tmp_path, when)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, ""), out + err
    assert demo_shop_view.GOOD in flat(out) and "equal to SQLite's" in flat(out)
    assert not any(map(_is_alive, processes)) and _processes(tmp_path) == [] and list(tmp_path.iterdir()) == []
    assert len(processes) == 2 or when == "opening"


@pytest.mark.slow
def test_a_demo_that_is_killed_takes_the_shop_and_its_capture_along(tmp_path: Path) -> None:
    process = _start(tmp_path)
    try:
        processes = _running(process, tmp_path, " commits")
    finally:
        process.kill()
        process.communicate()
    _until(lambda: not any(map(_is_alive, processes)))
    assert len(processes) == 2


def _start(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PATCHED, "demo", "shop", "--plain", "--seconds", "300", "--no-kill"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip


def _running(process: subprocess.Popen[str], tmp_path: Path, word: str) -> list[int]:
    """The processes of the scene, once it says this."""
    assert process.stdout is not None
    while word not in process.stdout.readline():
        assert process.poll() is None
    return _processes(tmp_path)


def _processes(tmp_path: Path) -> list[int]:
    """Application and capture of a shop below this directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes()
        except OSError:
            continue
        if (b"demo_shop_app" in words or b"mortal_folding" in words) and str(tmp_path).encode() in words:
            found.append(int(each.parent.name))
    return found


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _until(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    while not is_so():
        assert monotonic() < deadline
        time.sleep(0.05)
