"""Applying to files: values of all types, and what can be wrong with one: each error names it and leaves it whole."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import turso

from apply_rig import Rig
from database_rig import quick
from folding import folding
from helpers import eventually
from tidegate import Timestamp
from tidegate.capture import target_sqlite
from tidegate.capture.target import ApplyConflict, TargetBusy, TargetRefused, identity_of, open_target, without_password
from tidegate.capture.target_sqlite import SqliteTarget
from tidegate.database import engine as engine_module
from tidegate.errors import DiskFull, InvalidArgument, NotFound, Truncated, Unavailable
from tidegate.runtime.settings import LogSettings

TYPES = (
    "CREATE TABLE all_types (id BIGINT PRIMARY KEY, flag BOOLEAN, tiny TINYINT, small SMALLINT, mid INT, f FLOAT,"
    " d DOUBLE, s STRING, b BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, n DECIMAL(38, 10),"
    " list ARRAY<STRING>, pair STRUCT<a: INT, b: DECIMAL(4, 2)>, named MAP<STRING, BIGINT>, numbered MAP<INT, STRING>)"
)
FULL = {
    "id": -(2**63),
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "mid": -(2**31),
    "f": 0.5,
    "d": 1e300,
    "s": "ü'\"\n☃",
    "b": b"\x00\xff",
    "day": date(2024, 2, 29),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "local": datetime(1999, 12, 31, 23, 59, 59),
    "n": Decimal("12345678901234567890.0000000001"),
    "list": ["a", None, "ü"],
    "pair": {"a": 1, "b": Decimal("0.10")},
    "named": {"x": 1, "y": None},
    "numbered": {7: "seven"},
}


@pytest.fixture(params=["sqlite", "turso"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    path = tmp_path / "target.db"
    connect: Any = sqlite3.connect if request.param == "sqlite" else turso.connect
    look = connect(str(path), isolation_level=None)
    found = Rig(tmp_path / "here.tide", f"{request.param}:///{path}", look, request.param)
    yield found
    found.close()


@pytest.fixture
def sqlite_rig(tmp_path: Path) -> Iterator[Rig]:
    path = tmp_path / "target.db"
    found = Rig(
        tmp_path / "here.tide", f"sqlite:///{path}?busy_s=0.1", sqlite3.connect(path, isolation_level=None), "sqlite"
    )
    found.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, s STRING)")
    found.db.insert("t", [(1, "one")])
    found.apply()
    yield found
    found.close()


def test_values_of_every_type_arrive_and_are_compared(rig: Rig) -> None:
    """Values for all types both ways: as they are written, and as the rows before a change."""
    rig.db.sql(TYPES)
    empty = dict.fromkeys(FULL) | {"id": 1}
    rig.db.insert("all_types", [FULL, empty])
    rig.apply()
    (full,) = rig.there(f"SELECT * FROM all_types WHERE id = {FULL['id']}")
    found = dict(zip(FULL, full, strict=True))
    assert found == FULL | {
        "flag": 1,
        "day": "2024-02-29",
        "at": "2026-01-02 03:04:05.678901",
        "local": "1999-12-31 23:59:59.000000",
        "n": "12345678901234567890.0000000001",
        "list": '["a",null,"ü"]',
        "pair": '{"a":1,"b":"0.10"}',
        "named": '{"x":1,"y":null}',
        "numbered": '[[7,"seven"]]',
    }
    assert all(json.loads(found[each]) for each in ("list", "pair", "named", "numbered"))
    # Each of them is what it was, also NULLs: else these would be conflicts.
    rig.db.upsert("all_types", [FULL | {"s": "changed"}, empty | {"s": "changed"}])
    rig.apply()
    rig.db.delete("all_types", [FULL["id"]])
    done = rig.apply()
    assert done.transactions == 1 and rig.there("SELECT id, s FROM all_types") == [(1, "changed")]


def test_numbers_that_are_none_are_null_in_sqlite(rig: Rig) -> None:
    """SQLite has no NaN; a row that has one is still what it was."""
    rig.db.sql("CREATE TABLE m (id BIGINT PRIMARY KEY, d DOUBLE)")
    rig.db.insert("m", [(1, float("nan")), (2, float("inf"))])
    rig.apply()
    assert rig.there("m") == [(1, None), (2, float("inf"))]
    rig.db.upsert("m", [(1, 1.0), (2, 2.0)])
    rig.apply()
    assert rig.there("m") == [(1, 1.0), (2, 2.0)]


# -- what can be wrong with a file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "turso"])
def test_a_locked_file_is_waited_for_and_then_named(kind: str, tmp_path: Path) -> None:
    """Locked (busy): nothing is half applied, and a repeat goes on."""
    path = tmp_path / "target.db"
    connect: Any = sqlite3.connect if kind == "sqlite" else turso.connect
    rig = Rig(tmp_path / "here.tide", f"{kind}:///{path}?busy_s=0.1", connect(str(path), isolation_level=None), kind)
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, s STRING)")
    rig.db.insert("t", [(1, "one")])
    rig.apply()
    rig.db.upsert("t", [(1, "new"), (2, "two")])
    rig.at_target("BEGIN IMMEDIATE")
    with pytest.raises(TargetBusy, match=r"target\.db is locked by another connection.*busy_s"):
        rig.apply()
    rig.at_target("COMMIT")
    assert rig.apply().transactions == 2
    assert rig.equal()
    rig.close()


def test_who_follows_gets_over_a_lock_by_itself(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    with rig.apply(follow=True) as following:
        rig.at_target("BEGIN IMMEDIATE")
        sent = rig.db.upsert("t", [(1, "new")])
        while following.trouble is None:
            pass
        assert "locked" in str(following.status()["trouble"])
        rig.at_target("COMMIT")
        following.wait_for(sent.timestamp)
        assert following.status()["error"] is None
    assert rig.equal()


def test_a_full_disk_leaves_whole_transactions(sqlite_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full (SQLite says so at `max_page_count`): the chunk is absent as a whole; with room, a repeat goes on."""
    rig = sqlite_rig
    connect = SqliteTarget._connect

    def small(self: SqliteTarget) -> Any:
        found = connect(self)
        found.execute("PRAGMA max_page_count = 20")
        return found

    with rig.db.transaction() as txn:
        txn.upsert("t", [(1, "changed"), *((number, "x" * 1000) for number in range(10, 200))])
    monkeypatch.setattr(SqliteTarget, "_connect", small)
    with pytest.raises(DiskFull, match=r"target\.db.*make room"):
        rig.apply()
    assert rig.there("t") == [(1, "one")]
    monkeypatch.undo()
    assert rig.apply().transactions == 1
    assert rig.equal()


def test_a_file_that_may_only_be_read_is_named(sqlite_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = sqlite_rig
    rig.db.upsert("t", [(1, "new")])
    path = rig.url.removeprefix("sqlite:///").partition("?")[0]
    monkeypatch.setattr(
        SqliteTarget,
        "_connect",
        lambda _: sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False),
    )
    with pytest.raises(Unavailable, match=r"target\.db cannot be written to.*permissions"):
        rig.apply()
    monkeypatch.undo()
    rig.apply()
    assert rig.equal()


def test_what_is_no_database_is_named(sqlite_rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database " * 1000)
    with pytest.raises(Unavailable, match=r"text\.db cannot be opened"):
        sqlite_rig.db.apply("t", f"sqlite:///{tmp_path}/text.db")
    with pytest.raises(InvalidArgument, match=r"there is no directory .*missing"):
        sqlite_rig.db.apply("t", f"sqlite:///{tmp_path}/missing/t.db")
    with pytest.raises(InvalidArgument, match=r"names no file"):
        sqlite_rig.db.apply("t", "sqlite://")
    with pytest.raises(InvalidArgument, match="unknown option 'speed'"):
        sqlite_rig.db.apply("t", f"sqlite:///{tmp_path}/t.db?speed=9")


@pytest.mark.parametrize("parent", [None, "CREATE TABLE p (id INTEGER)"])
def test_a_foreign_key_that_can_never_hold_says_what_to_do(sqlite_rig: Rig, parent: str | None) -> None:
    """SQLite asks for nothing of what a foreign key names until it is enforced, which applications often leave out."""
    rig = sqlite_rig
    rig.at_target("CREATE TABLE c (id INTEGER PRIMARY KEY, p INTEGER REFERENCES p (id))", *([parent] if parent else []))
    rig.db.sql("CREATE TABLE c (id BIGINT PRIMARY KEY, p BIGINT)")
    rig.db.insert("c", [(1, 2)])
    with pytest.raises(InvalidArgument, match=r"a foreign key refers to what is not there, .*foreign_keys=off"):
        rig.apply("c", name="c")
    rig.db.apply("c", rig.url + "&foreign_keys=off", name="c")
    assert rig.there("c") == [(1, 2)]


def test_foreign_keys_may_be_left_to_others(tmp_path: Path) -> None:
    """`foreign_keys=off`: as SQLite's own default."""
    path = tmp_path / "target.db"
    look = sqlite3.connect(path, isolation_level=None)
    rig = Rig(tmp_path / "here.tide", f"sqlite:///{path}?foreign_keys=off", look, "sqlite")
    rig.at_target("CREATE TABLE p (id INTEGER PRIMARY KEY)")
    rig.at_target("CREATE TABLE c (id INTEGER PRIMARY KEY, p INTEGER REFERENCES p (id))")
    rig.db.sql("CREATE TABLE c (id BIGINT PRIMARY KEY, p BIGINT)")
    rig.db.insert("c", [(1, 99)])
    rig.apply("c")
    assert rig.equal("c")
    rig.close()


def test_names_do_not_make_an_error_another_one(sqlite_rig: Rig) -> None:
    """A message that has `full` or `locked` in the name of a table is about the table."""
    rig = sqlite_rig
    rig.db.sql("CREATE TABLE is_locked (id BIGINT PRIMARY KEY, disk_is_full BIGINT)")
    rig.apply("t", "is_locked")
    assert rig.there("is_locked") == []  # It is there, though it has no rows yet.
    rig.db.insert("is_locked", [(1, 1)])
    rig.at_target("DROP TABLE is_locked")
    with pytest.raises(InvalidArgument, match=r"'is_locked' is gone"):
        rig.apply("t", "is_locked")


TURNED_AWAY = "CREATE TRIGGER no BEFORE INSERT ON t WHEN new.id % 2 BEGIN SELECT RAISE(IGNORE); END"


@pytest.mark.parametrize("policy", ["stop", "overwrite", "skip"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_row_that_a_trigger_turns_away_is_a_conflict(tmp_path: Path, policy: Any, is_first: bool) -> None:
    """RAISE(IGNORE) says nothing: that the row has not come shows by the count, at the start as later."""
    path = tmp_path / "target.db"
    rig = Rig(tmp_path / "here.tide", f"sqlite:///{path}", sqlite3.connect(path, isolation_level=None), "sqlite")
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, s STRING)")
    rig.at_target("CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT)", TURNED_AWAY)
    if not is_first:
        rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("t", [(number, "x") for number in range(5)])
    if policy == "skip":
        done = rig.apply(policy=policy)
        assert [each.key["id"] for each in done.conflicts] == [1, 3]
        assert rig.there("t") == [(0, "x"), (2, "x"), (4, "x")]
        assert done.done.copied == (3 if is_first else 0)
    else:
        with pytest.raises(ApplyConflict, match=r"table 't', id = 1: the target has not taken the row.*trigger"):
            rig.apply(policy=policy)
        assert rig.there("t") == []
    rig.close()


def made_anew(rig: Rig, *statements: str) -> None:
    rig.at_target("DROP TABLE t", *statements, "INSERT INTO t VALUES (1, 'one')")


def test_a_constraint_that_replaces_rows_replaces_none_in_silence(sqlite_rig: Rig) -> None:
    """ON CONFLICT REPLACE would take a row of somebody else, and say nothing."""
    rig = sqlite_rig
    made_anew(
        rig, "CREATE TABLE t (id INTEGER PRIMARY KEY ON CONFLICT REPLACE, s TEXT NOT NULL UNIQUE ON CONFLICT REPLACE)"
    )
    rig.at_target("INSERT INTO t VALUES (2, 'theirs'), (7, 'taken')")
    with rig.db.transaction() as txn:
        txn.insert("t", [(2, "ours"), (3, "taken"), (4, "x"), (5, "y")])
    done = rig.apply(policy="skip")
    assert sorted(each.key["id"] for each in done.conflicts) == [2, 3]
    theirs = [(1, "one"), (2, "theirs"), (7, "taken")]
    assert rig.there("t") == sorted([*theirs, (4, "x"), (5, "y")])
    rig.db.upsert("t", [(4, "y"), (5, "x")])
    assert not rig.apply().conflicts
    assert rig.there("t") == sorted([*theirs, (4, "y"), (5, "x")])


def test_triggers_replace_rows_where_they_say_so(sqlite_rig: Rig) -> None:
    """What a statement says of conflicts counts for triggers, too: ours says nothing where it need not."""
    rig = sqlite_rig
    rig.at_target(
        "CREATE TABLE newest (one INTEGER PRIMARY KEY, id)",
        "CREATE TRIGGER note AFTER INSERT ON t BEGIN INSERT OR REPLACE INTO newest VALUES (1, new.id); END",
    )
    rig.db.insert("t", [(2, "a"), (3, "b")])
    rig.apply()
    assert rig.equal("t") and rig.there("newest") == [(1, 3)]


def test_a_trigger_that_rolls_back_says_what_to_do(sqlite_rig: Rig) -> None:
    """RAISE(ROLLBACK) ends the transaction: there is nothing left to go on with, and nothing of it is there."""
    rig = sqlite_rig
    rig.at_target(
        "CREATE TRIGGER no BEFORE INSERT ON t WHEN new.s = 'bad' BEGIN SELECT RAISE(ROLLBACK, 'not here'); END"
    )
    rig.db.insert("t", [(2, "good"), (3, "bad"), (4, "good")])
    with pytest.raises(TargetRefused, match=r"not here; a trigger has rolled .* back.*RAISE\(ABORT"):
        rig.apply(policy="skip")
    assert rig.there("t") == [(1, "one")]


def test_a_row_that_a_trigger_puts_elsewhere_has_come(tmp_path: Path) -> None:
    """The row is there, though the target has not counted it."""
    path = tmp_path / "target.db"
    rig = Rig(tmp_path / "here.tide", f"sqlite:///{path}", sqlite3.connect(path, isolation_level=None), "sqlite")
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, s STRING)")
    rig.at_target(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT, by TEXT)",
        "CREATE TRIGGER other BEFORE INSERT ON t WHEN new.by IS NULL BEGIN"
        " INSERT INTO t VALUES (new.id, new.s, 'trigger'); SELECT RAISE(IGNORE); END",
    )
    rig.db.insert("t", [(1, "x")])
    assert rig.apply().done.copied == 1
    rig.db.insert("t", [(2, "y")])
    assert rig.apply().rows == 1
    assert rig.there("t") == [(1, "x", "trigger"), (2, "y", "trigger")]
    rig.close()


# -- what can be wrong here ------------------------------------------------------------------------------------------


@pytest.fixture
def folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """With checkpoints, and segments that end soon."""
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    path = tmp_path / "target.db"
    settings = quick(log=LogSettings(tick_interval_ms=5, segment_bytes=4096))
    found = Rig(
        tmp_path / "here.tide", f"sqlite:///{path}", sqlite3.connect(path, isolation_level=None), "sqlite", settings
    )
    found.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, s STRING)")
    found.db.insert("t", [(1, "one")])
    found.apply()
    yield found
    found.close()


def test_a_log_that_is_gone_says_to_start_anew(folded: Rig) -> None:
    """Retention: the log behind the position is gone."""
    rig = folded
    for number in range(300):
        rig.db.upsert("t", [(number, "x" * 100)])
    rig.db.flush()
    log = rig.db.engine.log
    log.seal()
    newest = {each: log.segments(each)[-1].first_position for each in rig.db.engine.channels}
    assert any([log.truncate(each, position) for each, position in newest.items()])
    for policy in ("stop", "overwrite"):
        with pytest.raises(Truncated, match=r"not in the log .*restart=True"):
            rig.apply(policy=policy)
    assert rig.there("t") == [(1, "one")]
    rig.apply(restart=True)
    assert rig.equal()
    rig.db.upsert("t", [(1, "new")])
    rig.apply()
    assert rig.equal()


def test_a_start_that_the_log_has_lost_leaves_nothing_behind(folded: Rig) -> None:
    """The way back: a position is written only when what follows it can come."""
    rig = folded
    early = rig.db.upsert("t", [(1, "early")]).timestamp
    before = rig.there("tidegate_applied")
    for number in range(300):
        rig.db.upsert("t", [(number, "x" * 100)])
    rig.db.flush()
    log = rig.db.engine.log
    log.seal()
    newest = {each: log.segments(each)[-1].first_position for each in rig.db.engine.channels}
    assert any([log.truncate(each, position) for each, position in newest.items()])
    with pytest.raises(Truncated, match=r"start is .*does not have what follows.*'snapshot', 'now' or a later"):
        rig.apply(name="late", start=early)
    assert rig.there("tidegate_applied") == before
    rig.apply(name="late", start="now")
    rig.db.upsert("t", [(1000, "new")])
    assert rig.apply(name="late", policy="overwrite").transactions == 1
    assert rig.there("t") == [(1, "one"), (1000, "new")]


def test_rows_before_are_found_behind_checkpoints(folded: Rig) -> None:
    """What the rows were where the target is, though the tables are further."""
    rig = folded
    rig.db.upsert("t", [(number, "old") for number in range(50)])
    rig.apply()
    for number in range(5):
        rig.db.upsert("t", [(each, f"{number}") for each in range(number, 50, 7)])
        rig.db.delete("t", [number])
        rig.db.flush()
    assert rig.apply(chunk_rows=3).done.conflicts == 0
    assert rig.equal()


def test_rows_before_that_are_not_kept_are_said_so(sqlite_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position older than the checkpoints that are kept: only overwriting, which does not ask, can go on."""
    rig = sqlite_rig
    rig.db.upsert("t", [(1, "new")])

    def gone(*_: Any, **__: Any) -> None:
        raise Truncated("the time is older than the retention time")

    monkeypatch.setattr(rig.db.cut_reader, "query", gone)
    with pytest.raises(Truncated, match=r"table 't'.*policy='overwrite'.*restart=True"):
        rig.apply()
    rig.apply(policy="overwrite")
    assert rig.there("t") == [(1, "new")]


def test_a_database_that_went_back_is_noticed(sqlite_rig: Rig) -> None:
    """A target that is further than the database: it was restored from an older copy."""
    rig = sqlite_rig
    rig.at_target(f"UPDATE tidegate_applied SET position = {int(Timestamp.compose(4_000_000_000_000))}")
    with pytest.raises(InvalidArgument, match=r"restored from an older copy.*restart=True"):
        rig.apply()


def test_a_target_that_has_lost_commits_gets_them_again(sqlite_rig: Rig) -> None:
    """A server that does not wait for its disk loses the last commits with the power: its position goes back as well,
    and who follows goes on from there."""
    rig = sqlite_rig
    with rig.apply(follow=True) as following:
        following.wait_for(rig.db.upsert("t", [(1, "kept")]).timestamp)
        ((position,),) = rig.there("SELECT position FROM tidegate_applied")
        following.wait_for(rig.db.upsert("t", [(1, "lost")]).timestamp)
        rig.at_target("BEGIN IMMEDIATE")
        sent = rig.db.upsert("t", [(1, "new"), (2, "two")]).timestamp
        eventually(lambda: following.trouble is not None)
        rig.at_target("UPDATE t SET s = 'kept'", f"UPDATE tidegate_applied SET position = {position}", "COMMIT")
        following.wait_for(sent)
    assert rig.equal()


def test_a_view_is_not_applied(sqlite_rig: Rig) -> None:
    sqlite_rig.db.sql("CREATE MATERIALIZED VIEW v AS SELECT s, count(*) AS n FROM t GROUP BY s")
    with pytest.raises(InvalidArgument, match="'v' is a view"):
        sqlite_rig.apply("v")
    with pytest.raises(NotFound):
        sqlite_rig.apply("t", "u")


@pytest.mark.parametrize("name", ["g", "t", "keys"])
def test_no_table_is_taken_for_what_a_chunk_asks_with(sqlite_rig: Rig, name: str) -> None:
    """The rows before a change are asked for by keys that are given beside the tables, whatever these are called."""
    rig = sqlite_rig
    rig.db.sql(f"CREATE TABLE IF NOT EXISTS {name} (id BIGINT PRIMARY KEY, s STRING)")
    rig.db.upsert(name, [(1, "a"), (2, "b")])
    rig.apply("t", name)
    for number in range(2):
        assert len(rig.here(name)) == 2  # Its view stays where a later query is answered.
        rig.db.upsert(name, [(1, f"{number}")])
        rig.db.upsert("t", [(1, f"t{number}")])
        assert rig.apply("t", name).done.conflicts == 0
    assert rig.equal(name)


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_file_is_the_same_whichever_way_it_is_reached(tmp_path: Path) -> None:
    """By its identity a loop is recognised."""
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    identities = {
        identity_of(f"{kind}:///{tmp_path}/{name}") for kind in ("sqlite", "turso") for name in ("real.db", "link.db")
    }
    assert identities == {f"sqlite:{(tmp_path / 'real.db').resolve()}"}
    target = open_target(f"sqlite:///{tmp_path}/link.db")
    assert {f"sqlite:///{tmp_path}/real.db", f"turso:///{tmp_path}/link.db"} <= target.known_as
    target.close()


def test_a_password_is_not_shown() -> None:
    assert without_password("postgresql://me:secret@host/db?x=1") == "postgresql://me@host/db?x=1"
    assert without_password("sqlite:///a@b:c.db") == "sqlite:///a@b:c.db"


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The extra to install is said."""
    monkeypatch.setitem(__import__("sys").modules, "turso", None)
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(InvalidArgument, match=r"tidegate\[turso\]"):
        open_target(f"turso:///{tmp_path}/t.db")
    with pytest.raises(InvalidArgument, match=r"tidegate\[postgres\]"):
        open_target("postgresql://host/db")
    assert target_sqlite.sqlite_identity(tmp_path).startswith("sqlite:/")
