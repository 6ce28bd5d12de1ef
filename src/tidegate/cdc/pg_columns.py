"""`numbers_of`: which columns a table's names meant at a moment, by what was known and what the catalog has now.

PostgreSQL's messages name columns and do not number them, and its log has no word of what happened to them. The catalog
numbers them, but as they are now: they may have been renamed, dropped and added since. A number is never used again,
and columns are named in the order of their numbers. Where that does not say enough, the answer is None, not a guess.

Limits: when the catalog has the very names that were said, they are taken for the same columns; and that a column took
the name of another that was dropped, and has got another name since, is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def numbers_of(
    known: Mapping[str, int], highest: int, said: Sequence[str], now: Mapping[str, int], highest_now: int
) -> list[int] | None:
    """The numbers of the columns `said`, at a moment between the one of `known` and now.

    `highest`: the highest number that a column had when those were known, or before; `highest_now`: until now.
    """
    named = {number: name for name, number in sorted(now.items(), key=lambda each: each[1])}
    if list(named.values()) == list(said):
        taken_over = (name for name in said if name in known and known[name] not in (now[name], *named))
        return None if any(taken_over) else list(named)
    dropped = [(number, name) for name, number in known.items() if number not in named and name in said]
    there = sorted([(number, name) for name, number in known.items() if number in named] + dropped)
    new = said[len(there) :]
    if len(said) < len(there) or any(text in known for text in new):
        return None
    if any(name in now for _, name in dropped):
        return None  # Another one has its name: already then?
    if dropped and any(number not in named for number in range(highest + 1, highest_now + 1)):
        return None  # One of these may have had its name.
    for (number, name), text in zip(there, said):
        was_renamed = named.get(number, name) != name
        if text != name and not was_renamed:
            return None
    if new and max(known.values(), default=0) > max((number for number, _ in there), default=0):
        return None  # The last one that is gone may have been renamed first.
    # One that is missing was dropped since, and may be among them.
    later = range(highest + 1, highest + 1 + len(new))
    return [*(number for number, _ in there), *later] if all(number in named for number in later) else None
