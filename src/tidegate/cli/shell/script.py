"""A text as statements and backslash commands, each with the line it begins in.

A statement ends with `;` outside of quotes and comments; the last may do without. A line whose first character is a
backslash, between two statements, is a command.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.cli.shell.lex import Token, tokens
from tidegate.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Item:
    """One statement without its `;`, or one command with its backslash; `line` counts from 1."""

    text: str
    line: int

    @property
    def is_command(self) -> bool:
        return self.text.startswith("\\")


@dataclass(frozen=True, slots=True)
class Split:
    """What a text consists of. `rest` is what stands behind the last end; `open` names the quote it lacks."""

    items: tuple[Item, ...]
    rest: str = ""
    rest_line: int = 1
    open: str = ""
    open_line: int = 1

    @property
    def has_rest(self) -> bool:
        """Whether something was begun and not ended."""
        return any(token.counts or token.open for token in tokens(self.rest))


def split(text: str, *, line: int = 1) -> Split:
    """Read a text whose first line has the number `line`."""
    found: list[Item] = []
    start = 0
    first: Token | None = None
    last: Token | None = None
    reading = tokens(text)
    while (token := next(reading, None)) is not None:
        last = token
        if first is None and token.text == "\\":
            # To the end of its line, whatever quotes are in it.
            newline = text.find("\n", token.start)
            start = len(text) if newline < 0 else newline
            found.append(Item(text[token.start : start].strip(), line + text.count("\n", 0, token.start)))
            reading, last = tokens(text, start), None
        elif token.kind == "end":
            if first is not None:
                found.append(_statement(text, first, token.start, line))
            start, first = token.start + 1, None
        elif token.counts and first is None:
            first = token
    lines = 0 if last is None else text.count("\n", 0, last.start)
    missing = "" if last is None else last.open
    return Split(tuple(found), text[start:], line + text.count("\n", 0, start), missing, line + lines)


def _statement(text: str, first: Token, end: int, line: int) -> Item:
    return Item(text[first.start : end].strip(), line + text.count("\n", 0, first.start))


def items(text: str, *, line: int = 1) -> list[Item]:
    """All of a text, its end being the end of its last statement.

    Raises: `InvalidArgument` for a quote or a comment that is not closed, with its line.
    """
    found = split(text, line=line)
    check_closed(found)
    return [*found.items, *_last(found)]


def check_closed(found: Split) -> None:
    """Raises: `InvalidArgument`."""
    if found.open:
        what = "a comment" if found.open == "*/" else f"a quote {found.open}"
        raise InvalidArgument(f"{what} opened in line {found.open_line} is not closed; add {found.open}")


def _last(found: Split) -> list[Item]:
    first = next((token for token in tokens(found.rest) if token.counts), None)
    if first is None:
        return []
    return [_statement(found.rest, first, len(found.rest), found.rest_line)]


class Feed:
    """Items of a text that arrives line by line, each as soon as it is complete."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._is_blank = True
        self._line = 1

    def add(self, line: str) -> list[Item]:
        """What this line completes."""
        may_be_command = self._is_blank and "\\" in line
        self._lines.append(line)
        self._is_blank = self._is_blank and not line.strip()
        if ";" not in line and not may_be_command:
            return []  # Statements may be megabytes long: looked at again only where one can end.
        found = split("".join(self._lines), line=self._line)
        self._lines, self._line = [found.rest], found.rest_line
        self._is_blank = not found.rest.strip()
        return list(found.items)

    def end(self) -> list[Item]:
        """What is left. Raises: `InvalidArgument` for a quote or a comment that is not closed."""
        text, self._lines = "".join(self._lines), []
        return items(text, line=self._line)


def is_complete(text: str) -> bool:
    """Whether Enter should run the text: it is empty, a command, or ends with `;`."""
    if not text.strip() or text.lstrip().startswith("\\"):
        return True
    found = split(text)
    return not found.open and not found.has_rest
