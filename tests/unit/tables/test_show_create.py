"""SHOW CREATE TABLE: the statement that makes the same table again."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.entries import TableAltered, TableCreated
from tidegate.catalog.statements import parse
from tidegate.clock.timestamp import Timestamp
from tidegate.tables.definition import ColumnDef, RenameColumn
from tidegate.tables.schema import SYSTEM_COLUMNS, Table
from tidegate.tables.show_create import show_create
from tidegate.tables.statements import CreateTable


def create(columns: list[ColumnDef], key: list[str], shards: int, name: str = "t") -> Table:
    catalog = Catalog()
    record = catalog.plan_create_table(name, columns, key, shards=shards)
    assert record is not None
    change = catalog.apply(record, Timestamp(1))
    assert isinstance(change, TableCreated)
    return change.table


def test_it_shows_the_newest_schema() -> None:
    catalog = Catalog()
    columns = [ColumnDef("id", pa.int64()), ColumnDef("m", pa.map_(pa.string(), pa.date32()))]
    for n, plan in enumerate(
        [
            lambda: catalog.plan_create_table("shop.t-1", columns, ["id"], shards=2),
            lambda: catalog.plan_alter_table("shop.t-1", RenameColumn("id", "a`b")),
        ]
    ):
        record = plan()
        assert record is not None
        change = catalog.apply(record, Timestamp(n))
    assert isinstance(change, TableAltered)
    assert show_create(change.table) == (
        "CREATE TABLE `shop.t-1` (\n"
        "  `a``b` BIGINT NOT NULL,\n"
        "  `m` MAP<STRING, DATE>,\n"
        "  PRIMARY KEY (`a``b`)\n"
        ") SHARDS 2"
    )


names = st.one_of(
    st.sampled_from(["id", "primary", "order", "table", "select", "key", "größe", "a b", "`", "'", '"', "shards", "1"]),
    st.text(min_size=1, max_size=8),
).filter(lambda name: name.casefold() not in SYSTEM_COLUMNS)
types = st.sampled_from(
    [
        pa.bool_(),
        pa.int64(),
        pa.decimal128(38, 7),
        pa.string(),
        pa.binary(),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
        pa.list_(pa.struct([("a b", pa.map_(pa.string(), pa.float32())), ("c", pa.date32())])),
    ]
)
columns = st.lists(
    st.builds(ColumnDef, names, types, st.booleans()),
    min_size=1,
    max_size=5,
    unique_by=lambda each: each.name.casefold(),
)


@given(columns, st.integers(1, 9), st.data())
@settings(max_examples=200, deadline=None)
def test_reading_it_gives_the_same_table(columns: list[ColumnDef], shards: int, data: st.DataObject) -> None:
    simple = [each.name for each in columns if not pa.types.is_nested(each.type)]
    key = data.draw(st.lists(st.sampled_from(simple), unique=True)) if simple else []
    table = create(columns, key, shards, name="shop.my-table")
    read = parse(show_create(table))
    assert isinstance(read, CreateTable) and read.shards is not None
    again = create(list(read.columns), list(read.key), read.shards, read.name)
    assert again == table


def test_a_retention_of_its_own_is_shown_and_read_back() -> None:
    catalog = Catalog()
    record = catalog.plan_create_table("t", [ColumnDef("a", pa.int32())], shards=2, options={"retention_s": 90})
    assert record is not None
    change = catalog.apply(record, Timestamp(1))
    assert isinstance(change, TableCreated)
    read = parse(show_create(change.table))
    assert isinstance(read, CreateTable) and (read.shards, read.retention_s) == (2, 90)


def test_what_a_table_lies_beside_is_shown_and_read_back() -> None:
    catalog = Catalog()
    for name, options in (("t", {}), ("u", {"beside": "t", "retention_s": 90})):
        record = catalog.plan_create_table(name, [ColumnDef("a", pa.int32())], options=options, channels=4)
        assert record is not None
        change = catalog.apply(record, Timestamp(1))
        assert isinstance(change, TableCreated)
    read = parse(show_create(change.table))
    assert isinstance(read, CreateTable) and (read.beside, read.retention_s) == ("t", 90)
