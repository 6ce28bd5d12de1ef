"""Answers on a screen: they fit it, numbers are whole and to the right, NULL is no string (issue 5)."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tidegate.cli.shell.answer import Rows, unique_names
from tidegate.cli.shell.layout import cell, lay_out


def texts(rows: Rows, width: int | None, expanded: str = "auto") -> list[str]:
    return ["".join(text for _, text in line).rstrip() for line in lay_out(rows, width, expanded)]


def rows_of(names: str, *rows: tuple[object, ...], numbers: str = "") -> Rows:
    columns = tuple(names.split())
    return Rows(columns, rows, tuple(each in numbers.split() for each in columns), len(rows))


def test_null_is_told_from_the_string_and_from_nothing() -> None:
    shown = [cell(value)[1] for value in (None, "NULL", "'NULL'", "", "null")]
    assert shown == ["NULL", "'NULL'", "''NULL''", "", "null"] and cell(None)[0] == "null"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("two\nlines\x1b[31m", "two\\nlines\\x1b[31m"),
        (Decimal("1.50"), "1.50"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02 03:04:05+00:00"),
        (b"hi", "X'6869'"),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        (True, "true"),
    ],
)
def test_a_value_is_one_line_that_no_terminal_takes_for_a_command(value: object, text: str) -> None:
    assert cell(value) == ("", text)


def test_numbers_stand_to_the_right() -> None:
    rows = rows_of("id owner", (1, "ann"), (200, "bo"), numbers="id")
    assert texts(rows, 80) == [" id  owner", "──────────", "  1  ann", "200  bo"]


def test_a_long_text_is_cut_and_a_number_is_not() -> None:
    rows = rows_of("n note", (123456789012345678, "x" * 200), numbers="n")
    line = texts(rows, 40)[-1]
    assert line.startswith("123456789012345678  xxxx") and line.endswith("…") and cell_len(line) == 40


def test_columns_that_do_not_fit_become_a_line_for_each_value() -> None:
    names = " ".join(f"column_{n}" for n in range(20))
    rows = rows_of(names, tuple(f"value {n}" for n in range(20)))
    lines = texts(rows, 60)
    assert lines[0].startswith("─ row 1 ─") and lines[1] == "column_0   value 0" and len(lines) == 21


def test_a_long_value_there_goes_on_below() -> None:
    assert texts(rows_of("a", ("x" * 25,)), 20, "on") == ["─ row 1 ────────────", "a  " + "x" * 17, "   " + "x" * 8]


def test_off_keeps_the_table_and_on_never_makes_one() -> None:
    rows = rows_of("a b c d e f", tuple("x" * 50 for _ in range(6)))
    assert "row 1" not in texts(rows, 40, "off")[0] and "row 1" in texts(rows_of("a", (1,)), 80, "on")[0]


def test_nothing_is_cut_in_a_pipe() -> None:
    assert texts(rows_of("a b", ("x" * 500, "y" * 500)), None, "off")[-1] == "x" * 500 + "  " + "y" * 500


def test_names_that_come_twice_are_told_apart() -> None:
    assert unique_names(["n", "n", "n_2", "n"]) == ["n", "n_3", "n_2", "n_4"]


VALUE = st.one_of(st.none(), st.text(max_size=60), st.text("漢字é…", max_size=30))


@given(st.lists(st.lists(VALUE, min_size=4, max_size=4), min_size=1, max_size=5), st.integers(30, 120))
def test_no_line_is_wider_than_the_screen(rows: list[list[str | None]], width: int) -> None:
    """Also with characters that take two columns."""
    found = Rows(("a", "b", "c", "d"), rows, (False,) * 4, len(rows))
    assert max(cell_len(line) for line in texts(found, width)) <= width
