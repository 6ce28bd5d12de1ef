"""Answers as text for people, as a JSON document for each statement, or as CSV."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, Protocol

from tidegate.cli.output import columns, duration, has_colours, print_json, printable, to_json
from tidegate.cli.shell.answer import Answer, Rows, unique_names
from tidegate.cli.shell.layout import Line, lay_out
from tidegate.cli.shell.settings import Settings

_CODES: Final = {"title": "\x1b[1m", "rule": "\x1b[2m", "null": "\x1b[2;3m", "note": "\x1b[2m"}


class Renderer(Protocol):
    """Where answers go."""

    def show(self, answer: Answer, settings: Settings) -> None: ...


class TextRenderer:
    """For people. On a screen (`footers`) each answer says how many rows it has, its cut and the time it took."""

    def __init__(self, *, footers: bool) -> None:
        self._footers = footers

    def show(self, answer: Answer, settings: Settings) -> None:
        if answer.text is not None:
            for each in answer.text.splitlines():
                sys.stdout.write(printable(each) + "\n")  # As it is, so that it can be run again.
        if answer.rows is not None:
            self._rows(answer.rows, settings)
        foot = self._foot(answer, settings)
        if foot:
            print_styled([("note" if answer.rows is not None and answer.rows.total else "", foot)])
        if answer.note:
            print_styled([("note", answer.note)])
        sys.stdout.flush()

    def _rows(self, rows: Rows, settings: Settings) -> None:
        if not rows.total:
            return
        width = columns() if sys.stdout.isatty() else None
        print_lines(lay_out(rows, width, settings.expanded if width or settings.expanded == "on" else "off"))

    def _foot(self, answer: Answer, settings: Settings) -> str:
        parts: list[str] = []
        if answer.rows is not None:
            total = answer.rows.total
            if not total:
                parts.append("no rows")
            elif self._footers:
                parts.append(_rows(total))
                if len(answer.rows.rows) < total:
                    parts[-1] += f", the first {len(answer.rows.rows):,} shown (\\set limit all shows all)"
        elif answer.written is not None:
            parts.append(_rows(answer.written))
        elif answer.word is not None:
            parts.append(answer.word)
        if self._footers:
            if answer.timestamp is not None:
                parts.append(f"at {answer.timestamp}")
            if settings.timing and answer.elapsed_s is not None:
                parts.append(_elapsed(answer.elapsed_s))
        return " · ".join(parts)


class JsonRenderer:
    """One document a line for each statement; commands that only change the shell print none."""

    def show(self, answer: Answer, settings: Settings) -> None:  # noqa: ARG002
        if answer.is_remark:
            return
        found: dict[str, Any] = {"statement": answer.statement, "line": answer.line}
        if answer.rows is not None:
            names = unique_names(answer.rows.columns)
            found |= {"columns": names, "rows": [dict(zip(names, row)) for row in answer.rows.rows]}
            found["count"] = answer.rows.total
        elif answer.written is not None:
            found["written"] = answer.written
        elif answer.text is not None:
            found["text"] = answer.text
        if answer.timestamp is not None:
            found |= {"timestamp": int(answer.timestamp), "timestamp_text": str(answer.timestamp)}
        if answer.elapsed_s is not None:
            found["ms"] = round(answer.elapsed_s * 1000, 3)
        print_json(found)


class CsvRenderer:
    """Names, then rows. NULL is nothing, an empty string is `""`. Answers are separated by an empty line."""

    def __init__(self) -> None:
        self._is_first = True

    def show(self, answer: Answer, settings: Settings) -> None:  # noqa: ARG002
        if answer.is_remark:
            return
        if answer.rows is not None and answer.rows.columns:
            self._lines(answer.rows.columns, answer.rows.rows)
        elif answer.written is not None:
            self._lines(["written"], [[answer.written]])
        elif answer.text is not None:
            self._lines(["text"], [[answer.text]])

    def _lines(self, names: Any, rows: Any) -> None:
        if not self._is_first:
            sys.stdout.write("\n")
        self._is_first = False
        for row in (names, *rows):
            sys.stdout.write(",".join(_csv(value) for value in row) + "\n")
        sys.stdout.flush()


def print_lines(lines: Iterator[Line]) -> None:
    """Styled lines to stdout; nothing is cut, and a pipe gets no control code."""
    styles = _CODES if has_colours() else {}
    for line in lines:
        pieces = [f"{styles[style]}{text}\x1b[0m" if style in styles else text for style, text in line]
        sys.stdout.write("".join(pieces).rstrip() + "\n")


def print_styled(line: Line) -> None:
    print_lines(iter([line]))


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _elapsed(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else duration(seconds * 1000)


def _is_plain(text: str) -> bool:
    """Whether a value of CSV can do without quotes."""
    return bool(text) and text == text.strip() and not set(text) & set(',"\r\n')


def _csv(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    text = value if isinstance(value, str) else to_json(value)
    if not isinstance(value, str) and text.startswith('"'):
        text = text[1:-1]  # A DECIMAL or a time.
    return text if _is_plain(text) else '"' + text.replace('"', '""') + '"'
