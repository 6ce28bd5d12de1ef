"""Materialized views in the catalog (issue 6; views.md): what they store, what they read, and who depends on whom."""

from __future__ import annotations

from sys import getrecursionlimit
from typing import Any

import pyarrow as pa
import pytest

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.entries import Change, TableDropped, ViewCreated, ViewDropped, ViewResumed
from tidegate.catalog.view_fold import view_facts, view_of
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, InvalidArgument, LimitExceeded, NotFound
from tidegate.tables.definition import AddColumn, ColumnChange, ColumnDef, DropColumn, NodeDef, RenameColumn

NOON = Timestamp.compose(1_767_268_800_000)
TOTALS = NodeDef(
    (ColumnDef("region", pa.string()), ColumnDef("total", pa.int64()), ColumnDef("_n", pa.int64(), False)),
    ("region",),
    hidden=1,
)
JOINED = NodeDef((ColumnDef("_k", pa.float64()), ColumnDef("_v", pa.int64())), ("_k",), hidden=2)


def at(n: int) -> Timestamp:
    return Timestamp(NOON + n)


class Log:
    """A catalog with its log: plans are written and applied in order, the n-th at `at(n)`."""

    def __init__(self, *tables: str, **limits: int) -> None:
        self.catalog = Catalog(**limits)
        self.records: list[bytes] = []
        for name in tables:
            columns = [ColumnDef("id", pa.int64()), ColumnDef("region", pa.string()), ColumnDef("amount", pa.int64())]
            self.do(self.catalog.plan_create_table(name, columns, ["id"]))

    def do(self, record: bytes | None) -> Change | None:
        assert record is not None
        self.records.append(record)
        return self.catalog.apply(record, at(len(self.records)))

    def plan(self, name: str, *reads: str, used: Any = None, nodes: Any = (TOTALS,), **how: Any) -> bytes | None:
        inputs = {each: self.place(each) for each in reads}
        columns = [each.name for each in nodes[-1].visible]
        if used is None:
            used = {each: {"region"} for each in reads}
        return self.catalog.plan_create_view(name, f"SELECT ... {reads}", columns, nodes, inputs, used, **how)

    def place(self, name: str) -> tuple[int, int]:
        found = {each.name: each for each in self.catalog.stored()}[name]
        return found.id, found.schema.version

    def view(self, name: str, *reads: str, **how: Any) -> View:
        change = self.do(self.plan(name, *reads, **how))
        assert isinstance(change, ViewCreated)
        return change.view

    def alter(self, *changes: ColumnChange, name: str = "orders") -> Change | None:
        return self.do(self.catalog.plan_alter_table(name, *changes))


def test_a_view_stores_its_nodes_as_tables_hidden_ones_first_and_its_own_last() -> None:
    """views.md: ids from the same row of ids; `name#1` is hidden; the last has the view's name."""
    log = Log("orders")
    record = log.plan("totals", "orders", nodes=(JOINED, TOTALS), options={"retention_s": 90})
    assert log.catalog.views() == (), "a plan changes nothing"
    change = log.do(record)
    assert isinstance(change, ViewCreated)
    view = change.view
    assert (view.id, view.name, view.sql, view.created) == (3, "totals", "SELECT ... ('orders',)", at(2))
    assert [(each.id, each.name, each.shards, each.created) for each in view.nodes] == [
        (2, "totals#1", 1, at(2)),
        (3, "totals", 1, at(2)),
    ]
    assert view.table == view.nodes[-1] and view.columns == ("region", "total")
    assert view.table.schema.names == ["region", "total", "_n"]
    assert view.inputs == {"orders": (1, 1)} and view.used == {"orders": frozenset({"region"})}
    assert [each.options for each in view.nodes] == [
        {"retention_s": 90, "hidden_columns": 2},
        {"retention_s": 90, "hidden_columns": 1},
    ], "garbage collection keeps what a view stores as long as the view says"
    assert log.catalog.view("totals") == log.catalog.view_by_id(3) == view
    log.do(log.catalog.plan_create_topic("next"))
    assert log.catalog.topic("next").id == 4


def test_the_key_of_a_node_may_be_null_and_a_number_with_a_point() -> None:
    """Group columns are keys; a table's key can be neither."""
    view = Log("orders")
    nodes = view.view("v", "orders", nodes=(JOINED, TOTALS)).nodes
    assert [each.schema.key_may_be_null for each in nodes] == [True, True]
    assert view.catalog.table("orders").schema.key_may_be_null is False


def test_what_goes_by_files_finds_nodes_and_what_goes_by_names_does_not() -> None:
    log = Log("orders")
    view = log.view("totals", "orders", nodes=(JOINED, TOTALS))
    catalog = log.catalog
    assert [each.name for each in catalog.tables()] == ["orders"]
    assert [each.name for each in catalog.stored()] == ["orders", "totals#1", "totals"]
    assert [each.name for each in catalog.tables_at(at(2))] == ["orders"]
    assert [[each.id for each in catalog.stored_at(at(n))] for n in range(3)] == [[], [1], [1, 2, 3]]
    assert catalog.table_by_id(2) == view.nodes[0] and catalog.table_by_id(3) == view.table
    with pytest.raises(NotFound, match="'totals' is a materialized view, not a table: its rows follow from its query"):
        catalog.table("totals")
    with pytest.raises(NotFound, match="'orders' is a table, not a materialized view"):
        catalog.view("orders")
    with pytest.raises(NotFound, match="there is no materialized view 'total'; did you mean 'totals'"):
        catalog.view("total")
    with pytest.raises(NotFound, match="there is no table with the id 9"):
        catalog.table_by_id(9)
    with pytest.raises(NotFound, match="there is no view with the id 2"):
        catalog.view_by_id(2)


@pytest.mark.parametrize("first", ["topic", "table", "view"])
def test_topics_tables_and_views_share_their_names(first: str) -> None:
    log = Log("orders")
    plans = {
        "topic": lambda: log.catalog.plan_create_topic("x", if_not_exists=True),
        "table": lambda: log.catalog.plan_create_table("x", [ColumnDef("id", pa.int64())], if_not_exists=True),
        "view": lambda: log.plan("x", "orders", if_not_exists=True),
    }
    raced = {what: plan() for what, plan in plans.items()}
    assert log.do(raced.pop(first)) is not None
    for what, record in raced.items():
        assert log.do(record) is None, "planned at once: the second in the log means nothing"
        with pytest.raises(InvalidArgument, match=f"{first} 'x' exists since .*; topics, tables and views share"):
            plans[what]()


def test_creating_what_exists_says_so_or_is_fine() -> None:
    log = Log("orders", views_max=1)
    log.view("v", "orders")
    assert log.plan("v", "orders", if_not_exists=True) is None
    assert not log.catalog.may_create_view("v", if_not_exists=True)
    with pytest.raises(InvalidArgument, match=r"view 'v' exists since .*; use IF NOT EXISTS, or drop it first"):
        log.plan("v", "orders")
    with pytest.raises(InvalidArgument, match="'a b' cannot name a view"):
        log.plan("a b", "orders")
    with pytest.raises(LimitExceeded, match="the number of views is 2, above the limit of 1; raise `views_max`"):
        log.plan("w", "orders")


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"nodes": (NodeDef(TOTALS.columns, ("x",)),)}, "view 'v': its key names 'x', but it has 'region'"),
        ({"nodes": (NodeDef((ColumnDef("_ts", pa.int64()),), ()),)}, "view 'v': '_ts' cannot name a column"),
        ({"nodes": (NodeDef(TOTALS.columns, ("region",), 4),)}, "of 3 columns 4 cannot be hidden"),
        ({"nodes": (NodeDef(TOTALS.columns, ("region",), 3),)}, "has the columns .* but stores"),
        (
            {"nodes": (NodeDef((ColumnDef("a", pa.list_(pa.int8())),), ("a",)),)},
            "cannot be part of a key; .* DOUBLE can",
        ),
        ({"used": {"orders": {"nope"}}}, "there is no column 'nope'"),
        ({"used": {"other": {"id"}}}, "uses columns of 'other', which it does not read"),
    ],
)
def test_a_view_that_cannot_be_is_refused(how: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        Log("orders").plan("v", "orders", **how)
    with pytest.raises(InvalidArgument, match="view 'v' has the columns \\['x'\\], but stores \\['region', 'total'\\]"):
        Log().catalog.plan_create_view("v", "SELECT", ["x"], [TOTALS], {}, {})
    with pytest.raises(InvalidArgument, match="view 'v' stores nothing"):
        Log().catalog.plan_create_view("v", "SELECT", ["x"], [], {}, {})


# -- what it reads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"orders": (1, 2)}, "'orders', which it reads, has schema version 1 by now, not 2; look at its query again"),
        ({"orders": (7, 1)}, "'orders', which it reads, was created anew"),
        ({"gone": (1, 1)}, "'gone', which it reads, is there no more"),
    ],
)
def test_a_view_is_planned_for_what_its_query_was_looked_at(inputs: Any, complaint: str) -> None:
    """`SELECT *` means those columns for ever: between the look and the plan nothing may have changed."""
    with pytest.raises(Conflict, match=complaint):
        Log("orders").catalog.plan_create_view("v", "SELECT", ["region", "total"], [TOTALS], inputs, {})


@pytest.mark.parametrize("change", ["alter", "drop", "again"])
def test_a_view_whose_input_changes_before_it_is_in_the_log_means_nothing(change: str) -> None:
    log = Log("orders")
    record = log.plan("v", "orders")
    if change == "alter":
        log.alter(AddColumn("note", pa.string()))
    else:
        log.do(log.catalog.plan_drop_table("orders"))
        if change == "again":
            log.do(log.catalog.plan_create_table("orders", [ColumnDef("region", pa.string())]))
    assert log.do(record) is None and log.catalog.views() == ()


@pytest.mark.parametrize(
    "change", [DropColumn("Region"), RenameColumn("region", "area"), RenameColumn("region", "REGION")], ids=repr
)
def test_a_column_that_views_use_stays_and_the_views_are_named(change: ColumnChange) -> None:
    """Issue 6: a view that uses a dropped column is refused the change, with its name."""
    log = Log("orders")
    log.view("totals", "orders", used={"orders": {"REGION"}})
    with pytest.raises(
        InvalidArgument, match="column 'region' stays as it is: view 'totals' uses it; drop the view first"
    ):
        log.alter(change)
    log.view("again", "orders")
    with pytest.raises(InvalidArgument, match="views 'again', 'totals' use it; drop the views first"):
        log.alter(change)


def test_columns_that_no_view_uses_come_and_go() -> None:
    log = Log("orders", "others")
    view = log.view("totals", "orders")
    log.alter(AddColumn("note", pa.string()), RenameColumn("amount", "price"))
    log.alter(DropColumn("price"), RenameColumn("note", "amount"))
    log.alter(DropColumn("region"), name="others")
    log.alter(RenameColumn("region", "x"), RenameColumn("x", "region"), DropColumn("amount"))
    assert log.catalog.view("totals") == view, "its inputs are those of its creation"
    with pytest.raises(InvalidArgument, match="'region' stays"):
        log.alter(DropColumn("region"), AddColumn("region", pa.string()))
    log.do(log.catalog.plan_drop_view("totals"))
    log.alter(DropColumn("region"))


def test_a_change_of_columns_planned_before_the_view_means_nothing_after_it() -> None:
    log = Log("orders")
    harmful, harmless = (
        log.catalog.plan_alter_table("orders", each) for each in (DropColumn("region"), AddColumn("n", pa.int8()))
    )
    log.view("totals", "orders")
    assert log.do(harmful) is None
    assert log.do(harmless) is not None


# -- dropping ------------------------------------------------------------------------------------------------


def shop() -> Log:
    """orders <- totals <- top <- podium; orders, customers <- joined; customers <- names."""
    log = Log("orders", "customers")
    log.view("totals", "orders")
    log.view("names", "customers")
    log.view("top", "totals")
    log.view("joined", "orders", "customers")
    log.view("podium", "top", "totals")
    return log


def test_what_views_read_is_not_dropped_and_all_of_them_are_named() -> None:
    """Issue 6: DROP is refused with the list of dependants, in an order in which they can go."""
    log = shop()
    with pytest.raises(
        InvalidArgument,
        match="table 'orders' is read by views 'podium', 'joined', 'top', 'totals'; drop them, in this order, first,"
        " or all at once: DROP TABLE orders CASCADE",
    ):
        log.catalog.plan_drop_table("orders")
    with pytest.raises(
        InvalidArgument, match=r"view 'top' is read by view 'podium'; drop it first, or .* VIEW top CASC"
    ):
        log.catalog.plan_drop_view("top")
    for name in ("podium", "joined", "top", "totals"):
        log.do(log.catalog.plan_drop_view(name))
    assert isinstance(log.do(log.catalog.plan_drop_table("orders")), TableDropped)


def test_cascade_drops_all_that_read_it_at_one_timestamp() -> None:
    log = shop()
    before = log.catalog.stored()
    change = log.do(log.catalog.plan_drop_table("orders", cascade=True))
    assert isinstance(change, TableDropped)
    assert [each.name for each in change.views] == ["podium", "joined", "top", "totals"]
    ended = {change.table.dropped} | {each.dropped for each in change.views}
    assert ended == {each.dropped for view in change.views for each in view.nodes} == {at(8)}
    assert [each.name for each in log.catalog.stored()] == ["customers", "names"]
    assert log.catalog.stored_at(at(8)) == log.catalog.stored()
    kept = [(each.id, each.name) for each in log.catalog.stored_at(at(7))]
    assert kept == [(each.id, each.name) for each in before], "cuts before still show all"


def test_cascade_of_a_view_ends_with_the_view_itself() -> None:
    log = shop()
    change = log.do(log.catalog.plan_drop_view("totals", cascade=True))
    assert isinstance(change, ViewDropped)
    assert [each.name for each in change.views] == ["podium", "top", "totals"]
    assert [each.name for each in log.catalog.views()] == ["joined", "names"]
    assert log.catalog.plan_drop_view("totals", if_exists=True) is None
    with pytest.raises(NotFound, match="there is no materialized view 'totals'"):
        log.catalog.plan_drop_view("totals")


@pytest.mark.parametrize("cascade", [True, False])
def test_a_drop_that_does_not_know_of_a_view_means_nothing(cascade: bool) -> None:
    """A view created between the plan and the log would read what is gone."""
    log = Log("orders")
    table = log.catalog.plan_drop_table("orders", cascade=cascade)
    log.view("totals", "orders")
    view = log.catalog.plan_drop_view("totals", cascade=cascade)
    log.view("top", "totals")
    assert log.do(table) is None and log.do(view) is None
    assert [each.name for each in log.catalog.stored()] == ["orders", "top", "totals"]


def test_a_cascade_whose_views_are_gone_meanwhile_drops_the_rest() -> None:
    log = Log("orders")
    log.view("totals", "orders")
    record = log.catalog.plan_drop_table("orders", cascade=True)
    log.do(log.catalog.plan_drop_view("totals"))
    assert log.do(record) == TableDropped(log.catalog.table_by_id(1))


def test_a_view_dropped_and_created_again_is_another_one() -> None:
    log = Log("orders")
    old = log.view("totals", "orders")
    drop = log.catalog.plan_drop_view("totals")
    log.do(drop)
    new = log.view("totals", "orders")
    assert new.id != old.id and log.do(drop) is None, "the old record means the old view"
    assert [each.id for each in log.catalog.views_at(at(2))] == [old.id]
    assert log.catalog.tables_changed(["totals"]) == at(4)


def test_a_dropped_view_is_remembered_with_its_nodes_until_it_is_forgotten() -> None:
    """Compaction and readers of older cuts look up schemas by id."""
    log = Log("orders")
    log.view("totals", "orders", nodes=(JOINED, TOTALS))
    log.do(log.catalog.plan_drop_view("totals"))
    gone = log.catalog.view_by_id(3)
    assert gone.dropped == at(3) and gone.existed(at(2)) and not gone.existed(at(3))
    restored = Catalog.restore(log.catalog.snapshot())
    for catalog in (log.catalog, restored):
        assert catalog.view_by_id(3) == gone and catalog.table_by_id(2) == gone.nodes[0]
        assert catalog.forget_dropped(at(2)) == ()
        assert catalog.forget_dropped(at(3)) == gone.nodes
        assert catalog.views_at(at(2)) == ()
        for ask in (catalog.view_by_id, catalog.table_by_id):
            with pytest.raises(NotFound, match="or it was dropped and is no longer remembered"):
                ask(3)


def test_resuming_a_view_says_since_when_it_is_to_be_repaired() -> None:
    """Issue 6: ALTER MATERIALIZED VIEW v RESUME repairs it: a failure older than that is tried again."""
    log = Log("orders")
    assert log.view("totals", "orders").resumed == Timestamp.ZERO
    record = log.catalog.plan_resume_view("totals")
    change = log.do(record)
    assert change == ViewResumed(log.catalog.view("totals")) and log.catalog.view("totals").resumed == at(3)
    assert Catalog.restore(log.catalog.snapshot()).view("totals").resumed == at(3)
    log.do(log.catalog.plan_drop_view("totals"))
    assert log.do(record) is None
    with pytest.raises(NotFound, match="there is no materialized view 'totals'"):
        log.catalog.plan_resume_view("totals")


def test_a_view_as_plain_data_is_the_same_view() -> None:
    """Other processes get it so."""
    view = Log("orders").view("totals", "orders", nodes=(JOINED, TOTALS), options={"comment": "x"})
    assert view_of(view_facts(view)) == view


def test_a_snapshot_from_before_there_were_views_is_read() -> None:
    snapshot = Log("orders").catalog.snapshot()
    assert b'"views": []' in snapshot
    old = Catalog.restore(snapshot.replace(b', "views": []', b""))
    assert old.views() == () and [each.name for each in old.tables()] == ["orders"]


def test_the_record_that_drops_a_table_without_views_is_what_it_was() -> None:
    record = Log("orders").catalog.plan_drop_table("orders", cascade=True)
    assert record == b'{"format": 1, "id": 1, "name": "orders", "what": "drop_table"}'


def test_a_view_over_views_over_views_reads_all_that_they_read() -> None:
    """However many there are one above the other: a chain is no deeper than it is long."""
    log = Log("orders", views_max=10_000)
    names = ["orders"]
    for number in range(getrecursionlimit() + 200):
        names.append(log.view(f"v{number}", names[-1]).name)
    found: dict[int, Any] = {}
    log.catalog.read_by(log.catalog.view(names[-1]), found)
    assert sorted(each.name for each in found.values()) == sorted(names[:-1])
