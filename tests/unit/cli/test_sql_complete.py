"""Completion: tables, the columns of the tables that a statement names, keywords, commands, values of SET (issue 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from tidegate.cli.shell.complete import complete


class Shop:
    COLUMNS: ClassVar = {"accounts": ["id", "owner", "balance"], "orders": ["id", "account", "item"], "odd-name": ["x"]}

    def tables(self) -> Sequence[str]:
        return list(self.COLUMNS)

    def topics(self) -> Sequence[str]:
        return ["audit", "audit.dead"]

    def columns(self, table: str) -> Sequence[str]:
        return self.COLUMNS.get(table, [])


def proposed(text: str) -> list[str]:
    """Completions where `|` stands."""
    before, _, after = text.partition("|")
    return [each.text for each in complete(before, after, Shop())]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM acc|", ["accounts"]),
        ("SELECT * FROM accounts JOIN |", ["accounts", "orders", "`odd-name`"]),
        ("SELECT * FROM accounts, ord|", ["orders"]),
        ("SELECT ow| FROM accounts", ["owner"]),
        ("SELECT | FROM orders", ["id", "account", "item"]),
        ("SELECT a.| FROM accounts AS a JOIN orders o", ["id", "owner", "balance"]),
        ("SELECT * FROM accounts a JOIN orders o ON a.id = o.acc|", ["account"]),
        ("UPDATE accounts SET bal|", ["balance"]),
        ("INSERT INTO o|", ["orders", "`odd-name`"]),
        ("DESCRIBE acc|", ["accounts"]),
        ("DESCRIBE TOPIC |", ["audit", "`audit.dead`"]),
        ("SHOW SUBSCRIPTIONS ON au|", ["audit", "`audit.dead`"]),
        ("SELECT 1; SELECT * FROM acc|", ["accounts"]),
        ("SELECT * FROM `odd|", ["`odd-name`"]),
        ("SET eng|", ["engine ="]),
        ("SET engine = |", ["auto", "duckdb", "spark", "DEFAULT"]),
        ("SET consistency = bo|", ["bounded", "bounded 2s"]),
        ("\\ti|", ["\\timing"]),
        ("\\d acc|", ["accounts"]),
        ("\\x |", ["auto", "on", "off"]),
        ("\\set expanded |", ["auto", "on", "off", "DEFAULT"]),
        ("SELECT 'FROM acc|", []),
        ("SELECT 1 -- FROM acc|", []),
        ("/* FROM acc|", []),
    ],
)
def test_what_could_stand_there_is_proposed(text: str, expected: list[str]) -> None:
    assert proposed(text) == expected


def test_a_statement_begins_with_a_verb_in_the_case_that_was_typed() -> None:
    assert proposed("SEL|") == ["SELECT"] and proposed("sel|") == ["select"]
    assert "SHOW TABLES" in proposed("SHOW|")


def test_keywords_come_after_the_columns() -> None:
    found = proposed("SELECT * FROM orders WHERE i|")
    assert found[:2] == ["id", "item"] and "IN" not in found and "in" in found


def test_a_completion_replaces_what_was_typed_and_no_more() -> None:
    (found,) = complete("SELECT * FROM acc", "", Shop())
    assert (found.length, found.kind) == (3, "table")
