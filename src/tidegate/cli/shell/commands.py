"""The words that the shell itself understands: backslash commands, SET, and those that begin and end transactions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from tidegate.cli.shell.lex import first_word, first_words, tokens
from tidegate.errors import InvalidArgument, NotFound

COMMANDS: Final = {
    "?": ("", "this help"),
    "c": ("", "where this shell is connected"),
    "d": ("[NAME]", "tables and topics, or one of them"),
    "i": ("FILE", "run the statements of a file"),
    "q": ("", "leave (also Ctrl-D)"),
    "set": ("[NAME VALUE]", "show or change settings (also SET name = value)"),
    "status": ("", "the state of the database: what goes on, what waits, and on what"),
    "timing": ("[on|off]", "show how long answers take"),
    "x": ("[on|off|auto]", "a line for each value instead of a table"),
}
"""Arguments and meaning of each."""
_ALIASES: Final = {"h": "?", "help": "?", "quit": "q", "exit": "q", "dt": "d", "conninfo": "c", "include": "i"}
_PLAIN_WORDS: Final = {"QUIT": "\\q", "EXIT": "\\q", "HELP": "\\?"}
_COMMAND: Final = re.compile(r"\\([A-Za-z]+|\?|)\s*(.*)", re.DOTALL)
_SET: Final = re.compile(r"SET\s+([A-Za-z_]+)(?:\s*=\s*|\s+TO\s+|\s+)(.+)", re.IGNORECASE | re.DOTALL)
_NOISE: Final = frozenset({"TRANSACTION", "WORK"})

HELP: Final = """\
A statement ends with ; and may span lines. Tab completes, Ctrl-R searches what was typed before,
Ctrl-C drops the line or the running query, Ctrl-D leaves.

{commands}

Settings, changed by SET name = value; or \\set name value:
{settings}

BEGIN; ... COMMIT; or ROLLBACK; runs INSERT, UPDATE and DELETE as one transaction.
A SELECT inside it has what it has written, and otherwise one cut for all of them.
INSERT, UPDATE, DELETE and COMMIT are waited for at Ctrl-C; a second one leaves them behind."""


@dataclass(frozen=True, slots=True)
class Command:
    """A backslash command; `argument` is the rest of its line."""

    name: str
    argument: str


def read_command(text: str) -> Command:
    """Raises: `NotFound` for one that is unknown, `InvalidArgument` for an argument it does not take."""
    match = _COMMAND.fullmatch(text.strip())
    name = match[1] if match else text.strip()[1:].split(maxsplit=1)[0]
    name = _ALIASES.get(name, name)
    if match is None or name not in COMMANDS:
        near = get_close_matches(name, [*COMMANDS, *_ALIASES], n=1, cutoff=0.6)
        hint = f"did you mean \\{near[0]}? " if near else ""
        raise NotFound(f"there is no command \\{name}; {hint}\\? lists them")
    argument = match[2].strip().removesuffix(";").strip()
    if argument and not COMMANDS[name][0]:
        raise InvalidArgument(f"\\{name} takes nothing behind it, and {argument!r} is there")
    if name == "i" and not argument:
        raise InvalidArgument("\\i takes the name of a file: \\i statements.sql")
    return Command(name, argument)


def plain_word(text: str) -> str | None:
    """The command that somebody means who types `quit` without a backslash."""
    return _PLAIN_WORDS.get(text.strip().rstrip(";").strip().upper())


@dataclass(frozen=True, slots=True)
class SetValue:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ShowSettings:
    """`name` is None for all."""

    name: str | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class Commit:
    pass


@dataclass(frozen=True, slots=True)
class Rollback:
    pass


ShellStatement = SetValue | ShowSettings | Begin | Commit | Rollback


def read_statement(text: str, names: frozenset[str]) -> ShellStatement | None:
    """A statement that the shell carries out itself; None for one of the database. `names` are the settings.

    Raises: `InvalidArgument`.
    """
    first = first_word(text)
    if first == "SET":
        return _set(text)
    few = first_words(text, 4)
    match few:
        case ["SHOW", "SET" | "SETTINGS" | "ALL"]:
            return ShowSettings()
        case ["SHOW", name] if name.lower() in names:
            return ShowSettings(name.lower())
        case ["BEGIN", *rest] | ["START", "TRANSACTION", *rest]:
            _check_end(text, rest)
            return Begin()
        case ["COMMIT" | "END", *rest]:
            _check_end(text, rest)
            return Commit()
        case ["ROLLBACK" | "ABORT", *rest]:
            _check_end(text, rest)
            return Rollback()
        case _:
            return None


def _set(text: str) -> SetValue | ShowSettings:
    plain = "".join(token.text if token.kind != "comment" else " " for token in tokens(text)).strip()
    if plain.upper() == "SET":
        return ShowSettings()
    match = _SET.fullmatch(plain)
    if match is None:
        raise InvalidArgument(f"{plain} is not understood; write SET name = value, or SHOW SET for all settings")
    return SetValue(match[1].lower(), match[2].strip())


def _check_end(text: str, rest: list[str]) -> None:
    if [each for each in rest if each not in _NOISE]:
        raise InvalidArgument(f"{text} is not understood; write BEGIN, COMMIT or ROLLBACK and nothing behind it")


def tag(text: str) -> str:
    """What a statement is called: SELECT, CREATE TABLE."""
    few = first_words(text, 2)
    two = few[:1] and few[0] in ("CREATE", "ALTER", "DROP", "SHOW", "DESCRIBE")
    if few[:1] == ["DESCRIBE"] and few[1:] != ["TOPIC"]:
        two = False
    return " ".join(few if two else few[:1])
