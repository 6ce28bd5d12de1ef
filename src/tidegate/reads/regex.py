"""A regular expression of Java's as RE2 reads it: the part of the language in which both mean the same.

Both prefer the leftmost and first alternative. What RE2 does not have (looking around, possessive quantifiers,
references back) or reads differently is refused, or written out; what depends on the text is a condition on it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tidegate.reads.spark_types import NeedsSpark

_SPACES: Final = r"\t\n\x{0B}\f\r "
_ANY: Final = r"[^\n\r\x{85}\x{2028}\x{2029}]"
_PLAIN_ESCAPES: Final = frozenset("dwDW.\\+*?()[]{}|^$-/tnrf\"'#&@!%,:;<>=~ _")
_LINE_END: Final = r"[\n\r\x{85}\x{2028}\x{2029}]\z"
_NOT_ASCII: Final = r"[^\x00-\x7F]"


class Regex(NamedTuple):
    """`pattern` for RE2; `unless` are patterns: a text in which one is found is for Spark alone."""

    pattern: str
    unless: tuple[str, ...]
    groups: int
    may_be_empty: bool


def to_re2(pattern: str) -> Regex:
    """Raises: `NeedsSpark`."""
    refusal = NeedsSpark(f"the regular expression {pattern!r}")
    unless: set[str] = set()
    out: list[str] = []
    at = 0
    in_class = False
    while at < len(pattern):
        char = pattern[at]
        following = pattern[at + 1 : at + 2]
        if char == "\\":
            if following == "s":
                out.append(_SPACES if in_class else f"[{_SPACES}]")
            elif following == "S" and not in_class:
                out.append(f"[^{_SPACES}]")
            elif following == "b" and not in_class:
                unless.add(_NOT_ASCII)
                out.append(r"\b")
            elif following and following in _PLAIN_ESCAPES:
                out.append(char + following)
            else:
                raise refusal
            at += 2
            continue
        if in_class:
            if char == "[" or pattern.startswith("&&", at) or (char == "^" and pattern[at - 1] != "["):
                raise refusal
            in_class = char != "]"
            out.append(char)
        elif char == "[":
            in_class = True
            if following == "]" or pattern.startswith("^]", at + 1):
                raise refusal
            out.append(char)
        elif char == ".":
            out.append(_ANY)
        elif char == "$":
            # Java's also stands before a line's end at the very end.
            unless.add(_LINE_END)
            out.append(r"\z")
        elif pattern.startswith("(?i)", at) and at == 0:
            unless.add(_NOT_ASCII)
            out.append("(?i)")
            at += 3
        elif (
            (pattern.startswith("(?", at) and not pattern.startswith("(?:", at))
            or (char in "*+?}" and following == "+")
            or (char == "{" and not re.match(r"\{\d{1,3}(,\d{0,3})?\}", pattern[at:]))
        ):
            raise refusal
        else:
            out.append(char)
        at += 1
    try:
        twin = re.compile(pattern, re.ASCII)
    except re.error:
        raise refusal from None
    return Regex(
        "".join(out), tuple(sorted(unless)), twin.groups, twin.search("") is not None or _anchors_only(pattern)
    )


def _anchors_only(pattern: str) -> bool:
    return not pattern.strip("^$") or r"\b" in pattern


def to_re2_replacement(replacement: str, groups: int) -> str:
    """`$1` as RE2's `\\1`. Raises: `NeedsSpark`."""
    if "\\" in replacement:
        raise NeedsSpark(f"the replacement {replacement!r}")
    for number in re.findall(r"\$(.{0,2})", replacement):
        if not re.fullmatch(r"\d\D?", number) or int(number[0]) > groups:
            raise NeedsSpark(f"the replacement {replacement!r}")
    return re.sub(r"\$(\d)", r"\\\1", replacement)
