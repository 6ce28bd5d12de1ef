"""`Session`: statements and commands in, answers out: settings, the open transaction, and where the database is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, assert_never

from tidegate.cli.shell import asking
from tidegate.cli.shell.answer import Answer, rows_of_dicts, rows_of_result
from tidegate.cli.shell.calling import Call
from tidegate.cli.shell.commands import (
    COMMANDS,
    HELP,
    Begin,
    Command,
    Commit,
    Rollback,
    SetValue,
    ShellStatement,
    ShowSettings,
    read_command,
    read_statement,
    tag,
)
from tidegate.cli.shell.lex import first_word
from tidegate.cli.shell.script import Item, items
from tidegate.cli.shell.settings import MEANINGS, VALUES, Settings, change, shown
from tidegate.errors import InvalidArgument, LimitExceeded, NotFound, TidegateError, WaitTimeout

if TYPE_CHECKING:
    from tidegate.catalog.statements import AnyStatement
    from tidegate.database.database import Database
    from tidegate.database.result import Result
    from tidegate.database.transaction import Transaction

_QUERIES: Final = frozenset({"SELECT", "FROM", "VALUES", "TABLE", "("})
_WRITES: Final = frozenset({"INSERT", "UPDATE", "DELETE"})
_LOOKS: Final = frozenset({"SHOW", "DESCRIBE", "DESC", "EXPLAIN"})
_FILES_DEEP: Final = 10
"""How many files may include one another by `\\i`."""
_TRANSACTION_S: Final = 900.0
"""How long a transaction may stay open on a terminal, where somebody types it."""
_CANCEL_S: Final = 2.0
"""How long a query that was told to end may take to do so."""
_SETTINGS: Final = frozenset(VALUES)
T = TypeVar("T")


class Leave(Exception):
    """`\\q`: nothing more is run."""


class StatementFailed(TidegateError):
    """A statement of a script; the message begins with its file and line."""


class Session:
    """What one shell does. Not for several threads."""

    def __init__(self, database: Callable[[], Database], settings: Settings, *, is_terminal: bool = False) -> None:
        """`database` waits until it is open. On a terminal Ctrl-C leaves the call that is under way."""
        self._database = database
        self._is_terminal = is_terminal
        self.settings = settings
        self.txn: Transaction | None = None
        self.txn_failed = False
        """It can only be rolled back."""
        self._left: list[Call[Any]] = []
        self._left_writing = False
        """A statement of the open transaction, or its end: what the transaction holds is not known."""
        self.wait_note: Callable[[str], None] = lambda _: None
        """Told what is still waited for after Ctrl-C."""

    @property
    def db(self) -> Database:
        return self._database()

    def run(self, item: Item, *, depth: int = 0) -> Iterator[Answer]:
        """Carry it out. Raises: `TidegateError`, `Leave`; KeyboardInterrupt when Ctrl-C left a call."""
        if item.is_command:
            yield from self._command(read_command(item.text), item.line, depth)
            return
        ours = read_statement(item.text, _SETTINGS)
        if ours is not None:
            yield self._shell_statement(ours, item)
            return
        db = self.db  # Waiting for it to be opened is not the statement's time.
        began = time.perf_counter()
        try:
            answer = self._statement(db, item)
        except (TidegateError, KeyboardInterrupt) as error:
            self._after_error(error)
            raise
        yield replace(answer, elapsed_s=time.perf_counter() - began)

    def run_script(self, text: str, name: str, *, depth: int = 0) -> Iterator[Answer]:
        """All of a text, until the first error. Raises: `StatementFailed`, which says where."""
        try:
            found = items(text)
        except InvalidArgument as error:
            raise StatementFailed(f"{name}: {error}") from error
        for item in found:
            yield from self.run_at(item, name, depth=depth)

    def run_at(self, item: Item, name: str, *, depth: int = 0) -> Iterator[Answer]:
        """As `run`. Raises: `StatementFailed`, which says where."""
        try:
            yield from self.run(item, depth=depth)
        except TidegateError as error:
            raise StatementFailed(f"{name}:{item.line}: {error}") from error

    def close(self) -> str | None:
        """Abort what is open; what to say about it."""
        txn, self.txn = self.txn, None
        if txn is None:
            return None
        try:
            txn.abort()
        except TidegateError as error:
            return f"the open transaction {txn.id} could not be rolled back now, and ends at its timeout: {error}"
        return f"the open transaction {txn.id} was rolled back"

    # -- statements of the database --------------------------------------------------------------------------

    def _statement(self, db: Database, item: Item) -> Answer:
        text, name = item.text, tag(item.text)
        first = first_word(text)
        txn = self.txn
        if first in _QUERIES or (first == "WITH" and _is_query(text)):
            result = self._query(db, text)
            rows = rows_of_result(result, self.settings.limit)
            return Answer(name, item.line, rows=rows, timestamp=result.timestamp)
        if first in _WRITES or first == "WITH":
            found = self._call(
                lambda: asking.run(db, text) if txn is None else asking.run_inside(txn, text), writes=True
            )
            return Answer(name, item.line, written=found[0]["rows"])
        if first in _LOOKS:
            found = self._call(lambda: asking.run(db, text))
            if name == "SHOW CREATE" and found:
                return Answer(name, item.line, text=str(found[0]["statement"]))
            return Answer(name, item.line, rows=rows_of_dicts(found, self.settings.limit))
        if txn is not None:
            _parse(text)  # What nobody understands is told as such.
            raise InvalidArgument(f"{name} cannot be part of a transaction; COMMIT or ROLLBACK first")
        found = self._call(lambda: asking.run(db, text), writes=True)
        if found:
            return Answer(name, item.line, rows=rows_of_dicts(found, self.settings.limit))
        return Answer(name, item.line, word="done")

    def _query(self, db: Database, text: str) -> Result:
        """Ctrl-C ends it."""
        settings, txn = self.settings, self.txn
        if txn is not None:
            return self._call(lambda: asking.ask_inside(txn, text), timeout_s=settings.timeout_s)
        cancel = asking.new_cancel()
        call = Call(lambda: asking.ask(db, text, settings, cancel))
        try:
            return call.wait()
        except KeyboardInterrupt as error:
            cancel.set()
            if not call.settle(_CANCEL_S):
                self._leave(call, error)
            raise

    def _call(self, work: Callable[[], T], *, timeout_s: float | None = None, writes: bool = False) -> T:
        """Make a call. What only looks is left at Ctrl-C, what writes at the second."""
        if not self._is_terminal and timeout_s is None:
            return work()
        call = Call(work)
        try:
            return call.wait(timeout_s)
        except (KeyboardInterrupt, WaitTimeout) as error:
            if call.is_done:
                raise  # Its own word.
            if not writes or not self._is_terminal:
                self._leave(call, error)
                raise
        try:
            self.wait_note("it writes, and is waited for; Ctrl-C again leaves it behind")
            return call.wait()
        except KeyboardInterrupt as error:
            if not call.is_done:
                self._leave(call, error, "look what it has done before you repeat it")
                self._left_writing = True
                error.args = ("left behind",)
            raise

    def _leave(self, call: Call[Any], error: BaseException, what: str = "its answer is dropped") -> None:
        """Wait no longer for what cannot be told to stop."""
        self._left = [each for each in self._left if not each.is_done]
        self._left.append(call)
        error.add_note(f"it goes on in the background until it ends; {what}")

    def settle(self, timeout_s: float) -> bool:
        """Wait for what was left behind; whether all of it has ended."""
        deadline = time.monotonic() + timeout_s
        return all([each.settle(max(deadline - time.monotonic(), 0)) for each in self._left])

    def _after_error(self, error: BaseException) -> None:
        """Say what becomes of the transaction it happened in."""
        txn = self.txn
        if txn is None:
            return
        if txn.state not in ("OPEN", "COMMITTING"):
            self.txn = None
            error.add_note("the transaction is over, and nothing of it remains; BEGIN a new one")
        elif isinstance(error, InvalidArgument):
            error.add_note("the transaction is still open, without this statement")
        elif isinstance(error, KeyboardInterrupt | WaitTimeout) and not self._left_writing:
            error.add_note("the transaction is still open")
        else:
            self.txn_failed = True
            error.add_note("the transaction cannot be committed any more; ROLLBACK ends it")

    # -- statements of the shell -----------------------------------------------------------------------------

    def _shell_statement(self, statement: ShellStatement, item: Item) -> Answer:
        name = tag(item.text)
        match statement:
            case SetValue():
                self.settings = change(self.settings, statement.name, statement.value)
                return self._setting(statement.name)
            case ShowSettings():
                return self._show_settings(statement.name, item.line)
            case Begin():
                self._begin()
                return Answer(name, item.line, word="transaction open")
            case Commit():
                return self._commit(name, item.line)
            case Rollback():
                txn = self._open_transaction("ROLLBACK")
                self._call(txn.abort, writes=True)
                self.txn = None
                return Answer(name, item.line, word="rolled back")
            case _:
                assert_never(statement)

    def _begin(self) -> None:
        if self.txn is not None:
            raise InvalidArgument(f"transaction {self.txn.id} is open already; COMMIT or ROLLBACK it first")
        db = self.db
        try:
            self.txn = db.transaction(_TRANSACTION_S if self._is_terminal else None)
        except (LimitExceeded, InvalidArgument):  # The owner allows less.
            self.txn = db.transaction()
        self.txn_failed = self._left_writing = False

    def _commit(self, name: str, line: int) -> Answer:
        txn = self._open_transaction("COMMIT")
        if self._left_writing and txn.state == "OPEN":
            raise InvalidArgument(f"a statement of transaction {txn.id} was left behind; only ROLLBACK can end it")
        began = time.perf_counter()
        try:
            timestamp = self._call(txn.commit, writes=True)
        except (TidegateError, KeyboardInterrupt) as error:
            if txn.state == "COMMITTING":
                error.add_note("the transaction is still to be ended: COMMIT again, or ROLLBACK")
            else:
                self._after_error(error)
            raise
        self.txn = None
        elapsed_s = time.perf_counter() - began
        return Answer(name, line, word="committed", timestamp=timestamp, elapsed_s=elapsed_s)

    def _open_transaction(self, what: str) -> Transaction:
        if self.txn is None:
            raise InvalidArgument(f"{what}: no transaction is open; BEGIN starts one")
        return self.txn

    def _setting(self, name: str) -> Answer:
        return Answer("SET", 0, word=f"{name} is {shown(self.settings)[name]}", is_remark=True)

    def _show_settings(self, name: str | None, line: int) -> Answer:
        values = shown(self.settings)
        rows = [
            {"setting": each, "value": values[each], "meaning": MEANINGS[each]}
            for each in VALUES
            if name in (None, each)
        ]
        return Answer("SHOW SET", line, rows=rows_of_dicts(rows, 0))

    # -- backslash commands ----------------------------------------------------------------------------------

    def _command(self, command: Command, line: int, depth: int) -> Iterator[Answer]:
        argument = command.argument
        match command.name:
            case "q":
                raise Leave
            case "?":
                yield Answer("\\?", line, text=_help(), is_remark=True)
            case "c":
                yield Answer("\\c", line, word=self._call(lambda: where(self.db)), is_remark=True)
            case "d" if argument:
                yield from self._describe(_unquoted(argument), line)
            case "d":
                yield Answer("\\d", line, rows=rows_of_dicts(self._call(lambda: _listed(self.db)), 0))
            case "i":
                yield from self._include(argument, depth)
            case "set" if not argument:
                yield self._show_settings(None, line)
            case "set":
                name, _, value = argument.replace("=", " ", 1).partition(" ")
                if not value.strip():
                    yield self._show_settings(name.lower() if name.lower() in VALUES else None, line)
                    return
                self.settings = change(self.settings, name, value)
                yield self._setting(name.lower())
            case "status":
                yield self._status(line)
            case "timing" | "x":
                name = "timing" if command.name == "timing" else "expanded"
                now = shown(self.settings)[name]
                self.settings = change(self.settings, name, argument or ("off" if now == "on" else "on"))
                yield self._setting(name)
            case _:
                raise NotFound(f"\\{command.name} is not understood; \\? lists commands")

    def _include(self, name: str, depth: int) -> Iterator[Answer]:
        if depth >= _FILES_DEEP:
            raise InvalidArgument(f"{name}: files include one another more than {_FILES_DEEP} deep")
        yield from self.run_script(read_file(Path(_unquoted(name)).expanduser()), _unquoted(name), depth=depth + 1)

    def _describe(self, name: str, line: int) -> Iterator[Answer]:
        db = self.db
        found = self._call(lambda: _listed(db))
        kinds = [each["kind"] for each in found if each["name"] == name]
        if not kinds:
            from tidegate.catalog.names import near

            raise NotFound(f"there is no table, view or topic {name!r}{near(name, [each['name'] for each in found])}")
        quoted = "`" + name.replace("`", "``") + "`"
        for kind in kinds:
            sql = f"DESCRIBE {'TOPIC ' if kind == 'topic' else ''}{quoted}"
            rows = self._call(partial(asking.run, db, sql))
            yield Answer("\\d", line, rows=rows_of_dicts(rows, 0))

    def _status(self, line: int) -> Answer:
        from io import StringIO

        from rich.console import Console

        from tidegate.cli.output import columns
        from tidegate.cli.status import draw

        db = self.db
        found = self._call(db.status)
        found["clients"] = [each for each in found["clients"] if each["name"] != db.name]
        text = StringIO()
        Console(file=text, width=columns(), highlight=False).print(
            draw({**found, "opened_by_this_command": db.is_owner})
        )
        return Answer("\\status", line, text=text.getvalue(), is_remark=True)


def where(db: Database) -> str:
    """Who has the database open."""
    if db.is_owner:
        return f"{db.path} is open in this process, which owns it; others reach it through here"
    return f"{db.path} is open in process {db.status()['owner']['pid']}, and reached through it"


def read_file(path: Path) -> str:
    """Raises: `NotFound`, `InvalidArgument`."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is no UTF-8 text (byte {error.start:,}); convert it first") from error
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}; check the path and its permissions") from error


def _listed(db: Database) -> list[dict[str, Any]]:
    tables = [
        {
            "name": each["name"],
            "kind": "table",
            "columns": each["columns"],
            "key": each["key"],
            "shards": each["shards"],
        }
        for each in asking.run(db, "SHOW TABLES")
    ]
    topics = [
        {"name": each["name"], "kind": "topic", "columns": None, "key": None, "shards": each["shards"]}
        for each in asking.run(db, "SHOW TOPICS")
    ]
    views = [
        {"name": each["name"], "kind": "view", "columns": each["columns"], "key": None, "shards": None}
        for each in asking.run(db, "SHOW MATERIALIZED VIEWS")
    ]
    return sorted(tables + topics + views, key=lambda each: (str(each["name"]), str(each["kind"])))


def _parse(text: str) -> AnyStatement:
    from tidegate.catalog.statements import parse

    return parse(text)


def _is_query(text: str) -> bool:
    from tidegate.catalog.statements import Query

    return isinstance(_parse(text), Query)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"`" else text


def _help() -> str:
    commands = "\n".join(f"  \\{name + ' ' + args:<22}{text}" for name, (args, text) in COMMANDS.items())
    settings = "\n".join(f"  {name:<14}{text}" for name, text in MEANINGS.items())
    return HELP.format(commands=commands, settings=settings)
