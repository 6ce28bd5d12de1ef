"""What applying promises of the place that it goes to, at every kind of target: whose tables are whose, what a restart
brings, and who goes on when it does not work. As `apply_suite`; "the way back" is that of issue 7 (seed 003)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

import tidegate
from apply_rig import Rig
from helpers import eventually
from tidegate.capture.applier import Applier
from tidegate.capture.target import Target, TargetBusy
from tidegate.errors import InUse, InvalidArgument

# -- whose tables are whose ------------------------------------------------------------------------------------------


def small_and_large(rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    rig.db.sql("CREATE TABLE T (id BIGINT PRIMARY KEY, v STRING)")
    rig.db.insert("t", [(1, "small")])
    rig.db.insert("T", [(2, "large")])


def test_tables_whose_names_differ_by_case_do_not_become_one(rig: Rig) -> None:
    """The way back: the target is the tables as of a cut; files know a table by any case of its name."""
    small_and_large(rig)
    if rig.kind == "postgresql":
        rig.apply("t", "T")
        assert (rig.there("t"), rig.there('SELECT * FROM "T"')) == ([(1, "small")], [(2, "large")])
        return
    for tables in (("t", "T"), ("T", "t")):
        with pytest.raises(InvalidArgument, match=r"'[tT]' and '[tT]' are two tables here and one there; apply each"):
            rig.apply(*tables)
    assert rig.there("SELECT name FROM sqlite_schema WHERE name IN ('t', 'T')") == []
    rig.apply("t")
    for policy in ("stop", "overwrite", "skip"):
        with pytest.raises(InvalidArgument, match="'T' and 't' are two tables here and one there"):
            rig.apply("t", "T", policy=policy)
    rig.db.upsert("t", [(1, "on")])
    rig.apply("t")
    assert rig.equal("t")


def test_a_table_takes_the_place_of_one_that_was_dropped_here_only_by_a_restart(rig: Rig) -> None:
    """The way back: the rows of a table that is gone are none of another one's whose name is the same there."""
    small_and_large(rig)
    rig.apply("t")
    rig.db.sql("DROP TABLE t")
    if rig.kind == "postgresql":
        rig.apply("T")
        assert (rig.there("t"), rig.there('SELECT * FROM "T"')) == ([(1, "small")], [(2, "large")])
        return
    with pytest.raises(InvalidArgument, match=r"if 't' was dropped here, start anew with restart=True"):
        rig.apply("T")
    assert rig.there("t") == [(1, "small")]
    rig.at_target("DROP TABLE t")
    rig.apply("T", restart=True)
    assert rig.there("T") == [(2, "large")]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["tidegate_applied", "TIDEGATE_Applied"])
def test_a_table_that_is_called_as_the_targets_record_is_refused(rig: Rig, name: str, restart: bool) -> None:
    """The way back: how far a target is stands in it, and nobody's rows come there."""
    rig.db.sql(
        f"CREATE TABLE {name} (name STRING PRIMARY KEY, position BIGINT NOT NULL, origin STRING NOT NULL,"
        f" applied_at STRING NOT NULL, tables STRING NOT NULL)"
    )
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    rig.apply("t", name="shop")
    before = rig.there("tidegate_applied")
    with pytest.raises(InvalidArgument, match=f"table '{name}' cannot be applied there, as that table says how far"):
        rig.apply(name, name="other", restart=restart)
    assert rig.there("tidegate_applied") == before and len(before) == 1


# -- what a restart brings -------------------------------------------------------------------------------------------


def test_a_restart_follows_columns(rig: Rig) -> None:
    """The way back: errors say `restart`, and so it must do whatever has become of the columns meanwhile."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a STRING NOT NULL, b STRING, c BIGINT, d STRING)")
    rig.db.insert("t", [(1, "a", "b", 3, "d")])
    rig.apply()
    rig.db.sql("ALTER TABLE t RENAME COLUMN a TO x")
    rig.db.sql("ALTER TABLE t RENAME COLUMN b TO a")
    rig.db.sql("ALTER TABLE t DROP COLUMN d")
    rig.db.sql("ALTER TABLE t RENAME COLUMN c TO d")
    rig.db.sql("ALTER TABLE t ADD COLUMN e DOUBLE")
    rig.db.upsert("t", [(2, "a", None, 4, 0.5)])
    rig.apply(restart=True)
    columns = "id, x, a, d, e"
    assert rig.here("t")[1] == (2, "a", None, 4, 0.5)
    if rig.kind == "postgresql":  # The dropped column has a type there.
        columns = "id, x, a, d::bigint, e"
    found = [(*row[:3], int(row[3]), row[4]) for row in rig.there(f"SELECT {columns} FROM t")]
    assert found == rig.here("t")
    rig.db.upsert("t", [(1, "aa", "bb", 5, 1.5)])
    assert rig.apply().transactions == 1
    assert rig.there("SELECT x, a, e FROM t WHERE id = 1") == [("aa", "bb", 1.5)]


def test_a_restart_exchanges_names_of_columns(rig: Rig) -> None:
    """The way back: what must have a value there stays the column that always has one."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a STRING NOT NULL, b BIGINT)")
    rig.db.insert("t", [(1, "a", None)])
    rig.apply()
    for each in ("a TO x", "b TO a", "x TO b"):
        rig.db.sql(f"ALTER TABLE t RENAME COLUMN {each}")
    rig.apply(restart=True)
    assert rig.there("SELECT id, b, a FROM t") == [(1, "a", None)]


def test_a_restart_brings_a_table_that_was_created_again(rig: Rig) -> None:
    """The way back: the error about it says `restart`; the columns that are new come, those that were stay."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a STRING)")
    rig.db.insert("t", [(1, "x")])
    rig.apply()
    rig.db.sql("DROP TABLE t")
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, c BIGINT)")
    rig.db.insert("t", [(2, 5)])
    with pytest.raises(InvalidArgument, match=r"dropped and created again.*restart=True"):
        rig.apply()
    rig.apply(restart=True)
    assert rig.there("SELECT id, a, c FROM t") == [(2, None, 5)]
    rig.db.upsert("t", [(2, 6)])
    rig.apply()
    assert rig.there("SELECT id, a, c FROM t") == [(2, None, 6)]


def test_a_restart_gives_no_columns_to_a_table_that_was_not_ours(rig: Rig) -> None:
    """The way back: a table that somebody has made must have all of our columns; with which it begins, he says."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    rig.db.sql("CREATE TABLE u (id BIGINT PRIMARY KEY, v STRING)")
    rig.apply("t")
    rig.at_target("CREATE TABLE u (id BIGINT PRIMARY KEY)")
    with pytest.raises(InvalidArgument, match="table 'u' has no column 'v'; add it"):
        rig.apply("t", "u", restart=True)


def test_a_restart_brings_a_table_that_is_gone_there(rig: Rig) -> None:
    """The way back: the error about it says `restart`."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a STRING)")
    rig.apply()
    rig.at_target("DROP TABLE t")
    rig.db.insert("t", [(1, "x")])
    with pytest.raises(InvalidArgument, match=r"'t' is gone.*restart=True"):
        rig.apply()
    rig.apply(restart=True)
    assert rig.equal()


def test_a_restart_takes_columns_of_another_database_by_their_names(
    rig: Rig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The way back: ids of columns mean something within one database only."""
    with tidegate.open(tmp_path_factory.mktemp("other") / "other.tide") as other:
        other.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, theirs STRING)")
        other.apply("t", rig.url, name="n")
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, ours STRING)")
    rig.db.insert("t", [(1, "x")])
    rig.apply(name="n", restart=True)
    assert rig.there("SELECT id, theirs, ours FROM t") == [(1, None, "x")]


# -- names with dots -------------------------------------------------------------------------------------------------


def test_tables_and_indexes_of_others_may_have_dots_in_their_names(rig: Rig) -> None:
    """What refers to a table of ours, or only is there, has the names that somebody has given it."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    rig.at_target(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)",
        'CREATE UNIQUE INDEX "t.v" ON t (v)',
        'CREATE TABLE "other.one" (id BIGINT PRIMARY KEY, t BIGINT REFERENCES t DEFERRABLE INITIALLY DEFERRED)',
    )
    rig.db.insert("t", [(1, "a"), (2, "b")])
    rig.apply()
    rig.at_target('INSERT INTO "other.one" VALUES (1, 1)')
    rig.db.delete("t", [1, 2])
    done = rig.apply(policy="skip")
    assert [each.key for each in done.conflicts] == [{"id": 1}] and "other.one" in done.conflicts[0].what
    assert rig.there("t") == [(1, "a")]


def test_a_dot_in_a_name_is_that_of_a_schema_where_there_are_schemas(rig: Rig) -> None:
    """As in what is captured from PostgreSQL; in a file it is a part of the name."""
    rig.db.sql("CREATE TABLE `shop.t` (id BIGINT PRIMARY KEY, v STRING)")
    there = '"shop.t"'
    if rig.kind == "postgresql":
        rig.at_target("CREATE SCHEMA shop")
        there = "shop.t"
    rig.db.insert("shop.t", [(1, "a"), (2, "b")])
    rig.apply()
    rig.db.sql("ALTER TABLE `shop.t` ADD COLUMN n BIGINT")
    rig.db.upsert("shop.t", [(1, "c", 3)])
    rig.db.delete("shop.t", [2])
    rig.apply()
    assert rig.there(f"SELECT * FROM {there}") == [(1, "c", 3)]
    rig.at_target(f"DELETE FROM {there}")
    rig.apply(restart=True)
    assert rig.there(f"SELECT * FROM {there}") == [(1, "c", 3)]


# -- two at once -----------------------------------------------------------------------------------------------------


def test_of_several_that_begin_at_once_at_an_empty_target_one_fills_it(rig: Rig) -> None:
    """The way back: the others are told, or find what is there, and nothing is there twice."""
    rig.db.sql("CREATE TABLE events (n BIGINT)")  # Without a key, what comes twice is there twice.
    with rig.db.transaction() as txn:
        txn.insert("events", [(number,) for number in range(100)])
    together = Barrier(3)

    def begin(_: int) -> int:
        together.wait()
        try:
            return rig.apply("events", name="n").done.copied
        except (InUse, TargetBusy):
            return 0

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(begin, range(3))) == [0, 0, 100]
    rig.db.insert("events", [(100,)])
    assert rig.apply("events", name="n").transactions == 1
    assert rig.equal("events")


def test_who_was_overtaken_as_he_began_is_not_told_that_the_database_went_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way back: between asking here how far to go and asking the target how far it is, another one went on."""
    rig.db.sql("CREATE TABLE events (n BIGINT)")
    rig.apply(name="n")
    opened = Applier._open

    def late(self: Applier) -> Target:
        monkeypatch.undo()
        rig.db.insert("events", [(1,)])
        assert rig.apply(name="n").transactions == 1
        return opened(self)

    monkeypatch.setattr(Applier, "_open", late)
    assert rig.apply(name="n").transactions == 0
    assert rig.there("events") == [(1,)]


def test_two_that_follow_under_one_name_bring_every_transaction_once(rig: Rig) -> None:
    """The way back: each is applied once, whoever else is at it; who was too late says so, and goes on."""
    rig.db.sql("CREATE TABLE events (n BIGINT)")  # Without a key, what comes twice is there twice.
    rig.apply(name="n")
    if rig.kind == "turso":  # One process at a time has it open, and its writers wait for each other only so long.
        rig.url += "?busy_s=0.2"
    with rig.apply(name="n", follow=True, chunk_rows=3) as one, rig.apply(name="n", follow=True, chunk_rows=3) as other:
        for number in range(150):
            sent = rig.db.insert("events", [(number,)]).timestamp
        eventually(lambda: max(one.position, other.position) >= sent, 60)
        assert (one.error, other.error) == (None, None)
    assert rig.there("events") == [(number,) for number in range(150)]
