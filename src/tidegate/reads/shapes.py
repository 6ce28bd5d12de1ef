"""Queries that differ only in the key they look for: read and translated once, for all numbers.

`... WHERE id = 7` is looked at as `... WHERE id = <a number that stands for any>`. What was found for that holds for
each number of up to nine digits, all of which are INT, if its one use is to be compared with a column of whole numbers
(`pinned`): neither types nor names depend on it then.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tidegate.reads.translate import Translated

_ANY: Final = 1_000_000_007
"""An INT that no text of this form has, and no SMALLINT."""
_LAST: Final = re.compile(r"(.*=\s*)([0-9]{1,9})\s*", re.DOTALL)


class Shape(NamedTuple):
    """A query without its last number."""

    sql: str
    """With another in its place."""
    number: int

    def fill(self, found: Translated) -> Translated | None:
        """The translation of the query itself, from that of `sql`; None when it may depend on the number."""
        any_number = str(_ANY)
        if found.pinned is None or list(found.pinned.values.values()).count(_ANY) != 1:
            return None
        if found.sql.count(any_number) != 1 or any(any_number in name for name in found.names):
            return None
        values = {name: self.number if value == _ANY else value for name, value in found.pinned.values.items()}
        text = found.sql.replace(any_number, str(self.number))
        return found._replace(sql=text, pinned=found.pinned._replace(values=values))


def shape_of(sql: str) -> Shape | None:
    """The shape of a query that ends with `= number`; None for any other."""
    match = _LAST.fullmatch(sql)
    if match is None or str(_ANY) in sql:
        return None
    return Shape(f"{match[1]}{_ANY}", int(match[2]))
