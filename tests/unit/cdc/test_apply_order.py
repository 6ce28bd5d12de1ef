"""The order in which rows of a chunk go, change and come: the way back, of issue 7 and seed 003."""

from __future__ import annotations

from tidegate.cdc.apply_order import Links, Reference, Step, arrange

TREE = {"t": Links([(2,)], [Reference((1,), "t", (0,))], (1, 2))}
"""A key, a reference to it, and a unique value."""


def order(steps: list[Step], links: dict[str, Links] = TREE) -> list[int]:
    return [each.key[0] for each in arrange(steps, links, lambda step, places: False)]


def comes(key: int, parent: int | None, value: str | None = None) -> Step:
    return Step("t", (key,), None, (key, parent, value))


def goes(key: int, parent: int | None, value: str | None = None) -> Step:
    return Step("t", (key,), (key, parent, value), None)


def test_rows_come_behind_what_they_refer_to_and_go_before_it() -> None:
    count = 50_000  # A chain of any length, in the order that fits least.
    coming = [comes(n, n + 1 if n < count else None) for n in range(1, count + 1)]
    assert order(coming) == list(range(count, 0, -1))
    going = [goes(n, n - 1 or None) for n in range(1, count + 1)]
    assert order(going) == list(range(count, 0, -1))
    assert not any(each.aside or each.late for each in (*coming, *going))


def test_a_unique_value_is_given_up_before_it_is_taken() -> None:
    assert order([comes(1, None, "a"), goes(2, None, "a")]) == [2, 1]


def test_a_circle_is_opened_by_one_column_of_one_row() -> None:
    steps = [comes(1, 2), comes(2, 3), comes(3, 1), comes(4, 1)]
    assert order(steps) == [3, 2, 1, 4]
    assert [each.late for each in steps] == [(), (), (1,), ()]


def test_a_row_may_give_up_its_unique_value_before_it_can_go() -> None:
    gone, stays = goes(1, None, "a"), Step("t", (2,), (2, 1, "b"), (2, None, "a"))
    assert order([gone, stays]) == [2, 1]
    assert (gone.aside, stays.aside, stays.late) == ({2: None}, {}, ())


def test_a_circle_is_opened_where_it_can_be() -> None:
    """What one table cannot do without for a moment, the other can."""
    links = {
        "heads": Links([], [Reference((1,), "parts", (0,))], ()),
        "parts": Links([], [Reference((1,), "heads", (0,))], (1,)),
    }
    head, part = Step("heads", (1,), None, (1, 10)), Step("parts", (10,), None, (10, 1))
    for steps in ([head, part], [part, head]):
        part.late = ()
        assert order(steps, links) == [10, 1]
        assert (head.late, part.late) == ((), (1,))


def test_a_circle_that_nothing_opens_stays() -> None:
    links = {"t": Links([], [Reference((1,), "t", (0,))], ())}
    steps = [comes(1, 2), comes(2, 1), comes(3, 3)]
    assert sorted(order(steps, links)) == [1, 2, 3]
    assert not any(each.aside or each.late for each in steps)
