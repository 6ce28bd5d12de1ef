"""What applying promises where foreign keys of the target act by themselves, as ON DELETE CASCADE does.

Run against each kind of target by the test files that take this in. Nothing is lost by what is done to make room for
other rows, and what the target has done by itself within a chunk is no conflict.
"""

from __future__ import annotations

from datetime import date

import pytest

from apply_rig import Rig
from tidegate.capture.target import ApplyConflict
from tidegate.errors import InvalidArgument

POLICIES = ("stop", "overwrite", "skip")


def relatives(rig: Rig, action: str, name: str = "TEXT") -> None:
    """Parents 1 and 2, and the child 10 of the first."""
    rig.db.sql("CREATE TABLE a_child (id BIGINT PRIMARY KEY, parent BIGINT, n BIGINT)")
    rig.db.sql("CREATE TABLE z_parent (id BIGINT PRIMARY KEY, name STRING)")
    rig.at_target(
        f"CREATE TABLE z_parent (id BIGINT PRIMARY KEY, name {name})",
        f"CREATE TABLE a_child (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES z_parent (id) {action}, n BIGINT)",
    )
    with rig.db.transaction() as txn:
        txn.insert("z_parent", [(1, "x"), (2, "y")])
        txn.insert("a_child", [(10, 1, 0)])


# -- making room -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_values_that_are_passed_on_are_not_put_aside(rig: Rig, policy: str) -> None:
    """To be NULL for a moment would make those that refer to it by ON UPDATE CASCADE NULL for ever."""
    rig.db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, u STRING)")
    rig.at_target(
        "CREATE TABLE p (id BIGINT PRIMARY KEY, u TEXT UNIQUE)",
        "CREATE TABLE own (id BIGINT PRIMARY KEY, u TEXT REFERENCES p (u) ON UPDATE CASCADE)",
    )
    rig.db.insert("p", [(1, "x"), (2, "y")])
    rig.apply()
    rig.at_target("INSERT INTO own VALUES (1, 'x'), (2, 'y')")
    rig.db.upsert("p", [(1, "y"), (2, "x")])
    if policy == "skip":
        assert rig.apply(policy=policy).done.conflicts == 2
    else:
        with pytest.raises(ApplyConflict, match="cannot be taken out for a moment, because foreign keys pass changes"):
            rig.apply(policy=policy)
    assert rig.there("own") == [(1, "x"), (2, "y")]
    assert rig.there("p") == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("policy", POLICIES)
def test_only_what_is_not_passed_on_is_put_aside(rig: Rig, policy: str) -> None:
    """Another unique column makes room; a child that waits meanwhile gets its value."""
    rig.db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, u STRING, s BIGINT)")
    rig.db.sql("CREATE TABLE c (id BIGINT PRIMARY KEY, u STRING)")
    rig.at_target(
        "CREATE TABLE p (id BIGINT PRIMARY KEY, u TEXT UNIQUE, s BIGINT UNIQUE)",
        "CREATE TABLE c (id BIGINT PRIMARY KEY, u TEXT REFERENCES p (u) ON UPDATE CASCADE)",
    )
    rig.db.insert("p", [(1, "x", 1), (2, "q", 2)])
    rig.db.insert("c", [(10, "x")])
    rig.apply()
    with rig.db.transaction() as txn:
        txn.upsert("p", [(1, "x", 2), (2, "n", 1)])
        txn.upsert("c", [(10, "n")])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.equal()


@pytest.mark.parametrize("policy", ["stop", "overwrite"])
def test_a_row_is_not_taken_out_when_the_targets_own_columns_have_values(rig: Rig, policy: str) -> None:
    """They would be gone with it; while they are empty nothing is lost."""
    one, two = date(2026, 1, 1), date(2026, 1, 2)
    rig.db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, u DATE)")
    rig.at_target("CREATE TABLE p (id BIGINT PRIMARY KEY, u DATE NOT NULL UNIQUE, note TEXT)")
    rig.db.insert("p", [(1, one), (2, two)])
    rig.apply()
    rig.db.upsert("p", [(1, two), (2, one)])
    rig.apply(policy=policy)
    rig.at_target("UPDATE p SET note = 'mine'")
    rig.db.upsert("p", [(1, one), (2, two)])
    with pytest.raises(ApplyConflict, match=r"columns of its own \(note\): let its unique columns be NULL there"):
        rig.apply(policy=policy)
    assert [(id, str(u), note) for id, u, note in rig.there("p")] == [(1, str(two), "mine"), (2, str(one), "mine")]


# -- starting anew ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_a_restart_does_not_touch_rows_of_others(rig: Rig, action: str) -> None:
    rig.db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, u STRING)")
    rig.at_target(
        "CREATE TABLE p (id BIGINT PRIMARY KEY, u TEXT)",
        f"CREATE TABLE notes (id BIGINT PRIMARY KEY, p BIGINT REFERENCES p (id) ON DELETE {action})",
    )
    rig.db.insert("p", [(1, "x")])
    rig.apply()
    rig.apply(restart=True)
    rig.at_target("INSERT INTO notes VALUES (1, 1)", "UPDATE p SET u = 'else'")
    with pytest.raises(InvalidArgument, match=r"'p' cannot be emptied.*'notes'.*policy='overwrite' under another name"):
        rig.apply(restart=True)
    assert (rig.there("p"), rig.there("notes")) == ([(1, "else")], [(1, 1)])
    rig.apply(name="another", policy="overwrite")
    assert (rig.there("p"), rig.there("notes")) == ([(1, "x")], [(1, 1)])


def test_a_restart_empties_tables_that_are_applied_together(rig: Rig) -> None:
    relatives(rig, "ON DELETE CASCADE")
    rig.apply()
    rig.at_target("UPDATE a_child SET n = 9")
    rig.apply(restart=True)
    assert rig.equal()


# -- what the target does by itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_deletion_did_to_children_here_is_no_conflict_there(rig: Rig, policy: str) -> None:
    """Both sides have ON DELETE SET NULL: the child's change is in the transaction, too."""
    relatives(rig, "ON DELETE SET NULL")
    rig.apply()
    with rig.db.transaction() as txn:
        txn.delete("z_parent", [1])
        txn.upsert("a_child", [(10, None, 0)])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.equal("z_parent") and rig.there("a_child") == [(10, None, 0)]


@pytest.mark.parametrize("name", ["TEXT", "TEXT UNIQUE", "TEXT NOT NULL UNIQUE"])
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_parent_that_gets_another_key_keeps_its_children(rig: Rig, policy: str, action: str, name: str) -> None:
    """Here it goes and comes under another key; they refer to that before the old one goes, or come again."""
    relatives(rig, f"ON UPDATE CASCADE ON DELETE {action}", name)
    rig.apply()
    with rig.db.transaction() as txn:
        txn.delete("z_parent", [1])
        txn.insert("z_parent", [(3, "x")])
        txn.upsert("a_child", [(10, 3, 1)])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.equal()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_value_that_the_target_has_passed_on_is_no_conflict(rig: Rig, policy: str) -> None:
    """ON UPDATE CASCADE on both sides; the child has changed otherwise, too."""
    rig.db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, u STRING)")
    rig.db.sql("CREATE TABLE c (id BIGINT PRIMARY KEY, u STRING, n BIGINT)")
    rig.at_target(
        "CREATE TABLE p (id BIGINT PRIMARY KEY, u TEXT UNIQUE)",
        "CREATE TABLE c (id BIGINT PRIMARY KEY, u TEXT REFERENCES p (u) ON UPDATE CASCADE, n BIGINT)",
    )
    rig.db.insert("p", [(1, "x")])
    rig.db.insert("c", [(10, "x", 1), (11, "x", 1)])
    rig.apply()
    with rig.db.transaction() as txn:
        txn.upsert("p", [(1, "y")])
        txn.upsert("c", [(10, "y", 1), (11, "y", 2)])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.equal()


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_that_go_with_others_of_their_table_are_no_conflict(rig: Rig, policy: str) -> None:
    rig.db.sql("CREATE TABLE staff (id BIGINT PRIMARY KEY, boss BIGINT)")
    rig.at_target(
        "CREATE TABLE staff (id BIGINT PRIMARY KEY, boss BIGINT REFERENCES staff (id) ON DELETE CASCADE)",
    )
    rig.db.insert("staff", [(1, 1)])
    rig.apply()
    rig.db.insert("staff", [(2, 1)])
    rig.db.insert("staff", [(3, 2)])
    rig.apply()
    rig.db.delete("staff", [(1,), (2,), (3,)])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.there("staff") == []


def test_what_somebody_else_did_to_a_child_is_a_conflict(rig: Rig) -> None:
    """Only what was as it should be when the chunk began is taken for the target's own doing."""
    relatives(rig, "ON DELETE CASCADE")
    rig.apply()
    rig.at_target("DELETE FROM a_child")
    with rig.db.transaction() as txn:
        txn.delete("z_parent", [1])
        txn.delete("a_child", [10])
    with pytest.raises(ApplyConflict, match="'a_child', id = 10: the row to be changed is not there"):
        rig.apply()
    assert rig.there("SELECT id FROM z_parent") == [(1,), (2,)]
