"""Reads the statements about materialized views, token by token: sqlglot's own tree would not keep the query's text."""

from __future__ import annotations

import re
from typing import Final

from sqlglot import Token, TokenType, exp

from tidegate.errors import InvalidArgument
from tidegate.tables.spark_sql import Source, is_query, shorten
from tidegate.tables.view_statements import (
    CreateView,
    DescribeView,
    DropView,
    ExplainView,
    ResumeView,
    ShowCreateView,
    ShowViews,
    ViewStatement,
)

_NAME: Final = "the name of a view"
_PLAIN: Final = re.compile(r"[^\W\d]\w*")
_END: Final = "the end of the statement"
_VERBS: Final = frozenset({"CREATE", "DROP", "ALTER", "DESCRIBE", "DESC", "SHOW", "EXPLAIN"})


def is_view_statement(source: Source) -> bool:
    """Whether its first words make it one about views, be the rest right or wrong."""
    words = [source.keyword(at) for at in range(4)]
    if words[0] not in _VERBS:
        return False
    if words[0] in ("SHOW", "EXPLAIN"):
        rest = _rest(source, 1)
        words = [words[0], *(rest.keyword(at) for at in range(3))]
    if words[0] == "EXPLAIN":
        return words[1] in ("CREATE", "MATERIALIZED")
    if words[1:3] == ["OR", "REPLACE"]:
        words = [words[0], *words[3:]]
    elif words[:2] == ["SHOW", "CREATE"]:
        words = [words[0], *words[2:]]
    return words[1] in ("MATERIALIZED", "VIEW", "VIEWS")


def read(source: Source) -> ViewStatement:
    """Read a statement about views. Raises: `InvalidArgument`."""
    match source.keyword(0):
        case "CREATE":
            return _create(_Reader(source, 1))
        case "DROP":
            return _drop(_Reader(source, 1))
        case "ALTER":
            return _alter(_Reader(source, 1))
        case "SHOW":
            return _show(_Reader(_rest(source, 1), 0))
        case "EXPLAIN":
            return _explain(_Reader(_rest(source, 1), 0))
        case _:
            return _describe(_Reader(source, 1))


def _rest(source: Source, behind: int) -> Source:
    """What follows some tokens, at the same places: of SHOW and EXPLAIN sqlglot takes it for one text."""
    start = source.tokens[behind - 1].end + 1
    return Source(re.sub(r"[^\n]", " ", source.sql[:start]) + source.sql[start:])


class _Reader:
    """Goes through the tokens of a statement, once and forwards."""

    def __init__(self, source: Source, at: int) -> None:
        self.source = source
        self._at = at

    @property
    def token(self) -> Token | None:
        return self.source.tokens[self._at] if self._at < len(self.source.tokens) else None

    def unexpected(self, expected: str) -> InvalidArgument:
        return self.source.unexpected(self.token, expected)

    def word(self, ahead: int = 0) -> str:
        return self.source.keyword(self._at + ahead)

    def skip(self, *words: str) -> bool:
        """Pass over these words if they come next."""
        if [self.word(ahead) for ahead in range(len(words))] != list(words):
            return False
        self._at += len(words)
        return True

    def need(self, *words: str, expected: str = "") -> None:
        for each in words:
            if not self.skip(each):
                raise self.unexpected(expected or each)

    def take(self, expected: str) -> Token:
        token = self.token
        if token is None:
            raise self.unexpected(expected)
        self._at += 1
        return token

    def view(self, before: str = "") -> None:
        """The words MATERIALIZED VIEW, which stand behind a verb."""
        if self.word() == "VIEW":
            raise self.unexpected(
                f"MATERIALIZED VIEW (every view is a materialized one: write {before}MATERIALIZED VIEW)"
            )
        self.need("MATERIALIZED", "VIEW")

    def part(self, expected: str) -> str:
        """A plain or quoted name, without dots."""
        token = self.token
        quoted = token is not None and token.token_type == TokenType.IDENTIFIER
        if token is None or not (quoted or (self.word() and _PLAIN.fullmatch(token.text))):
            raise self.unexpected(expected)
        self._at += 1
        return token.text

    def name(self) -> str:
        """A view by its whole name, parts joined by dots."""
        parts = [self.part(_NAME)]
        while self.skip("."):
            parts.append(self.part(_NAME))
        return ".".join(parts)

    def text(self, expected: str) -> str:
        token = self.token
        if token is None or token.token_type != TokenType.STRING:
            raise self.unexpected(expected)
        self._at += 1
        return token.text

    def end(self, expected: str = _END) -> None:
        if self.token is not None:
            raise self.unexpected(expected)

    def query(self) -> str:
        """All that is left: a query, with its text untouched."""
        if self.token is None:
            raise self.unexpected("a query")
        rest = _rest(self.source, self._at)
        tree = rest.parse("a query")
        if not is_query(tree) and not isinstance(tree, exp.Values):
            raise self.unexpected("a query")
        # Comments before the query are kept; behind its last word they would swallow what comes to stand there.
        start, end = self.source.tokens[self._at - 1].end + 1, self.source.tokens[-1].end + 1
        return self.source.sql[start:end].strip()


def _create(reader: _Reader) -> CreateView:
    if reader.word() == "OR":
        raise reader.unexpected(
            "MATERIALIZED VIEW (OR REPLACE is not supported: DROP MATERIALIZED VIEW first, then create it)"
        )
    reader.view("CREATE ")
    if_not_exists = reader.skip("IF")
    if if_not_exists:
        reader.need("NOT", "EXISTS", expected="IF NOT EXISTS")
    return _definition(reader, reader.name(), if_not_exists=if_not_exists)


def _definition(reader: _Reader, name: str, *, if_not_exists: bool = False) -> CreateView:
    """What follows the name."""
    columns = _columns(reader) if reader.word() == "(" else ()
    comment: str | None = None
    retention_s: int | None = None
    while not reader.skip("AS"):
        if comment is None and reader.skip("COMMENT"):
            comment = reader.text("a text in quotes")
        elif retention_s is None and reader.skip("TBLPROPERTIES"):
            retention_s = _retention(reader)
        else:
            missing = ["(column, ...)"] if not columns and comment is None and retention_s is None else []
            missing += ["COMMENT 'text'"] if comment is None else []
            missing += ["TBLPROPERTIES ('retention_s' = 'n')"] if retention_s is None else []
            raise reader.unexpected(" or ".join([", ".join(missing), "AS query"] if missing else ["AS query"]))
    return CreateView(name, reader.query(), columns, if_not_exists, comment, retention_s)


def _columns(reader: _Reader) -> tuple[str, ...]:
    reader.need("(")
    found: list[str] = []
    while not found or reader.skip(","):
        found.append(reader.part("the name of a column"))
    reader.need(")", expected=", or ) (a view's columns have the types of its query)")
    return tuple(found)


def _retention(reader: _Reader) -> int:
    """The properties of a view: there is one."""
    expected = "'retention_s' = 'n'"
    reader.need("(", expected=f"({expected})")
    if (token := reader.token) is None or token.text.lower() != "retention_s":
        raise reader.unexpected(expected)
    reader.take(expected)
    reader.need("=", expected="=")
    text = reader.take("a number of seconds").text
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidArgument(f"`retention_s` cannot be {text!r}; in {shorten(reader.source.sql)}")
    reader.need(")", expected=f") (of a view {expected} can be said, once)")
    return int(text)


def _drop(reader: _Reader) -> DropView:
    reader.view("DROP ")
    if_exists = reader.skip("IF")
    if if_exists:
        reader.need("EXISTS", expected="IF EXISTS")
    name = reader.name()
    cascade = reader.skip("CASCADE")
    if not cascade:
        reader.skip("RESTRICT")
    reader.end("CASCADE, RESTRICT or the end of the statement" if not cascade else _END)
    return DropView(name, if_exists, cascade)


def _alter(reader: _Reader) -> ResumeView:
    reader.view("ALTER ")
    name = reader.name()
    reader.need("RESUME", expected="RESUME (a view's query cannot be changed: drop the view and create it again)")
    reader.end()
    return ResumeView(name)


def _describe(reader: _Reader) -> DescribeView:
    reader.view("DESCRIBE ")
    name = reader.name()
    reader.end()
    return DescribeView(name)


def _show(reader: _Reader) -> ShowViews | ShowCreateView:
    if reader.skip("CREATE"):
        reader.view("SHOW CREATE ")
        name = reader.name()
        reader.end()
        return ShowCreateView(name)
    reader.need("MATERIALIZED", expected="MATERIALIZED VIEWS (every view is a materialized one)")
    reader.need("VIEWS")
    reader.end()
    return ShowViews()


def _explain(reader: _Reader) -> ExplainView:
    if reader.skip("CREATE"):
        return ExplainView(_create(reader))
    reader.view("EXPLAIN ")
    if reader.word() in ("AS", "(") and reader.word(1):
        return ExplainView(_definition(reader, ""))
    name = reader.name()
    if reader.token is not None:
        return ExplainView(_definition(reader, name))
    return ExplainView(name)
