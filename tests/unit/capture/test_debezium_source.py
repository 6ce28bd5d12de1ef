"""Debezium's events as a source (capture.md section 5): whole transactions by the completeness rule, or none."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from debezium_events import HISTORY, STRUCTS, Connector, after, by_topic, history, item, order, write
from source_model import Model, captured, everything, resumed

from tidegate.capture import debezium_source
from tidegate.capture.debezium_source import DebeziumSource
from tidegate.capture.source import Patch, Reshaped, Rows, Truncated
from tidegate.errors import InvalidArgument, NotFound, SourceGone, SourceUnreadable, Unavailable


def arrived():
    return [json.loads(line) for line in HISTORY.read_text().splitlines()]


def tables(model):
    """A model as (orders, items)."""
    orders = {row["id"]: (row["customer"], str(row["total"])) for row in model.rows["orders"].values()}
    return orders, {row["id"]: (row["order_id"], row["what"]) for row in model.rows["items"].values()}


def test_the_history_in_the_file_is_what_it_says():
    assert arrived() == history()


def test_every_transaction_of_the_history_comes_once_and_whole():
    """Tombstones, a key that changes, an END before the last change, an END of nothing, events that come twice."""
    source = DebeziumSource(str(HISTORY))
    model = captured(source)
    assert tables(model) == after(None)
    found = []
    for each in source.transactions(0):
        model.take(each)
        assert tables(model) == after(int(each.id))
        found.append(each.id)
    assert found == ["730", "731", "732", "734"]
    assert each.committed_at_us == 1_700_000_000_000_000
    assert everything(source) == []


def test_applied_batch_by_batch_the_history_shows_torn_transactions():
    """The engine's own batches of 4, applied as they come, show orders without their items: the fixture does cut."""
    orders, items, is_torn = {}, {}, False
    records = arrived()[2:]
    for begin in range(0, len(records), 4):
        for record in records[begin : begin + 4]:
            if record["value"] is None or "transaction" in record["topic"]:
                continue
            payload = record["value"]["payload"]
            rows = orders if payload["source"]["table"] == "orders" else items
            if payload["op"] == "d":
                rows.pop(payload["before"]["id"], None)
            else:
                rows[payload["after"]["id"]] = payload["after"]
        wanted = {2: 3, 3: 3, 4: 1}
        had = {id: sum(each["order_id"] == id for each in items.values()) for id in orders}
        is_torn = is_torn or any(had[id] != wanted[id] for id in had)
    assert is_torn


@pytest.mark.parametrize("step", [1, 2, 4, 7])
def test_batches_cut_transactions_and_none_is_ever_seen_in_part(tmp_path, step):
    """Engine batches of 4, and of other sizes: after each of them only whole transactions were taken."""
    path = tmp_path / "events.jsonl"
    records = arrived()
    write(path, records[:2])
    source = DebeziumSource(str(path))
    model = captured(source)
    states = [after(txn) for txn in (None, 730, 731, 732, 734)]
    for begin in range(2, len(records), step):
        write(path, records[begin : begin + step])
        for each in source.transactions(0):
            model.take(each)
        assert tables(model) in states
    assert tables(model) == after(734)


@pytest.mark.parametrize("first", ["shop.transaction", "shop.public.items", "shop.public.orders"])
def test_topics_that_do_not_keep_step_are_waited_for(tmp_path, first):
    """A topic is a file; one arrives as a whole before the others have anything but their snapshot."""
    topics = by_topic(arrived())
    for name, records in topics.items():
        write(tmp_path / f"{name}.jsonl", records[:1] if "public" in name else [])
    source = DebeziumSource(str(tmp_path))
    model = captured(source)
    last = [name for name in topics if name != first]
    for name in (first, *last):
        assert tables(model) == after(None)
        assert everything(source) == []
        write(tmp_path / f"{name}.jsonl", topics[name][1:] if "public" in name else topics[name])
    for each in source.transactions(0):
        model.take(each)
        assert tables(model) == after(int(each.id))
    assert tables(model) == after(734)


@pytest.mark.parametrize("is_split", [False, True])
def test_from_every_position_what_follows_comes_once(tmp_path, is_split):
    """A capture that stops anywhere neither loses nor repeats: also 732, which the connector sends again afterwards."""
    records = arrived()
    path = tmp_path if is_split else tmp_path / "events.jsonl"

    def add(record):
        write(tmp_path / f"{record['topic']}.jsonl" if is_split else path, [record])

    add(records[0])
    add(records[1])
    source = DebeziumSource(str(path))
    model = captured(source)
    positions = [model.copy()]
    for record in records[2:]:
        add(record)
        for each in source.transactions(0):
            model.take(each)
            positions.append(model.copy())
    whole = model.copy()
    assert len(positions) == 5
    for was in positions:
        again = DebeziumSource(str(path))
        again.tables(None)
        again.resume(was.position, list(was.shapes.values()))
        for each in again.transactions(0):
            before = tables(was)
            was.take(each)
            assert tables(was) == after(int(each.id)) != before
        assert tables(was) == tables(whole)


def test_a_transaction_that_was_open_at_a_position_is_met_again_and_the_taken_one_is_not(tmp_path):
    """1 begins, 2 begins and ends, then a new source goes on: 2 lies behind the place from which 1 must be read."""
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [c.snapshot("orders", order(9, "x", 1), "last")])
    source = DebeziumSource(str(path))
    model = captured(source)
    open_one = [c.begin(1), c.change(1, "c", "orders", after=order(1, "a", 1))]
    write(path, [*open_one, c.begin(2), c.change(2, "c", "orders", after=order(2, "b", 2)), c.end(2)])
    for each in source.transactions(0):
        model.take(each)
    assert set(model.rows["orders"]) == {(9,), (2,)}
    again = DebeziumSource(str(path))
    again.tables(None)
    again.resume(model.position, list(model.shapes.values()))
    assert everything(again) == []
    write(path, [c.end(1)])
    ((found, _),) = everything(again)
    assert found.id == "1"


def test_a_line_that_is_not_whole_yet_is_waited_for(tmp_path):
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(
        path,
        [
            c.snapshot("orders", order(9, "x", 1), "last"),
            c.begin(1),
            c.change(1, "c", "orders", after=order(1, "a", 1)),
        ],
    )
    source = DebeziumSource(str(path))
    captured(source)
    line = json.dumps(c.end(1))
    with path.open("a") as file:
        file.write(line[:20])
    assert everything(source) == []
    with path.open("a") as file:
        file.write(line[20:] + "\n")
    assert [each.id for each, _ in everything(source)] == ["1"]


def test_values_by_the_schema_that_events_carry(tmp_path):
    """Decimals and bytes in base64, days, milliseconds, microseconds, zoned timestamps."""
    logical = "io.debezium.time."
    struct = [
        {"field": "id", "type": "int32", "optional": False},
        {"field": "d", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "3"}},
        {"field": "raw", "type": "bytes"},
        {"field": "day", "type": "int32", "name": f"{logical}Date"},
        {"field": "ms", "type": "int64", "name": f"{logical}Timestamp"},
        {"field": "us", "type": "int64", "name": f"{logical}MicroTimestamp"},
        {"field": "at", "type": "string", "name": f"{logical}ZonedTimestamp"},
        {"field": "yes", "type": "boolean"},
        {"field": "x", "type": "double"},
        {"field": "some", "type": "array", "items": {"type": "int64"}},
    ]
    row = {
        "id": 1,
        "d": "/zs=",
        "raw": "AP8=",
        "day": 19_000,
        "ms": 1_700_000_000_123,
        "us": 1_700_000_000_123_456,
        "at": "2024-01-02T03:04:05.678Z",
        "yes": True,
        "x": 2,
        "some": [1, None],
    }
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [c.begin(1), c.change(1, "c", "wide", after=row, fields=struct), c.end(1)])
    source = DebeziumSource(str(path))
    (shape,) = source.tables(None)
    assert [each.type for each in shape.columns] == [
        "INT", "DECIMAL(38, 3)", "BINARY", "DATE", "TIMESTAMP_NTZ", "TIMESTAMP_NTZ", "TIMESTAMP", "BOOLEAN", "DOUBLE",
        "ARRAY<BIGINT>",
    ]  # fmt: skip
    model = Model([shape])
    model.load(source.snapshot())
    for each in source.transactions(0):
        model.take(each)
    assert model.rows["wide"][1,] == {
        "id": 1,
        "d": Decimal("-0.197"),
        "raw": b"\x00\xff",
        "day": date(2022, 1, 8),
        "ms": datetime(2023, 11, 14, 22, 13, 20, 123_000),
        "us": datetime(2023, 11, 14, 22, 13, 20, 123_456),
        "at": datetime(2024, 1, 2, 3, 4, 5, 678_000, UTC),
        "yes": True,
        "x": 2.0,
        "some": [1, None],
    }


def test_types_by_values_and_keys_by_what_the_user_says_where_events_carry_neither(tmp_path):
    """Values alone, a line each, without schema and key."""
    c = Connector(schemas=False)
    path = tmp_path / "events.jsonl"
    row = {"id": 1, "name": "a", "n": 1.5, "yes": None, "tags": ["x"]}
    changes = [c.begin(1), c.change(1, "c", "t", after=row), c.end(1)]
    write(path, [each["value"] for each in changes])
    with pytest.raises(InvalidArgument, match=r"table 't'.*keys="):
        DebeziumSource(str(path)).tables(None)
    source = DebeziumSource(str(path), keys={"t": ["id"]})
    (shape,) = source.tables(["T"])
    assert [(each.name, each.type) for each in shape.columns] == [
        ("id", "BIGINT"), ("name", "STRING"), ("n", "DOUBLE"), ("yes", "STRING"), ("tags", "STRING"),
    ]  # fmt: skip
    source.snapshot().close()
    ((_, (change,)),) = everything(source)
    assert change.rows == [(1, "a", 1.5, None, '["x"]')]


TEXT = {"type": "string"}
CENTS = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
SCALED = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}
MILLIS = {"type": "int64", "name": "io.debezium.time.Timestamp"}


@pytest.mark.parametrize(
    ("said", "value", "chosen", "type", "read"),
    [
        (TEXT, "1234", "DECIMAL(10, 2)", "DECIMAL(10, 2)", Decimal(1234)),
        (TEXT, "-12.50", "decimal(10,2)", "DECIMAL(10, 2)", Decimal("-12.50")),
        (CENTS, "BNI=", "DECIMAL(10,4)", "DECIMAL(10, 4)", Decimal("12.34")),
        (CENTS, "BNI=", "STRING", "STRING", "12.34"),
        (CENTS, "AA==", "STRING", "STRING", "0.00"),
        (CENTS, "BNI=", "DOUBLE", "DOUBLE", 12.34),
        (SCALED, {"scale": 8, "value": "AQ=="}, "STRING", "STRING", "0.00000001"),
        (SCALED, {"scale": 1, "value": "BNI="}, "DECIMAL(10,2)", "DECIMAL(10, 2)", Decimal("123.4")),
        (MILLIS, 1_700_000_000_000, "TIMESTAMP_NTZ", "TIMESTAMP_NTZ", datetime(2023, 11, 14, 22, 13, 20)),
        ({"type": "array", "items": CENTS}, ["BNI=", None], "ARRAY<STRING>", "ARRAY<STRING>", ["12.34", None]),
    ],
)
def test_values_of_a_chosen_type_are_read_as_their_events_say_that_they_are_written(
    tmp_path, said, value, chosen, type, read
):
    """Also behind a resume, where only the type is known until the next event."""
    c = Connector()
    path = tmp_path / "events.jsonl"
    fields = [STRUCTS["items"][0], {"field": "p", "optional": True, **said}]
    row = {"id": 1, "p": value}
    write(path, [c.begin(1), c.change(1, "c", "t", after=row, fields=fields), c.end(1)])
    source = DebeziumSource(str(path), types={"t.p": chosen})
    model = captured(source)
    assert model.shapes["t"].columns[1].type == type
    for each in source.transactions(0):
        model.take(each)
    again = resumed(DebeziumSource(str(path), types={"t.p": chosen}), model)
    write(path, [c.begin(2), c.change(2, "c", "t", after={**row, "id": 2}, fields=fields), c.end(2)])
    for each in again.transactions(0):
        model.take(each)
    assert [each["p"] for each in model.rows["t"].values()] == [read, read]
    assert model.shapes["t"].columns[1].type == type


@pytest.mark.parametrize("value", ["12.345", "123456789", "NaN"])
def test_a_number_that_a_chosen_type_has_no_place_for_is_refused(tmp_path, value):
    c = Connector()
    path = tmp_path / "events.jsonl"
    fields = [STRUCTS["items"][0], {"field": "p", **TEXT}]
    write(path, [c.begin(1), c.change(1, "c", "t", after={"id": 1, "p": value}, fields=fields), c.end(1)])
    source = DebeziumSource(str(path), types={"t.p": "DECIMAL(10, 2)"})
    captured(source)
    with pytest.raises(SourceUnreadable, match=rf"column 'p': '{value}' is no DECIMAL\(10, 2\)"):
        everything(source)


@pytest.mark.parametrize(("value", "better"), [(1.75, "DOUBLE"), ("007", "STRING"), ("x", "STRING")])
def test_a_value_that_is_not_of_the_type_that_was_guessed_is_refused_and_says_what_to_do(tmp_path, value, better):
    """Events without schemas: whole numbers in all rows so far are no promise."""
    c = Connector(schemas=False)
    path = tmp_path / "events.jsonl"
    write(path, [c.begin(1), c.change(1, "c", "t", after={"id": 1, "x": 1}), c.end(1)])
    source = DebeziumSource(str(path))
    captured(source)
    write(path, [c.begin(2), c.change(2, "c", "t", after={"id": 2, "x": value}), c.end(2)])
    with pytest.raises(SourceUnreadable, match=rf"is no BIGINT; choose its type: types={{\"t\.x\": \"{better}\"}}"):
        everything(source)


def test_a_new_column_reshapes_its_table_before_its_rows_come(tmp_path):
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [c.begin(1), c.change(1, "c", "items", after=item(1, 1, "a")), c.end(1)])
    source = DebeziumSource(str(path))
    captured(source)
    wider = [*STRUCTS["items"], {"field": "n", "type": "int64", "optional": True}]
    write(path, [c.begin(2), c.change(2, "c", "items", after={**item(2, 1, "b"), "n": 5}, fields=wider), c.end(2)])
    (_, changes) = everything(source)[-1]
    assert isinstance(changes[0], Reshaped) and changes[0].table.columns[-1].name == "n"
    assert changes[1] == Rows("items", [(2, 1, "b", 5)])


def test_rows_of_a_snapshot_that_come_later_bring_their_schema_and_their_key(tmp_path):
    """An incremental snapshot, met by a capture that goes on: milliseconds stay what they are, and so do keys."""
    c = Connector()
    path = tmp_path / "events.jsonl"
    at = [STRUCTS["items"][0], {"field": "at", "type": "int64", "optional": True, "name": "io.debezium.time.Timestamp"}]
    write(path, [c.begin(1), c.change(1, "c", "visits", after={"id": 1, "at": 1_700_000_000_000}, fields=at), c.end(1)])
    source = DebeziumSource(str(path))
    model = captured(source)
    for each in source.transactions(0):
        model.take(each)
    again = resumed(DebeziumSource(str(path)), model)
    late = c.snapshot("items", item(7, 1, "late"), "incremental")
    write(path, [c.snapshot("visits", {"id": 2, "at": 1_700_000_000_000}, "incremental", fields=at), late])
    for each in again.transactions(0):
        model.take(each)
    assert {row["at"] for row in model.rows["visits"].values()} == {datetime(2023, 11, 14, 22, 13, 20)}
    assert model.rows["items"] == {(7,): item(7, 1, "late")}
    assert model.shapes["items"].key == ("id",)


def of_database(database, record):
    """A record as a connector of MySQL sends it, which has several databases and no schemas."""
    source = record["value"]["payload"]["source"]
    source.update(connector="mysql", db=database, schema=None)
    return record


def two_databases(path):
    c = Connector()
    write(path, [of_database("one", c.snapshot("items", item(1, 1, "one"), "first"))])
    write(path, [of_database("two", c.snapshot("items", item(1, 1, "two"), "last"))])
    write(path, [c.begin(1), of_database("two", c.change(1, "u", "items", after=item(1, 2, "two"))), c.end(1)])


@pytest.mark.parametrize("wanted", [None, ["one.items", "TWO.items"], ["two.items"]])
def test_tables_of_several_databases_are_called_by_them(tmp_path, wanted):
    """Two tables with one name are two, also when a capture goes on."""
    path = tmp_path / "events.jsonl"
    two_databases(path)
    model = captured(DebeziumSource(str(path)), wanted)
    source = DebeziumSource(str(path))
    source.tables(wanted)
    source.resume(model.position, list(model.shapes.values()))
    for each in source.transactions(0):
        model.take(each)
    there = {"one.items": {(1,): item(1, 1, "one")}, "two.items": {(1,): item(1, 2, "two")}}
    asked = {"one.items", "two.items"} if wanted is None else {each.lower() for each in wanted}
    assert model.rows == {name: there[name] for name in asked}


def test_a_name_that_two_databases_have_is_asked_for_with_one_of_them(tmp_path):
    path = tmp_path / "events.jsonl"
    two_databases(path)
    with pytest.raises(NotFound, match=r"no event of table 'items'.*one\.items, two\.items"):
        DebeziumSource(str(path)).tables(["items"])


@pytest.mark.parametrize("is_new", [False, True])
def test_a_second_database_that_comes_later_ends_the_capture_and_is_not_mixed_in(tmp_path, is_new):
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [of_database("one", c.snapshot("items", item(1, 1, "one"), "last"))])
    source = DebeziumSource(str(path))
    model = captured(source)
    assert set(model.rows) == {"items"}
    other = of_database("two", c.change(1, "c", "orders", after=order(1, "two", 1)))
    write(path, [c.begin(1), other, of_database("two", c.change(1, "c", "items", after=item(1, 1, "two"))), c.end(1)])
    source = resumed(DebeziumSource(str(path)), model) if is_new else source
    with pytest.raises(SourceUnreadable, match=r"'orders' of database 'two'.*\"two\.orders\"\], restart=True"):
        everything(source)


def test_a_truncate_stands_where_it_stood(tmp_path):
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [c.snapshot("items", item(1, 1, "a"), "last")])
    source = DebeziumSource(str(path))
    captured(source)
    write(path, [c.begin(1), c.change(1, "c", "items", after=item(2, 1, "b")), c.change(1, "t", "items")])
    write(path, [c.change(1, "c", "items", after=item(3, 1, "c")), c.end(1)])
    ((_, changes),) = everything(source)
    assert changes == [Rows("items", [(2, 1, "b")]), Truncated("items"), Rows("items", [(3, 1, "c")])]


UNSENT = "__debezium_unavailable_value"


def test_a_large_value_that_was_not_sent_is_taken_from_the_row_that_has_it(tmp_path):
    """TOAST: the row of the same key; where the key changes, the one deleted just before. Real events: see
    `test_debezium_recorded.py`."""
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [c.snapshot("items", item(1, 1, "a"), "last"), c.begin(1)])
    write(path, [c.change(1, "u", "items", after=item(1, 2, UNSENT)), c.change(1, "c", "items", after=item(5, 1, "b"))])
    write(path, [c.change(1, "d", "items", before=item(5, None, None)), c.tombstone("items", 5)])
    write(path, [c.change(1, "c", "items", after=item(6, 1, UNSENT)), c.end(1)])
    source = DebeziumSource(str(path))
    captured(source)
    ((_, changes),) = everything(source)
    assert changes == [
        Patch("items", [(1,)], [(1, 2, None)], [("what",)]),
        Rows("items", [(5, 1, "b")]),
        Patch("items", [(5,)], [(6, 1, None)], [("what",)]),
        Rows("items", [(5,)], is_delete=True),
    ]


@pytest.mark.parametrize(
    "said",
    [
        {UNSENT: UNSENT},
        json.dumps({UNSENT: UNSENT}),
        json.dumps({UNSENT: UNSENT}, separators=(",", ":")),
        ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="],
    ],
)
def test_the_placeholders_of_hstore_and_of_arrays_of_bytes_are_no_values(tmp_path, said):
    """An hstore comes as a map or as its text (`hstore.handling.mode`); these are made, there is no extension."""
    c = Connector(schemas=False)
    path = tmp_path / "events.jsonl"
    write(path, [c.begin(1), c.change(1, "c", "items", after=item(1, 1, "a")), c.end(1)])
    write(path, [c.begin(2), c.change(2, "u", "items", after=item(1, 2, said)), c.end(2)])
    source = DebeziumSource(str(path))
    captured(source)
    assert everything(source)[-1][1] == [Patch("items", [(1,)], [(1, 2, None)], [("what",)])]


@pytest.mark.parametrize("between", [False, True])
def test_a_value_that_was_not_sent_and_is_nowhere_is_refused(tmp_path, between):
    """It must not become the column's value: an insert that no delete of its table stands right before."""
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [c.snapshot("items", item(1, 1, "a"), "last"), c.begin(1)])
    if between:
        write(path, [c.change(1, "d", "items", before=item(1, None, None))])
        write(path, [c.change(1, "c", "items", after=item(3, 1, "c"))])
    write(path, [c.change(1, "c", "items", after=item(2, 2, UNSENT)), c.end(1)])
    source = DebeziumSource(str(path))
    captured(source)
    with pytest.raises(SourceUnreadable, match="REPLICA IDENTITY FULL"):
        everything(source)


def test_who_applied_a_transaction_is_told_and_its_note_is_no_table(tmp_path):
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [c.begin(1)])
    note = c.change(1, "u", "tidegate_applied", after={"id": 1, "origin": "shop-b"}, fields=[])
    write(path, [note, c.change(1, "c", "items", after=item(1, 1, "a")), c.end(1)])
    source = DebeziumSource(str(path))
    captured(source)
    ((found, changes),) = everything(source)
    assert found.origin == "shop-b" and [each.table for each in changes] == ["items"]


def test_a_snapshot_that_the_connector_is_not_through_with_is_not_taken(tmp_path):
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [c.snapshot("items", item(1, 1, "a"), "first"), c.snapshot("items", item(2, 1, "b"))])
    source = DebeziumSource(str(path))
    source.tables(None)
    with pytest.raises(Unavailable, match="not complete yet"):
        source.snapshot()


def test_a_file_that_was_cut_off_or_replaced_is_noticed(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, arrived())
    source = DebeziumSource(str(path))
    model = captured(source)
    for each in source.transactions(0):
        model.take(each)
    lines = path.read_text().splitlines(keepends=True)
    for left in (lines[:5], [lines[3], *lines]):
        path.write_text("".join(left))
        with pytest.raises(SourceGone):
            DebeziumSource(str(path)).resume(model.position, list(model.shapes.values()))


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(NotFound, match="no file or directory"):
        DebeziumSource(str(tmp_path / "none"))
    with pytest.raises(NotFound, match=r"no event of table 'lines'.*items, orders"):
        DebeziumSource(str(HISTORY)).tables(["lines"])
    (tmp_path / "x").write_text("what?\n")
    with pytest.raises(SourceUnreadable, match="no JSON"):
        DebeziumSource(str(tmp_path)).tables(None)


def test_a_transaction_of_deletes_alone_comes_in_pages(tmp_path, monkeypatch):
    """A delete may be the first half of a changed key; that holds up one row, and not all of them."""
    monkeypatch.setattr(debezium_source, "PAGE", 3)
    c = Connector()
    path = tmp_path / "events.jsonl"
    write(path, [c.snapshot("items", item(1, 1, "a"), "last"), c.begin(1)])
    for id in range(1, 9):
        write(path, [c.change(1, "d", "items", before=item(id, None, None)), c.tombstone("items", id)])
    write(path, [c.end(1)])
    source = DebeziumSource(str(path))
    captured(source)
    ((_, changes),) = everything(source)
    assert [each.rows for each in changes] == [[(1,), (2,)], [(3,), (4,), (5,)], [(6,), (7,), (8,)]]
