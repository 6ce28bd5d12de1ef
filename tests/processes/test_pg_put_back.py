"""A PostgreSQL whose volume was put back to an older state, and that went on from there: noticed, however far it came.

Issue 7: "a source that went back in time: detected, with an error that says what to do". It is the same server in the
same life, and its log has grown past the position: only what was committed there tells.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from helpers import eventually
from pg_mirror import Mirror, begin, catch_up, opened
from pg_server import Server
from tidegate.capture import pg_history
from tidegate.capture.pg_position import Committed, Position
from tidegate.capture.pg_source import PgSource
from tidegate.capture.pg_stream import lsn_text
from tidegate.errors import SourceGone


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.stop()


def keep(server: Server) -> None:
    """A copy of its volume."""
    server.stop_process()
    subprocess.run(["cp", "-a", str(server.folder / "data"), str(server.folder / "old")], check=True)
    server.start()


def put_back(server: Server) -> None:
    server.stop_process()
    shutil.rmtree(server.folder / "data")
    (server.folder / "old").rename(server.folder / "data")
    server.start()


def resume(source: PgSource, mirror: Mirror, *, confirm: bool = True) -> None:
    source.tables(["t"])
    source.resume(mirror.position, list(mirror.tables.values()))
    catch_up(source, mirror, confirm=confirm)


def moved_by_itself(source: PgSource, mirror: Mirror) -> bool:
    for each in source.transactions(0.2):
        mirror.take(each)
    at = Position.of(mirror.position)
    return at.last is not None and at.lsn > at.last.end_lsn


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "polling"])
@pytest.mark.parametrize("lost", ["rows", "nothing of ours"])
def test_a_volume_that_was_put_back_is_noticed_when_its_log_has_grown_past_the_position(
    server: Server, mode: str | None, lost: str
) -> None:
    name = server.new_database()
    url = server.url(name)
    with server.connect(name) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (v text)")
        with opened(url, mode=mode) as source:
            mirror = begin(source, "t")
            db.execute("INSERT INTO t VALUES (1, 'a')")
            catch_up(source, mirror)
    keep(server)
    with server.connect(name) as db, opened(url, mode=mode, idle_s=0) as source:
        resume(source, mirror)
        if lost == "rows":
            db.execute("INSERT INTO t SELECT g, 'lost by it' FROM generate_series(100, 900) g")
        else:
            db.execute("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
        catch_up(source, mirror)
        if lost == "nothing of ours":
            eventually(lambda: moved_by_itself(source, mirror), 30)
            source.confirm(mirror.position)
        at = Position.of(mirror.position)
    put_back(server)
    with server.connect(name) as db:
        while True:
            db.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1000, repeat('x', 500) FROM t")
            row = db.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn").fetchone()
            if row is not None and row[0] > at.lsn + 1_000:
                break
    with (
        opened(url, mode=mode) as source,
        pytest.raises(SourceGone, match=r"went back in time, and on from there: .*restart"),
    ):
        resume(source, mirror)


@pytest.mark.slow
def test_a_crash_that_puts_back_the_slot_alone_is_none(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slot has confirmed is on its disk a while later: it then has commits once more that were captured."""
    looked = []
    original = pg_history._last_commit
    monkeypatch.setattr(pg_history, "_last_commit", lambda *asked: looked.append(original(*asked)) or looked[-1])
    name = server.new_database()
    with server.connect(name) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with opened(server.url(name)) as source:
            mirror = begin(source)
        for number in range(5):
            with opened(server.url(name)) as source:
                resume(source, mirror, confirm=False)
                db.execute("INSERT INTO t VALUES (%s, 'a')", [number])
                catch_up(source, mirror, confirm=False)
    with opened(server.url(name)) as source:
        resume(source, mirror)
    assert looked and all(isinstance(each, Committed) for each in looked)
    assert len(mirror.rows["t"]) == 5


@pytest.mark.slow
def test_what_the_reader_before_confirms_while_the_slot_is_looked_at_is_no_way_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended a moment ago, and the server hears its last words between one question of ours and the next."""
    name = server.new_database()
    heard = []
    look = pg_history._look

    with server.connect(name) as db, server.connect(name) as other:

        def hears_and_looks(connection, address, upto):
            if not heard:
                other.execute("SELECT pg_replication_slot_advance(%s, %s)", [address.slot, lsn_text(upto)])
            heard.append(look(connection, address, upto))
            return heard[-1]

        db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with opened(server.url(name)) as source:
            mirror = begin(source)
            db.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
            catch_up(source, mirror, confirm=False)
        monkeypatch.setattr(pg_history, "_look", hears_and_looks)
        with opened(server.url(name)) as source:
            resume(source, mirror)
            db.execute("INSERT INTO t VALUES (3, 'c')")
            catch_up(source, mirror)
    assert heard == [None], "what was captured is not shown any more"
    assert sorted(mirror.rows["t"]) == [(1,), (2,), (3,)]


def test_a_position_says_what_was_committed_before_it() -> None:
    position = Position.beginning("0/16B3748", 1, "73")
    further = position.behind(Committed(0x16B4000, 731, 812)).at(0x16B5000)
    for each in (position, further):
        assert Position.of(str(each)) == each
    assert str(further) == "0/16B5000 1 73 0/16B4000@731@812"
    assert Position.of("0/16B3748 1 73").last is None, "as earlier versions wrote it"
