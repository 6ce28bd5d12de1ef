"""`tidegate sql`: a shell on a terminal; statements from the command line, a file or a pipe for programs."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tidegate.cli.output import json_option
from tidegate.cli.reach import path_argument
from tidegate.cli.shell.opening import Opening
from tidegate.cli.shell.render import CsvRenderer, JsonRenderer, Renderer, TextRenderer
from tidegate.cli.shell.script import Feed, items
from tidegate.cli.shell.session import Leave, Session, StatementFailed, read_file
from tidegate.cli.shell.settings import Settings, read_consistency
from tidegate.errors import InvalidArgument, TidegateError

if TYPE_CHECKING:
    from tidegate.cli.shell.answer import Answer

_SETTLE_S: Final = 2.0
"""How long the end waits for a query that was left behind."""


@click.command()
@path_argument
@click.argument("statement", required=False)
@click.option("-c", "--command", "commands", multiple=True, metavar="SQL", help="Run these statements; repeatable.")
@click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="Run the statements of FILE (- is stdin); repeatable."
)
@click.option("--create", is_flag=True, help="Make the database if there is none at PATH.")
@click.option(
    "--consistency",
    metavar="LEVEL",
    help="strong, session, bounded, 'bounded 2s', eventual or a Timestamp; session by default.",
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: names, then rows.")
def sql(
    path: Path,
    statement: str | None,
    commands: tuple[str, ...],
    files: tuple[str, ...],
    create: bool,
    consistency: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Run statements in the database at PATH: STATEMENT, those of -c or -f, or those on stdin; on a terminal, a shell.

    In the shell a statement ends with `;`, Tab completes, \\? helps. Ctrl-C drops the line or the running query, and
    Ctrl-D leaves.

    Otherwise the first statement that fails ends it: nothing after it runs, and a transaction that is open is rolled
    back. --json prints one document a line for each statement.

    \b
    Statements:
      CREATE TABLE [IF NOT EXISTS] name (column TYPE [NOT NULL], ...
                   [, PRIMARY KEY (column, ...)]) [SHARDS n]
      ALTER TABLE name ADD COLUMN column TYPE
      ALTER TABLE name DROP COLUMN column
      ALTER TABLE name RENAME COLUMN column TO column
      DROP TABLE [IF EXISTS] name [CASCADE]
      DESCRIBE name
      SHOW TABLES
      SHOW CREATE TABLE name
      CREATE MATERIALIZED VIEW [IF NOT EXISTS] name AS SELECT ...
      DROP MATERIALIZED VIEW [IF EXISTS] name [CASCADE]
      ALTER MATERIALIZED VIEW name RESUME
      EXPLAIN MATERIALIZED VIEW name
      SHOW MATERIALIZED VIEWS
      INSERT INTO name [(column, ...)] VALUES (...), ... [ON CONFLICT DO NOTHING]
      INSERT INTO name SELECT ...
      UPDATE name SET column = expression, ... [WHERE condition]
      DELETE FROM name [WHERE condition]
      SELECT ...
      BEGIN; INSERT, UPDATE and DELETE; COMMIT or ROLLBACK
      CREATE TOPIC [IF NOT EXISTS] name [SHARDS n]
      DROP TOPIC [IF EXISTS] name
      DESCRIBE TOPIC name
      SHOW TOPICS
      SHOW SUBSCRIPTIONS [ON topic]
      DROP SUBSCRIPTION [IF EXISTS] name ON topic
      SHOW TRANSACTIONS
      SET consistency | engine | timeout | limit | expanded | timing = value
      SHOW SET

    \b
    Examples:
      tidegate sql shop.tide
      tidegate sql shop.tide "CREATE TABLE t (id INT PRIMARY KEY, n INT)" --create
      tidegate sql shop.tide "SELECT n, count(*) FROM t GROUP BY n ORDER BY n"
      tidegate sql shop.tide -c "BEGIN; UPDATE t SET n = n + 1" -c "COMMIT"
      tidegate sql shop.tide -f tables.sql --json
      tidegate sql shop.tide --csv "SELECT * FROM t" > t.csv
      tidegate sql shop.tide --consistency eventual "SELECT count(*) FROM t"
      tidegate sql shop.tide < topics.sql

    Exit codes: 0 fine, 1 no such database or a statement failed, 2 usage, 130 interrupted.
    """
    if (statement is not None) + bool(commands) + bool(files) > 1:
        raise click.UsageError("give STATEMENT, -c or -f, and not several of them")
    if as_json and as_csv:
        raise click.UsageError("give --json or --csv, and not both")
    texts = [statement] if statement is not None else list(commands)
    for text, hint in zip(texts, ["STATEMENT"] if statement is not None else ["-c"] * len(texts)):
        if not text.strip(" \t\r\n;"):
            raise click.BadParameter("it is empty; give a statement, or none to read them from stdin.", param_hint=hint)
    settings = _consistency(Settings(limit=0), consistency)
    is_shell = not texts and not files and sys.stdin.isatty() and sys.stdout.isatty()
    if is_shell:
        settings = replace(settings, limit=Settings().limit)
    renderer: Renderer = JsonRenderer() if as_json else CsvRenderer() if as_csv else TextRenderer(footers=is_shell)
    scripts = [(name, "" if name == "-" else read_file(Path(name))) for name in files]  # Before anything is opened.
    if is_shell:
        from tidegate.cli.shell.terminal import Terminal
    with _opened(path, settings, create=create, is_shell=is_shell) as (opening, session):
        if is_shell:
            Terminal(path, session, opening, renderer).run()
            return
        with _left(session):
            for answer in _answers(session, texts, scripts):
                renderer.show(answer, session.settings)


@contextmanager
def _opened(path: Path, settings: Settings, *, create: bool, is_shell: bool) -> Iterator[tuple[Opening, Session]]:
    """A session, and its end: a query that was left behind and still runs keeps the database from being closed."""
    opening = Opening(path, create=create)
    if not is_shell:
        opening.start()  # A shell does once it shows its prompt.
    session = Session(opening.database, settings, is_terminal=is_shell)
    code = 1
    try:
        yield opening, session
        code = 0
    finally:
        if session.settle(_SETTLE_S):
            opening.close()
        else:
            # Nothing is lost: what was acknowledged survives any end of a process.
            atexit.register(_end_at_once, code)


def _end_at_once(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _answers(session: Session, texts: list[str], scripts: list[tuple[str, str]]) -> Iterator[Answer]:
    for number, text in enumerate(texts, 1):
        found = items(text)
        name = "-c" if len(texts) == 1 else f"-c {number}"
        for item in found:
            # Where it stands is worth saying only if there is more than one place.
            yield from session.run(item) if len(found) == len(texts) == 1 else session.run_at(item, name)
    for name, text in scripts:
        yield from _stdin(session) if name == "-" else session.run_script(text, name)
    if not texts and not scripts:
        yield from _stdin(session)


def _stdin(session: Session) -> Iterator[Answer]:
    """Statements as they are completed, and what is left at the end."""
    feed = Feed()
    name = "<stdin>"
    for line in sys.stdin:
        for item in feed.add(line):
            yield from session.run_at(item, name)
    try:
        rest = feed.end()
    except InvalidArgument as error:
        raise StatementFailed(f"{name}: {error}") from error
    for item in rest:
        yield from session.run_at(item, name)


@contextmanager
def _left(session: Session) -> Iterator[None]:
    """End a transaction that is still open. Raises: `InvalidArgument` if nothing else had failed: its work is lost."""
    try:
        yield
    except Leave:
        pass
    except BaseException:
        note = session.close()
        if note:
            click.echo(f"tidegate: {note}", err=True)
        raise
    note = session.close()
    if note:
        raise InvalidArgument(f"the statements end without COMMIT: {note}")


def _consistency(settings: Settings, text: str | None) -> Settings:
    if text is None:
        return settings
    try:
        level, staleness_s = read_consistency(text)
    except TidegateError as error:
        raise click.BadParameter(str(error), param_hint="--consistency") from error
    return replace(settings, consistency=level, staleness_s=staleness_s)
