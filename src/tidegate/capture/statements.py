"""What a SQL statement of SQLite is, as far as recording its changes needs to know: its kind, read from its words.

Nothing is parsed: comments, strings and quoted names are skipped, parentheses counted, words compared. What SQLite
itself refuses is left for SQLite to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from sqlite3 import complete_statement
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<skip>[ \t\n\f\r\ufeff]+|--[^\n]*|/\*.*?(?:\*/|\Z))
      | (?P<text>'[^']*(?:''[^']*)*'?)
      | (?P<name>"[^"]*(?:""[^"]*)*"?|`[^`]*(?:``[^`]*)*`?|\[[^\]]*\]?)
      | (?P<parameter>[?:@$\#]\w*)
      | (?P<word>[^\W\d][\w$]*)
      | (?P<number>\d[\w.]*)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_FIRST: Final = re.compile(r"(?:[ \t\n\f\r\ufeff;]++|--[^\n]*\n|/\*.*?\*/)*+([A-Za-z]+)", re.DOTALL)
"""Takes nothing back: else a text of spaces would be tried in all the ways in which it can be divided."""
_NOTABLE: Final = re.compile(
    r"returning|changes|replace|ignore|abort|fail|rollback|conn_txn_id|is_autocommit", re.IGNORECASE
)
"""Where none of these stand, a statement that begins with INSERT, UPDATE or DELETE needs no closer look."""
_WRITES: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE"})
_INTERNAL: Final = frozenset({"CONN_TXN_ID", "IS_AUTOCOMMIT"})
LONGEST_KEPT: Final = 4096
_COUNTS: Final = frozenset({"CHANGES", "TOTAL_CHANGES"})
_KEEPING: Final = frozenset({"IGNORE", "ABORT", "FAIL", "ROLLBACK"})


class Kind(Enum):
    """What running a statement does to transactions, rows and the schema."""

    READ = "read"
    WRITE = "write"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    ROLLBACK_TO = "rollback to"
    SAVEPOINT = "savepoint"
    RELEASE = "release"
    SCHEMA = "schema"
    """CREATE, DROP or ALTER (`verb` and `what` say which), or ANALYZE and REINDEX, which may change it too."""
    PRAGMA = "pragma"
    DATABASES = "databases"
    """ATTACH or DETACH."""


_KINDS: Final = {
    "BEGIN": Kind.BEGIN,
    "COMMIT": Kind.COMMIT,
    "END": Kind.COMMIT,
    "SAVEPOINT": Kind.SAVEPOINT,
    "RELEASE": Kind.RELEASE,
    "CREATE": Kind.SCHEMA,
    "DROP": Kind.SCHEMA,
    "ALTER": Kind.SCHEMA,
    "ANALYZE": Kind.SCHEMA,
    "REINDEX": Kind.SCHEMA,
    "PRAGMA": Kind.PRAGMA,
    "ATTACH": Kind.DATABASES,
    "DETACH": Kind.DATABASES,
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, as far as it matters here."""

    kind: Kind
    verb: str = ""
    """Its word that says what is done, in capitals: for `WITH x AS (...) INSERT ...` this is INSERT."""
    what: str = ""
    """SCHEMA: TABLE, INDEX, VIEW, TRIGGER; of ALTER, what is done: ADD, DROP or RENAME. PRAGMA: its name."""
    begins: bool = False
    """Whether it opens a transaction where the isolation level asks for that: not behind WITH, as in Python."""
    plain: bool = False
    """Whether there is nothing to heed but that it changes rows."""
    returning: bool = False
    replaces: bool = False
    """Whether it says to replace rows that are in its way."""
    keeps: bool = False
    """Whether it says not to, also where a table or a trigger says so."""
    counts: bool = False
    """Whether it asks how many rows were changed."""
    internal: str = ""
    """A function it calls that only recording itself may call."""
    value: str | None = None
    """PRAGMA: what it is set to."""


READ: Final = Statement(Kind.READ)
"""A statement that needs no attention."""
_PLAIN: Final = {
    verb: Statement(Kind.WRITE, verb, begins=True, plain=True, replaces=verb == "REPLACE") for verb in sorted(_WRITES)
}


def split(script: str) -> Iterator[str]:
    """The statements of a script, in order, without those that are only comments and spaces."""
    start, wanted = 0, False
    for token in _TOKEN.finditer(script):
        if token["other"] == ";":
            text = script[start : token.end()]
            if not wanted:
                start = token.end()
            elif complete_statement(text):  # Not within the body of a trigger.
                yield text
                start, wanted = token.end(), False
        elif not token["skip"]:
            wanted = True
    if wanted:
        yield script[start:]


def target(sql: str) -> str:
    """The table that a statement writes, in lower case and without its database."""
    words = _words(sql)
    start = next((at for at, word in enumerate(words) if word.depth == 0 and word.bare and word.text in _WRITES), 0)
    behind = iter(words[start + 1 :])
    for word in behind:
        if word.bare and word.text == "OR":
            next(behind, None)
        elif not (word.bare and word.text in ("INTO", "FROM")):
            dot, name = next(behind, None), next(behind, None)
            qualified = dot is not None and name is not None and dot.text == "."
            return unquoted(name.text if qualified and name else word.text).lower()
    return ""


def unquoted(name: str) -> str:
    """A name as it is written, without its quotes."""
    if name[:1] in "\"`'" and name[:1]:
        return name[1:-1].replace(name[0] * 2, name[0])
    return name[1:-1] if name[:1] == "[" else name


def classify(sql: str) -> Statement:
    """What a statement is; of several, the first. Raises: `TypeError` for what is no text."""
    first = _FIRST.match(sql)
    verb = first[1].upper() if first else ""
    if verb in _WRITES and not _NOTABLE.search(sql, first.end() if first else 0):
        return _PLAIN[verb]
    return _read(_words(sql))


classify_kept: Final = lru_cache(maxsize=512)(classify)
"""The same, for statements that are met again and are no longer than `LONGEST_KEPT`."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word or a sign of a statement."""

    text: str
    """A bare word in capitals; anything else as it stands."""
    depth: int
    bare: bool


def says_to_replace(sql: str) -> bool:
    """Whether a table or a trigger says that rows in the way are replaced; the function of that name does not count."""
    words = [*words_of(sql), Word("", 0, False)]
    for before, word, behind in zip(words, words[1:], words[2:]):
        if not word.bare or word.text != "REPLACE" or behind.text == "(":
            continue
        if (before.bare and before.text in ("OR", "CONFLICT")) or behind.text == "INTO":
            return True
    return False


def moment(sql: str) -> tuple[str, str]:
    """When a trigger runs: BEFORE, AFTER or INSTEAD, and of what: INSERT, UPDATE or DELETE."""
    words = words_of(sql)
    at = next((at for at, word in enumerate(words) if word.bare and word.text == "TRIGGER"), 0) + 1
    if [word.text for word in words[at : at + 3]] == ["IF", "NOT", "EXISTS"]:
        at += 3
    at += 3 if len(words) > at + 1 and words[at + 1].text == "." else 1
    time = words[at].text if words[at].text in ("BEFORE", "AFTER", "INSTEAD") else "BEFORE"
    return time, next(word.text for word in words[at:] if word.text in ("INSERT", "UPDATE", "DELETE"))


def indexed(sql: str) -> tuple[list[str], str]:
    """What a CREATE INDEX indexes, without directions, and its condition, as they are written."""
    terms: list[str] = []
    where = ""
    depth = start = 0
    for token in _TOKEN.finditer(sql):
        text, word = token[0], (token["word"] or "").upper()
        depth += (text == "(") - (text == ")")
        if depth == 1 and text == "(" and not terms:
            start = token.end()
        elif (depth == 1 and text == ",") or (depth == 0 and text == ")" and start):
            terms.append(sql[start : token.start()])
            start = token.end() if depth else 0
        elif depth == 1 and word in ("ASC", "DESC"):
            sql = sql[: token.start()] + " " * len(word) + sql[token.end() :]
        elif depth == 0 and word == "WHERE":
            where = sql[token.end() :]
            break
    return terms, where


def words_of(sql: str) -> list[Word]:
    """A statement as words and signs, the body of a trigger with it."""
    return _words(sql, whole=True)


def _words(sql: str, *, whole: bool = False) -> list[Word]:
    """The first statement, as words and signs with the depth of parentheses around them."""
    found: list[Word] = []
    depth = 0
    for token in _TOKEN.finditer(sql):
        if token["skip"]:
            continue
        text, bare = token[0], token["word"] is not None
        if text == ";":
            # A trigger's body goes on, but nothing in it matters, unless the whole is asked for.
            if found and not whole:
                break
            continue
        if text == ")":
            depth -= 1
        found.append(Word(text.upper() if bare else text, depth, bare))
        if text == "(":
            depth += 1
    return found


def _read(words: list[Word]) -> Statement:
    verb = words[0].text if words and words[0].bare else ""
    calls = {word.text for word, behind in pairwise(words) if behind.text == "("}
    calls = {unquoted(name).upper() for name in calls}
    internal = next(iter(sorted(calls & _INTERNAL)), "").lower()
    counts = bool(calls & _COUNTS)
    main = verb
    if verb == "WITH":
        main = next((word.text for word in words[1:] if word.depth == 0 and word.text in _WRITES | {"SELECT"}), "")
    if main in _WRITES:
        outer = {word.text for word in words if word.depth == 0 and word.bare}
        at = next(at for at, word in enumerate(words) if word.depth == 0 and word.bare and word.text == main)
        has_clause = len(words) > at + 2 and words[at + 1].bare and words[at + 1].text == "OR"
        clause = words[at + 2].text if has_clause else ""
        return Statement(
            Kind.WRITE,
            main,
            begins=verb != "WITH",
            returning="RETURNING" in outer,
            replaces="REPLACE" in (main, clause),
            keeps=clause in _KEEPING,
            counts=counts,
            internal=internal,
        )
    if verb == "ROLLBACK":
        kind = Kind.ROLLBACK_TO if any(word.text == "TO" for word in words) else Kind.ROLLBACK
        return Statement(kind, verb)
    kind = _KINDS.get(verb, Kind.READ)
    if kind is Kind.SCHEMA:
        return Statement(kind, verb, _what(verb, words), internal=internal)
    if kind is Kind.PRAGMA:
        return _pragma(words)
    if kind is Kind.READ and not counts and not internal:
        return READ
    return Statement(kind, verb, counts=counts, internal=internal)


def _what(verb: str, words: list[Word]) -> str:
    known = {"ADD", "DROP", "RENAME"} if verb == "ALTER" else {"TABLE", "INDEX", "VIEW", "TRIGGER"}
    return next((word.text for word in words[1:] if word.bare and word.text in known), "")


def _pragma(words: list[Word]) -> Statement:
    at = 3 if len(words) > 3 and words[2].text == "." else 1
    name = unquoted(words[at].text).lower() if len(words) > at else ""
    value = None
    if len(words) > at + 2 and words[at + 1].text in "=(":
        end = -1 if words[at + 1].text == "(" and words[-1].text == ")" else None
        value = "".join(unquoted(word.text.lower() if word.bare else word.text) for word in words[at + 2 : end])
    return Statement(Kind.PRAGMA, "PRAGMA", name, value=value)
