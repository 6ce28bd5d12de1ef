"""Spark SQL as DuckDB's: the same rows, NULLs, types and names as Spark 4 gives, or `NeedsSpark`.

An allow list: every node of a query and every function is known here with its types, or the query is for Spark alone.
`SETUP` is run once on a connection before what was translated is. Where the translation does not hold for a value that
only the rows show, DuckDB fails with `UNANSWERED` in the text: the query is for Spark then, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

import pyarrow as pa
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from tidegate.errors import InvalidArgument, InvariantBroken
from tidegate.reads import aggregates, casts, nested_functions, spark_functions, text_functions, time_functions
from tidegate.reads.casts import UNANSWERED
from tidegate.reads.dotted import name_columns_shortly
from tidegate.reads.pinned import Pinned, pinned
from tidegate.reads.queries import Queries
from tidegate.reads.sources import Schemas
from tidegate.reads.spark_types import VOID, NeedsSpark
from tidegate.tables.spark_sql import DIALECT, shorten

__all__ = [
    "BARE",
    "SETUP",
    "UNANSWERED",
    "NeedsSpark",
    "Translated",
    "as_spark",
    "parse_any",
    "parse_query",
    "tables_in",
    "translate",
]

_SUFFIXES: Final = frozenset({"L", "S", "Y", "D", "F", "BD"})
_PARSER: Any = type(DIALECT).Parser


class Translated(NamedTuple):
    """A query for DuckDB. Its columns are called c0, c1 and so on there; `as_spark` gives them names and types."""

    sql: str
    names: Sequence[str]
    types: Sequence[pa.DataType]
    pinned: Pinned | None = None
    """What it wants of its only table."""


def _explicit(node: Any) -> Any:
    """Marks a CAST that the query spells out: DATE '2020-01-01' and 1L come as one too."""
    node.meta["explicit"] = True
    return node


class _Parser(_PARSER):  # type: ignore[misc]
    """Reads every function as it is called: what it means is said here and not by sqlglot."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar = {
        "CAST": lambda self: _explicit(self._parse_cast(True)),
        "TRY_CAST": lambda self: _explicit(self._parse_cast(False, safe=True)),
        "EXTRACT": SparkParser.FUNCTION_PARSERS["EXTRACT"],
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {
        name: found for name, found in SparkParser.NO_PAREN_FUNCTION_PARSERS.items() if name in ("CASE", "IF")
    }
    COLUMN_OPERATORS: ClassVar = {
        **SparkParser.COLUMN_OPERATORS,
        TokenType.DCOLON: lambda self, this, to: self._colons(this, to),
    }

    def _colons(self, this: Any, to: Any) -> Any:
        node = self.build_cast(True, this=this, to=to)
        # 1L comes as 1::L.
        return node if self._prev.text.upper() in _SUFFIXES else _explicit(node)


class _Dialect(type(DIALECT)):  # type: ignore[misc]
    Parser = _Parser


BARE: Final = _Dialect()
"""Spark's dialect in which every function is a plain call."""
_QUERY_STARTS: Final = frozenset({"UNION", "ALL", "EXCEPT", "MINUS", "INTERSECT", "DISTINCT", "(", ")", "AS"})
_OPERATORS: Final = frozenset(
    ["(", "[", ",", "+", "-", "*", "/", "%", "=", "==", "<>", "!=", "<", ">", "<=", ">=", "||", "SELECT", "WHERE"]
) | {"AND", "OR", "NOT", "WHEN", "THEN", "ELSE", "BY"}
_ESCAPES: Final = re.compile(r"(?:[^\\]|\\[\\'\"nrt%_])*", re.DOTALL)

SETUP: Final[Sequence[str]] = (
    "SET TimeZone = 'UTC'",
    "SET default_null_order = 'NULLS_FIRST_ON_ASC_LAST_ON_DESC'",
    *(
        f"CREATE OR REPLACE TEMP MACRO {each}"
        for module in (casts, spark_functions, text_functions, time_functions, nested_functions, aggregates)
        for each in module.MACROS
    ),
)
"""Statements for a connection of DuckDB: Spark's meanings as macros."""


_KEPT_MAX: Final = 512
_KEPT_EACH: Final = 8
_KEPT_CHARS: Final = 20_000
_known: dict[str, list[tuple[Mapping[str, pa.Schema | None], Translated]]] = {}
"""By text: the tables that were asked for, and what it means with those. The same text comes again and again: from a
view's definition, its plan and its batches, and from whoever asks."""


def translate(sql: str, schemas: Schemas | None = None) -> Translated:
    """`schemas` are the tables that the query reads, by name; what a query means depends on the types of its columns.

    Raises: `NeedsSpark` for what cannot be translated faithfully; `InvalidArgument` for what is no query; `NotFound`
    for a table or a column that is not there.
    """
    schemas = schemas or {}
    for asked, found in _known.get(sql, ()):
        if all(_is_same(schemas.get(name), schema) for name, schema in asked.items()):
            return found
    noted = _Noted(schemas)
    found = _translated(sql, noted)
    if len(sql) <= _KEPT_CHARS:
        if len(_known) >= _KEPT_MAX:
            _known.clear()
        # Replaced and not changed, for others may be looking at it.
        _known[sql] = [*_known.get(sql, ())[-_KEPT_EACH + 1 :], (noted.asked, found)]
    return found


class _Noted(Mapping[str, pa.Schema]):
    """Schemas, with those that were asked for and are not there noted too."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self.asked: dict[str, pa.Schema | None] = {}

    def __getitem__(self, name: str) -> pa.Schema:
        found = self.asked[name] = self._schemas.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> NoReturn:
        raise InvariantBroken("a translation hangs on the tables that it asks for, and on no others")

    def __len__(self) -> int:
        return len(self._schemas)


def _is_same(one: pa.Schema | None, other: pa.Schema | None) -> bool:
    return one is other or (one is not None and other is not None and one.equals(other))


def _translated(sql: str, schemas: Schemas) -> Translated:
    tree = parse_query(sql)
    try:
        written, columns = Queries(schemas).write(tree)
    except RecursionError:
        raise InvalidArgument(f"the query nests too deeply: {shorten(sql)}") from None
    except InvalidArgument as error:
        raise type(error)(f"{error}; in {shorten(sql)}") from None
    names, types = [each.name for each in columns], [each.type for each in columns]
    return Translated(written, names, types, pinned(tree, schemas))


def as_spark(found: pa.Table, translated: Translated) -> pa.Table:
    """DuckDB's answer with Spark's names and types. Raises: `InvalidArgument` for a value that does not fit."""
    columns = []
    for index, (name, type) in enumerate(zip(translated.names, translated.types)):
        column = found.column(index)
        try:
            columns.append(pa.nulls(len(column)) if type == VOID else column.cast(type))
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"column {name!r} has a value beyond {type}: {error}") from error
    schema = pa.schema([pa.field(name, type) for name, type in zip(translated.names, translated.types)])
    return pa.table(columns, schema=schema) if columns else found


def tables_in(sql: str) -> set[str]:
    """The names of the tables that a query reads, parts joined by dots. Raises: `InvalidArgument`."""
    try:
        tree = parse_query(sql)
    except NeedsSpark:
        tree = parse_any(sql)
    found: set[str] = set()
    _visit(tree, frozenset(), found)
    return found


def _visit(node: exp.Expr, hidden: frozenset[str], found: set[str]) -> None:
    """Adds the tables below a node; `hidden` are the names of CTEs in sight."""
    given = node.args.get("with_")
    if given is not None:
        for each in given.expressions:
            name = each.alias.casefold()
            # A CTE sees the ones before it; itself only where it is RECURSIVE.
            _visit(each.this, hidden | {name} if given.args.get("recursive") else hidden, found)
            hidden |= {name}
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier | exp.Dot):
        name = ".".join(each.name for each in node.parts)
        if name.casefold() not in hidden:
            found.add(name)
    for each in node.iter_expressions():
        if each is not given:
            _visit(each, hidden, found)


def parse_query(sql: str) -> exp.Expr:
    """The tree with functions as they were called. Raises: `NeedsSpark`, `InvalidArgument`."""
    sql, tokens = _tokens(sql)
    for each in tokens:
        if each.token_type == TokenType.STRING and not _ESCAPES.fullmatch(sql[each.start : each.end + 1]):
            raise NeedsSpark(f"the literal {sql[each.start : each.end + 1]}")
        if each.token_type == TokenType.HINT:
            raise NeedsSpark("a hint")
    for before, each in pairwise(tokens):
        # sqlglot leaves the sign out, and Spark shows it.
        if each.token_type == TokenType.PLUS and before.text.upper() in _OPERATORS:
            raise NeedsSpark("the sign +")
    try:
        found = BARE.parser().parse(list(tokens), sql)
    except (SqlglotError, ValueError, TypeError):
        # Some functions have a grammar of their own, which is left to Spark.
        tree = parse_any(sql)
        raise NeedsSpark(f"the syntax of {shorten(tree.sql('spark'))}") from None
    except RecursionError:
        raise InvalidArgument(f"the query nests too deeply: {shorten(sql)}") from None
    return _one_query(sql, found)


def parse_any(sql: str) -> exp.Expr:
    sql, tokens = _tokens(sql)
    try:
        return _one_query(sql, DIALECT.parser().parse(list(tokens), sql))
    except (SqlglotError, ValueError) as error:
        raise InvalidArgument(f"{shorten(sql)!r} is not understood: {error}") from None
    except RecursionError:
        raise InvalidArgument(f"the query nests too deeply: {shorten(sql)}") from None


def _one_query(sql: str, found: Sequence[exp.Expr | None]) -> exp.Expr:
    if len(found) != 1 or not isinstance(found[0], exp.Query | exp.Values):
        raise InvalidArgument(f"{shorten(sql)!r} is not one query")
    name_columns_shortly(found[0])
    return found[0]


def _tokens(sql: str) -> tuple[str, Sequence[Token]]:
    """A query without the semicolon behind it, and with `TABLE t` written out, which sqlglot does not read."""
    try:
        given, tokens = sql, DIALECT.tokenize(sql)
        for index in reversed(range(len(tokens) - 1)):
            token = tokens[index]
            starts = index == 0 or tokens[index - 1].text.upper() in _QUERY_STARTS
            if token.token_type == TokenType.TABLE and starts and tokens[index + 1].text not in ("(", ",", ")"):
                sql = f"{sql[: token.start]}SELECT * FROM{sql[token.end + 1 :]}"
        if sql is not given:
            tokens = DIALECT.tokenize(sql)
    except SqlglotError:
        raise InvalidArgument(f"a quote or a comment is not closed in {shorten(sql)}") from None
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens = tokens[:-1]
    return sql, tokens
