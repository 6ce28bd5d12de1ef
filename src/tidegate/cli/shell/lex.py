"""SQL and backslash commands as a row of tokens, of any text, also one that is still being typed.

Invariant: the tokens' texts, one after the other, are the text. What is a string, a comment or a `;` is what the reader
of statements (`tidegate.tables.spark_sql`) takes for one; `tests/laws/test_shell_lex_laws.py` compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["space", "comment", "string", "name", "number", "word", "end", "other"]

_TOKEN: Final = re.compile(
    r"""
      (?P<space>   \s+ )
    | (?P<comment> --[^\r\n]* | /\* )
    | (?P<string>  [rR]'[^']*+(?:'|\Z) | [rR]"[^"]*+(?:"|\Z)
                 | '(?:[^'\\]++|''|\\(?:.|\Z))*+(?:'|\Z) | "(?:[^"\\]++|""|\\(?:.|\Z))*+(?:"|\Z) )
    | (?P<name>    `(?:[^`]++|``)*+(?:`|\Z) )
    | (?P<number>  [0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?(?![A-Za-z_0-9]) )
    | (?P<word>    [A-Za-z_0-9\u0080-\U0010ffff]+ )
    | (?P<end>     ; )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text. `open` names what it lacks at its end: a quote or `*/`."""

    kind: Kind
    text: str
    start: int
    open: str = ""

    @property
    def keyword(self) -> str:
        """In capitals; "" for what is quoted."""
        return self.text.upper() if self.kind in ("word", "other") else ""

    @property
    def counts(self) -> bool:
        """Whether it is more than a blank or a comment."""
        return self.kind not in ("space", "comment")


def tokens(text: str, start: int = 0) -> Iterator[Token]:
    """The text's tokens, from a place where one begins."""
    at = start
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:  # `.` takes whatever is left.
            return
        kind: Kind = match.lastgroup  # type: ignore[assignment]
        if match.group() == "/*":
            end, is_open = _comment_end(text, at)
            yield Token("comment", text[at:end], at, "*/" if is_open else "")
            at = end
            continue
        found = match.group()
        yield Token(kind, found, at, _missing(found, kind))
        at = match.end()


def _comment_end(text: str, start: int) -> tuple[int, bool]:
    """Comments nest."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, start):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end(), False
    return len(text), True


def _missing(found: str, kind: Kind) -> str:
    if kind not in ("string", "name"):
        return ""
    raw = found[0] in "rR"
    quote = found[1] if raw else found[0]
    body = found[2:] if raw else found[1:]
    if not body.endswith(quote):
        return quote
    if raw:
        return ""
    # It ends with a quote; the last one closes it unless it is itself escaped or half of a doubled one.
    body = re.sub(r"\\." if quote != "`" else r"(?!)", "", body, flags=re.DOTALL)
    trailing = len(body) - len(body.rstrip(quote))
    return "" if trailing % 2 else quote


def words(text: str) -> list[str]:
    """What the text says, without blanks and comments; words in capitals."""
    return [token.keyword or token.text for token in tokens(text) if token.counts]


def first_word(text: str) -> str:
    """In capitals; looks no further, since a statement may be megabytes long."""
    return next((token.keyword or token.text for token in tokens(text) if token.counts), "")


def first_words(text: str, count: int) -> list[str]:
    """As `words`, the first few."""
    found: list[str] = []
    for token in tokens(text):
        if token.counts:
            found.append(token.keyword or token.text)
            if len(found) == count:
                break
    return found
