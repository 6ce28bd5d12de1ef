"""The SQL of topics: a small reader for the few statements that are ours and no database's.

    CREATE TOPIC [IF NOT EXISTS] name [SHARDS n | WITH (shards = n)]
    DROP TOPIC [IF EXISTS] name
    DESCRIBE TOPIC name
    SHOW TOPICS
    SHOW SUBSCRIPTIONS [ON | FOR topic]
    DROP SUBSCRIPTION [IF EXISTS] name ON topic
    SHOW TRANSACTIONS

Keywords in any case; names as they are written, plain (letters, digits, _ and .) or quoted by ` or ".
`is_topic_statement` says whether a text is one of these, `parse` reads it. Nothing else in Tidegate knows the syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidegate.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class CreateTopic:
    name: str
    shards: int | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTopic:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DescribeTopic:
    name: str


@dataclass(frozen=True, slots=True)
class ShowTopics:
    pass


@dataclass(frozen=True, slots=True)
class ShowSubscriptions:
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class DropSubscription:
    name: str
    topic: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowTransactions:
    pass


Statement = (
    CreateTopic | DropTopic | DescribeTopic | ShowTopics | ShowSubscriptions | DropSubscription | ShowTransactions
)

_TOKEN: Final = re.compile(
    r"""
      (?P<skip>    \s+ | --[^\n]* | /\*.*?\*/ )
    | (?P<word>    [A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)* )
    | (?P<number>  [0-9]+ )
    | (?P<quoted>  `(?:[^`]|``)*` | "(?:[^"]|"")*" )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_STARTS: Final = frozenset(
    {
        ("CREATE", "TOPIC"),
        ("DROP", "TOPIC"),
        ("DESCRIBE", "TOPIC"),
        ("SHOW", "TOPICS"),
        ("SHOW", "SUBSCRIPTIONS"),
        ("DROP", "SUBSCRIPTION"),
        ("SHOW", "TRANSACTIONS"),
    }
)
_EXPECTED: Final = " or ".join(" ".join(each) for each in sorted(_STARTS))


def is_topic_statement(sql: str) -> bool:
    """Whether its first two words make it one of these statements, be the rest right or wrong.

    Looks no further than these: other SQL may be megabytes long.
    """
    return tuple(token.keyword for token in islice(_tokens(sql), 2)) in _STARTS


def parse(sql: str) -> Statement:
    """Read one statement.

    Raises: `InvalidArgument` with the offending token, where it stands, and what was expected there.
    """
    reader = _Reader(sql)
    statement = _statement(reader)
    reader.skip(";")
    reader.end()
    return statement


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def keyword(self) -> str:
        """In capitals, so that case does not matter; a quoted name is never a keyword."""
        return self.text.upper() if self.kind in ("word", "other") else ""


def _tokens(sql: str) -> Iterator[_Token]:
    """What the text consists of, without blanks and comments, and an `end`."""
    for match in _TOKEN.finditer(sql):
        if match.lastgroup != "skip":
            yield _Token(match.lastgroup or "", match.group(), match.start())
    yield _Token("end", "", len(sql))


class _Reader:
    """Goes through the tokens of a text, once and forwards."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._tokens = list(_tokens(sql))
        self._next = 0

    @property
    def token(self) -> _Token:
        return self._tokens[self._next]

    def skip(self, *keywords: str) -> bool:
        """Take these keywords if they are what comes next; the first decides, and the others must follow it."""
        if self.token.keyword != keywords[0]:
            return False
        for each in keywords:
            self.take(each)
        return True

    def take(self, *keywords: str) -> str:
        """Take one of these keywords."""
        keyword = self.token.keyword
        if keyword not in keywords:
            raise self.unexpected(" or ".join(keywords))
        self._next += 1
        return keyword

    def name(self, what: str) -> str:
        token = self.token
        if token.kind == "word":
            self._next += 1
            following = self.token
            if following.text == "-" and following.at == token.at + len(token.text):
                raise self.unexpected(f"a {what}; quote a name that has a dash: `{token.text}-...`")
            return token.text
        if token.kind == "quoted":
            self._next += 1
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        raise self.unexpected(f"the name of a {what}")

    def number(self) -> int:
        token = self.token
        if token.kind != "number":
            raise self.unexpected("a number")
        if len(token.text) > 18:
            raise self.unexpected("a number of fewer digits")
        self._next += 1
        return int(token.text)

    def end(self) -> None:
        if self.token.kind != "end":
            raise self.unexpected("the end of the statement")

    def unexpected(self, expected: str) -> InvalidArgument:
        token = self.token
        if token.kind == "end":
            return InvalidArgument(f"the statement ends where {expected} is expected: {_shorten(self._sql)}")
        line = self._sql.count("\n", 0, token.at) + 1
        column = token.at - (self._sql.rfind("\n", 0, token.at) + 1) + 1
        where = f"column {column}" if line == 1 else f"line {line}, column {column}"
        return InvalidArgument(
            f"{_shorten(token.text)!r} at {where} is not understood: {expected} is expected in {_shorten(self._sql)}"
        )


def _statement(reader: _Reader) -> Statement:
    first = reader.token.keyword
    seconds = sorted(second for each, second in _STARTS if each == first)
    if not seconds:
        raise reader.unexpected(_EXPECTED)
    reader.take(first)
    match first, reader.take(*seconds):
        case "CREATE", _:
            return _create_topic(reader)
        case "DROP", "TOPIC":
            return DropTopic(if_exists=reader.skip("IF", "EXISTS"), name=reader.name("topic"))
        case "DROP", _:
            return _drop_subscription(reader)
        case "DESCRIBE", _:
            return DescribeTopic(reader.name("topic"))
        case _, "TOPICS":
            return ShowTopics()
        case _, "SUBSCRIPTIONS":
            if reader.skip("ON") or reader.skip("FOR"):
                return ShowSubscriptions(reader.name("topic"))
            return ShowSubscriptions()
        case _:
            return ShowTransactions()


def _create_topic(reader: _Reader) -> CreateTopic:
    if_not_exists = reader.skip("IF", "NOT", "EXISTS")
    name = reader.name("topic")
    shards = None
    if reader.skip("SHARDS"):
        shards = reader.number()
    elif reader.skip("WITH", "("):
        reader.take("SHARDS")
        reader.take("=")
        shards = reader.number()
        reader.take(")")
    elif reader.token.kind != "end" and reader.token.text != ";":
        raise reader.unexpected("SHARDS, WITH or the end of the statement")
    return CreateTopic(name, shards, if_not_exists)


def _drop_subscription(reader: _Reader) -> DropSubscription:
    if_exists = reader.skip("IF", "EXISTS")
    name = reader.name("subscription")
    reader.take("ON")
    return DropSubscription(name, reader.name("topic"), if_exists)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."
