"""What a transaction will write: of rows that were written ahead of its commit, hashes of their keys are left."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidegate.catalog.catalog import Catalog
from tidegate.clock.timestamp import Timestamp
from tidegate.database.outgoing import Outgoing
from tidegate.database.row_taker import RowTaker
from tidegate.tables.definition import ColumnDef
from tidegate.topics.routing import key_hash

ROWS = 20_000
Form = Callable[[range], Any]


def arrow(ids: range) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array(["x" * 200] * len(ids))], ["id", "v"])


def tuples(ids: range) -> list[tuple[int, str]]:
    return [(each, "x" * 200) for each in ids]


@pytest.fixture
def taker() -> RowTaker:
    catalog = Catalog()
    record = catalog.plan_create_table("t", [ColumnDef("id", pa.int64()), ColumnDef("v", pa.string())], ["id"])
    assert record is not None
    catalog.apply(record, Timestamp(1))
    return RowTaker(catalog.table("t"))


def test_rows_that_were_written_ahead_are_not_kept_for_their_keys(taker: RowTaker) -> None:
    """A transaction larger than memory held all of it until its commit."""
    outgoing = Outgoing(channels=4)
    gc.collect()
    before = pa.total_allocated_bytes()
    for number in range(20):
        outgoing.add_rows(taker, arrow(range(number * ROWS, (number + 1) * ROWS)))
        outgoing.take()
    gc.collect()
    assert pa.total_allocated_bytes() - before < 2 * arrow(range(ROWS)).nbytes
    assert outgoing.keys.count == len(outgoing.keys()) == 20 * ROWS


@pytest.mark.parametrize("form", [arrow, tuples])
@pytest.mark.parametrize("taken", [(), (0,), (0, 1, 2), (1, 4)])
def test_keys_are_the_same_whatever_was_written_ahead(taker: RowTaker, form: Form, taken: tuple[int, ...]) -> None:
    outgoing = Outgoing(channels=4)
    for number in range(5):
        outgoing.add_rows(taker, form(range(number * 10, number * 10 + 10)))
        if number in taken:
            outgoing.take()
            outgoing.take()
    found = outgoing.keys
    assert list(map(int, found())) == [key_hash("t", each) for each in range(50)]
    assert found.count == 50 and found.names == {"t"}
