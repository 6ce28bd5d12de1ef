"""What applying promises where rows refer to each other: to later ones, to themselves, in circles over several tables.

Run against each kind of target by the test files that take this in. Foreign keys that are put off need no care;
PostgreSQL's are checked at once unless they are DEFERRABLE, and Turso's always.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from apply_rig import Rig
from tidegate.capture.target import ApplyConflict

POLICIES = ("stop", "overwrite", "skip")


def tree(rig: Rig, parent: str = "BIGINT REFERENCES tree (id)") -> None:
    rig.db.sql("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT, name STRING)")
    rig.at_target(f"CREATE TABLE tree (id BIGINT PRIMARY KEY, parent {parent}, name TEXT)")


def couples(rig: Rig) -> None:
    """Each of two tables refers to the other, and one to itself as well."""
    rig.db.sql("CREATE TABLE heads (id BIGINT PRIMARY KEY, part BIGINT, above BIGINT)")
    rig.db.sql("CREATE TABLE parts (id BIGINT PRIMARY KEY, head BIGINT, n BIGINT)")
    heads = "CREATE TABLE heads (id BIGINT PRIMARY KEY, part BIGINT{}, above BIGINT REFERENCES heads (id))"
    parts = "CREATE TABLE parts (id BIGINT PRIMARY KEY, head BIGINT REFERENCES heads (id), n BIGINT)"
    if rig.kind == "postgresql":
        later = "ALTER TABLE heads ADD FOREIGN KEY (part) REFERENCES parts (id)"
        rig.at_target(heads.format(""), parts, later)
    else:
        rig.at_target(heads.format(" REFERENCES parts (id)"), parts)


def refuses(rig: Rig) -> bool:
    """Whether the target checks at once."""
    return rig.kind != "sqlite"


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_that_refer_to_later_ones_and_in_circles_are_copied(rig: Rig, policy: str) -> None:
    tree(rig)
    rig.db.insert("tree", [(1, 5, "leaf"), (2, 3, "a"), (3, 4, "b"), (4, 2, "c"), (5, None, "root"), (6, 6, "self")])
    done = rig.apply(policy=policy)
    assert rig.equal("tree")
    assert (done.done.copied, done.done.conflicts) == (6, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_tables_that_refer_to_each_other_are_copied(rig: Rig, policy: str) -> None:
    couples(rig)
    rig.db.insert("heads", [(1, 10, 2), (2, 20, 1), (3, None, None)])
    rig.db.insert("parts", [(10, 1, 0), (20, 2, 0), (30, 1, 0)])
    rig.apply(policy=policy)
    assert rig.equal()
    rig.db.upsert("heads", [(3, 30, 2)])
    rig.apply(policy=policy)
    assert rig.equal()


def test_rows_that_are_there_already_stay_while_others_come_in_circles(rig: Rig) -> None:
    """Those that are equal are no conflict, and those that are not are one, once."""
    tree(rig)
    rig.at_target("INSERT INTO tree VALUES (9, NULL, 'equal'), (8, 9, 'equal'), (7, 9, 'other')")
    rig.db.insert("tree", [(1, 2, "a"), (2, 1, "b"), (7, 8, "ours"), (8, 9, "equal"), (9, None, "equal")])
    done = rig.apply(policy="skip")
    assert [(each.key, each.what) for each in done.conflicts] == [
        ({"id": 7}, "a row with this key is there already, with other values")
    ]
    assert (done.done.copied, done.done.conflicts) == (2, 1)
    assert rig.there("tree") == [(1, 2, "a"), (2, 1, "b"), (7, 9, "other"), (8, 9, "equal"), (9, None, "equal")]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_transaction_may_bring_change_and_take_a_circle(rig: Rig, policy: str) -> None:
    couples(rig)
    rig.apply(policy=policy)
    with rig.db.transaction() as txn:
        txn.insert("heads", [(1, 10, 2), (2, 20, 1)])
        txn.insert("parts", [(10, 2, 0), (20, 1, 0)])
    rig.apply(policy=policy)
    assert rig.equal() and rig.there("heads") == [(1, 10, 2), (2, 20, 1)]
    with rig.db.transaction() as txn:  # The first goes, and what referred to it refers to a new circle.
        txn.delete("heads", [1])
        txn.delete("parts", [10])
        txn.upsert("heads", [(2, 20, 3), (3, 30, 2)])
        txn.upsert("parts", [(20, 3, 1), (30, 2, 1)])
    rig.apply(policy=policy)
    assert rig.equal() and rig.there("parts") == [(20, 3, 1), (30, 2, 1)]
    with rig.db.transaction() as txn:
        txn.delete("heads", [2, 3])
        txn.delete("parts", [20, 30])
    done = rig.apply(policy=policy)
    assert rig.there("heads") == rig.there("parts") == []
    assert done.conflicts == []


def test_a_restart_empties_and_copies_a_circle(rig: Rig) -> None:
    couples(rig)
    rig.db.insert("heads", [(1, 10, 1)])
    rig.db.insert("parts", [(10, 1, 0)])
    rig.apply()
    rig.db.upsert("parts", [(10, 1, 1)])
    rig.apply(restart=True)
    assert rig.equal() and rig.there("parts") == [(10, 1, 1)]


@pytest.mark.parametrize("tables", [("teams", "people"), ("people", "teams")])
def test_a_circle_of_tables_is_emptied_and_copied_by_the_column_that_may_be_null(rig: Rig, tables: tuple[str]) -> None:
    """Whichever table is named first; a key that does not say what it refers to means the primary key."""
    rig.db.sql("CREATE TABLE teams (id BIGINT PRIMARY KEY, lead BIGINT)")
    rig.db.sql("CREATE TABLE people (id BIGINT PRIMARY KEY, team BIGINT)")
    rig.at_target(
        "CREATE TABLE teams (id BIGINT PRIMARY KEY, lead BIGINT)",
        "CREATE TABLE people (id BIGINT PRIMARY KEY, team BIGINT NOT NULL REFERENCES teams)",
    )
    if rig.kind == "postgresql":
        rig.at_target("ALTER TABLE teams ADD FOREIGN KEY (lead) REFERENCES people")
    with rig.db.transaction() as txn:
        txn.insert("teams", [(1, 11), (2, 12)])
        txn.insert("people", [(11, 1), (12, 2)])
    for _ in range(2):
        rig.apply(*tables, restart=True)
        assert rig.equal()


@pytest.mark.parametrize("when", ["copied", "applied"])
def test_what_refers_to_nothing_is_a_conflict_among_rows_in_circles(rig: Rig, when: str) -> None:
    """Nothing stays half done: with `stop` nothing comes, with `skip` all the others do."""
    tree(rig)
    if when == "applied":
        rig.apply()
    rows = [(1, 2, "a"), (2, 1, "b"), (3, 99, "lost")]
    rig.db.insert("tree", rows)
    with pytest.raises(ApplyConflict, match=r"(?i)foreign key"):
        rig.apply()
    assert rig.there("tree") == []
    done = rig.apply(policy="skip")
    assert [each.key for each in done.conflicts] == [{"id": 3}]
    assert rig.there("tree") == rows[:2]


@pytest.mark.parametrize("when", ["copied", "applied"])
def test_a_row_that_others_refer_to_stays_without_what_is_not_there(rig: Rig, when: str) -> None:
    tree(rig)
    if when == "applied":
        rig.apply()
    rig.db.insert("tree", [(1, 99, "lost"), (2, 1, "its child"), (3, 4, "c"), (4, 3, "d")])
    done = rig.apply(policy="skip")
    keys = [each.key for each in done.conflicts]
    there = rig.there("tree")
    assert {"id": 1} in keys and there[-2:] == [(3, 4, "c"), (4, 3, "d")]
    # Which of the two goes first is the target's to say; a child is never there without its parent.
    assert there[:-2] in ([], [(1, None, "lost"), (2, 1, "its child")])


def test_a_circle_that_cannot_be_opened_is_a_conflict(rig: Rig) -> None:
    """Neither NULL nor put off: such rows cannot come one after the other."""
    tree(rig, parent="BIGINT NOT NULL REFERENCES tree (id)")
    rig.db.insert("tree", [(1, 2, "a"), (2, 1, "b")])
    if not refuses(rig):
        rig.apply()
        assert rig.equal("tree")
        return
    with pytest.raises(ApplyConflict, match=r"(?i)foreign key"):
        rig.apply()
    assert rig.there("tree") == []


@pytest.mark.parametrize("seed", range(3))
def test_random_circles_arrive_as_they_are(rig: Rig, seed: int) -> None:
    """Random transactions whose ends keep all references, over tables that refer to each other and themselves."""
    dice = random.Random(seed)
    couples(rig)
    heads: dict[int, tuple[Any, ...]] = {}
    parts: dict[int, tuple[Any, ...]] = {}
    for turn in range(12):
        was = {"heads": dict(heads), "parts": dict(parts)}
        for _ in range(dice.randint(1, 5)):
            table = dice.choice([heads, parts])
            key = dice.randint(1, 6)
            if dice.random() < 0.3:
                table.pop(key, None)
            else:
                table[key] = (key, dice.randint(1, 6), dice.randint(1, 6))
        for key, (_, part, above) in heads.items():
            heads[key] = (key, part if part in parts else None, above if above in heads else None)
        for key, (_, head, n) in parts.items():
            parts[key] = (key, head if head in heads else None, n)
        with rig.db.transaction() as txn:
            for name, now in (("heads", heads), ("parts", parts)):
                gone = sorted(was[name].keys() - now.keys())
                changed = [row for key, row in now.items() if was[name].get(key) != row]
                if gone:
                    txn.delete(name, gone)
                if changed:
                    txn.upsert(name, changed)
        if turn % 3 == 2:
            rig.apply(policy=dice.choice(POLICIES), chunk_rows=dice.choice([1, 1000]))
            assert rig.there("heads") == sorted(heads.values()), f"seed {seed}, turn {turn}"
            assert rig.there("parts") == sorted(parts.values()), f"seed {seed}, turn {turn}"
