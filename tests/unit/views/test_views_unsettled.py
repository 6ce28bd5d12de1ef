"""Queries whose answer hangs on when and where they are computed are no views, however they say it (issue 6)."""

from __future__ import annotations

import pytest

from tidegate.errors import InvalidArgument
from tidegate.reads.translate import parse_any
from tidegate.views.define import define
from tidegate.views.definition import Relation
from tidegate.views.names import unsettled_in
from view_shop import SHOP

RELATIONS = {name: Relation(name, at, 1, table.schema, table.key) for at, (name, table) in enumerate(SHOP.items())}
SAYS = "a view is the same whenever it is computed. Store the value in a table when a row is written"


@pytest.mark.parametrize(
    "value",
    [
        "TIMESTAMP 'now'",
        "TIMESTAMP_NTZ 'Now'",
        "CAST('now' AS TIMESTAMP)",
        "CAST(' now ' AS TIMESTAMP_NTZ)",
        "TRY_CAST('yesterday' AS DATE)",
        "'tomorrow'::DATE",
        "DATE 'today'",
        "DATE 'Today Europe/Amsterdam'",
        "to_date('today')",
        "to_timestamp('now')",
        "date('today')",
        "timestamp('now')",
    ],
)
def test_a_text_that_means_the_time_of_computing_is_refused(value: str) -> None:
    """Spark 4 takes these texts, as dates and times, for when the query runs."""
    with pytest.raises(InvalidArgument, match=f"uses the time '.*', which is another one every time: {SAYS}"):
        define(f"SELECT id, {value} AS t FROM o", (), RELATIONS)


@pytest.mark.parametrize(
    "call",
    [
        "aes_encrypt(g, '0123456789abcdef')",
        "reflect('java.util.UUID', 'randomUUID')",
        "try_reflect('java.util.UUID', 'randomUUID')",
        "java_method('java.util.UUID', 'randomUUID')",
        "input_file_block_start()",
        "current_timezone()",
    ],
)
def test_a_function_that_may_give_another_answer_is_refused(call: str) -> None:
    with pytest.raises(InvalidArgument, match=SAYS):
        define(f"SELECT id, {call} AS t FROM o", (), RELATIONS)


@pytest.mark.parametrize(
    "value",
    [
        "TIMESTAMP '2026-05-01 12:00:00'",
        "DATE 'epoch'",
        "g = 'now'",
        "concat('today', g)",
        "CAST('now' AS STRING)",
        "CAST('nowhere' AS DATE)",
    ],
)
def test_the_same_words_elsewhere_are_texts(value: str) -> None:
    assert unsettled_in(parse_any(f"SELECT id, {value} AS t FROM o")) is None
