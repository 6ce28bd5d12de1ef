"""Columns that are renamed, dropped and added: `numbers_of` tells which is which, or says that it cannot know.

A table's life is a list of statements. Something was known at one moment of it, a message names the columns of a later
one, and the catalog is asked later still.
"""

from __future__ import annotations

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from tidegate.cdc.pg_columns import numbers_of

NAMES = st.sampled_from("abcdef")
STEPS = st.lists(st.tuples(st.sampled_from(["add", "drop", "rename"]), NAMES, NAMES), max_size=8)


def lives(steps: list[tuple[str, str, str]]) -> list[tuple[dict[str, int], int]]:
    """The columns after each step by name, in the order of their numbers, and the highest number so far."""
    columns, highest = {"id": 1, "a": 2, "b": 3}, 3
    found = [(dict(columns), highest)]
    for what, one, other in steps:
        if what == "add" and one not in columns:
            highest += 1
            columns[one] = highest
        elif what == "drop" and one in columns:
            del columns[one]
        elif what == "rename" and one in columns and other not in columns:
            columns = {other if name == one else name: number for name, number in columns.items()}
        else:
            continue
        found.append((dict(columns), highest))
    return found


@given(STEPS, st.data())
@settings(max_examples=600)
def test_it_is_right_or_says_that_it_is_not_sure(steps: list[tuple[str, str, str]], data: st.DataObject) -> None:
    found = lives(steps)
    first = data.draw(st.integers(0, len(found) - 1))
    then = data.draw(st.integers(first, len(found) - 1))
    last = data.draw(st.integers(then, len(found) - 1))
    (known, highest), (said, _), (now, highest_now) = found[first], found[then], found[last]
    # The limits of `numbers_of`.
    assume(list(said) != list(now) or said == now)
    assume(all(known.get(name, number) == number or name in now for name, number in said.items()))
    answer = numbers_of(known, highest, list(said), now, highest_now)
    event(f"{'sure' if answer else 'not sure'}, {then - first} steps, {last - then} since")
    assert answer is None or answer == list(said.values())


@given(STEPS, st.data())
@settings(max_examples=300)
def test_what_the_catalog_still_has_is_followed_unless_a_name_was_given_away(
    steps: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    found = lives(steps)
    first = data.draw(st.integers(0, len(found) - 1))
    then = data.draw(st.integers(first, len(found) - 1))
    (known, highest), (said, highest_now) = found[first], found[then]
    given_away = any(known[name] != said[name] and known[name] not in said.values() for name in known.keys() & said)
    answer = numbers_of(known, highest, list(said), said, highest_now)
    assert answer == (None if given_away else list(said.values()))


def test_what_cannot_be_told() -> None:
    known = {"id": 1, "a": 2, "b": 3}
    # A column b was dropped, and one was added and dropped: before, or after this was said?
    assert numbers_of(known, 3, ["id", "a", "b"], {"id": 1, "a": 2}, 4) is None
    # Dropped and added: when?
    assert numbers_of(known, 3, ["id", "a", "b"], {"id": 1, "a": 2, "b": 4}, 4) is None
    # a dropped and b renamed.
    assert numbers_of(known, 3, ["id", "a"], {"id": 1, "a": 3}, 3) is None
    # a renamed, and dropped since.
    assert numbers_of(known, 3, ["id", "x", "b"], {"id": 1, "b": 3}, 3) is None
    # c was added, dropped and added again, and another one behind it: which c?
    assert numbers_of(known, 3, ["id", "a", "b", "c"], {"id": 1, "a": 2, "b": 3, "c": 5, "d": 6}, 6) is None


def test_what_can() -> None:
    known = {"id": 1, "a": 2, "b": 3}
    # Renamed twice, exchanged, added and renamed since, dropped since.
    assert numbers_of(known, 3, ["id", "x", "b"], {"id": 1, "y": 2, "b": 3}, 3) == [1, 2, 3]
    assert numbers_of(known, 3, ["id", "b", "a"], {"id": 1, "b": 2, "a": 3}, 3) == [1, 2, 3]
    assert numbers_of(known, 3, ["id", "a", "b", "c"], {"id": 1, "a": 2, "b": 3, "d": 4, "e": 5}, 5) == [1, 2, 3, 4]
    assert numbers_of(known, 3, ["id", "a", "b", "c"], {"id": 1, "a": 2, "c": 4}, 4) == [1, 2, 3, 4]
    assert numbers_of(known, 3, ["id", "a", "b"], {"id": 1, "x": 2, "c": 4}, 4) == [1, 2, 3]
