"""What applying promises where rows stand in each other's way, and where some of them have to be left out.

Run against each kind of target by the test files that take this in. "The way back" is that of issue 7 and of seed 003.
"""

from __future__ import annotations

from typing import Any

import pytest

from apply_rig import Rig
from tidegate.capture.target import ApplyConflict, Target, open_target

POLICIES = ("stop", "overwrite", "skip")


@pytest.fixture
def calls(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are given to the target with rows."""
    target = open_target(rig.url)
    kind: type[Target] = type(target)
    target.close()
    found: list[str] = []
    many = kind.many

    def counted(self: Target, sql: str, rows: Any) -> int:
        found.append(sql)
        return many(self, sql, rows)

    monkeypatch.setattr(kind, "many", counted)
    return found


def deferrable(rig: Rig) -> str:
    return "" if rig.kind == "turso" else "DEFERRABLE INITIALLY DEFERRED"


# -- nothing changes but what the log says -----------------------------------------------------------------------------


def tenants(rig: Rig) -> None:
    """Rows of a tree and notes on them; both refer to it by its tenant, too, and changes of that are passed on."""
    rig.db.sql("CREATE TABLE tree (id BIGINT PRIMARY KEY, tenant BIGINT, parent BIGINT, code BIGINT, same BIGINT)")
    rig.db.sql("CREATE TABLE note (id BIGINT PRIMARY KEY, tenant BIGINT, tree BIGINT)")
    rig.at_target(
        "CREATE TABLE tree (id BIGINT PRIMARY KEY, tenant BIGINT, parent BIGINT, code BIGINT UNIQUE,"
        " same BIGINT REFERENCES tree (code), UNIQUE (tenant, id),"
        " FOREIGN KEY (tenant, parent) REFERENCES tree (tenant, id) ON UPDATE CASCADE)",
        "CREATE TABLE note (id BIGINT PRIMARY KEY, tenant BIGINT, tree BIGINT,"
        " FOREIGN KEY (tenant, tree) REFERENCES tree (tenant, id) ON UPDATE CASCADE)",
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_circle_is_not_opened_by_columns_that_are_passed_on(rig: Rig, policy: str) -> None:
    """The way back: nothing changes that the log does not say; the note belongs to its tenant before and after."""
    tenants(rig)
    with rig.db.transaction() as txn:
        txn.insert("tree", [(1, 7, None, 100, None)])
        txn.insert("note", [(5, 7, 1)])
    rig.apply()
    with rig.db.transaction() as txn:
        txn.upsert("tree", [(1, 7, 9, 101, None), (9, 7, None, 102, 101)])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.equal() and rig.there("note") == [(5, 7, 1)]


@pytest.mark.parametrize("when", ["copied", "applied"])
def test_a_row_that_is_left_out_changes_no_other_by_what_is_passed_on(rig: Rig, when: str) -> None:
    """The way back, `skip`: a row that refers to nothing is a conflict, and all that it would have touched is right."""
    tenants(rig)
    if when == "applied":
        rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("tree", [(1, 7, None, 1, None), (2, 7, 1, 2, None), (3, 7, 99, 3, None)])
        txn.insert("note", [(5, 7, 1), (6, 7, 2)])
    done = rig.apply(policy="skip")
    assert [each.key for each in done.conflicts] == [{"id": 3}]
    assert rig.there("tree") == [(1, 7, None, 1, None), (2, 7, 1, 2, None)] and rig.equal("note")
    rig.db.upsert("tree", [(1, 7, 99, 1, None)])
    assert [each.key for each in rig.apply(policy="skip").conflicts] == [{"id": 1}]
    assert rig.there("tree") == [(1, 7, None, 1, None), (2, 7, 1, 2, None)] and rig.equal("note")


@pytest.mark.parametrize("action", ["", "ON DELETE CASCADE", "ON DELETE SET NULL"])
@pytest.mark.parametrize("when", ["copied", "applied"])
def test_what_is_left_out_takes_no_other_row_with_it_in_silence(rig: Rig, when: str, action: str) -> None:
    """The way back, `skip`: whatever does not end as the log has it is reported."""
    rig.db.sql("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT, name STRING)")
    rig.db.sql("CREATE TABLE leaf (id BIGINT PRIMARY KEY, tree BIGINT)")
    rig.at_target(
        f"CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES tree (id) {action}, name TEXT)",
        f"CREATE TABLE leaf (id BIGINT PRIMARY KEY, tree BIGINT REFERENCES tree (id) {action})",
    )
    if when == "applied":
        rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("tree", [(2, 5, "child of 5"), (3, 4, "c"), (4, 3, "d"), (5, 99, "lost"), (6, 98, "alone")])
        txn.insert("leaf", [(1, 5), (2, 3)])
    done = rig.apply(policy="skip")
    reported = {(each.table, each.key["id"]) for each in done.conflicts}
    assert len(reported) == done.done.conflicts
    for table in ("tree", "leaf"):
        here, there = ({row[0]: row for row in rows} for rows in (rig.here(table), rig.there(table)))
        assert {(table, key) for key in here if here[key] != there.get(key)} == {
            each for each in reported if each[0] == table
        }
    assert {("tree", 5), ("tree", 6)} <= reported
    assert (3, 4, "c") in rig.there("tree") and (2, 3) in rig.there("leaf")
    assert 6 not in {row[0] for row in rig.there("tree")}


# -- what skip leaves out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_valid_transactions_are_no_conflict_whatever_they_are_together(rig: Rig, policy: str) -> None:
    """The way back: each of them can be applied, so all of them are, with every policy."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, u STRING, old BIGINT)")
    rig.at_target("CREATE TABLE t (id BIGINT PRIMARY KEY, u TEXT UNIQUE, old BIGINT REFERENCES t (id))")
    rig.db.insert("t", [(1, "a", None), (2, "b", 1)])
    rig.apply(policy=policy)
    with rig.db.transaction() as txn:
        txn.upsert("t", [(2, "b", None)])
        txn.delete("t", [1])
    rig.db.upsert("t", [(2, "a", None)])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.equal()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("chunk_rows", [1, 1000])
@pytest.mark.parametrize("when", ["copied", "applied"])
def test_only_the_broken_row_is_left_out_beside_a_valid_circle(
    rig: Rig, when: str, chunk_rows: int, together: bool
) -> None:
    """The way back, `skip`: foreign keys are put off where they can be, also beside what does not hold."""
    null = "" if rig.kind == "turso" else "NOT NULL"
    rig.db.sql("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT)")
    rig.at_target(
        f"CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT {null} REFERENCES tree (id) {deferrable(rig)})"
    )
    if when == "applied":
        rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("tree", [(1, 2), (2, 1), *([(3, 99)] if together else [])])
    if not together:
        rig.db.insert("tree", [(3, 99)])
    done = rig.apply(policy="skip", chunk_rows=chunk_rows)
    assert [each.key for each in done.conflicts] == [{"id": 3}]
    assert rig.there("tree") == [(1, 2), (2, 1)]


@pytest.mark.parametrize("when", ["copied", "applied"])
def test_skip_goes_on_where_foreign_keys_are_checked_at_the_end(rig: Rig, when: str) -> None:
    """The way back, `skip`: DEFERRABLE INITIALLY DEFERRED, too: the row is found, and what is behind it comes."""
    rig.db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY)")
    rig.db.sql("CREATE TABLE c (id BIGINT PRIMARY KEY, p BIGINT)")
    rig.at_target(
        "CREATE TABLE p (id BIGINT PRIMARY KEY)",
        f"CREATE TABLE c (id BIGINT PRIMARY KEY, p BIGINT REFERENCES p (id) {deferrable(rig)})",
    )
    rig.db.insert("p", [(1,)])
    if when == "applied":
        rig.apply(policy="skip")
    for row in ((1, 1), (2, 99), (3, 1)):
        rig.db.insert("c", [row])
    done = rig.apply(policy="skip", chunk_rows=1)
    assert [(each.table, each.key) for each in done.conflicts] == [("c", {"id": 2})]
    assert rig.there("c") == [(1, 1), (3, 1)]


def test_a_parent_that_others_refer_to_stays_where_foreign_keys_are_checked_at_the_end(rig: Rig) -> None:
    """The way back, `skip`: what is left out is the row that would leave another one without its parent."""
    rig.db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY)")
    rig.at_target(
        "CREATE TABLE p (id BIGINT PRIMARY KEY)",
        f"CREATE TABLE theirs (id BIGINT PRIMARY KEY, p BIGINT REFERENCES p (id) {deferrable(rig)})",
    )
    rig.db.insert("p", [(1,), (2,)])
    rig.apply()
    rig.at_target("INSERT INTO theirs VALUES (1, 1)")
    with rig.db.transaction() as txn:
        txn.delete("p", [1, 2])
    assert [each.key for each in rig.apply(policy="skip").conflicts] == [{"id": 1}]
    assert rig.there("p") == [(1,)] and rig.there("theirs") == [(1, 1)]


@pytest.mark.parametrize("policy", ["skip", "overwrite"])
def test_a_row_that_was_there_with_other_values_is_not_completed(rig: Rig, policy: str) -> None:
    """The way back, `skip`: the row stays as it is, also one that is ours but for what it refers to."""
    rig.db.sql("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT, name STRING)")
    rig.at_target(
        "CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES tree (id), name TEXT)",
        "INSERT INTO tree VALUES (7, NULL, 'x')",
    )
    rig.db.insert("tree", [(1, 2, "a"), (2, 1, "b"), (7, 1, "x")])
    done = rig.apply(policy=policy)
    assert [each.key for each in done.conflicts] == ([{"id": 7}] if policy == "skip" else [])
    assert rig.there("tree") == [(1, 2, "a"), (2, 1, "b"), (7, None if policy == "skip" else 1, "x")]


@pytest.mark.parametrize("parent", [1, 3])
def test_references_come_also_where_a_trigger_changes_other_values(rig: Rig, parent: int) -> None:
    """The way back: rows as of a cut. What the copy has written is known by its key."""
    rig.db.sql("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT, name STRING)")
    rig.at_target("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES tree (id), name TEXT)")
    if rig.kind == "postgresql":
        rig.at_target(
            "CREATE FUNCTION low() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN NEW.name = lower(NEW.name); RETURN NEW; END $$",
            "CREATE TRIGGER low BEFORE INSERT OR UPDATE ON tree FOR EACH ROW EXECUTE FUNCTION low()",
        )
    else:
        rig.at_target(
            "CREATE TRIGGER low AFTER INSERT ON tree BEGIN UPDATE tree SET name = lower(name) WHERE id = new.id; END"
        )
    rig.db.insert("tree", [(1, None, "Root"), (2, parent, "A"), (3, 1, "B")])
    done = rig.apply()
    assert done.done.copied == 3
    assert rig.there("tree") == [(1, None, "root"), (2, parent, "a"), (3, 1, "b")]


# -- making room -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["copied", "applied"])
def test_a_tree_comes_whatever_is_unique_among_its_roots(rig: Rig, when: str) -> None:
    """The way back: the rows fit, in the order in which parents come first, though not as roots for a moment."""
    rig.db.sql("CREATE TABLE dir (id BIGINT PRIMARY KEY, parent BIGINT, name STRING)")
    rig.at_target(
        "CREATE TABLE dir (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES dir (id), name TEXT)",
        "CREATE UNIQUE INDEX beside ON dir (parent, name)",
        "CREATE UNIQUE INDEX roots ON dir (name) WHERE parent IS NULL",
    )
    if when == "applied":
        rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("dir", [(1, 11, "bin"), (2, 12, "bin"), (10, None, "/"), (11, 10, "usr"), (12, 10, "opt")])
    assert rig.apply().done.copied == (5 if when == "copied" else 0)
    assert rig.equal()


@pytest.mark.parametrize("when", ["copied", "applied"])
def test_a_tree_whose_roots_refer_to_themselves_comes_without_null(rig: Rig, when: str) -> None:
    """The way back: no circle of several rows, so parents first is enough."""
    rig.db.sql("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT)")
    rig.at_target("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT NOT NULL REFERENCES tree (id))")
    if when == "applied":
        rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("tree", [(1, 5), (2, 1), (3, 2), (5, 5)])
    rig.apply()
    assert rig.equal()
    with rig.db.transaction() as txn:
        txn.delete("tree", [5, 1, 2, 3])
    rig.apply()
    assert rig.there("tree") == []


@pytest.mark.parametrize("action", ["", "ON DELETE RESTRICT", "ON DELETE CASCADE", "ON DELETE SET NULL"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_row_takes_over_the_unique_value_of_the_one_it_referred_to(rig: Rig, policy: str, action: str) -> None:
    """The way back: both stand in each other's way, one by what it refers to and one by what it has."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, u STRING, old BIGINT)")
    rig.at_target(f"CREATE TABLE t (id BIGINT PRIMARY KEY, u TEXT UNIQUE, old BIGINT REFERENCES t (id) {action})")
    rig.db.insert("t", [(1, "a", None)])
    rig.db.insert("t", [(2, "b", 1)])
    rig.apply()
    with rig.db.transaction() as txn:
        txn.delete("t", [1])
        txn.upsert("t", [(2, "a", None)])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.there("t") == [(2, "a", None)]


@pytest.mark.parametrize("kind", ["STRING", "BIGINT", "INT"])
@pytest.mark.parametrize("policy", POLICIES)
def test_parents_exchange_a_unique_value_that_cannot_be_null(rig: Rig, policy: str, kind: str) -> None:
    """The way back: children refer to their key, so neither is taken out: each has a value of nobody's for a moment."""
    there = {"STRING": "TEXT", "BIGINT": "BIGINT", "INT": "INTEGER"}[kind]
    one, two = ("a", "b") if kind == "STRING" else (1, 2)
    rig.db.sql(f"CREATE TABLE p (id BIGINT PRIMARY KEY, name {kind})")
    rig.db.sql("CREATE TABLE c (id BIGINT PRIMARY KEY, p BIGINT)")
    rig.at_target(
        f"CREATE TABLE p (id BIGINT PRIMARY KEY, name {there} NOT NULL UNIQUE)",
        "CREATE TABLE c (id BIGINT PRIMARY KEY, p BIGINT REFERENCES p (id))",
    )
    with rig.db.transaction() as txn:
        txn.insert("p", [(1, one), (2, two)])
        txn.insert("c", [(1, 1), (2, 2)])
    rig.apply()
    with rig.db.transaction() as txn:
        txn.upsert("p", [(1, two), (2, one)])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.equal()


def test_a_unique_value_of_another_type_that_cannot_be_null_says_why_it_is_a_conflict(rig: Rig) -> None:
    """The way back: an error says what to do."""
    rig.db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, part DOUBLE)")
    rig.at_target(
        "CREATE TABLE p (id BIGINT PRIMARY KEY, part DOUBLE PRECISION NOT NULL UNIQUE)",
        "CREATE TABLE c (id BIGINT PRIMARY KEY, p BIGINT REFERENCES p (id))",
    )
    rig.db.insert("p", [(1, 0.5), (2, 1.5)])
    rig.apply()
    rig.at_target("INSERT INTO c VALUES (1, 1), (2, 2)")
    with rig.db.transaction() as txn:
        txn.upsert("p", [(1, 1.5), (2, 0.5)])
    if rig.kind == "sqlite":  # There the foreign key is put off, and it can be taken out.
        rig.apply()
        assert rig.equal() and rig.there("c") == [(1, 1), (2, 2)]
        return
    with pytest.raises(
        ApplyConflict, match=r"'p', id = .*cannot be taken out for a moment, because rows of c refer to"
    ):
        rig.apply()
    assert rig.there("p") == [(1, 0.5), (2, 1.5)]


# -- how long it takes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chain_comes_and_goes_in_few_statements(rig: Rig, calls: list[str], policy: str) -> None:
    """The way back: as many rows as a transaction has; each refers to the next, in the order that fits least."""
    rig.db.sql("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT)")
    rig.at_target("CREATE TABLE tree (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES tree (id))")
    rig.apply(policy=policy)
    count = 500
    with rig.db.transaction() as txn:
        txn.insert("tree", [(n, n + 1 if n < count else None) for n in range(1, count + 1)])
    rig.apply(policy=policy)
    assert rig.equal()
    with rig.db.transaction() as txn:
        txn.delete("tree", list(range(count, 0, -1)))
    rig.apply(policy=policy)
    assert rig.there("tree") == []
    assert len(calls) < 40


@pytest.mark.parametrize("policy", POLICIES)
def test_many_rows_exchange_unique_values_in_few_statements(rig: Rig, calls: list[str], policy: str) -> None:
    """The way back: two statements for each row, and not one round for each pair."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, u STRING)")
    rig.at_target("CREATE TABLE t (id BIGINT PRIMARY KEY, u TEXT UNIQUE)")
    rig.db.insert("t", [(n, f"u{n}") for n in range(1000)])
    rig.apply(policy=policy)
    with rig.db.transaction() as txn:
        txn.upsert("t", [(n, f"u{n ^ 1}") for n in range(1000)])
    calls.clear()
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.equal()
    assert len(calls) < 20


def test_one_broken_row_among_many_is_found_in_few_statements(rig: Rig, calls: list[str]) -> None:
    """The way back, `skip`: halves are tried, not rows."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
    rig.at_target("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT CHECK (n < 5000))")
    rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("t", [(n, 9999 if n == 700 else n) for n in range(1000)])
    assert [each.key for each in rig.apply(policy="skip").conflicts] == [{"id": 700}]
    assert len(rig.there("t")) == 999
    assert len(calls) < 60


# -- what is made at the target meanwhile ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["stop", "overwrite", "skip"])
def test_a_constraint_that_is_made_while_one_follows_is_known(rig: Rig, policy: str) -> None:
    """What was known of the target's tables may be old: they are looked at again before anything is a conflict."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING)")
    rig.db.insert("t", [(1, "a"), (2, "b")])
    with rig.apply(policy=policy, follow=True) as following:
        for name in ("x", "y"):
            with rig.db.transaction() as txn:
                txn.upsert("t", [(3, name)])
            following.wait_for(txn.commit_timestamp)
            if name == "x":
                rig.at_target("CREATE UNIQUE INDEX names ON t (name)")
                with rig.db.transaction() as txn:
                    txn.upsert("t", [(1, "b"), (2, "a")])
                following.wait_for(txn.commit_timestamp)
        assert following.done.conflicts == 0
    assert rig.equal()
