"""Rows on their way into a table: what is too much for one append becomes several, of one transaction."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.catalog.catalog import Catalog
from tidegate.clock.timestamp import Timestamp
from tidegate.database.backend import Limits
from tidegate.database.row_taker import RowTaker
from tidegate.errors import LimitExceeded
from tidegate.tables.definition import ColumnDef

WORDS = pa.array(["a word of twenty one"] * 1000)


@pytest.fixture
def taker() -> RowTaker:
    catalog = Catalog()
    columns = [ColumnDef("id", pa.int64()), *(ColumnDef(f"c{each}", pa.string()) for each in range(8))]
    record = catalog.plan_create_table("t", columns, ["id"])
    assert record is not None
    catalog.apply(record, Timestamp(1))
    return RowTaker(catalog.table("t"))


def rows(words: pa.Array) -> pa.RecordBatch:
    names = ["id", *(f"c{each}" for each in range(8))]
    return pa.RecordBatch.from_arrays([pa.array(range(len(words))), *[words] * 8], names=names)


@pytest.mark.parametrize("words", [WORDS, pa.array(["a word of twenty one"] * 3000).slice(1000, 1000)])
def test_no_part_is_larger_than_an_append_may_be(taker: RowTaker, words: pa.Array) -> None:
    """Also where columns share their memory, which is then less than what is written; or are parts of larger ones."""
    limits = Limits(batch_bytes=80_000)
    parts, _, count = taker.take(rows(words), limits, delete=False, turn=0)
    sizes = [part.nbytes for _, part in parts if not isinstance(part, bytes)]
    assert count == 1000 and len(sizes) == len(parts) > 3
    assert max(sizes) <= limits.batch_bytes
    assert [id for _, part in parts for id in part.column("id").to_pylist()] == list(range(1000))  # type: ignore[union-attr]


def test_what_fits_is_one_part(taker: RowTaker) -> None:
    [(_, part)], _, _ = taker.take(rows(WORDS), Limits(), delete=False, turn=0)
    assert not isinstance(part, bytes) and part.num_rows == 1000


def test_a_row_that_is_too_large_is_named(taker: RowTaker) -> None:
    words = pa.array(["short", *["x" * 10_000] * 20])
    with pytest.raises(LimitExceeded, match=r"table 't', row 1: its size in bytes"):
        taker.take(rows(words), Limits(batch_bytes=60_000), delete=False, turn=0)
