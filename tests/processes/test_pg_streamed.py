"""Large transactions, which PostgreSQL sends before their end (capture.md section 4: pgoutput v2), in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pg_mirror import begin, catch_up, opened
from pg_server import Server
from tidegate.capture.pg_source import PgSource
from tidegate.capture.pg_stream import Stream
from tidegate.capture.source import Rows
from tidegate.capture.spill import Spill

Db = psycopg.Connection[Any]
SMALL = "-c logical_decoding_work_mem=64kB"
"""What makes the server stream all but the smallest transactions."""
INSERT = "INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(%s::int, %s::int) i"


@pytest.fixture
def db(postgres: Server, pg_database: str) -> Iterator[Db]:
    with postgres.connect(pg_database) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)")
        yield connection


@pytest.fixture
def source(postgres: Server, pg_database: str) -> Iterator[PgSource]:
    with opened(postgres.url(pg_database, options=SMALL)) as found:
        yield found


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of messages that came."""
    found: list[str] = []
    read = Stream.read

    def noting(self: Stream) -> list[bytes]:
        messages = read(self)
        found.extend(chr(each[0]) for each in messages)
        return messages

    monkeypatch.setattr(Stream, "read", noting)
    return found


def ids(changes: list[Any]) -> list[int]:
    return sorted(
        row[0]
        for change in changes
        if isinstance(change, Rows)
        for row in (change.rows if isinstance(change.rows, list) else zip(change.rows.column(0).to_pylist()))
    )


def test_a_large_transaction_comes_whole_at_its_commit(postgres, pg_database, db, source, kinds):
    """A smaller one that commits meanwhile comes before it; nothing of the large one does."""
    mirror = begin(source)
    with postgres.connect(pg_database, autocommit=False) as large:
        large.execute(INSERT, [1, 5000])
        db.execute("INSERT INTO u VALUES (1, 'small')")
        taken = catch_up(source, mirror)
        assert [ids(changes) for _, changes in taken] == [[1]]
        assert "S" in kinds and "c" not in kinds, "the server has sent parts of the large one"
        large.execute(INSERT, [5001, 9000])
        large.commit()
    taken = catch_up(source, mirror)
    assert [ids(changes) for _, changes in taken] == [list(range(1, 9001))]
    assert kinds.count("c") == 1


def test_a_large_transaction_that_is_undone_never_comes(postgres, pg_database, db, source, kinds):
    """It arrives, and ends with A(xid, xid); its relations are said again to others."""
    mirror = begin(source)
    with postgres.connect(pg_database, autocommit=False) as large:
        large.execute(INSERT, [1, 5000])
        catch_up(source, mirror)
        large.rollback()
    db.execute("INSERT INTO t VALUES (1, 'after')")
    taken = catch_up(source, mirror)
    assert "S" in kinds and "A" in kinds
    assert [changes for _, changes in taken] == [[Rows("t", [(1, "after")])]]


def test_an_undone_subtransaction_takes_its_own_changes_with_it(postgres, pg_database, db, source, kinds):
    mirror = begin(source)
    with postgres.connect(pg_database, autocommit=False) as large:
        large.execute(INSERT, [1, 3000])
        large.execute("SAVEPOINT a")
        large.execute(INSERT, [3001, 6000])
        large.execute("SAVEPOINT b")
        large.execute(INSERT, [6001, 9000])
        large.execute("RELEASE b")
        catch_up(source, mirror)  # So that all of it has come before it is undone.
        large.execute("ROLLBACK TO a")
        large.execute(INSERT, [9001, 12000])
        large.execute("SAVEPOINT c")
        large.execute(INSERT, [3001, 4000])
        large.commit()
    ((_, changes),) = catch_up(source, mirror)
    assert kinds.count("A") >= 2, "one for each of the two subtransactions"
    assert ids(changes) == [*range(1, 4001), *range(9001, 12001)]


def test_what_an_undone_subtransaction_said_of_a_table_stays(postgres, pg_database, db, source, kinds):
    """Some servers say it once for the whole transaction, in whichever part it comes first."""
    mirror = begin(source)
    with postgres.connect(pg_database, autocommit=False) as large:
        large.execute(INSERT, [1, 3000])
        large.execute("SAVEPOINT a")
        large.execute("INSERT INTO u SELECT i, repeat('x', 50) FROM generate_series(1, 3000) i")
        catch_up(source, mirror)
        large.execute("ROLLBACK TO a")
        large.execute("INSERT INTO u SELECT i, repeat('x', 50) FROM generate_series(5001, 8000) i")
        large.commit()
    ((_, changes),) = catch_up(source, mirror)
    assert kinds.count("R") >= 2
    assert ids([each for each in changes if each.table == "u"]) == list(range(5001, 8001))


def test_large_transactions_side_by_side_are_held_apart(postgres, pg_database, db, source):
    mirror = begin(source)
    with (
        postgres.connect(pg_database, autocommit=False) as one,
        postgres.connect(pg_database, autocommit=False) as two,
    ):
        for step in range(4):
            one.execute(INSERT, [step * 2000 + 1, step * 2000 + 1000])
            two.execute(INSERT, [step * 2000 + 1001, step * 2000 + 2000])
        two.commit()
        one.commit()
    taken = catch_up(source, mirror)
    assert [ids(changes)[0] for _, changes in taken] == [1001, 1]
    assert [len(ids(changes)) for _, changes in taken] == [4000, 4000]


def test_a_change_of_shape_within_a_large_transaction(postgres, pg_database, db, source):
    mirror = begin(source)
    with postgres.connect(pg_database, autocommit=False) as large:
        large.execute(INSERT, [1, 3000])
        large.execute("ALTER TABLE t ADD w int DEFAULT 7")
        large.execute("INSERT INTO t SELECT i, 'w', i FROM generate_series(3001, 6000) i")
        large.execute("UPDATE t SET v = 'u' WHERE id % 2 = 0")
        large.execute("DELETE FROM t WHERE id % 5 = 0")
        large.commit()
    catch_up(source, mirror)
    assert mirror.rows["t"] == {
        (row[0],): dict(zip(("id", "v", "w"), row, strict=True)) for row in db.execute("SELECT id, v, w FROM t")
    }


def test_a_transaction_that_is_cut_off_is_read_again_from_its_beginning(postgres, pg_database, db, source):
    mirror = begin(source)
    url = postgres.url(pg_database, options=SMALL)
    with postgres.connect(pg_database, autocommit=False) as large:
        large.execute(INSERT, [1, 5000])
        catch_up(source, mirror)
        source.close()
        large.commit()
    with opened(url) as again:
        again.resume(mirror.position, list(mirror.tables.values()))
        ((_, changes),) = catch_up(again, mirror)
    assert ids(changes) == list(range(1, 5001))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["streaming", "polling"])
def test_a_transaction_larger_than_memory_is_read_in_parts(postgres, pg_database, db, mode, monkeypatch):
    """Issue 7: large transactions within bounded memory. 60 MB, of which never more than a part is held."""
    spilled: list[Spill] = []
    write = Spill._write

    def noting(self: Spill) -> None:
        spilled.append(self)
        write(self)

    monkeypatch.setattr(Spill, "_write", noting)
    with opened(postgres.url(pg_database, mode=mode)) as source:
        begin_mirror = begin(source)
        db.execute("INSERT INTO t SELECT i, repeat('x', 600) FROM generate_series(1, 100000) i")
        mark = source.mark()
        tracemalloc.start()
        try:
            seen = chunks = 0
            while not source.has_passed(mark):
                for transaction in source.transactions(0.5):
                    for change in transaction.changes:
                        assert isinstance(change, Rows)
                        seen += len(change.rows)
                        chunks += 1
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert seen == 100_000 and chunks > 3 and begin_mirror.rows["t"] == {}
    assert spilled and not any(each.is_on_disk for each in spilled), "its file is gone"
    assert peak < 45_000_000, f"{peak:,}"
