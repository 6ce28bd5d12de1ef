"""Laws of rows: bytes and Arrow say the same, a row and a column of rows have the same shard, changes equal a model."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken
from tidegate.log.batch import Batch, body_rows
from tidegate.log.message import MessageType, Term
from tidegate.tables.changes import GONE, apply, changes_of, net
from tidegate.tables.row_codec import RowCodec
from tidegate.tables.row_decode import decode_bodies, versions_of
from tidegate.tables.rows_in import RowsIn, encode_keys, encode_rows, keys_in, rows_in
from tidegate.tables.schema import OP, SEQ, TS, Column, Table, TableSchema
from tidegate.tables.shards import key_columns_of, key_of, shards_of_rows, split_by_shard
from tidegate.topics.routing import key_hash, key_hashes, shard_of

KEY_KINDS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.date32(),
    pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(5, 2), pa.decimal128(38, 10), pa.decimal128(18, 0),
]  # fmt: skip
flat_kinds = st.sampled_from([*KEY_KINDS, pa.float32(), pa.float64()])


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        inner.map(pa.list_),
        fields.map(lambda kinds: pa.struct([(f"f{at}", kind) for at, kind in enumerate(kinds)])),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int32(), pa.date32(), pa.decimal128(5, 2)]), inner),
    )


kinds = st.recursive(flat_kinds, _nested, max_leaves=4)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values in the form in which Arrow gives them back."""
    is_ = pa.types
    if is_.is_integer(kind):
        return st.integers(-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
    if is_.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if is_.is_decimal(kind):
        limit = 10**kind.precision - 1
        digits = st.integers(-limit, limit)
        return digits.map(lambda each: Decimal(f"{each}e-{kind.scale}"))
    if is_.is_timestamp(kind):
        return st.datetimes(timezones=st.just(dt.UTC)) if kind.tz else st.datetimes()
    if is_.is_list(kind):
        return st.lists(st.none() | values_of(kind.value_type), max_size=4)
    if is_.is_struct(kind):
        return st.fixed_dictionaries({each.name: st.none() | values_of(each.type) for each in kind})
    if is_.is_map(kind):
        pairs = st.tuples(values_of(kind.key_type), st.none() | values_of(kind.item_type))
        return st.lists(pairs, max_size=4, unique_by=lambda each: each[0])
    return {
        pa.bool_(): st.booleans(), pa.string(): st.text(), pa.binary(): st.binary(), pa.date32(): st.dates()
    }[kind]  # fmt: skip


def schema_of(kinds: list[pa.DataType], key: int, version: int = 1) -> TableSchema:
    columns = tuple(Column(at + 1, f"c{at}", kind, at >= key) for at, kind in enumerate(kinds))
    return TableSchema(version, Timestamp(1), columns, tuple(range(1, key + 1)))


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 6) -> tuple[TableSchema, list[dict[str, Any]]]:
    key_kinds = draw(st.lists(st.sampled_from(KEY_KINDS), max_size=3))
    others = draw(st.lists(kinds, min_size=0 if key_kinds else 1, max_size=10))
    schema = schema_of([*key_kinds, *others], len(key_kinds), draw(st.sampled_from([1, 127, 128, 70_000])))
    row = {
        each.name: values_of(each.type) if not each.nullable else st.none() | values_of(each.type)
        for each in schema.columns
    }
    return schema, draw(st.lists(st.fixed_dictionaries(row), max_size=max_rows))


def said(batch: pa.RecordBatch) -> str:
    """Its rows with their types, so that NaN equals NaN and 0.0 differs from -0.0."""
    batch.validate(full=True)
    return f"{batch.schema.to_string(show_schema_metadata=True)} {batch.to_pylist()!r}"


def binaries(bodies: list[bytes]) -> pa.Array:
    return pa.array(bodies, pa.binary())


@given(tables())
@settings(max_examples=120, deadline=None)
def test_rows_come_back_from_bytes_as_they_come_from_arrow(
    given_rows: tuple[TableSchema, list[dict[str, Any]]],
) -> None:
    """Promise 6: what was written is read. Bytes, Arrow from Python and Arrow from Arrow are one and the same."""
    schema, rows = given_rows
    batch = rows_in(schema, rows)
    assert batch.schema.equals(schema.arrow, check_metadata=True)
    bodies = binaries(encode_rows(schema, rows))
    assert said(decode_bodies(schema, bodies)) == said(batch)
    assert set(versions_of(bodies).tolist()) <= {schema.version}
    assert said(rows_in(schema, pa.Table.from_batches([batch]))) == said(batch)
    assert encode_rows(schema, batch) == encode_rows(schema, rows)
    tail = bodies.slice(1)  # a view into the middle of larger buffers
    assert said(decode_bodies(schema, tail)) == said(batch.slice(1))


@given(tables())
@settings(max_examples=100, deadline=None)
def test_keys_come_back_as_the_keys_of_their_rows(given_rows: tuple[TableSchema, list[dict[str, Any]]]) -> None:
    schema, rows = given_rows
    if not schema.key:
        return
    names = [each.name for each in schema.key_columns]
    keys = [{name: row[name] for name in names} for row in rows]
    expected = keys_in(schema, keys)
    assert expected.to_pylist() == rows_in(schema, rows).select(names).to_pylist()
    assert said(decode_bodies(schema, binaries(encode_keys(schema, keys)), key_only=True)) == said(expected)
    bare = [tuple(each.values()) if len(names) > 1 else each[names[0]] for each in keys]
    assert encode_keys(schema, bare) == encode_keys(schema, keys)


_zones = st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30))])
odd = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.integers(-300, 300), st.floats(),
    st.integers(-5, 5).map(float), st.sampled_from([0.1, 9.99, 1e22, float(1 << 53), float((1 << 53) + 2)]),
    st.decimals(), st.decimals(-100, 100, places=2), st.text(st.characters(exclude_categories=[]), max_size=3),
    st.binary(max_size=3), st.dates(), st.datetimes(), st.datetimes(timezones=_zones),
    st.sampled_from([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), np.int64(7), np.float64(0.5)]),
    st.sampled_from([np.datetime64("2020-01-01T00:00:00.000001"), np.datetime64("NaT"), np.bool_(True)]),
    st.lists(st.integers(0, 3) | st.none(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.just({"F0": 1}), st.tuples(st.integers(0, 9)),
)  # fmt: skip


@given(st.one_of(kinds, flat_kinds), st.lists(odd, min_size=1, max_size=4), st.booleans())
@settings(max_examples=600, deadline=None)
def test_bytes_and_arrow_accept_and_refuse_the_same_values_with_the_same_words(
    kind: pa.DataType, values: list[Any], nullable: bool
) -> None:
    schema = TableSchema(1, Timestamp(1), (Column(1, "c", kind, nullable),))
    rows = [{"c": each} for each in values]

    def outcome(encode: Any) -> str:
        try:
            return said(encode())
        except InvalidArgument as error:
            assert "row " in str(error) and "'c'" in str(error)
            return str(error)

    assert outcome(lambda: decode_bodies(schema, binaries(encode_rows(schema, rows)))) == outcome(
        lambda: rows_in(schema, rows)
    )


arrow_kinds = st.sampled_from([
    pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.large_string(),
    pa.binary(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("s"),
    pa.decimal128(20, 2), pa.decimal128(38, 0), pa.list_(pa.int32()), pa.large_list(pa.int64()),
])  # fmt: skip


def _arrow_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if kind == pa.uint64():
        return st.integers(0, (1 << 64) - 1)
    if pa.types.is_integer(kind):
        return values_of(kind) | st.integers(-100, 100)
    if pa.types.is_floating(kind):
        return values_of(kind) | st.integers(-100, 100).map(float) | st.sampled_from([0.5, 0.25])
    if pa.types.is_timestamp(kind):
        zone = [dt.UTC] if kind.tz else [None]
        days = st.dates(dt.date(1960, 1, 1), dt.date(2100, 1, 1))
        whole = st.sampled_from([dt.time(), dt.time(3, 4, 5)])
        return st.builds(lambda day, time: dt.datetime.combine(day, time, zone[0]), days, whole)
    if pa.types.is_large_string(kind):
        return st.text()
    if pa.types.is_large_list(kind):
        return st.lists(st.integers(-3, 300), max_size=3)
    return values_of(kind)


@given(arrow_kinds, flat_kinds | st.just(pa.list_(pa.int8())), st.data())
@settings(max_examples=600, deadline=None)
def test_an_arrow_column_is_taken_over_as_its_values_one_by_one(
    kind: pa.DataType, wanted: pa.DataType, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.none() | _arrow_values(kind), max_size=5))
    schema = TableSchema(1, Timestamp(1), (Column(1, "c", wanted),))
    column = pa.array(values, kind)

    def outcome(rows: Any) -> str:
        try:
            return said(rows_in(schema, rows))
        except InvalidArgument as error:
            return str(error)

    assert outcome(pa.table({"c": column})) == outcome([{"c": each} for each in column.to_pylist()])


@given(tables(max_rows=3), st.data())
@settings(max_examples=120, deadline=None)
def test_bytes_that_were_changed_are_refused_or_are_a_whole_row(
    given_rows: tuple[TableSchema, list[dict[str, Any]]], data: st.DataObject
) -> None:
    """Never garbage: lengths always fit, text is text; a row cut short or with bytes added is always refused."""
    schema, rows = given_rows
    if not rows:
        return
    body = encode_rows(schema, rows)[0]
    for wrong in (body[: data.draw(st.integers(0, len(body) - 1))], body + b"\0"):
        assert refused(schema, wrong)
    changed = bytearray(body)
    changed[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refused(schema, bytes(changed))


@given(tables(max_rows=0), st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_junk_is_refused_or_is_a_whole_row(given_rows: tuple[TableSchema, list[dict[str, Any]]], junk: bytes) -> None:
    refused(given_rows[0], junk)
    refused(given_rows[0], RowCodec(given_rows[0]).layout.header + junk)


def refused(schema: TableSchema, body: bytes) -> bool:
    try:
        versions_of(binaries([body]))
        decode_bodies(schema, binaries([body])).validate(full=True)
    except InvariantBroken:
        return True
    return False


@given(tables(), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_a_row_and_a_column_of_rows_go_to_the_same_shard(
    given_rows: tuple[TableSchema, list[dict[str, Any]]], shards: int
) -> None:
    schema, rows = given_rows
    if not schema.key:
        return
    names = [each.name for each in schema.key_columns]
    batch = rows_in(schema, rows)
    keys = [key_of(schema.key_columns, [row[name] for name in names]) for row in rows]
    assert RowsIn(schema).encode_keyed(rows)[1] == keys
    assert shards_of_rows(batch, names, shards).tolist() == [shard_of(key, shards) for key in keys]
    assert key_hashes("t", key_columns_of(batch, names)).tolist() == [key_hash("t", key) for key in keys]
    expected: dict[int, list[Any]] = {}
    for key, row in zip(keys, batch.to_pylist(), strict=True):
        expected.setdefault(shard_of(key, shards), []).append(row)
    split = split_by_shard(batch, names, shards)
    assert repr([(shard, part.to_pylist()) for shard, part in split]) == repr(sorted(expected.items()))


# Changes ------------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "upsert", "delete"]),
        st.lists(st.integers(0, 5), min_size=1, max_size=4),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)
_TYPES = {"insert": MessageType.INSERT, "upsert": MessageType.UPSERT, "delete": MessageType.DELETE}


def batch_of(kind: str, rows: pa.RecordBatch, ticks: list[int], first_position: int, vchannel: str) -> Batch:
    count = rows.num_rows
    return Batch(
        time_ticks=np.array(ticks, np.uint64),
        positions=np.arange(first_position, first_position + count, dtype=np.uint64),
        last_confirmed=np.zeros(count, np.uint64),
        types=np.full(count, int(_TYPES[kind]), np.uint8),
        vchannel_ids=np.zeros(count, np.uint16),
        vchannels=(vchannel,),
        rows=rows,
        term=Term(1),
    )


def sorted_rows(table: pa.Table, names: list[str]) -> list[Any]:
    return sorted(tuple(row[name] for name in names) for row in table.to_pylist())


@given(steps, st.integers(1, 3), st.randoms(use_true_random=False), st.integers(0, 12))
@settings(max_examples=120, deadline=None)
def test_net_changes_applied_equal_a_dict_that_took_them_one_by_one(
    done: list[tuple[str, list[int], bool, bool]], width: int, order: Any, cut: int
) -> None:
    """Seed 004: visibility is decided by timestamps; time-log fact 61. In any order of batches, cut anywhere."""
    kinds = [pa.int64(), pa.string(), pa.date32()][:width]
    schema = schema_of([*kinds, pa.int64()], width)
    table = Table(1, "t", 1, Timestamp(1), (schema,))
    key_names = [each.name for each in schema.key_columns]
    model: dict[Any, Any] = {}
    at_cut: dict[Any, Any] = {}
    batches: list[Batch] = []
    early: list[Batch] = []
    tick = position = 10
    for number, (kind, ids, as_bytes, in_txn) in enumerate(done):
        if number == cut:
            at_cut, early, batches = dict(model), batches, []
        keys = [(each, f"k{each % 2}", dt.date(2020, 1, 1 + each % 3))[:width] for each in ids]
        rows = [(*key, tick + place) for place, key in enumerate(keys)]
        for key, row in zip(keys, rows, strict=True):
            if kind == "delete":
                model.pop(key, None)
            else:
                model[key] = row[-1]
        given_keys: list[Any] = keys if width > 1 else [key[0] for key in keys]
        if as_bytes:
            payload = body_rows(encode_keys(schema, given_keys) if kind == "delete" else encode_rows(schema, rows))
        else:
            payload = keys_in(schema, given_keys) if kind == "delete" else rows_in(schema, rows)
        ticks = [tick + len(ids)] * len(ids) if in_txn else list(range(tick, tick + len(ids)))
        batches.append(batch_of(kind, payload, ticks, position, "table/1.t/0"))
        tick, position = tick + len(ids) + 1, position + len(ids)
    before = apply(schema.arrow.empty_table(), changes_of(table, early), key_names)
    if cut < len(done):
        assert sorted_rows(before, schema.names) == sorted((*key, value) for key, value in at_cut.items())
    order.shuffle(batches)
    changes = changes_of(table, batches)
    assert changes.num_rows == sum(map(len, batches))
    left = net(changes, key_names)
    assert len({tuple(row[name] for name in key_names) for row in left.to_pylist()}) == left.num_rows
    expected = sorted((*key, value) for key, value in model.items())
    for way in (left, changes):
        after = apply(before, way, key_names)
        assert after.schema.equals(schema.arrow)
        assert sorted_rows(after, schema.names) == expected


@given(
    st.lists(st.sampled_from(["add", "drop", "rename", "row", "row", "delete"]), min_size=1, max_size=14),
    st.booleans(),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_rows_of_every_version_are_read_by_any_other(ddl: list[str], as_bytes: bool, data: st.DataObject) -> None:
    """Issue 4: a message is interpreted by the schema of its time; columns follow their id, not their name."""
    versions = [schema_of([pa.int64(), pa.int64()], 1)]
    written: list[tuple[int, dict[int, Any], int]] = []
    batches: list[Batch] = []
    next_id = 3
    for what in ddl:
        now = versions[-1]
        columns = list(now.columns)
        if what in ("row", "delete"):
            tick = len(batches) + 10
            row = {each.id: tick * 100 + each.id for each in columns}
            if what == "delete":
                row = {1: row[1]}
            values = [tuple(row.values())] if what == "row" else list(row.values())
            if as_bytes:
                rows = body_rows((encode_rows if what == "row" else encode_keys)(now, values))
            else:
                rows = (rows_in if what == "row" else keys_in)(now, values)
            batches.append(batch_of("insert" if what == "row" else "delete", rows, [tick], tick, "table/1.t/0"))
            written.append((tick, row, 1 if what == "row" else -1))
            continue
        if what == "add":
            columns.append(Column(next_id, data.draw(st.sampled_from(_free(columns))), pa.int64()))
            next_id += 1
        elif what == "drop" and len(columns) > 1:
            columns.pop(data.draw(st.integers(1, len(columns) - 1)))
        elif what == "rename":
            at = data.draw(st.integers(0, len(columns) - 1))
            old = columns[at]
            columns[at] = Column(old.id, data.draw(st.sampled_from(_free(columns))), old.type, old.nullable)
        versions.append(TableSchema(now.version + 1, Timestamp(1), tuple(columns), now.key))
    table = Table(1, "t", 1, Timestamp(1), tuple(versions))
    target = data.draw(st.sampled_from(versions))
    found = changes_of(table, batches, target)
    got = sorted(found.to_pylist(), key=lambda row: row[TS])
    expected = [
        {each.name: row.get(each.id) for each in target.columns} | {TS: tick, SEQ: tick, OP: op}
        for tick, row, op in written
    ]
    assert got == expected
    assert GONE == -1


def _free(columns: list[Column]) -> list[str]:
    """Names that may be given, also such as others had before."""
    return [name for name in (f"c{number}" for number in range(20)) if name not in {each.name for each in columns}][:4]
