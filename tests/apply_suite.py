"""What applying promises at every kind of target: run against each by the test files that take this in.

"the way back" is that of issue 7; facts are those of section 7 of the reference on capture.
"""

from __future__ import annotations

from itertools import count

import pytest

import tidegate
from apply_rig import Rig
from tidegate.capture import applier as applier_module
from tidegate.capture import apply_rows
from tidegate.capture.applier import Applier
from tidegate.capture.target import ApplyConflict, identity_of
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InUse, InvalidArgument, NotFound

SHOP = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, who STRING, total BIGINT)",
    "CREATE TABLE items (order_id BIGINT, n BIGINT, what STRING, PRIMARY KEY (order_id, n))",
)


def shop(rig: Rig) -> None:
    for each in SHOP:
        rig.db.sql(each)
    with rig.db.transaction() as txn:
        txn.insert("orders", [(1, "ann", 10), (2, "bo", None)])
        txn.insert("items", [(1, 1, "pen"), (1, 2, "ink"), (2, 1, "cup")])


# -- the way ---------------------------------------------------------------------------------------------------------


def test_a_new_target_gets_the_rows_and_then_every_transaction(rig: Rig) -> None:
    """The way back: the rows as of a cut, then each transaction above it."""
    shop(rig)
    first = rig.apply()
    assert (first.done.copied, first.transactions) == (5, 0)
    assert rig.equal()
    with rig.db.transaction() as txn:
        txn.upsert("orders", [(1, "ann", 11), (3, "cy", 7)])
        txn.delete("items", [(1, 2)])
        txn.insert("items", [(3, 1, "jar")])
    rig.db.delete("orders", [2])
    second = rig.apply()
    assert (second.done.copied, second.transactions, second.rows) == (0, 2, 5)
    assert rig.equal()


def test_what_was_applied_is_not_applied_again(rig: Rig) -> None:
    """The way back: idempotent, by the position that the target has itself."""
    shop(rig)
    rig.apply()
    rig.db.upsert("orders", [(1, "ann", 12)])
    rig.apply()
    before = rig.there("tidegate_applied")
    rig.at_target("UPDATE orders SET who = 'else' WHERE id = 1")
    again = rig.apply()
    assert (again.transactions, again.rows) == (0, 0)
    assert rig.there("tidegate_applied") == before
    assert rig.there("SELECT who FROM orders WHERE id = 1") == [("else",)]


def test_the_position_and_who_wrote_are_in_the_target(rig: Rig) -> None:
    """The way back: position and origin are written with the rows."""
    shop(rig)
    done = rig.apply(name="to shop")
    ((name, position, origin),) = rig.there("SELECT name, position, origin FROM tidegate_applied")
    assert (name, Timestamp(position)) == ("to shop", done.position)
    assert origin == f"tidegate:{rig.db.id.hex()}"


def test_a_client_applies_as_the_owner_does(rig: Rig) -> None:
    """The log is read from files by whoever does not own it."""
    shop(rig)
    client = rig.another()
    assert not client.is_owner
    client.apply(["orders", "items"], rig.url)
    rig.db.upsert("orders", [(1, "zoe", 1)])
    assert client.apply(["orders", "items"], rig.url).transactions == 1
    assert rig.equal()


def test_chunks_end_where_transactions_do(rig: Rig) -> None:
    """Fact 26: the threshold counts operations and cuts behind the transaction that reaches it."""
    shop(rig)
    rig.apply()
    for size in (1, 1, 1, 7, 1, 1):
        with rig.db.transaction() as txn:
            txn.upsert("orders", [(100 + size * 10 + n, "x", n) for n in range(size)])
    done = rig.apply(chunk_rows=3)
    assert (done.transactions, done.rows, done.done.chunks) == (6, 12, 3)
    assert rig.equal()


def test_a_transaction_larger_than_a_part_is_applied_in_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way back: transactions larger than what is held at once; with rows that come, change and go."""
    monkeypatch.setattr(apply_rows, "PART_ROWS", 10)
    monkeypatch.setattr(applier_module, "WINDOW_ROWS", 20)
    shop(rig)
    rig.db.upsert("orders", [(n, "old", n) for n in range(100)])
    rig.apply()
    with rig.db.transaction() as txn:
        txn.upsert("orders", [(n, "new", n) for n in range(50, 150)])
        txn.delete("orders", [(n,) for n in range(25)])
        txn.upsert("items", [(n, 1, "x") for n in range(60)])
    done = rig.apply(chunk_rows=5)
    assert (done.transactions, done.rows, done.done.chunks) == (1, 185, 1)
    assert rig.equal()


def test_only_the_end_of_a_chunk_counts_for_a_row(rig: Rig) -> None:
    """A key that came, changed and went within a chunk, and one that went and came again."""
    shop(rig)
    rig.apply()
    rig.db.insert("orders", [(9, "i", 1)])
    rig.db.upsert("orders", [(9, "j", 2)])
    rig.db.delete("orders", [9])
    rig.db.delete("orders", [1])
    rig.db.insert("orders", [(1, "back", 5)])
    assert rig.apply().transactions == 5
    assert rig.equal()


def test_rows_of_a_table_without_a_key_come_once(rig: Rig) -> None:
    """A table without a primary key only grows; its rows are told apart by nothing, and none comes twice."""
    rig.db.sql("CREATE TABLE events (what STRING)")
    rig.db.insert("events", [("a",), ("a",)])
    rig.apply()
    rig.db.insert("events", [("a",), ("b",)])
    rig.apply()
    rig.apply()
    assert rig.there("events") == [("a",), ("a",), ("a",), ("b",)]


def test_it_goes_on_by_itself_until_it_is_stopped(rig: Rig) -> None:
    """`follow=True`: a thread applies what is committed."""
    shop(rig)
    with rig.apply(follow=True) as following:
        for number in range(5):
            sent = rig.db.upsert("orders", [(number, "f", number)])
        following.wait_for(sent.timestamp)
        assert rig.equal()
        assert following.status()["error"] is None
    assert not following.is_running
    rig.db.upsert("orders", [(1, "later", 0)])
    assert not rig.equal()
    rig.apply()
    assert rig.equal()


def test_closing_the_database_ends_it(rig: Rig) -> None:
    shop(rig)
    following = rig.apply(follow=True)
    following.wait_for(rig.db.upsert("orders", [(1, "x", 1)]).timestamp)
    rig.db.close()
    assert not following.is_running
    assert following.error is None


# -- where it begins -------------------------------------------------------------------------------------------------


def test_it_may_begin_now_or_at_a_time(rig: Rig) -> None:
    """`start`: only what is committed after it."""
    shop(rig)
    sent = rig.db.upsert("orders", [(5, "five", 5)])
    rig.db.upsert("orders", [(6, "six", 6)])
    rig.apply("orders", name="then", start=sent.timestamp)
    assert rig.there("orders") == [(6, "six", 6)]
    rig.apply("items", name="now", start="now")
    rig.db.upsert("items", [(6, 1, "x")])
    rig.apply("items", name="now")
    assert rig.there("items") == [(6, 1, "x")]
    with pytest.raises(InvalidArgument, match="has come to"):
        rig.apply("items", name="future", start=Timestamp(2**60))


def test_a_table_that_is_added_gets_its_rows_as_of_where_the_target_is(rig: Rig) -> None:
    """Several tables stay at one position."""
    shop(rig)
    rig.apply("orders")
    rig.db.upsert("items", [(7, 1, "late")])
    rig.db.upsert("orders", [(7, "late", 1)])
    done = rig.apply("orders", "items")
    assert (done.done.copied, done.transactions) == (3, 2)
    assert rig.equal()


def test_a_table_that_is_newer_than_the_position_comes_at_its_place(rig: Rig) -> None:
    """Transactions before it was created, and behind."""
    rig.db.sql(SHOP[0])
    rig.apply("orders")
    rig.db.insert("orders", [(1, "before", 1)])
    rig.db.sql(SHOP[1])
    with rig.db.transaction() as txn:
        txn.insert("items", [(1, 1, "new")])
        txn.upsert("orders", [(1, "with it", 1)])
    done = rig.apply("orders", "items")
    assert (done.transactions, done.done.copied) == (2, 0)
    assert rig.equal()


def test_restart_replaces_the_rows(rig: Rig) -> None:
    """What to do when the log behind the position is gone, or the target is beyond mending."""
    shop(rig)
    rig.apply()
    rig.at_target("INSERT INTO orders VALUES (50, 'foreign', 1)", "UPDATE orders SET who = 'else' WHERE id = 1")
    rig.db.upsert("orders", [(1, "new", 0)])
    rig.apply(restart=True)
    assert rig.equal()
    rig.db.upsert("orders", [(1, "newer", 0)])
    rig.apply()
    assert rig.equal()


def test_rows_that_are_there_already_and_equal_are_no_conflict_at_the_start(rig: Rig) -> None:
    """The start of a target that has the tables, as one that was captured has."""
    shop(rig)
    rig.at_target(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, who TEXT, total BIGINT)",
        "INSERT INTO orders VALUES (2, 'bo', NULL), (77, 'other', 1)",
    )
    assert rig.apply("orders").done.copied == 1
    assert rig.there("orders") == [(1, "ann", 10), (2, "bo", None), (77, "other", 1)]


@pytest.mark.parametrize("policy", ["stop", "skip", "overwrite"])
def test_rows_that_differ_at_the_start_are_conflicts(rig: Rig, policy: str) -> None:
    shop(rig)
    rig.at_target(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, who TEXT, total BIGINT)",
        "INSERT INTO orders VALUES (2, 'other', 5)",
    )
    if policy == "stop":
        with pytest.raises(ApplyConflict, match="there already, with other values"):
            rig.apply("orders", policy=policy)
        assert rig.there("orders") == [(2, "other", 5)]
        assert rig.there("SELECT name FROM tidegate_applied") == []
    else:
        done = rig.apply("orders", policy=policy)
        assert done.done.conflicts == (1 if policy == "skip" else 0)
        there = (2, "other", 5) if policy == "skip" else (2, "bo", None)
        assert rig.there("orders") == [(1, "ann", 10), there]


# -- constraints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["TEXT UNIQUE", "TEXT NOT NULL UNIQUE"])
def test_rows_that_exchange_their_keys_in_one_transaction_are_both_kept(rig: Rig, who: str) -> None:
    """Fact 24. At a source that is an update of two keys; here both keys have the other's values."""
    rig.db.sql("CREATE TABLE seats (seat BIGINT PRIMARY KEY, who STRING, mark BIGINT)")
    rig.at_target(f"CREATE TABLE seats (seat BIGINT PRIMARY KEY, who {who}, mark BIGINT)")
    rig.db.insert("seats", [(1, "ann", 1), (2, "bo", 2), (3, "cy", 3)])
    for policy in ("stop", "overwrite", "skip"):
        rig.apply(policy=policy)
        with rig.db.transaction() as txn:
            rows = {seat: row for seat, *row in rig.here("seats")}
            txn.upsert("seats", [(1, *rows[2]), (2, *rows[3]), (3, *rows[1])])
        done = rig.apply(policy=policy)
        assert rig.equal() and not done.conflicts


def test_a_unique_value_moves_from_a_row_that_goes_to_one_that_comes(rig: Rig) -> None:
    """Deletes before inserts, whatever the order in the transaction, also over several transactions of a chunk."""
    rig.db.sql("CREATE TABLE names (id BIGINT PRIMARY KEY, name STRING)")
    rig.at_target("CREATE TABLE names (id BIGINT PRIMARY KEY, name TEXT UNIQUE)")
    rig.db.insert("names", [(1, "a"), (2, "b")])
    for policy in ("stop", "overwrite"):
        rig.apply(policy=policy)
        with rig.db.transaction() as txn:
            txn.upsert("names", [(3, "a")])
            txn.delete("names", [1])
        rig.db.upsert("names", [(2, "c")])
        rig.db.upsert("names", [(4, "b")])
        rig.apply(policy=policy)
        assert rig.equal()
        with rig.db.transaction() as txn:
            txn.delete("names", [(3,), (4,)])
            txn.upsert("names", [(1, "a"), (2, "b")])


def family(rig: Rig, action: str = "") -> None:
    # Named so that children come first wherever names decide.
    rig.db.sql("CREATE TABLE a_child (id BIGINT PRIMARY KEY, parent BIGINT)")
    rig.db.sql("CREATE TABLE z_parent (id BIGINT PRIMARY KEY, name STRING)")
    rig.at_target(
        "CREATE TABLE z_parent (id BIGINT PRIMARY KEY, name TEXT)",
        f"CREATE TABLE a_child (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES z_parent (id) {action})",
    )


@pytest.mark.parametrize("action", ["", "ON DELETE CASCADE", "ON DELETE RESTRICT"])
def test_parents_come_before_children_and_go_after_them(rig: Rig, action: str) -> None:
    """The way back: foreign keys hold, whether they can be put off or not; a changed parent keeps its children."""
    family(rig, action)
    with rig.db.transaction() as txn:
        txn.insert("a_child", [(1, 10), (2, 10), (3, 20)])
        txn.insert("z_parent", [(10, "x"), (20, "y")])
    for policy in ("stop", "overwrite"):
        rig.apply(policy=policy)
        assert rig.equal()
        with rig.db.transaction() as txn:
            txn.upsert("a_child", [(4, 30), (1, 30)])
            txn.upsert("z_parent", [(30, "new"), (20, "changed")])
        rig.apply(policy=policy)
        assert rig.equal()
        with rig.db.transaction() as txn:
            txn.delete("z_parent", [(10,), (30,)])
            txn.delete("a_child", [(1,), (2,), (4,)])
        rig.apply(policy=policy)
        assert rig.equal()
        with rig.db.transaction() as txn:
            txn.upsert("z_parent", [(10, "x")])
            txn.upsert("a_child", [(2, 10)])


@pytest.mark.parametrize("action", ["", "ON DELETE CASCADE", "ON DELETE SET NULL"])
def test_parents_that_exchange_a_unique_value_keep_their_children(rig: Rig, action: str) -> None:
    """Neither is deleted for it; and where a child waits for a parent that waits for room, it comes in the end."""
    family(rig, action)
    rig.at_target("CREATE UNIQUE INDEX name ON z_parent (name)")
    with rig.db.transaction() as txn:
        txn.insert("z_parent", [(1, "a"), (2, "b")])
        txn.insert("a_child", [(10, 1), (20, 2)])
    for policy in ("stop", "overwrite"):
        rig.apply(policy=policy)
        with rig.db.transaction() as txn:
            txn.upsert("z_parent", [(1, "b"), (2, "c"), (3, "a")])
            txn.upsert("a_child", [(30, 3)])
        done = rig.apply(policy=policy)
        assert rig.equal() and not done.conflicts
        with rig.db.transaction() as txn:
            txn.delete("a_child", [30])
            txn.delete("z_parent", [3])
            txn.upsert("z_parent", [(1, "a"), (2, "b")])


def test_a_unique_value_of_somebody_elses_row_is_a_conflict(rig: Rig) -> None:
    """Nothing makes room for it: the row is as it was before, also under `skip`."""
    rig.db.sql("CREATE TABLE names (id BIGINT PRIMARY KEY, name STRING)")
    rig.at_target("CREATE TABLE names (id BIGINT PRIMARY KEY, name TEXT UNIQUE)")
    rig.db.insert("names", [(1, "a"), (2, "b")])
    rig.apply()
    rig.at_target("INSERT INTO names VALUES (9, 'theirs')")
    with rig.db.transaction() as txn:
        txn.upsert("names", [(1, "theirs"), (2, "c")])
    for policy in ("stop", "overwrite"):
        with pytest.raises(ApplyConflict, match=r"table 'names', id = 1: a constraint of the target forbids it"):
            rig.apply(policy=policy)
        assert rig.there("names") == [(1, "a"), (2, "b"), (9, "theirs")]
    done = rig.apply(policy="skip")
    assert done.done.conflicts == 1 and done.conflicts[0].coming == {"id": 1, "name": "theirs"}
    assert rig.there("names") == [(1, "a"), (2, "c"), (9, "theirs")]


def test_a_foreign_key_that_does_not_hold_stops_before_its_transaction(rig: Rig) -> None:
    """The way back: never a part of a transaction; all before it is there."""
    family(rig)
    rig.apply()
    rig.db.insert("z_parent", [(1, "x")])
    with rig.db.transaction() as txn:
        txn.insert("a_child", [(1, 1), (2, 99)])
        txn.insert("z_parent", [(2, "y")])
    rig.db.insert("z_parent", [(3, "z")])
    with pytest.raises(ApplyConflict, match=r"(?i)foreign key"):
        rig.apply()
    assert (rig.there("z_parent"), rig.there("a_child")) == ([(1, "x")], [])
    done = rig.apply(policy="skip")
    assert done.done.conflicts == 1 and done.conflicts[0].key["id"] == 2
    assert (rig.there("z_parent"), rig.there("a_child")) == ([(1, "x"), (2, "y"), (3, "z")], [(1, 1)])


def test_a_value_that_the_target_refuses_names_the_row(rig: Rig) -> None:
    """Errors name the table, the key and what was to come."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
    rig.at_target("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT CHECK (n < 100))")
    rig.apply()
    rig.db.insert("t", [(1, 5)])
    rig.db.insert("t", [(2, 500)])
    with pytest.raises(ApplyConflict, match="table 't', id = 2") as raised:
        rig.apply()
    assert raised.value.conflict.coming == {"id": 2, "n": 500}
    assert rig.there("t") == [(1, 5)]


# -- conflicts -------------------------------------------------------------------------------------------------------

CONFLICTS = {
    "a row to be changed has other values": ("UPDATE orders SET total = 99 WHERE id = 1", "upsert"),
    "a row to be changed is NULL where it was not": ("UPDATE orders SET who = NULL WHERE id = 1", "upsert"),
    "a row to be changed is missing": ("DELETE FROM orders WHERE id = 1", "upsert"),
    "a row to be deleted has other values": ("UPDATE orders SET total = 99 WHERE id = 1", "delete"),
    "a row to be deleted is missing": ("DELETE FROM orders WHERE id = 1", "delete"),
    "a row to come is there": ("INSERT INTO orders VALUES (5, 'other', 5)", "insert"),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_a_row_that_is_not_what_it_was_is_a_conflict(rig: Rig, case: str) -> None:
    """The way back: stop names the row and applies nothing of its transaction; skip leaves it; overwrite takes ours."""
    foreign, what = CONFLICTS[case]
    shop(rig)
    rig.apply()
    rig.at_target(foreign)
    before = rig.there("orders")
    rig.db.upsert("items", [(1, 1, "before")])
    with rig.db.transaction() as txn:
        if what == "upsert":
            txn.upsert("orders", [(1, "ann", 1000)])
        elif what == "delete":
            txn.delete("orders", [1])
        else:
            txn.insert("orders", [(5, "five", 5)])
        txn.upsert("items", [(1, 2, "with it")])
    rig.db.upsert("items", [(2, 1, "after")])
    with pytest.raises(ApplyConflict) as raised:
        rig.apply()
    key = 5 if what == "insert" else 1
    conflict = raised.value.conflict
    assert (conflict.table, conflict.key) == ("orders", {"id": key})
    assert f"id = {key}" in str(raised.value) and "orders" in str(raised.value)
    assert rig.there("items") == [(1, 1, "before"), (1, 2, "ink"), (2, 1, "cup")]
    assert rig.there("orders") == before
    skipped = rig.apply(policy="skip")
    assert (skipped.done.conflicts, skipped.transactions) == (1, 2)
    assert rig.there("orders") == before and rig.equal("items")
    rig.db.upsert("orders", [(key, "again", 1)])
    overwritten = rig.apply(policy="overwrite")
    assert overwritten.done.conflicts == 0
    assert rig.equal()


def test_a_row_with_null_is_compared_as_any_other(rig: Rig) -> None:
    """Fact 25: predicates are NULL-safe, and take their values from the image before."""
    shop(rig)
    rig.apply()
    rig.db.upsert("orders", [(2, None, None)])
    rig.apply()
    rig.db.upsert("orders", [(2, "bo", 3)])
    rig.apply()
    rig.db.upsert("orders", [(2, None, 3)])
    rig.db.delete("orders", [2])
    rig.apply()
    assert rig.equal()


def test_a_key_of_two_columns_touches_only_its_row(rig: Rig) -> None:
    """Fact 22: insert, update and delete by a compound key."""
    shop(rig)
    rig.apply()
    rig.at_target("UPDATE items SET what = 'foreign' WHERE order_id = 1 AND n = 2")
    rig.db.upsert("items", [(1, 1, "changed")])
    rig.db.delete("items", [(2, 1)])
    rig.apply()
    assert rig.there("items") == [(1, 1, "changed"), (1, 2, "foreign")]


# -- tables at the target --------------------------------------------------------------------------------------------


def test_added_and_renamed_columns_follow(rig: Rig) -> None:
    """Fact 23: what was written before ADD COLUMN (inserts, updates, deletes, mixed) fits into the wider table."""
    shop(rig)
    rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("orders", [(3, "cy", 1)])
        txn.upsert("orders", [(1, "ann", 2)])
        txn.delete("orders", [2])
    rig.db.sql("ALTER TABLE orders ADD COLUMN note STRING")
    rig.db.upsert("orders", [(1, "ann", 3, "n"), (4, "di", 4, None)])
    rig.db.sql("ALTER TABLE orders RENAME COLUMN who TO name")
    rig.db.upsert("orders", [(3, "cyn", 1, "m")])
    done = rig.apply()
    assert not done.conflicts
    assert rig.there("SELECT id, name, total, note FROM orders") == rig.here("orders")
    rig.db.sql("ALTER TABLE orders DROP COLUMN total")
    rig.db.upsert("orders", [(3, "cynthia", "o"), (5, "eve", None)])
    rig.apply()
    assert rig.there("SELECT id, name, note FROM orders WHERE id = 3") == [(3, "cynthia", "o")]
    assert rig.there("SELECT id, total FROM orders WHERE id IN (3, 5)") == [(3, 1), (5, None)]


def test_exchanged_names_of_columns_follow(rig: Rig) -> None:
    """Columns are known by their ids: a row that was there has its values under the names that they have now."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a STRING, b STRING, c STRING)")
    rig.db.insert("t", [(1, "a1", "b1", "c1")])
    rig.apply()
    for each in ("a TO x", "b TO a", "c TO b", "x TO c"):
        rig.db.sql(f"ALTER TABLE t RENAME COLUMN {each}")
    rig.db.insert("t", [(2, "in c", "in a", "in b")])
    rig.apply()
    assert rig.there("SELECT id, c, a, b FROM t") == rig.here("t")
    rig.db.sql("ALTER TABLE t RENAME COLUMN a TO d")
    rig.db.sql("ALTER TABLE t ADD COLUMN a STRING")
    rig.db.upsert("t", [(1, "c", "d", "b", "a")])
    rig.apply()
    assert rig.there("SELECT id, c, d, b, a FROM t") == rig.here("t")


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("again", ["RENAME COLUMN a TO b", "ADD COLUMN b STRING"])
def test_a_name_of_a_dropped_column_is_not_taken_for_another_one(rig: Rig, again: str, between: bool) -> None:
    """The rows there have the dropped column's values under it: it is refused until that column makes room."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a STRING, b STRING)")
    rig.db.insert("t", [(1, "a1", "b1")])
    rig.apply()
    rig.db.sql("ALTER TABLE t DROP COLUMN b")
    if between:
        rig.db.insert("t", [(7, "a7")])
        rig.apply()
    rig.db.sql(f"ALTER TABLE t {again}")
    rig.db.insert("t", [{"id": 2, "b": "new"}])
    for policy in ("stop", "overwrite", "skip"):
        with pytest.raises(InvalidArgument, match=r"column 'b' of table 't' .*before it was dropped.*restart=True"):
            rig.apply(policy=policy)
    rig.at_target("ALTER TABLE t RENAME COLUMN b TO old_b")
    rig.apply()
    names = "id, b" if again.startswith("RENAME") else "id, a, b"
    order = str
    assert sorted(rig.there(f"SELECT {names} FROM t"), key=order) == sorted(rig.here("t"), key=order)


def test_a_name_of_a_dropped_column_can_be_used_after_a_restart(rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a STRING, b STRING)")
    rig.db.insert("t", [(1, "a1", "b1")])
    rig.apply()
    rig.db.sql("ALTER TABLE t DROP COLUMN b")
    rig.db.sql("ALTER TABLE t RENAME COLUMN a TO b")
    rig.db.insert("t", [(2, "new")])
    rig.apply(restart=True)
    rig.db.upsert("t", [(1, "newer")])
    rig.apply()
    assert rig.there("SELECT id, b FROM t") == rig.here("t")


@pytest.mark.parametrize("change", ["ADD COLUMN mark STRING", "RENAME COLUMN who TO mark"])
def test_the_targets_own_column_is_not_taken_for_one_that_gets_its_name(rig: Rig, change: str) -> None:
    """Added by hand before, and empty, it is used; with values it is not ours."""
    shop(rig)
    rig.apply()
    rig.at_target("ALTER TABLE orders ADD COLUMN note TEXT", "ALTER TABLE orders ADD COLUMN mark TEXT")
    rig.at_target("UPDATE orders SET mark = 'own'")
    rig.db.sql("ALTER TABLE orders ADD COLUMN note STRING")
    rig.db.upsert("orders", [(1, "ann", 1, "n")])
    rig.apply()
    assert rig.there("SELECT id, who, total, note FROM orders WHERE id = 1") == [(1, "ann", 1, "n")]
    rig.db.sql(f"ALTER TABLE orders {change}")
    rig.db.upsert("orders", [{"id": 1, "mark": "m"}])
    with pytest.raises(InvalidArgument, match=r"column 'mark' .*its own.*restart=True"):
        rig.apply()


def test_a_table_that_is_there_is_used_and_may_have_more_columns(rig: Rig) -> None:
    """Fact 23: creating is idempotent; columns that do without a value are left alone."""
    shop(rig)
    rig.at_target(
        "CREATE TABLE orders (extra TEXT DEFAULT 'd', id BIGINT PRIMARY KEY, total BIGINT, more BIGINT, who TEXT)"
    )
    rig.apply()
    rig.db.upsert("orders", [(1, "ann", 5)])
    rig.apply()
    assert rig.there("SELECT id, who, total FROM orders") == rig.here("orders")
    assert rig.there("SELECT DISTINCT extra, more FROM orders") == [("d", None)]


@pytest.mark.parametrize(
    ("created", "says"),
    [
        ("CREATE TABLE orders (id BIGINT PRIMARY KEY, who TEXT)", "no column 'total'"),
        (
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, who TEXT, total BIGINT, must BIGINT NOT NULL)",
            "column 'must' of table 'orders' must have a value",
        ),
        ("CREATE TABLE orders (id BIGINT, who TEXT, total BIGINT)", r"no primary key or unique constraint on \(id\)"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_its_column(rig: Rig, created: str, says: str) -> None:
    """Errors name the thing and what to do; after mending, a repeat goes on."""
    shop(rig)
    rig.at_target(created)
    with pytest.raises(InvalidArgument, match=says):
        rig.apply()
    assert rig.there("SELECT name FROM tidegate_applied") == []
    rig.at_target("DROP TABLE orders")
    rig.apply()
    assert rig.equal()


def test_a_key_that_the_target_computes_is_refused(rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    computed = "CREATE TABLE t (x BIGINT, id BIGINT GENERATED ALWAYS AS (x) STORED UNIQUE, v TEXT)"
    if rig.kind == "turso":  # There it cannot be: such columns are an experiment that has to be asked for.
        with pytest.raises(Exception, match=r"(?i)generated|experimental"):
            rig.at_target(computed)
        return
    rig.at_target(computed)
    with pytest.raises(InvalidArgument, match=r"column 'id' of table 't' belongs to the key here.*can be written"):
        rig.apply()


def test_a_column_that_goes_missing_is_named(rig: Rig) -> None:
    shop(rig)
    rig.apply()
    rig.at_target("ALTER TABLE orders DROP COLUMN total")
    rig.db.upsert("orders", [(1, "ann", 5)])
    with pytest.raises(InvalidArgument, match="no column 'total'"):
        rig.apply()
    rig.at_target("ALTER TABLE orders ADD COLUMN total BIGINT")
    rig.apply(policy="overwrite")
    assert rig.there("SELECT id, who, total FROM orders WHERE id = 1") == [(1, "ann", 5)]


def test_a_table_that_was_made_anew_is_noticed(rig: Rig) -> None:
    """Its rows are not those that the target has."""
    shop(rig)
    rig.apply()
    rig.db.sql("DROP TABLE items")
    rig.db.sql(SHOP[1])
    with pytest.raises(InvalidArgument, match=r"dropped and created again.*restart"):
        rig.apply()
    rig.apply(restart=True)
    assert rig.equal()


# -- whose it is -----------------------------------------------------------------------------------------------------


def test_what_came_from_the_target_does_not_go_back(rig: Rig) -> None:
    """The way back: a loop to the origin is recognised by the transaction's origin and not applied again."""
    shop(rig)
    rig.db.sql(
        "CREATE TABLE capture_transactions (capture STRING, position STRING, source_txn STRING, committed_at TIMESTAMP,"
        " origin STRING, rows BIGINT, PRIMARY KEY (capture, position))"
    )
    rig.apply()
    numbers = count()

    def captured(origin: str, *rows: tuple[int, str, int]) -> None:
        with rig.db.transaction() as txn:
            txn.upsert("orders", rows)
            txn.insert("capture_transactions", [("c", str(next(numbers)), "1", None, origin, len(rows))])

    rig.at_target("UPDATE orders SET who = 'theirs' WHERE id = 1")
    captured(identity_of(rig.url), (1, "theirs", 10))
    captured("sqlite:/another/one", (2, "other", 3))
    rig.db.upsert("orders", [(1, "ours", 10)])
    done = rig.apply()
    assert (done.done.left_out, done.transactions) == (1, 2)
    assert rig.there("orders") == [(1, "ours", 10), (2, "other", 3)]
    # As the target never saw it come, nothing is there that a capture of it would find again.
    captured(identity_of(rig.url), (3, "never there", 0))
    assert rig.apply().done.left_out == 1
    assert rig.there("SELECT id FROM orders") == [(1,), (2,)]


def test_two_under_one_name_do_not_both_apply(rig: Rig) -> None:
    """Who has not seen the other's position writes nothing, and goes on from there when it is asked again."""
    shop(rig)
    slow = Applier(
        rig.db,
        rig.tables(),
        rig.url,
        name="n",
        policy="stop",
        chunk_rows=10,
        start="snapshot",
        restart=False,
    )
    slow.catch_up()
    rig.db.upsert("orders", [(1, "x", 1)])
    rig.apply(name="n")
    rig.db.upsert("orders", [(1, "y", 2)])
    with pytest.raises(InUse, match="under the name 'n'"):
        slow.catch_up()
    assert rig.there("SELECT who FROM orders WHERE id = 1") == [("x",)]
    slow.catch_up()
    slow.close()
    assert rig.equal()


@pytest.mark.parametrize("restart", [False, True])
def test_a_list_that_lacks_a_table_of_the_name_is_refused(rig: Rig, restart: bool) -> None:
    """All tables of a name are at one position: what it passes over for one of them would never come."""
    shop(rig)
    rig.apply("orders")
    with pytest.raises(InvalidArgument, match=r"also 'orders' is applied.*\(orders, items\).*another name="):
        rig.apply("items", restart=restart)
    with rig.db.transaction() as txn:
        txn.upsert("orders", [(1, "both", 1)])
        txn.upsert("items", [(1, 1, "both")])
    rig.apply("orders", "items")
    rig.db.upsert("items", [(1, 1, "later")])
    with pytest.raises(InvalidArgument, match="also 'items' is applied"):
        rig.apply("orders", restart=restart)
    rig.apply()
    assert rig.equal()


def test_a_table_that_was_dropped_here_may_be_left_out(rig: Rig) -> None:
    """Nothing of it is to come."""
    shop(rig)
    rig.apply()
    rig.db.sql("DROP TABLE items")
    rig.db.upsert("orders", [(1, "alone", 1)])
    assert rig.apply("orders").transactions == 1
    assert rig.equal("orders")


def test_who_has_not_seen_that_a_table_was_added_does_not_write(rig: Rig) -> None:
    """Else it would pass over the transactions of that table."""
    shop(rig)
    slow = Applier(rig.db, ["orders"], rig.url, name="n", policy="stop", chunk_rows=10, start="snapshot", restart=False)
    slow.catch_up()
    rig.apply("orders", "items", name="n")
    rig.db.upsert("items", [(1, 1, "new")])
    rig.db.upsert("orders", [(1, "new", 1)])
    with pytest.raises(InUse, match="under the name 'n'"):
        slow.catch_up()
    with pytest.raises(InvalidArgument, match="also 'items' is applied"):
        slow.catch_up()
    rig.apply("orders", "items", name="n")
    assert rig.equal()


def test_names_are_independent_of_each_other(rig: Rig) -> None:
    shop(rig)
    rig.apply("orders", name="one")
    rig.apply("items", name="two")
    assert rig.there("SELECT name FROM tidegate_applied") == [("one",), ("two",)]
    assert rig.equal()


def test_another_database_under_the_same_name_is_refused(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> None:
    shop(rig)
    rig.apply(name="n")
    with tidegate.open(tmp_path_factory.mktemp("other") / "other.tide") as other:
        for each in SHOP:
            other.sql(each)
        with pytest.raises(InvalidArgument, match="another database"):
            other.apply(["orders", "items"], rig.url, name="n")


def test_calls_that_cannot_be_meant_are_refused(rig: Rig) -> None:
    shop(rig)
    with pytest.raises(NotFound, match="nothing"):
        rig.apply("nothing")
    with pytest.raises(InvalidArgument, match="at least one table"):
        rig.db.apply([], rig.url)
    with pytest.raises(InvalidArgument, match="policy"):
        rig.apply(policy="maybe")
    with pytest.raises(InvalidArgument, match="chunk_rows"):
        rig.apply(chunk_rows=0)
    with pytest.raises(InvalidArgument, match="start"):
        rig.apply(start="yesterday")
    with pytest.raises(InvalidArgument, match=r"sqlite:///app\.db"):
        rig.db.apply("orders", "mysql://me:secret@host/db")
