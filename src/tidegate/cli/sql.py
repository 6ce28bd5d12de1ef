"""`tidegate sql`: statements from the command line or from stdin, rows as a table or as JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidegate.cli.output import json_option, print_json, print_line, print_table, printable, to_json
from tidegate.cli.reach import path_argument, reach
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.database.database import Database

_PART: Final = re.compile(
    r"""--[^\n]* | /\*.*?(?:\*/|\Z) | (?P<quote>['"`]).*?(?:(?P=quote)|\Z) | ; | [^;'"`/-]+ | .""",
    re.VERBOSE | re.DOTALL,
)
_PROMPT: Final = "tidegate> "
_NUMBERS: Final = frozenset({int, float, Decimal})
_WRITES: Final = ("INSERT", "UPDATE", "DELETE")
_READS: Final = ("SHOW", "DESCRIBE", "SELECT", "WITH", "VALUES")


@click.command()
@path_argument
@click.argument("statement", required=False)
@click.option("--create", is_flag=True, help="Make the database if there is none at PATH.")
@json_option
def sql(path: Path, statement: str | None, create: bool, as_json: bool) -> None:
    """Run STATEMENT in the database at PATH and print its rows; without one, those on stdin, each ended by `;`.

    INSERT, UPDATE and DELETE print how many rows they wrote. SELECT has everything that was written before.

    The first statement that fails ends it, and nothing after it runs; on a terminal it goes on with the next.

    \b
    Statements:
      CREATE TABLE [IF NOT EXISTS] name (column TYPE [NOT NULL], ...
                   [, PRIMARY KEY (column, ...)]) [SHARDS n]
      ALTER TABLE name ADD COLUMN column TYPE
      ALTER TABLE name DROP COLUMN column
      ALTER TABLE name RENAME COLUMN column TO column
      DROP TABLE [IF EXISTS] name
      DESCRIBE name
      SHOW TABLES
      SHOW CREATE TABLE name
      INSERT INTO name [(column, ...)] VALUES (...), ... [ON CONFLICT DO NOTHING]
      INSERT INTO name SELECT ...
      UPDATE name SET column = expression, ... [WHERE condition]
      DELETE FROM name [WHERE condition]
      SELECT ...
      CREATE TOPIC [IF NOT EXISTS] name [SHARDS n]
      DROP TOPIC [IF EXISTS] name
      DESCRIBE TOPIC name
      SHOW TOPICS
      SHOW SUBSCRIPTIONS [ON topic]
      DROP SUBSCRIPTION [IF EXISTS] name ON topic
      SHOW TRANSACTIONS

    \b
    Examples:
      tidegate sql shop.tide "CREATE TABLE t (id INT PRIMARY KEY, n INT)" --create
      tidegate sql shop.tide "SELECT n, count(*) FROM t GROUP BY n ORDER BY n"
      tidegate sql shop.tide "SHOW TOPICS" --json
      tidegate sql shop.tide < topics.sql

    Exit codes: 0 fine, 1 no such database or a statement failed, 2 usage.
    """
    if statement is not None and not statement.strip(" \t\r\n;"):
        raise click.BadParameter(
            "it is empty; give a statement, or none to read them from stdin.", param_hint="STATEMENT"
        )
    with reach(path, "sql", create=create) as db:
        if statement is not None:
            for each in split(statement):
                _run(db, each, as_json)
            return
        is_terminal = sys.stdin.isatty()
        for each in _from_stdin(is_terminal):
            try:
                _run(db, each, as_json)
            except TidegateError as error:
                if not is_terminal:
                    raise
                click.echo(f"tidegate: {error}", err=True)


def _run(db: Database, statement: str, as_json: bool) -> None:
    rows = db.sql(statement)
    words = statement.upper().split(maxsplit=2)
    if as_json:
        for row in rows:
            print_json(row)
    elif words[0] in _WRITES:
        count = rows[0]["rows"]
        print_line(f"{count:,} row{'' if count == 1 else 's'}")
    elif words[:2] == ["SHOW", "CREATE"]:
        for line in rows[0]["statement"].splitlines():
            click.echo(printable(line))  # As it is, so that it can be run again.
    elif rows:
        titles = list(rows[0])
        right = " ".join(name for name in titles if _is_numeric([row[name] for row in rows]))
        print_table(titles, [[_cell(row[name]) for name in titles] for row in rows], right=right)
    else:
        print_line("no rows" if words[0].lstrip("(") in _READS else "done")


def _is_numeric(values: list[Any]) -> bool:
    kinds = {type(each) for each in values} - {type(None)}
    return bool(kinds) and kinds <= _NUMBERS


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return printable(value)
        case Decimal() | date():
            return str(value)
        case list() if all(isinstance(each, str) for each in value):
            return printable(", ".join(value))
        case _:
            return printable(to_json(value))


def _from_stdin(is_terminal: bool) -> Iterator[str]:
    """Statements as they are completed, and what is left at the end."""
    text = ""
    while True:
        if is_terminal:
            click.echo(_PROMPT if not text.strip() else "      ... ", nl=False, err=True)
        line = sys.stdin.readline()
        text += line
        parts = list(split(text, keep_rest=bool(line)))
        yield from parts[:-1] if line else parts
        if not line:
            return
        text = parts[-1]


def split(text: str, *, keep_rest: bool = False) -> Iterator[str]:
    """The statements of a text, without empty ones; a `;` in quotes or a comment ends none.

    With `keep_rest` the last one yielded is what follows the last `;`, as it is.
    """
    parts: list[str] = []
    has_words = False
    for match in _PART.finditer(text):
        found = match.group()
        if found == ";":
            if has_words:
                yield "".join(parts).strip()
            parts, has_words = [], False
            continue
        parts.append(found)
        has_words = has_words or (bool(found.strip()) and not found.startswith(("--", "/*")))
    if keep_rest:
        yield "".join(parts)
    elif has_words:
        yield "".join(parts).strip()
