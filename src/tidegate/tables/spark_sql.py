"""Spark SQL read by sqlglot: one statement at a time, and errors that say where and what is expected.

As in Spark 4, CAST is strict (what cannot be cast is an error and not NULL), and 'it''s' has one quote in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Final, NoReturn

import pyarrow as pa
from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser

from tidegate.errors import InvalidArgument
from tidegate.tables import column_type

_TYPES: Final = {
    exp.DType.TEXT: "STRING",
    exp.DType.TIMESTAMPTZ: "TIMESTAMP",
    exp.DType.TIMESTAMPLTZ: "TIMESTAMP",
    exp.DType.TIMESTAMPNTZ: "TIMESTAMP_NTZ",
}


class _Unexpected(ParseError):
    """Where the parser stopped; `token` is None at the end of the statement."""

    def __init__(self, message: str, token: Token | None) -> None:
        super().__init__(message, errors=[{}])  # sqlglot adds to the first, where it parses a part by itself.
        self.token = token


class _Parser(SparkParser):
    STRICT_CAST = True

    def raise_error(self, message: str, token: Token | None = None) -> NoReturn:
        raise _Unexpected(message, token or self._curr or None)

    def _parse_as_command(self, start: Token) -> NoReturn:  # noqa: ARG002
        # sqlglot would keep what it does not understand as text, and log a warning.
        self.raise_error("")

    def _parse_command(self) -> NoReturn:
        self.raise_error("", self._prev)


class _SparkSql(Spark):
    SUPPORTS_USER_DEFINED_TYPES = True
    """So that an unknown type is read as one, and the error can say so."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar = ["\\", "'", '"']

        def tokenize(self, sql: str) -> list[Token]:
            tokens = super().tokenize(sql)
            for index, each in enumerate(tokens):
                # WINDOW begins a clause where it is followed by a name and AS; elsewhere it is a name itself.
                follows = tokens[index + 1 : index + 3]
                if each.token_type == TokenType.WINDOW and (len(follows) < 2 or follows[1].text.upper() != "AS"):
                    each.token_type = TokenType.VAR
            return tokens

    Parser = _Parser


DIALECT: Final = _SparkSql()
"""Spark SQL as Spark 4 reads it; for whoever parses queries too."""


class Source:
    """The text of one statement: its tokens, its tree, and errors about places in it."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        try:
            tokens = DIALECT.tokenize(sql)
        except TokenError:
            raise InvalidArgument(f"a quote or a comment is not closed in {shorten(sql)}") from None
        while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
            tokens.pop()
        self.tokens: Sequence[Token] = tokens
        for each in tokens:
            if each.token_type == TokenType.SEMICOLON:
                raise self.unexpected(each, "the end of the statement (one statement at a time)")

    def keyword(self, at: int) -> str:
        """A token in capitals; "" behind the end and for what is quoted."""
        if at >= len(self.tokens) or self.tokens[at].token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            return ""
        return self.tokens[at].text.upper()

    def parse(self, expected: str, *, leave: int = 0) -> exp.Expr:
        """The tree of all tokens but the last few. Raises: `InvalidArgument`, which says what was `expected`."""
        tokens = list(self.tokens[: len(self.tokens) - leave])
        self._check_commas(tokens)
        try:
            found = DIALECT.parser().parse(tokens, self.sql)
        except _Unexpected as error:
            raise self.unexpected(error.token, _detail(str(error)) or expected) from None
        except RecursionError:
            raise InvalidArgument(f"the statement nests too deeply: {shorten(self.sql)}") from None
        if len(found) != 1 or found[0] is None:
            raise self.unexpected(None, expected)
        return found[0]

    def _check_commas(self, tokens: Sequence[Token]) -> None:
        """Refuse what sqlglot reads past: a comma with nothing before or behind it, which shifts all that follows."""
        comma = TokenType.COMMA
        for each, following in zip(tokens, [*tokens[1:], None]):
            after = None if following is None else following.token_type
            if each.token_type == comma and after in (comma, TokenType.R_PAREN, None):
                raise self.unexpected(following, "something behind the comma")
            if each.token_type == TokenType.L_PAREN and after == comma:
                raise self.unexpected(following, "something before the comma")

    def unexpected(self, at: Token | exp.Expr | None, expected: str) -> InvalidArgument:
        """Something that is not understood; None: the statement ends too early."""
        if at is None:
            return InvalidArgument(f"the statement ends where {expected} is expected: {shorten(self.sql)}")
        what, where = self._place(at)
        return InvalidArgument(f"{what!r}{where} is not understood: {expected} is expected in {shorten(self.sql)}")

    def refused(self, at: exp.Expr, why: str) -> InvalidArgument:
        """Something that is understood and cannot be."""
        what, where = self._place(at)
        return InvalidArgument(f"{what!r}{where}: {why}; in {shorten(self.sql)}")

    def only(self, node: exp.Expr, allowed: Collection[str], expected: str) -> None:
        """Raises: `InvalidArgument` when a node says more than the `allowed` parts."""
        for name, value in node.args.items():
            if value and name not in allowed:
                parts = value if isinstance(value, list) else [value]
                at = next((each for each in parts if isinstance(each, exp.Expr)), None)
                if at is not None:
                    raise self.unexpected(at, expected)
                word = value if isinstance(value, str) else name.rstrip("_").replace("_", " ").upper()
                raise InvalidArgument(f"{word} is not understood: {expected} is expected in {shorten(self.sql)}")

    def _place(self, at: Token | exp.Expr) -> tuple[str, str]:
        if isinstance(at, Token):
            return shorten(self.sql[at.start : at.end + 1]), self._where(at.start)
        text = at.sql("spark")
        start = min((each.meta["start"] for each in at.walk() if "start" in each.meta), default=None)
        if start is None:
            return shorten(text), ""
        # Only names know where they stand; what surrounds them is looked for in the text.
        exact = self.sql.upper().rfind(text.upper(), 0, start + len(text))
        return shorten(text), self._where(exact) if exact >= 0 else self._where(start).replace(" at ", " near ", 1)

    def _where(self, start: int) -> str:
        line = self.sql.count("\n", 0, start) + 1
        column = start - (self.sql.rfind("\n", 0, start) + 1) + 1
        return f" at column {column}" if line == 1 else f" at line {line}, column {column}"

    # -- parts -----------------------------------------------------------------------------------------------

    def table_name(self, node: Any, expected: str) -> str:
        """A table by its whole name, parts joined by dots."""
        if not isinstance(node, exp.Table):
            raise self.unexpected(node if isinstance(node, exp.Expr) else None, expected)
        self.only(node, ("this", "db", "catalog", "alias"), expected)
        if not all(isinstance(part, exp.Identifier) for part in node.parts):
            raise self.unexpected(node, "the name of a table")
        return ".".join(part.name for part in node.parts)

    def column_name(self, node: Any, expected: str) -> str:
        """A column by its bare name."""
        if isinstance(node, exp.Column) and len(node.parts) == 1:
            node = node.this
        if not isinstance(node, exp.Identifier):
            raise self.unexpected(node if isinstance(node, exp.Expr) else None, expected)
        return node.name

    def type(self, node: Any) -> pa.DataType:
        """The Arrow type of a type's tree. Raises: `InvalidArgument`, with the known types."""
        try:
            return self._type(node)
        except InvalidArgument as error:
            raise InvalidArgument(f"{error}; in {shorten(self.sql)}") from None

    def _type(self, node: Any) -> pa.DataType:
        if not isinstance(node, exp.DataType):
            shown = node.sql("spark") if isinstance(node, exp.Expr) else "nothing"
            raise InvalidArgument(f"{shown} is not a type of a column: there are {column_type.KNOWN}")
        parts = node.expressions
        text = node.sql("spark")
        match node.this:
            case exp.DType.ARRAY if len(parts) == 1:
                return pa.list_(self._type(parts[0]))
            case exp.DType.MAP if len(parts) == 2:
                return column_type.map(self._type(parts[0]), self._type(parts[1]))
            case exp.DType.STRUCT if parts:
                return column_type.struct([self._field(each) for each in parts])
            case exp.DType.DECIMAL if len(parts) <= 2:
                return column_type.decimal(*(int(each.name) for each in parts))
            case exp.DType.USERDEFINED:
                return column_type.simple(text)
            case kind if not parts:
                return column_type.simple(_TYPES.get(kind, str(kind.value)))
            case _:
                return column_type.from_sql(text)

    def _field(self, node: exp.Expr) -> tuple[str, pa.DataType]:
        if not isinstance(node, exp.ColumnDef) or node.args.get("constraints"):
            raise InvalidArgument(f"{node.sql('spark')} is not a field of a STRUCT: it is written name: TYPE")
        return node.name, self._type(node.kind)


def is_query(node: exp.Expr) -> bool:
    """Whether a statement reads rows and changes nothing."""
    return isinstance(node, exp.Query)


def _detail(message: str) -> str:
    """What sqlglot says was expected, where it says so plainly."""
    for start in ("Expecting ", "Expected "):
        if message.startswith(start) and len(message) < 60 and "Token" not in message:
            return message.removeprefix(start).removesuffix(".")
    return ""


def shorten(text: str) -> str:
    """At most 80 characters, on one line."""
    text = " ".join(text[:400].split())
    return text if len(text) <= 80 else text[:77] + "..."
