"""Changes: what messages did to a table, in the order in which it became visible."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken
from tidegate.log.batch import Batch, body_rows
from tidegate.log.message import MessageType, Term
from tidegate.tables.changes import apply, changes_of, changes_schema, net
from tidegate.tables.rows_in import encode_keys, encode_rows, keys_in, rows_in
from tidegate.tables.schema import OP, SEQ, TS, VERSION_KEY, Column, Table, TableSchema

INSERT, UPSERT, DELETE, DDL = MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE, MessageType.DDL
ID, OWNER = Column(1, "id", pa.int64(), nullable=False), Column(2, "owner", pa.string())
FIRST = TableSchema(1, Timestamp(1), (ID, OWNER), (1,))
ACCOUNTS = Table(4, "accounts", 2, Timestamp(1), (FIRST,))
BODIES = pa.schema([pa.field("body", pa.binary(), nullable=False)])


def batch(rows: pa.RecordBatch, ticks, types, *, first=1, vchannels=("table/4.accounts/0",), ids=None) -> Batch:
    count = rows.num_rows
    return Batch(
        time_ticks=np.array(ticks, np.uint64),
        positions=np.arange(first, first + count, dtype=np.uint64),
        last_confirmed=np.zeros(count, np.uint64),
        types=np.array(types, np.uint8),
        vchannel_ids=np.array(ids or [0] * count, np.uint16),
        vchannels=vchannels,
        rows=rows,
        term=Term(1),
    )


def rows_of(table: pa.Table):
    return [tuple(row.values()) for row in table.sort_by([(TS, "ascending"), (SEQ, "ascending")]).to_pylist()]


def test_rows_and_deletes_become_changes_in_the_order_of_visibility():
    """time-log section 9: `_ts` is the commit's TimeTick for all rows of a transaction; their order is `_seq`."""
    batches = [
        batch(rows_in(FIRST, [(1, "ann"), (2, "bo")]), [20, 20], [INSERT] * 2, first=5),
        batch(
            body_rows(encode_keys(FIRST, [1]) + encode_rows(FIRST, [(3, None)])), [20, 21], [DELETE, UPSERT], first=7
        ),
        batch(keys_in(FIRST, [2]), [22], [DELETE], first=9),
    ]
    changes = changes_of(ACCOUNTS, batches)
    assert changes.schema.equals(changes_schema(FIRST), check_metadata=True)
    assert rows_of(changes) == [
        (1, "ann", 20, 5, 1),
        (2, "bo", 20, 6, 1),
        (1, None, 20, 7, -1),
        (3, None, 21, 8, 1),
        (2, None, 22, 9, -1),
    ]


def test_what_is_not_a_row_of_the_table_is_passed_over():
    bodies = body_rows([*encode_rows(FIRST, [(1, "a"), (2, "b")]), b"{}", b""])
    mixed = batch(
        bodies, [1, 2, 3, 4], [INSERT, INSERT, DDL, MessageType.TIME_TICK],
        vchannels=("table/4.accounts/1", "table/5.accounts/0", ""), ids=[0, 1, 0, 2],
    )  # fmt: skip
    assert rows_of(changes_of(ACCOUNTS, [mixed])) == [(1, "a", 1, 1, 1)]
    assert changes_of(ACCOUNTS, []).schema.equals(changes_schema(FIRST))


def test_a_column_follows_its_id_through_every_version():
    """Renamed columns follow, dropped ones vanish, added ones are NULL, and a name given again is new."""
    renamed = TableSchema(2, Timestamp(2), (ID, Column(2, "holder", pa.string())), (1,))
    again = TableSchema(3, Timestamp(3), (ID, Column(3, "owner", pa.string())), (1,))
    table = Table(4, "accounts", 2, Timestamp(1), (FIRST, renamed, again))
    as_arrow = [batch(rows_in(each, [(each.version, "x")]), [each.version], [INSERT]) for each in table.versions]
    as_bytes = [batch(body_rows(encode_rows(each, [(each.version, "x")])), [each.version], [INSERT])
                for each in table.versions]  # fmt: skip
    for batches in (as_arrow, as_bytes):
        assert [row[:2] for row in rows_of(changes_of(table, batches))] == [(1, None), (2, None), (3, "x")]
        found = changes_of(table, batches, renamed)
        assert found.schema.names[:2] == ["id", "holder"]
        assert [row[:2] for row in rows_of(found)] == [(1, "x"), (2, "x"), (3, None)]


def test_a_table_whose_columns_look_like_bytes_is_told_apart_by_its_version():
    """A table may have one column `body BINARY NOT NULL`, as messages of bytes do."""
    schema = TableSchema(1, Timestamp(1), (Column(1, "body", pa.binary(), nullable=False),), (1,))
    table = Table(4, "accounts", 1, Timestamp(1), (schema,))
    assert schema.arrow.equals(BODIES)
    both = [
        batch(rows_in(schema, [{"body": b"x"}, {"body": b"y"}]), [1, 2], [INSERT, DELETE]),
        batch(body_rows(encode_rows(schema, [{"body": b"z"}])), [3], [INSERT], first=3),
    ]
    assert rows_of(changes_of(table, both)) == [(b"x", 1, 1, 1), (b"y", 2, 2, -1), (b"z", 3, 3, 1)]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (pa.record_batch({"id": [1], "owner": ["a"]}), "table 'accounts' has rows without a schema version"),
        (rows_in(TableSchema(2, Timestamp(1), FIRST.columns, (1,)), [(1, "a")]), "version 2, and versions 1 to 1"),
        (pa.record_batch([pa.array([1])], pa.schema([("id", pa.int64())], {VERSION_KEY: b"1"})), "not .'id', 'owner'."),
        (body_rows([b"junk"]), "format"),
        (body_rows(encode_keys(FIRST, [1])), "too short for schema version 1"),
    ],
)
def test_a_row_that_cannot_be_of_the_table_is_an_error_and_never_garbage(rows, why):
    with pytest.raises(InvariantBroken, match=why):
        changes_of(ACCOUNTS, [batch(rows, [1], [INSERT])])


def changes(*each: tuple[int, str | None, int, int, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(("id", "owner", TS, SEQ, OP), row, strict=True)) for row in each], schema=changes_schema(FIRST)
    )


def test_insert_delete_insert_of_one_key_in_one_batch_ends_with_the_row():
    """Seed 004 and time-log fact 61: visibility is decided by timestamps, not by inserts before deletes."""
    done = changes((1, "a", 1, 1, 1), (1, None, 2, 2, -1), (1, "b", 3, 3, 1))
    assert rows_of(net(done, ["id"])) == [(1, "b", 3, 3, 1)]
    none = FIRST.arrow.empty_table()
    assert [apply(none, done.slice(0, count), ["id"]).to_pylist() for count in (1, 2, 3)] == [
        [{"id": 1, "owner": "a"}],
        [],
        [{"id": 1, "owner": "b"}],
    ]


def test_an_upsert_that_deletes_and_inserts_at_one_timestamp_keeps_its_own_row():
    """time-log fact 61: {Delete pk, Insert pk} share the commit's TimeTick; `_seq` decides."""
    done = changes((1, "new", 20, 8, 1), (1, None, 20, 7, -1), (1, "old", 10, 1, 1))
    assert rows_of(net(done, ["id"])) == [(1, "new", 20, 8, 1)]
    assert rows_of(net(done.slice(0, 2), ["id"])) == [(1, "new", 20, 8, 1)]
    assert rows_of(net(done.slice(1), ["id"])) == [(1, None, 20, 7, -1)]


def test_changes_of_distinct_keys_are_handed_on_as_they_are():
    for ids in ([1, 2, 3], [3, 1, 2]):
        done = changes(*((id, "a", 1, at, 1) for at, id in enumerate(ids)))
        assert net(done, ["id"]) is done
    pairs = changes((1, "a", 1, 1, 1), (1, "b", 2, 2, 1), (2, "a", 3, 3, 1), (2, "b", 3, 4, 1))
    assert net(pairs, ["id", "owner"]) is pairs
    assert net(pairs, ["owner", "id"]) is pairs


def test_a_table_without_a_key_keeps_every_change():
    done = changes((1, "a", 1, 1, 1), (1, "a", 2, 2, 1))
    assert net(done, []) is done
    assert apply(FIRST.arrow.empty_table(), done, []).num_rows == 2


def test_a_change_without_its_key_is_a_defect():
    """A table's key is never NULL, and its schema says so."""
    strict = pa.schema([each.with_nullable(False) if each.name == "owner" else each for each in changes().schema])
    with pytest.raises(InvariantBroken, match="column 'owner' is part of the key, and 1 changes have none"):
        net(pa.table(changes((1, "a", 1, 1, 1), (1, None, 2, 2, 1)).columns, schema=strict), ["id", "owner"])


def test_the_key_of_what_a_view_stores_may_be_null_and_null_equals_null():
    """views.md: keys of nodes may be NULL. A group by a column that is NULL in some rows is one group."""
    schema = TableSchema(1, Timestamp(1), (Column(1, "g", pa.int64()), Column(2, "owner", pa.string())), (1,))
    assert [changes_schema(schema).field(each).nullable for each in ("g", "owner", TS)] == [True, True, False]
    rows = [(None, "a", 1, 1, 1), (1, "b", 2, 1, 1), (None, "c", 3, 1, 1), (1, None, 4, 1, -1), (0, "d", 5, 1, 1)]
    done = pa.table(dict(zip(changes_schema(schema).names, map(list, zip(*rows, strict=True)), strict=True)))
    assert rows_of(net(done.cast(changes_schema(schema)), ["g"])) == rows[2:]


@pytest.mark.parametrize("type", [pa.float32(), pa.float64()], ids=str)
def test_a_key_that_is_not_a_number_equals_itself_and_zeros_are_equal(type):
    """As Spark groups: NaN with NaN, and -0.0 with 0.0."""
    schema = TableSchema(1, Timestamp(1), (Column(1, "g", type), Column(2, "n", pa.int64())), (1, 2))
    values = [float("nan"), 0.0, -0.0, float("nan"), -float("nan"), None, 1.0, None]
    columns = [pa.array(values, type), pa.array([7] * 8), range(8), range(8), [1] * 8]
    done = pa.table(dict(zip(changes_schema(schema).names, columns, strict=True))).cast(changes_schema(schema))
    assert net(done, ["g", "n"]).column(TS).to_pylist() == [2, 4, 6, 7]
    assert net(done, ["n", "g"]).column(TS).to_pylist() == [2, 4, 6, 7]


def test_applying_leaves_rows_alone_whose_keys_did_not_change():
    before = pa.Table.from_pylist([{"id": each, "owner": "old"} for each in (1, 2, 3)], schema=FIRST.arrow)
    after = apply(before, changes((2, None, 5, 1, -1), (3, "new", 6, 2, 1), (9, None, 6, 3, -1)), ["id"])
    assert sorted(map(tuple, (row.values() for row in after.to_pylist()))) == [(1, "old"), (3, "new")]
    assert after.schema.equals(FIRST.arrow)
    assert apply(before, changes(), ["id"]).equals(before)
