"""`FROM t TIMESTAMP AS OF ...` and `VERSION AS OF ...`: which time a query names for a table.

Spark's forms, with or without FOR, and SYSTEM_TIME. A time is a constant: a date or time in UTC if it names no zone,
which shows all that became visible up to the end of its millisecond; seconds since 1970; or a Timestamp as it is
printed, which is exact. A version is the number of a checkpoint.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

from sqlglot import exp

from tidegate.clock.timestamp import LOGICAL_COUNT, Timestamp
from tidegate.errors import InvalidArgument

_EXACT_FROM: Final = 1 << 48
"""As seconds, numbers from here on lie millions of years ahead: they are Timestamps."""


class AsOf(NamedTuple):
    """A table at a time of its own."""

    table: str
    timestamp: Timestamp | None = None
    checkpoint: int | None = None


def take_times(tree: exp.Expr) -> dict[str, AsOf]:
    """Take the times out of a query, in place; the names that now stand for those tables.

    Raises: `InvalidArgument` for a time that is no constant.
    """
    found: dict[str, AsOf] = {}
    ctes = {each.alias.casefold() for each in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        version = table.args.get("version")
        if version is None:
            continue
        called = ".".join(part.name for part in table.parts)
        if called.casefold() in ctes:
            raise InvalidArgument(
                f"{called!r} is a part of the query, which has no past; name a table's time inside of it"
            )
        as_of = _as_of(called, version)
        name = f"{called} @{as_of.checkpoint if as_of.timestamp is None else int(as_of.timestamp)}"
        found[name] = as_of
        if not table.alias:
            alias = exp.to_identifier(called.rsplit(".", 1)[-1], quoted=True)
            table.set("alias", exp.TableAlias(this=alias))
        table.set("this", exp.to_identifier(name, quoted=True))
        table.set("db", None)
        table.set("catalog", None)
        table.set("version", None)
    return found


def _as_of(table: str, version: exp.Expr) -> AsOf:
    if version.args.get("kind") != "AS OF":
        raise InvalidArgument(f"table {table!r}: only AS OF names a time, not {version.args.get('kind')}")
    value = version.args.get("expression")
    if str(version.this).upper() == "VERSION":
        if isinstance(value, exp.Literal) and value.this.isdecimal():
            return AsOf(table, checkpoint=int(value.this))
        raise InvalidArgument(f"table {table!r}: VERSION AS OF takes the number of a checkpoint, not {_shown(value)}")
    while isinstance(value, exp.Cast | exp.Paren):
        value = value.this
    if not isinstance(value, exp.Literal):
        raise InvalidArgument(f"table {table!r}: TIMESTAMP AS OF takes a constant, not {_shown(value)}")
    return AsOf(table, timestamp=_time(table, str(value.this), is_string=value.is_string))


def _time(table: str, text: str, *, is_string: bool) -> Timestamp:
    try:
        if text.isdecimal():
            number = int(text)
            return Timestamp(number) if number >= _EXACT_FROM else _end_of(number * 1000)
        if not is_string:
            return _end_of(int(float(text) * 1000))
        if "Z+" in text:
            return Timestamp.parse(text)
        when = datetime.fromisoformat(text.strip())
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return _end_of(Timestamp.from_datetime(when).physical_ms)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"table {table!r}: {text!r} is no time; write '2026-01-31 12:00:00' or a Timestamp as it is printed"
        ) from error


def _end_of(ms: int) -> Timestamp:
    return Timestamp.compose(ms, LOGICAL_COUNT - 1)


def _shown(value: exp.Expr | None) -> str:
    return "nothing" if value is None else value.sql("spark")
