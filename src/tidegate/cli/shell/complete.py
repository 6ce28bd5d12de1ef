"""What could stand where the cursor is: pure; names of tables and columns are asked of whoever knows them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate.cli.shell.commands import COMMANDS
from tidegate.cli.shell.keywords import FUNCTIONS, KEYWORDS, STARTS, TYPES
from tidegate.cli.shell.lex import Token, tokens
from tidegate.cli.shell.script import split
from tidegate.cli.shell.settings import EXPANDED, SWITCHES, VALUES

_TABLE_COMES: Final = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "TABLE", "DESCRIBE", "DESC"})
_TOPIC_COMES: Final = frozenset({"TOPIC", "SUBSCRIPTIONS"})
_NO_ALIAS: Final = frozenset(KEYWORDS)
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SETTING_NAME: Final = re.compile(r"\s*(?:SET\s+|\\set\s+)(\w*)", re.IGNORECASE)
_SETTING_VALUE: Final = re.compile(
    r"\s*(?:SET\s+(\w+)\s*(?:=|\s+TO\s+|\s)\s*|\\set\s+(\w+)\s+)(\S[^;]*)?", re.IGNORECASE
)
_COMMAND_NAME: Final = re.compile(r"\s*\\([A-Za-z?]*)")
_COMMAND_VALUE: Final = re.compile(r"\s*\\(\w+)\s+(\S*)")


class Names(Protocol):
    """Who knows what there is."""

    def tables(self) -> Sequence[str]: ...

    def topics(self) -> Sequence[str]: ...

    def columns(self, table: str) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that could replace the last `length` characters before the cursor; `kind` is shown beside it."""

    text: str
    length: int
    kind: str


def complete(before: str, after: str, names: Names) -> list[Candidate]:
    """What could come at the end of `before`, the best first; `after` is what stands behind the cursor."""
    found = split(before)
    text = found.rest.lstrip()
    if not found.rest and found.items and found.items[-1].is_command:
        return list(_unique(_commands(before[before.rfind("\\") :], names)))
    if (found.open and found.open != "`") or not _is_in_code(text):
        return []
    setting = _settings(text)
    if setting is not None:
        return list(_unique(setting))
    here = [token for token in tokens(text) if token.counts]
    ahead = split(after).items
    return list(_unique(_sql(text, here, text + (ahead[0].text if ahead else after), names)))


def _is_in_code(text: str) -> bool:
    """Whether the cursor is outside of comments."""
    last = next(iter(deque(tokens(text), maxlen=1)), None)
    return last is None or last.kind != "comment" or (last.text.startswith("/*") and not last.open)


def _commands(text: str, names: Names) -> Iterator[Candidate]:
    match = _COMMAND_NAME.fullmatch(text)
    if match:
        for name, (_, meaning) in COMMANDS.items():
            if name.startswith(match[1]):
                yield Candidate("\\" + name, len(match[1]) + 1, meaning)
        return
    setting = _settings(text)
    if setting is not None:
        yield from setting
        return
    match = _COMMAND_VALUE.fullmatch(text)
    if match is None:
        return
    choices: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "x": lambda: [(each, "") for each in EXPANDED],
        "timing": lambda: [(each, "") for each in SWITCHES],
        "d": lambda: [(each, "table") for each in names.tables()] + [(each, "topic") for each in names.topics()],
    }
    for choice, kind in choices.get(match[1], list)():
        if choice.lower().startswith(match[2].lower()):
            yield Candidate(choice, len(match[2]), kind)


def _settings(text: str) -> list[Candidate] | None:
    """Names and values after SET; None where it is no such statement."""
    match = _SETTING_NAME.fullmatch(text)
    if match:
        equals = "" if text.lstrip().startswith("\\") else " ="
        typed = match[1].lower()
        return [Candidate(name + equals, len(typed), "setting") for name in VALUES if name.startswith(typed)]
    match = _SETTING_VALUE.fullmatch(text)
    if match is None:
        return None
    typed = match[3] or ""
    values = VALUES.get((match[1] or match[2]).lower(), ())
    return [Candidate(each, len(typed), "value") for each in (*values, "DEFAULT") if each.startswith(typed)]


def _sql(text: str, here: list[Token], whole: str, names: Names) -> Iterator[Candidate]:
    typed = ""
    if here and here[-1].kind in ("word", "name") and text.endswith(here[-1].text):
        typed = here[-1].text
        here = here[:-1]
    if not here:
        yield from _words(STARTS, typed, "statement")
        return
    if here[-1].text == "." and len(here) > 1 and text.endswith("." + typed):
        yield from _names(_columns_of(here[-2], whole, names), typed, "column")
        return
    before = here[-1].keyword
    if before in _TOPIC_COMES or (
        before == "ON" and {"SUBSCRIPTION", "SUBSCRIPTIONS"} & {token.keyword for token in here[:2]}
    ):
        yield from _names(names.topics(), typed, "topic")
        return
    if before in _TABLE_COMES or (before == "," and _last_clause(here) == "FROM"):
        yield from _names(names.tables(), typed, "table")
        return
    if typed or before in ("SELECT", ",", "(", "WHERE", "AND", "OR", "ON", "BY", "=", "<", ">", "SET", "HAVING", "NOT"):
        for table in _tables_in(whole).values():
            yield from _names(names.columns(table), typed, "column")
    if typed:
        yield from _words(KEYWORDS, typed, "keyword")
        yield from _words(TYPES, typed, "type")
        yield from _words(FUNCTIONS, typed, "function")
        yield from _names(_tables_in(whole), typed, "alias")
        yield from _names(names.tables(), typed, "table")


def _last_clause(here: Iterable[Token]) -> str:
    """The last word that begins a clause, outside of parentheses."""
    found, depth = "", 0
    for token in here:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if not depth and token.keyword in ("SELECT", "FROM", "WHERE", "BY", "HAVING", "SET", "VALUES", "ON"):
            found = token.keyword
    return found


def _tables_in(text: str) -> dict[str, str]:
    """The tables that a statement names, by their names and aliases."""
    found: dict[str, str] = {}
    here = [token for token in tokens(text) if token.counts]
    is_list = False
    for at, token in enumerate(here):
        if token.keyword in _TABLE_COMES or (is_list and token.text == ","):
            is_list = token.keyword in ("FROM", "JOIN") or token.text == ","
            if at + 1 >= len(here) or here[at + 1].kind not in ("word", "name"):
                continue
            table = _bare(here[at + 1])
            rest = here[at + 2 : at + 4]
            if rest and rest[0].keyword == "AS":
                rest = rest[1:]
            has_alias = rest and rest[0].kind in ("word", "name") and rest[0].keyword not in _NO_ALIAS
            found[_bare(rest[0]) if has_alias else table] = table
        elif token.keyword in ("WHERE", "GROUP", "ORDER", "SELECT", "SET", "VALUES", "("):
            is_list = False
    return found


def _columns_of(owner: Token, whole: str, names: Names) -> Sequence[str]:
    found = _tables_in(whole)
    name = _bare(owner)
    by_case = {each.lower(): table for each, table in found.items()}
    return names.columns(found.get(name) or by_case.get(name.lower()) or name)


def _bare(token: Token) -> str:
    return token.text.strip("`").replace("``", "`") if token.kind == "name" else token.text


def _words(choices: Iterable[str], typed: str, kind: str) -> Iterator[Candidate]:
    is_lower = typed.islower()
    for each in choices:
        if each.lower().startswith(typed.lower()) and each.lower() != typed.lower():
            yield Candidate(each.lower() if is_lower else each, len(typed), kind)


def _names(choices: Iterable[str], typed: str, kind: str) -> Iterator[Candidate]:
    bare = typed.strip("`").lower()
    for each in choices:
        if each.lower().startswith(bare):
            is_plain = _PLAIN.fullmatch(each) and each.upper() not in _NO_ALIAS and not typed.startswith("`")
            yield Candidate(each if is_plain else "`" + each.replace("`", "``") + "`", len(typed), kind)


def _unique(found: Iterable[Candidate]) -> Iterator[Candidate]:
    seen: set[str] = set()
    for each in found:
        if each.text not in seen:
            seen.add(each.text)
            yield each
