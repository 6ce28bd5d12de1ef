"""The shell on a terminal: reads with prompt_toolkit, runs with `Session`, prints with a `Renderer`.

Ctrl-C drops the line or the running query and never the shell; Ctrl-D leaves.
"""

from __future__ import annotations

import logging
import textwrap
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread
from typing import Final

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected, has_completions
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from tidegate import __version__
from tidegate.cli.output import columns, printable
from tidegate.cli.shell.commands import COMMANDS, plain_word
from tidegate.cli.shell.complete import Names, complete
from tidegate.cli.shell.history import history_path, prepare_history
from tidegate.cli.shell.keywords import FUNCTIONS, KEYWORDS, TYPES
from tidegate.cli.shell.lex import first_word, tokens
from tidegate.cli.shell.names import CatalogNames
from tidegate.cli.shell.opening import Opening
from tidegate.cli.shell.render import Renderer
from tidegate.cli.shell.script import Item, is_complete, items, split
from tidegate.cli.shell.session import Leave, Session
from tidegate.errors import TidegateError

_STYLE: Final = Style.from_dict(
    {
        "prompt": "bold",
        "prompt.open": "bold ansiyellow",
        "prompt.failed": "bold ansired",
        "more": "ansibrightblack",
        "word": "bold ansiblue",
        "type": "ansicyan",
        "function": "ansicyan",
        "string": "ansigreen",
        "number": "ansimagenta",
        "comment": "italic ansibrightblack",
        "command": "bold ansimagenta",
    }
)
_WORDS: Final = {
    **dict.fromkeys(KEYWORDS, "class:word"),
    **dict.fromkeys(TYPES, "class:type"),
    **{each.upper(): "class:function" for each in FUNCTIONS},
}
_KINDS: Final = {"string": "class:string", "number": "class:number", "comment": "class:comment"}
_CHANGES_NAMES: Final = frozenset({"CREATE", "ALTER", "DROP"})
_NAME_WIDTH: Final = 24


class Terminal:
    """One interactive shell."""

    def __init__(self, path: Path, session: Session, opening: Opening, renderer: Renderer) -> None:
        self._session = session
        self._opening = opening
        self._renderer = renderer
        self._path = path
        self._names = CatalogNames(opening.database_if_open)
        self._notes: deque[str] = deque(maxlen=5)
        self._prompt: PromptSession[str] = PromptSession(
            message=self._message,
            prompt_continuation=self._continuation,
            multiline=True,
            key_bindings=_keys(),
            lexer=SqlLexer(),
            completer=SqlCompleter(self._names),
            complete_while_typing=False,
            complete_in_thread=True,
            complete_style=CompleteStyle.MULTI_COLUMN,
            auto_suggest=AutoSuggestFromHistory(),
            history=_history(self._notes),
            style=_STYLE,
            enable_open_in_editor=True,
            tempfile_suffix=".sql",
            include_default_pygments_style=False,
        )

    def run(self) -> None:
        """Until somebody leaves. Raises: what opening the database raises."""
        handler = _Notes(self._notes)
        logger = logging.getLogger("tidegate")
        logger.addHandler(handler)
        self._session.wait_note = lambda text: click.echo("\n" + click.style(text, dim=True))
        try:
            click.echo(f"tidegate {__version__} · {printable(str(self._path))}")
            click.echo("A statement ends with ;   \\? helps   \\q leaves")
            self._prompt.app.after_render += self._open
            while self._once():
                pass
        finally:
            logger.removeHandler(handler)
            note = self._session.close()
            if note:
                click.echo(note)

    def _open(self, _: object) -> None:
        """The prompt is there: open the database, which takes the processor for about a second."""
        self._prompt.app.after_render -= self._open
        self._opening.start()
        self._opening.warm_up()
        Thread(target=self._watch_opening, name="tidegate sql opening", daemon=True).start()

    def _watch_opening(self) -> None:
        """A database that cannot be opened ends the shell, also while it waits for a line."""
        try:
            if not self._opening.database().is_owner:
                self._notes.append("another process has the database open; it is reached through that one")
        except Exception as error:
            app, why = self._prompt.app, error
            if app.loop is not None and app.is_running:
                app.loop.call_soon_threadsafe(lambda: app.exit(exception=why) if app.is_running else None)

    def _once(self) -> bool:
        """Read and run once; whether to go on."""
        while self._notes:
            click.echo(click.style(f"note: {printable(self._notes.popleft())}", dim=True))
        try:
            text = self._prompt.prompt()
        except KeyboardInterrupt:
            return True
        except EOFError:
            return False
        try:
            self._run(plain_word(text) or text)
        except Leave:
            return False
        except KeyboardInterrupt as error:
            click.echo(err=True)  # Behind the ^C that the terminal shows.
            _complain(str(error) or "cancelled", error, is_error=False)
        except TidegateError as error:
            if self._opening.is_done:
                self._opening.database()  # What failed may be its opening, and then all is over.
            _complain(str(error), error)
        except OSError as error:
            _complain(f"{error.filename or 'a file'}: {error.strerror}", error)
        except Exception as error:
            _complain(f"{type(error).__name__}: {error}; this is a defect in Tidegate, please report it", error)
        return True

    def _run(self, text: str) -> None:
        for item in items(text):
            self._run_item(item)

    def _run_item(self, item: Item) -> None:
        try:
            for answer in self._session.run(item):
                self._renderer.show(answer, self._session.settings)
        finally:
            if item.is_command or first_word(item.text) in _CHANGES_NAMES:
                self._names.forget()

    # -- the prompt ------------------------------------------------------------------------------------------

    def _lead(self) -> tuple[str, str]:
        session = self._session
        name = self._path.resolve().name
        name = printable(name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…")
        if session.txn is None:
            return "class:prompt", f"{name}> "
        return ("class:prompt.failed", f"{name}!> ") if session.txn_failed else ("class:prompt.open", f"{name}*> ")

    def _message(self) -> StyleAndTextTuples:
        return [self._lead()]

    def _continuation(self, width: int, line_number: int, wrap_count: int) -> StyleAndTextTuples:
        if wrap_count:
            return [("", " " * width)]
        lines = self._prompt.default_buffer.document.lines[:line_number]
        missing = split("\n".join(lines) + "\n").open
        return [("class:more", f"{missing or '-'}> ".rjust(width))]


class SqlLexer(Lexer):
    """Colours, by the tokens of `lex`."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines: list[StyleAndTextTuples] = [[]]
        text = document.text
        if text.lstrip().startswith("\\"):
            for line in text.split("\n"):
                head, blank, rest = line.partition(" ")
                known = head.lstrip()[1:] in COMMANDS
                lines.append([("class:command" if known else "", head), ("", blank + rest)])
            lines = lines[1:]
        else:
            for token in tokens(text):
                style = _KINDS.get(token.kind) or _WORDS.get(token.keyword, "")
                for at, part in enumerate(token.text.split("\n")):
                    if at:
                        lines.append([])
                    lines[-1].append((style, part))

        def line_of(number: int) -> StyleAndTextTuples:
            return lines[number] if number < len(lines) else []

        return line_of


class SqlCompleter(Completer):
    """Proposals, by `complete`; and files after `\\i`."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        before = document.text_before_cursor
        if before.lstrip().startswith("\\i "):
            yield from _files(before.lstrip()[3:].lstrip())
            return
        for each in complete(before, document.text_after_cursor, self._names):
            yield Completion(each.text, start_position=-each.length, display_meta=each.kind)


def _files(typed: str) -> Iterable[Completion]:
    head, slash, last = typed.rpartition("/")
    folder = Path(head + slash).expanduser() if slash else Path()
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return
    for each in found:
        if each.name.startswith(last) and (each.suffix == ".sql" or each.is_dir() or last):
            yield Completion(each.name + ("/" if each.is_dir() else ""), start_position=-len(last))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=has_completions & completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @keys.add("enter", filter=~(has_completions & completion_is_selected))
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text) or plain_word(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _Kept(FileHistory):
    """A line that begins with a blank is not written down."""

    def store_string(self, string: str) -> None:
        if not string.startswith(" "):
            super().store_string(string)


def _history(notes: deque[str]) -> History:
    try:
        path = history_path()
        prepare_history(path)
        return _Kept(str(path))
    except (OSError, RuntimeError) as error:
        notes.append(f"what is typed is not kept: {error}")
        return InMemoryHistory()


def _complain(text: str, error: BaseException, *, is_error: bool = True) -> None:
    """The error, in red, and what is to be said about the transaction it happened in."""
    shown = _wrapped(("error: " if is_error else "") + text)
    head, colon, rest = shown.partition(" ") if is_error else ("", "", shown)
    click.echo(click.style(head, fg="red") + colon + rest, err=True)
    for note in getattr(error, "__notes__", ()):
        click.echo(click.style(_wrapped(note), dim=True), err=True)


def _wrapped(text: str) -> str:
    """Broken between words, where it is wider than the screen."""
    width = columns()
    lines = (printable(line) for line in text.split("\n"))
    return "\n".join(
        line if len(line) <= width else textwrap.fill(line, width, break_on_hyphens=False) for line in lines
    )


class _Notes(logging.Handler):
    """Keeps warnings until there is a line to show them in; printed at once they would tear the prompt."""

    def __init__(self, notes: deque[str]) -> None:
        super().__init__(logging.WARNING)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.append(record.getMessage())
