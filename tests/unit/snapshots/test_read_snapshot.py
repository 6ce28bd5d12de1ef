"""Reading a table at a checkpoint: the newest change of a key wins, by the schema that is asked for."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from snapshot_rig import ACCOUNTS, BALANCE, EVENTS, ID, SnapshotRig, at, schema

from tidegate.errors import InvalidArgument, NotFound
from tidegate.snapshots.damage import SnapshotDamaged
from tidegate.snapshots.manifest import BASE
from tidegate.tables.schema import Column, Table


def test_the_newest_change_of_a_key_wins(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": 1, "balance": 1}, {"id": 2, "balance": 1}, {"id": 3, "balance": 1}])
    snapshots.write(ACCOUNTS, [{"id": 2, "balance": 2}, {"id": 3, "_op": -1}])
    assert [(row["id"], row["balance"]) for row in snapshots.rows(ACCOUNTS)] == [(1, 1), (2, 2)]
    snapshots.write(ACCOUNTS, [{"id": 3, "balance": 3}, {"id": 1, "_op": -1}])
    assert [(row["id"], row["balance"]) for row in snapshots.rows(ACCOUNTS)] == [(2, 2), (3, 3)]


def test_within_one_transaction_the_order_decides(snapshots: SnapshotRig) -> None:
    """Issue: insert, delete, insert of one key in one batch ends with the row. All have the commit's Timestamp."""
    changes = [{"id": 1, "balance": 1}, {"id": 1, "_op": -1}, {"id": 1, "balance": 2}, {"id": 2}, {"id": 2, "_op": -1}]
    snapshots.write(ACCOUNTS, changes)
    assert snapshots.rows(ACCOUNTS) == [{"id": 1, "name": None, "balance": 2}]


def test_within_one_epoch_the_timestamp_decides_before_the_order(snapshots: SnapshotRig) -> None:
    late, early = int(at(1)), int(at(1)) - 5
    snapshots.write(ACCOUNTS, [{"id": 1, "balance": 1, "_ts": late}, {"id": 1, "balance": 2, "_ts": early}])
    assert snapshots.rows(ACCOUNTS, columns=["balance"]) == [{"balance": 1}]


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_a_base_and_its_layers_read_as_the_layers_alone(snapshots: SnapshotRig, layers: int) -> None:
    for epoch in range(1, 7):
        changes = [{"id": each, "balance": epoch} for each in range(epoch, epoch + 3)]
        snapshots.write(ACCOUNTS, [*changes, {"id": epoch - 1, "_op": -1}])
        if epoch == 6 - layers:
            snapshots.compact(ACCOUNTS, level=BASE)
    assert [(row["id"], row["balance"]) for row in snapshots.rows(ACCOUNTS)] == [(6, 6), (7, 6), (8, 6)]


def test_a_table_without_a_key_adds_up(snapshots: SnapshotRig) -> None:
    snapshots.write(EVENTS, [{"id": 1, "name": "a"}, {"id": 1, "name": "a"}])
    snapshots.write(EVENTS, [{"id": 1, "name": "a"}])
    assert len(snapshots.rows(EVENTS)) == 3
    snapshots.compact(EVENTS, level=1)
    assert snapshots.rows(EVENTS) == [{"id": 1, "name": "a"}] * 3


def test_columns_are_found_by_their_number(snapshots: SnapshotRig) -> None:
    """Renamed, dropped, added; and a name that was given away and used again."""
    renamed = Column(2, "owner", pa.string())
    again = Column(4, "name", pa.int32())
    second = schema(2, [ID, renamed, BALANCE], since=2)
    third = schema(3, [ID, renamed, again], since=3)
    table = Table(7, "accounts", 1, at(0), (ACCOUNTS.schema, second, third))
    snapshots.write(table, [{"id": 1, "name": "ann", "balance": 5}], schema=table.version(1))
    snapshots.write(table, [{"id": 2, "owner": "bo", "balance": 6}], schema=second)
    snapshots.write(table, [{"id": 3, "owner": "cy", "name": 7}], schema=third)
    expected = [
        {"id": 1, "owner": "ann", "name": None},
        {"id": 2, "owner": "bo", "name": None},
        {"id": 3, "owner": "cy", "name": 7},
    ]
    assert snapshots.rows(table) == expected
    assert snapshots.rows(table, snapshots.store.at(at(1))) == [{"id": 1, "name": "ann", "balance": 5}]
    assert snapshots.rows(table, snapshots.store.at(at(2)))[0] == {"id": 1, "owner": "ann", "balance": 5}
    snapshots.compact(table, level=BASE)
    assert snapshots.rows(table) == expected
    assert {each.schema for each in snapshots.store.manifest().files(7)} == {3}


def test_a_column_that_was_added_as_not_null_is_null_in_older_rows(snapshots: SnapshotRig) -> None:
    second = schema(2, [ID, Column(4, "kind", pa.string(), nullable=False)], since=2)
    table = Table(7, "accounts", 1, at(0), (ACCOUNTS.schema, second))
    snapshots.write(table, [{"id": 1}], schema=table.version(1))
    snapshots.write(table, [{"id": 2, "kind": "a"}])
    found = snapshots.reader.read_all(snapshots.store.manifest(), table)
    assert found.schema.field("kind").nullable
    found.validate(full=True)


def test_every_type_of_a_column_comes_back_as_it_was(snapshots: SnapshotRig) -> None:
    """The types that Spark, Arrow, Parquet and DuckDB share; a column added later has them too."""
    values = {
        pa.bool_(): True,
        pa.int8(): -1,
        pa.int16(): -2,
        pa.int32(): -3,
        pa.float32(): 0.5,
        pa.float64(): 0.25,
        pa.decimal128(38, 10): Decimal("1234567890.0123456789"),
        pa.decimal128(9, 2): Decimal("-1.50"),
        pa.string(): "é'\"",
        pa.binary(): b"\x00\xff",
        pa.date32(): date(2026, 1, 31),
        pa.timestamp("us"): datetime(2026, 1, 31, 12, 0, 0, 5),
        pa.timestamp("us", tz="UTC"): datetime(2026, 1, 31, 12, tzinfo=UTC),
        pa.list_(pa.int64()): [1, None],
        pa.struct([("a b", pa.string()), ("c", pa.list_(pa.float64()))]): {"a b": "x", "c": [1.0]},
        pa.map_(pa.string(), pa.int64()): [("k", 1)],
    }
    columns = [Column(number, f"column {number}", type) for number, type in enumerate(values, start=10)]
    table = Table(7, "t", 1, at(0), (schema(1, [ID]), schema(2, [ID, *columns], since=2)))
    snapshots.write(table, [{"id": 1}], schema=table.version(1))
    row = {"id": 2} | dict(zip([each.name for each in columns], values.values()))
    epoch = 2
    arrow = pa.schema([*((each.name, each.type) for each in table.schema.columns), ("_ts", pa.int64())])
    from tidegate.snapshots.layer_writer import LayerWriter

    with LayerWriter(snapshots.root, 7, table.schema, shard=0, first=epoch, last=epoch) as writer:
        writer.write(pa.Table.from_pylist([row | {"_ts": int(at(2))}], arrow))
        entry = writer.close()
    assert entry is not None
    snapshots.commit(entry)
    for _ in range(2):
        found = snapshots.reader.read_all(snapshots.store.manifest(), table)
        assert found.schema.types == [pa.int64(), *values]
        assert sorted(found.to_pylist(), key=lambda each: each["id"]) == [{"id": 1} | dict.fromkeys(list(row)[1:]), row]
        snapshots.compact(table, level=BASE)


class TestLookup:
    """What UPDATE, DELETE and checks of an INSERT ask."""

    def test_only_the_rows_of_the_keys_are_given(self, snapshots: SnapshotRig) -> None:
        snapshots.write(ACCOUNTS, [{"id": each, "balance": 0} for each in range(100)])
        snapshots.compact(ACCOUNTS, level=BASE)
        snapshots.write(ACCOUNTS, [{"id": 5, "balance": 1}, {"id": 6, "_op": -1}, {"id": 200, "balance": 2}])
        keys = pa.table({"id": [4, 5, 6, 200, 300]})
        found = snapshots.reader.lookup(snapshots.store.manifest(), ACCOUNTS, keys, columns=["id", "balance", "_ts"])
        assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
            {"id": 4, "balance": 0, "_ts": int(at(1))},
            {"id": 5, "balance": 1, "_ts": int(at(2))},
            {"id": 200, "balance": 2, "_ts": int(at(2))},
        ]

    def test_a_key_of_several_columns_is_looked_up_as_one(self, snapshots: SnapshotRig) -> None:
        table = Table(9, "pairs", 1, at(0), (schema(1, [ID, Column(2, "name", pa.string(), False), BALANCE], (2, 1)),))
        snapshots.write(table, [{"id": n, "name": name, "balance": n} for n in (1, 2) for name in "ab"])
        snapshots.compact(table, level=BASE)
        snapshots.write(table, [{"id": 1, "name": "a", "_op": -1}])
        keys = pa.table({"id": [1, 1, 2], "name": ["a", "b", "c"]})
        assert snapshots.rows(table, keys=keys) == [{"id": 1, "name": "b", "balance": 1}]

    def test_a_table_without_a_key_says_so(self, snapshots: SnapshotRig) -> None:
        snapshots.write(EVENTS, [{"id": 1}])
        with pytest.raises(InvalidArgument, match="'events' has no primary key"):
            snapshots.rows(EVENTS, keys=pa.table({"id": [1]}))

    def test_keys_that_lack_a_column_are_refused(self, snapshots: SnapshotRig) -> None:
        snapshots.write(ACCOUNTS, [{"id": 1}])
        with pytest.raises(InvalidArgument, match="the keys lack the column 'id'"):
            snapshots.rows(ACCOUNTS, keys=pa.table({"name": ["a"]}))


def test_a_condition_and_a_choice_of_columns(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": each, "balance": each * 10} for each in range(5)])
    assert snapshots.rows(ACCOUNTS, columns=["BALANCE"], where="balance > 20") == [{"balance": 30}, {"balance": 40}]
    with pytest.raises(NotFound, match="there is no column 'salary'"):
        snapshots.rows(ACCOUNTS, columns=["salary"])


def test_a_condition_that_is_none_is_the_callers_mistake(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": 1}])
    for where in ("salary > 1", "id >"):
        with pytest.raises(InvalidArgument, match="table 'accounts'"):
            snapshots.rows(ACCOUNTS, where=where)


def test_a_bit_that_flipped_on_disk_is_found_by_verification(snapshots: SnapshotRig) -> None:
    """Pages carry a checksum."""
    snapshots.write(ACCOUNTS, [{"id": each, "balance": each * 7919 % 1009} for each in range(1000)])
    snapshots.write(EVENTS, [{"id": 1}])
    assert snapshots.store.verify(snapshots.store.manifest()) == []
    (path,) = (snapshots.root / each.path for each in snapshots.store.manifest().files(ACCOUNTS.id))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(bytes(content))
    (found,) = snapshots.store.verify(snapshots.store.manifest())
    assert (found.table, found.checkpoint, found.path) == (ACCOUNTS.id, 2, str(path))


def test_a_read_goes_on_at_its_checkpoint_while_others_commit(snapshots: SnapshotRig) -> None:
    """Promise 4: one cut, also for batches that are taken later."""
    snapshots.write(ACCOUNTS, [{"id": each} for each in range(5000)])
    batches = snapshots.reader.read(snapshots.store.manifest(), ACCOUNTS, batch_rows=2048)
    first = next(batches)
    snapshots.write(ACCOUNTS, [{"id": each, "_op": -1} for each in range(5000)])
    snapshots.compact(ACCOUNTS, level=BASE)
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 5000
    assert snapshots.rows(ACCOUNTS) == []


def test_a_missing_file_is_named_with_its_table_and_checkpoint(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": 1}])
    (path,) = snapshots.data_files()
    (snapshots.root / path).unlink()
    with pytest.raises(SnapshotDamaged, match=rf"{path}.*'accounts'.*checkpoint 1: it is missing; restore") as caught:
        snapshots.rows(ACCOUNTS)
    assert (caught.value.table, caught.value.checkpoint) == (ACCOUNTS.id, 1)


@pytest.mark.parametrize("where", ["middle", "end", "cut"])
def test_a_damaged_file_is_named_never_read_as_other_rows(snapshots: SnapshotRig, where: str) -> None:
    snapshots.write(ACCOUNTS, [{"id": each, "name": f"name {each}", "balance": each} for each in range(20_000)])
    (path,) = (snapshots.root / each for each in snapshots.data_files())
    content = bytearray(path.read_bytes())
    match where:
        case "middle":
            content[len(content) // 4 : len(content) // 4 * 3] = b"\xaa" * (len(content) // 4 * 3 - len(content) // 4)
        case "end":
            content[-8:] = b"\x00" * 8
        case "cut":
            del content[-100:]
    path.write_bytes(bytes(content))
    with pytest.raises(SnapshotDamaged, match=path.name):
        snapshots.rows(ACCOUNTS)


def test_a_directory_with_letters_that_mean_something_to_a_pattern(tmp_path: Path) -> None:
    rig = SnapshotRig(tmp_path / "a[b]*?'c=1" / "snapshots")
    rig.write(ACCOUNTS, [{"id": 1}])
    assert [row["id"] for row in rig.rows(ACCOUNTS)] == [1]
    rig.close()
