"""Tables in the catalog: DDL in the timeline, schemas kept by Timestamp (seed 004; time-log fact 45)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.entries import Change, TableAltered, TableCreated, TableDropped
from tidegate.catalog.table_fold import VERSIONS_MAX
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, LimitExceeded, NotFound
from tidegate.tables.definition import AddColumn, ColumnChange, ColumnDef, DropColumn, RenameColumn
from tidegate.tables.schema import Column, Table, TableSchema
from tidegate.topics.routing import place

NOON = Timestamp.compose(1_767_268_800_000)
ID = ColumnDef("id", pa.int64())
OWNER = ColumnDef("owner", pa.string())
BALANCE = ColumnDef("balance", pa.decimal128(12, 2), nullable=False)


def at(n: int) -> Timestamp:
    return Timestamp(NOON + n)


class Log:
    """A catalog with its log: plans are written and applied in order, the n-th at `at(n)`."""

    def __init__(self, **limits: int) -> None:
        self.catalog = Catalog(**limits)
        self.records: list[bytes] = []

    def do(self, record: bytes | None) -> Change | None:
        assert record is not None
        self.records.append(record)
        return self.catalog.apply(record, at(len(self.records)))

    def create(
        self, name: str = "accounts", columns: Any = (ID, OWNER, BALANCE), key: Any = ("id",), **how: Any
    ) -> Table:
        change = self.do(self.catalog.plan_create_table(name, columns, key, **how))
        assert isinstance(change, TableCreated)
        return change.table

    def alter(self, *changes: ColumnChange, name: str = "accounts") -> Table:
        change = self.do(self.catalog.plan_alter_table(name, *changes))
        assert isinstance(change, TableAltered)
        return change.table

    def drop(self, name: str = "accounts") -> Table:
        change = self.do(self.catalog.plan_drop_table(name))
        assert isinstance(change, TableDropped)
        return change.table


def test_a_plan_changes_nothing_and_applying_it_creates_the_table() -> None:
    """Write-ahead: what is not in the log has not happened (transactions.md 1.3)."""
    catalog = Catalog()
    record = catalog.plan_create_table("accounts", [ID, OWNER, BALANCE], ["ID"], shards=4, options={"n": 1})
    assert record is not None and catalog.tables() == ()
    columns = (
        Column(1, "id", pa.int64(), nullable=False),
        Column(2, "owner", pa.string()),
        Column(3, "balance", pa.decimal128(12, 2), nullable=False),
    )
    made = Table(1, "accounts", 4, at(1), (TableSchema(1, at(1), columns, (1,)),), None, {"n": 1})
    assert catalog.apply(record, at(1)) == TableCreated(made)
    assert catalog.table("accounts") == catalog.table_by_id(1) == made
    assert catalog.tables() == (made,)
    assert made.vchannels == tuple(f"table/1.accounts/{shard}" for shard in range(4))


def test_a_key_has_columns_in_its_own_order_and_none_of_them_is_ever_null() -> None:
    table = Log().create(key=["owner", "id"])
    assert [each.name for each in table.schema.key_columns] == ["owner", "id"]
    assert [each.nullable for each in table.schema.columns] == [False, False, False]
    assert Log().create(key=[]).schema.key == (), "without a key a table only grows"


@pytest.mark.parametrize(
    ("columns", "key", "complaint"),
    [
        ([], [], "'t' has no columns"),
        ([ColumnDef("", pa.int8())], [], "'' cannot name a column: a name has 1 to 200"),
        ([ColumnDef("a" * 201, pa.int8())], [], r"'a{40}\.\.\.' cannot name a column"),
        ([ColumnDef(None, pa.int8())], [], "None cannot name a column"),  # type: ignore[arg-type]
        ([ColumnDef("_ts", pa.int8())], [], "'_ts' cannot name a column: _ts, _op, _seq are Tidegate's own"),
        ([ColumnDef("_Seq", pa.int8())], [], "'_Seq' cannot name a column"),
        ([ColumnDef("a", pa.int8()), ColumnDef("A", pa.int8())], [], "has a column 'a'; upper and lower case are"),
        ([ColumnDef("a", pa.uint8())], [], "'t', column 'a': the Arrow type uint8 is not one of a column"),
        ([ColumnDef("a", pa.int8())], ["b"], "its key names 'b', but it has 'a'"),
        ([ColumnDef("a", pa.int8())], ["a", "A"], "its key names 'A' twice"),
        ([ColumnDef("a", pa.float64())], ["a"], "'a' is DOUBLE, which cannot be part of a key; integers, BOOLEAN"),
        ([ColumnDef("a", pa.list_(pa.int8()))], ["a"], "'a' is ARRAY<TINYINT>, which cannot be part of a key"),
    ],
)
def test_a_table_that_cannot_be_is_refused(columns: list[ColumnDef], key: list[str], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        Catalog().plan_create_table("t", columns, key)


@pytest.mark.parametrize("name", ["", "1st", "a b", "a/b", None, ["a"]], ids=repr)
def test_a_table_has_a_name_like_a_topic(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="cannot name a table"):
        Catalog().plan_create_table(name, [ID])


def test_a_column_may_have_any_other_name_and_any_number_of_shards_up_to_1024() -> None:
    names = ["größe", "a b", "`", "_t", "a" * 200]
    table = Log().create(columns=[ColumnDef(name, pa.int8()) for name in names], key=(), shards=1024)
    assert table.schema.names == names
    with pytest.raises(InvalidArgument, match="table 't': the number of shards is from 1 to 1024, not 0"):
        Catalog().plan_create_table("t", [ID], shards=0)


def test_topics_and_tables_share_their_names() -> None:
    log = Log()
    log.create("orders")
    log.do(log.catalog.plan_create_topic("audit"))
    with pytest.raises(
        InvalidArgument, match=r"topic 'audit' exists since .*; topics, tables and views share their names"
    ):
        log.catalog.plan_create_table("audit", [ID], if_not_exists=True)
    with pytest.raises(
        InvalidArgument, match=r"table 'orders' exists since .*; topics, tables and views share their names"
    ):
        log.catalog.plan_create_topic("orders", if_not_exists=True)
    with pytest.raises(NotFound, match="'audit' is a topic, not a table"):
        log.catalog.table("audit")


@pytest.mark.parametrize("first", ["topic", "table"])
def test_of_a_topic_and_a_table_planned_at_once_the_second_in_the_log_means_nothing(first: str) -> None:
    log = Log()
    plans = {"topic": log.catalog.plan_create_topic("x"), "table": log.catalog.plan_create_table("x", [ID])}
    assert log.do(plans.pop(first)) is not None
    assert log.do(plans.popitem()[1]) is None
    assert len(log.catalog.topics()) + len(log.catalog.tables()) == 1
    assert log.create("next").id == 2, "a refused record takes no id"


def test_creating_what_exists_says_what_exists() -> None:
    log = Log()
    log.create()
    with pytest.raises(InvalidArgument, match=r"table 'accounts' exists since .* with 3 columns; use IF NOT EXISTS"):
        log.catalog.plan_create_table("accounts", [ID])
    assert log.catalog.plan_create_table("accounts", [ID], if_not_exists=True) is None


def test_an_unknown_table_is_answered_with_near_names() -> None:
    log = Log()
    with pytest.raises(NotFound, match="no table 'accounts'; none has been created yet"):
        log.catalog.table("accounts")
    log.create()
    with pytest.raises(NotFound, match=r"no table 'Accounts'; did you mean 'accounts'\?"):
        log.catalog.table("Accounts")
    with pytest.raises(NotFound, match="no table 'acounts'"):
        log.catalog.plan_alter_table("acounts", DropColumn("owner"))
    with pytest.raises(NotFound, match="no table 'acounts'"):
        log.catalog.plan_drop_table("acounts")
    with pytest.raises(NotFound, match="no table with the id 7"):
        log.catalog.table_by_id(7)
    assert log.catalog.plan_drop_table("acounts", if_exists=True) is None
    assert log.catalog.plan_alter_table("acounts", DropColumn("owner"), if_exists=True) is None


def test_every_schema_is_kept_by_the_timestamp_it_took_effect_at() -> None:
    """A change at ts: just before it the old schema, from it on the new one (time-log fact 45)."""
    log = Log()
    log.create()
    log.alter(AddColumn("city", pa.string()))
    log.alter(RenameColumn("OWNER", "Holder"))
    table = log.alter(DropColumn("balance"))
    assert [each.version for each in table.versions] == [1, 2, 3, 4]
    assert [each.since for each in table.versions] == [at(1), at(2), at(3), at(4)]
    assert table.at(at(1)).names == ["id", "owner", "balance"]
    assert table.at(at(2)).names == ["id", "owner", "balance", "city"]
    assert table.at(at(3)).names == ["id", "Holder", "balance", "city"]
    assert table.at(at(4)).names == table.at(at(9)).names == table.schema.names == ["id", "Holder", "city"]
    with pytest.raises(NotFound, match="was created at"):
        table.at(NOON)
    assert [each.key for each in table.versions] == [(1,)] * 4


def test_a_column_keeps_its_number_for_ever_and_a_dropped_one_leaves_it_unused() -> None:
    log = Log()
    log.create()
    assert log.alter(RenameColumn("owner", "holder")).schema.column("holder").id == 2
    log.alter(DropColumn("balance"))
    table = log.alter(AddColumn("balance", pa.int64()))
    assert [(each.id, each.name) for each in table.schema.columns] == [(1, "id"), (2, "holder"), (4, "balance")]


def test_several_changes_make_one_version_each_seeing_those_before_it() -> None:
    log = Log()
    log.create()
    table = log.alter(
        AddColumn("a", pa.int8()), RenameColumn("a", "b"), DropColumn("owner"), AddColumn("owner", pa.date32())
    )
    assert [(each.id, each.name) for each in table.schema.columns] == [
        (1, "id"),
        (3, "balance"),
        (4, "b"),
        (5, "owner"),
    ]
    assert table.schema.version == 2


def test_a_key_column_can_be_renamed_and_stays_the_key() -> None:
    log = Log()
    log.create()
    assert [each.name for each in log.alter(RenameColumn("id", "ID")).schema.key_columns] == ["ID"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ([AddColumn("city", pa.string(), nullable=False)], "'city' cannot be NOT NULL, because rows that exist"),
        ([AddColumn("OWNER", pa.string())], "has a column 'owner'; upper and lower"),
        ([AddColumn("_op", pa.string())], "'_op' cannot name a column"),
        ([AddColumn("x", pa.uint8())], "Arrow type uint8"),
        ([DropColumn("id")], "'id' is part of the key and stays"),
        ([DropColumn("citi")], "'accounts' has no column 'citi'; it has 'id', 'owner', 'balance'"),
        ([RenameColumn("owner", "Balance")], "has a column 'balance'"),
        ([RenameColumn("owner", "")], "'' cannot name a column"),
        ([RenameColumn("x", "y")], "has no column 'x'"),
        ([AddColumn("a", pa.int8()), DropColumn("id")], "part of the key"),
    ],
)
def test_a_change_that_cannot_be_is_refused(changes: list[ColumnChange], complaint: str) -> None:
    log = Log()
    log.create()
    with pytest.raises(InvalidArgument, match=complaint):
        log.catalog.plan_alter_table("accounts", *changes)
    assert len(log.catalog.table("accounts").versions) == 1


def test_the_last_column_stays() -> None:
    log = Log()
    log.create(columns=[OWNER], key=())
    with pytest.raises(InvalidArgument, match="'owner' is its last column; use DROP TABLE"):
        log.catalog.plan_alter_table("accounts", DropColumn("owner"))


def test_a_change_without_effect_needs_no_record() -> None:
    log = Log()
    log.create()
    same = [
        AddColumn("Owner", pa.int8(), if_not_exists=True),
        DropColumn("city", if_exists=True),
        RenameColumn("owner", "owner"),
    ]
    assert log.catalog.plan_alter_table("accounts", *same) is None
    assert log.catalog.plan_alter_table("accounts") is None


def test_of_two_changes_planned_for_one_version_the_second_in_the_log_means_nothing() -> None:
    """It was checked against a schema that is no more; every replay ignores it alike (transactions.md 3.7)."""
    log = Log()
    log.create()
    one = log.catalog.plan_alter_table("accounts", AddColumn("a", pa.int8()))
    two = log.catalog.plan_alter_table("accounts", AddColumn("a", pa.int16()))
    assert isinstance(log.do(one), TableAltered)
    before = (log.catalog.version, log.catalog.changed)
    assert log.do(two) is None
    assert (log.catalog.version, log.catalog.changed) == before
    assert len(log.catalog.table("accounts").versions) == 2


def test_a_late_change_does_not_hit_a_table_created_since() -> None:
    log = Log()
    log.create()
    late_drop = log.catalog.plan_drop_table("accounts")
    late_alter = log.catalog.plan_alter_table("accounts", DropColumn("owner"))
    assert log.drop().id == 1
    assert log.create().id == 2
    assert log.do(late_drop) is None and log.do(late_alter) is None
    assert log.catalog.table("accounts").schema.names == ["id", "owner", "balance"]


def test_a_dropped_table_is_still_part_of_the_cuts_before_until_it_is_forgotten() -> None:
    """Old cuts are read by what was there then (design: time travel by old manifests)."""
    log = Log()
    first = log.create()
    log.create("other")
    dropped = log.drop()
    assert dropped.dropped == at(3)
    second = log.create()
    names = {n: [(each.id, each.name) for each in log.catalog.tables_at(at(n))] for n in range(5)}
    assert names == {
        0: [],
        1: [(1, "accounts")],
        2: [(1, "accounts"), (2, "other")],
        3: [(2, "other")],
        4: [(3, "accounts"), (2, "other")],
    }
    assert log.catalog.table("accounts") == second
    assert log.catalog.table_by_id(first.id) == dropped
    assert dropped.at(at(2)) == first.schema
    with pytest.raises(NotFound, match="was dropped at"):
        dropped.at(at(3))

    assert log.catalog.forget_dropped(at(2)) == (), "a cut at 2 shows it"
    assert log.catalog.forget_dropped(at(3)) == (dropped,)
    assert log.catalog.forget_dropped(at(9)) == (), "the living are not forgotten"
    with pytest.raises(NotFound, match="no longer remembered"):
        log.catalog.table_by_id(first.id)
    assert [each.id for each in log.catalog.tables_at(at(1))] == []


def test_numbers_of_tables_columns_and_versions_are_limited() -> None:
    log = Log(tables_max=1, columns_max=3)
    log.create()
    with pytest.raises(LimitExceeded, match="tables_max"):
        log.catalog.plan_create_table("more", [ID])
    with pytest.raises(LimitExceeded, match=r"table 'more': its number of columns is 4, .*columns_max"):
        log.catalog.plan_create_table("more", [ColumnDef(name, pa.int8()) for name in "abcd"])
    with pytest.raises(LimitExceeded, match="columns_max"):
        log.catalog.plan_alter_table("accounts", AddColumn("more", pa.int8()))
    for n in range(VERSIONS_MAX - 1):
        log.alter(RenameColumn("owner", f"owner{n}") if n == 0 else RenameColumn(f"owner{n - 1}", f"owner{n}"))
    with pytest.raises(InvalidArgument, match="has been altered 999 times"):
        log.catalog.plan_alter_table("accounts", DropColumn("balance"))
    restored = Catalog.restore(log.catalog.snapshot(), tables_max=1)
    assert restored.tables() == log.catalog.tables()
    with pytest.raises(LimitExceeded, match="tables_max"):
        restored.plan_create_table("more", [ID])


def test_a_table_of_2000_columns_can_be_and_of_2001_not() -> None:
    columns = [ColumnDef(f"c{n}", pa.int8()) for n in range(2001)]
    assert len(Log().create(columns=columns[:2000], key=()).schema.columns) == 2000
    with pytest.raises(LimitExceeded, match="2,001, above the limit of 2,000"):
        Catalog().plan_create_table("t", columns)


def test_a_snapshot_from_before_there_were_tables_is_read() -> None:
    """A log written by an earlier version is read by every later one."""
    old = (
        b'{"applied": 9, "changed": 9, "format": 1, "next_id": 2, "subscriptions": [], "topics": [{"created": 9,'
        b' "id": 1, "name": "a", "options": {}, "shards": 2}], "version": 1, "what": "snapshot"}'
    )
    catalog = Catalog.restore(old)
    assert [each.name for each in catalog.topics()] == ["a"] and catalog.tables() == ()
    record = catalog.plan_create_table("t", [ID])
    assert record is not None
    change = catalog.apply(record, at(1))
    assert isinstance(change, TableCreated) and change.table.id == 2


def test_the_records_on_disk_are_fixed() -> None:
    """A log written today is read by every later version; types are Spark SQL."""
    catalog = Catalog()
    created = (
        b'{"columns": [[1, "id", "BIGINT", false], [2, "m", "MAP<STRING, DECIMAL(3, 1)>", true]], "format": 1,'
        b' "key": [1], "name": "t", "options": {}, "shards": 2, "what": "create_table"}'
    )
    columns = [ID, ColumnDef("m", pa.map_(pa.string(), pa.decimal128(3, 1)))]
    assert catalog.plan_create_table("t", columns, ["id"], shards=2) == created
    catalog.apply(created, at(1))
    altered = (
        b'{"columns": [[1, "id", "BIGINT", false], [3, "at", "TIMESTAMP", true]], "format": 1, "id": 1, "name": "t",'
        b' "version": 1, "what": "alter_table"}'
    )
    change = [DropColumn("m"), AddColumn("at", pa.timestamp("us", tz="UTC"))]
    assert catalog.plan_alter_table("t", *change) == altered
    catalog.apply(altered, at(2))
    assert catalog.plan_drop_table("t") == b'{"format": 1, "id": 1, "name": "t", "what": "drop_table"}'


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_a_table_lies_in_the_channel_of_the_one_it_is_created_beside(channels: int) -> None:
    """A transaction over both is then one write; promise 2 needs no second channel."""
    log = Log()
    first = log.create("first", channels=channels)
    found = [log.create(f"t{n}", options={"beside": "first"} if n % 2 else {}, channels=channels) for n in range(20)]
    assert len({first.id, *(each.id for each in found)}) == 21
    assert {place(each.id, 0, channels) for each in found[1::2]} == {place(first.id, 0, channels)}
    # A restart leaves everything where it was.
    again = Catalog.restore(log.catalog.snapshot())
    assert [again.table(each.name).id for each in found] == [each.id for each in found]
    replayed = Log()
    for record in log.records:
        replayed.do(record)
    assert [replayed.catalog.table(each.name).id for each in found] == [each.id for each in found]


def test_a_table_cannot_lie_beside_one_that_is_not_there() -> None:
    log = Log()
    with pytest.raises(NotFound, match="'first'"):
        log.create("second", options={"beside": "first"}, channels=4)
