"""The checker of histories finds what it is there for: a bad history for each property, next to a good one."""

from dataclasses import replace

import pytest
from history_checker import TOLERANCE_NS, History, Read, Refused, Transfer, check

S = 1_000_000_000
START = {"checking.1": 100, "savings.1": 50}
MOVED = [
    START,
    {"checking.1": 90, "savings.1": 60},
    {"checking.1": 70, "savings.1": 80},
    {"checking.1": 69, "savings.1": 81},
]
"""After each transfer: x1 at 10, x2 at 20, x3 at 30."""


def read(level, invoked, at, count, session="s", **more):
    """A read that was asked for at a second and answered a tenth of one later."""
    began = round(invoked * S)
    return Read(session, level, began, began + S // 10, at, MOVED[count], count, **more)


def history(*reads, **changes):
    """Transfers that were acknowledged at 1, 2 and 3 s, to sessions s, other and s; x3's owner died before it could
    answer, and its client was told by the next one."""
    committed = {
        "x1": (10, {"checking.1": -10, "savings.1": 10}),
        "x2": (20, {"checking.1": -20, "savings.1": 20}),
        "x3": (30, {"checking.1": -1, "savings.1": 1}),
    }
    transfers = [
        Transfer("x1", "s", 0, 10, 1 * S),
        Transfer("x2", "other", 0, 20, 2 * S),
        Transfer("x3", "s", 2 * S, 30, 3 * S),
        Transfer("x4", "s", 3 * S, is_refused=True),
        Transfer("x5", "s", 3 * S),
    ]
    return replace(History(START, committed, transfers, list(reads)), **changes)


GOOD = [
    read("strong", 0.5, 5, 0),
    read("strong", 1.5, 12, 1, "third"),
    read("strong", 2.5, 25, 2),
    read("session", 3.5, 31, 3),
    read("session", 3.6, 22, 2, "new"),
    read("eventual", 3.7, 11, 1, "lazy"),
    read("bounded", 4.5, 29, 2, "lazy", bound_ns=2 * S),
    read("timestamp", 4.6, 10, 1, named=10),
    read("strong", 5.0, 40, 3, snapshot="a"),
    read("snapshot", 9.0, 40, 3, snapshot="a"),
]


def test_a_history_in_order_passes_and_every_property_was_looked_at():
    done = check(history(*GOOD))
    assert set(done) == {
        "outcomes", "one_cut", "named", "session_order", "own_writes", "real_time", "bounds", "snapshots",
    }  # fmt: skip
    assert all(done.values()), done


BAD = {
    "money is missing": ("one cut", [replace(read("eventual", 4, 31, 3), balances={"checking.1": 69})]),
    "half of a transfer": ("one cut", [replace(read("eventual", 4, 12, 1), balances={**START, "savings.1": 60})]),
    "two tables at two times": (
        "one cut",
        # The sum is right: account by account it is not.
        [replace(read("eventual", 4, 12, 1), balances={"checking.1": 80, "savings.1": 70})],
    ),
    "what lies above its Timestamp": ("one cut", [read("eventual", 4, 19, 2)]),
    "without what lies at its Timestamp": ("one cut", [read("eventual", 4, 20, 1)]),
    "the rows of one cut and the count of another": ("one cut", [replace(read("eventual", 4, 25, 2), count=1)]),
    "another time than the one named": ("named", [read("timestamp", 4, 11, 1, named=10)]),
    "back in its session": ("session order", [read("eventual", 4, 25, 2, "x"), read("eventual", 5, 24, 2, "x")]),
    "back at another level": ("session order", [read("strong", 4, 35, 3, "x"), read("bounded", 5, 34, 3, "x")]),
    "back behind a snapshot": (
        "session order",
        [read("session", 4, 32, 3, "x", snapshot="a"), read("session", 5, 31, 3, "x")],
    ),
    "without its own write": ("own writes", [read("session", 3.5, 29, 2)]),
    "strong without what another had been told": ("real time", [read("strong", 2.5, 15, 1, "x")]),
    "strong behind what another had been shown": (
        "real time",
        [read("strong", 4, 35, 3, "x"), read("strong", 5, 34, 3, "y")],
    ),
    "bounded and too old": ("bound", [read("bounded", 5.2, 29, 2, "x", bound_ns=2 * S)]),
    "a snapshot that moves": (
        "snapshot",
        [read("strong", 4, 40, 3, snapshot="a"), read("snapshot", 5, 41, 3, snapshot="a")],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_refused_by_the_property_that_it_breaks(name):
    expected, reads = BAD[name]
    with pytest.raises(Refused, match=f"^{expected}:"):
        check(history(*reads))
    with pytest.raises(Refused, match=f"^{expected}:"):
        check(history(*[each for each in GOOD if each.session not in ("x", "s") and not each.snapshot], *reads))


def test_an_outcome_that_was_not_the_one_told_is_refused():
    good = history(*GOOD)
    lost = {name: each for name, each in good.committed.items() if name != "x3"}
    moved = {**good.committed, "x3": (31, good.committed["x3"][1])}
    done = {**good.committed, "x4": (40, {})}
    invented = {**good.committed, "x9": (40, {})}
    for committed in (lost, moved, done, invented):
        with pytest.raises(Refused, match=r"^outcome:"):
            check(replace(good, committed=committed))


def test_what_overlaps_may_come_in_either_order():
    """Only a call that was answered before another was asked for came before it."""
    during = Transfer("x2", "other", 0, 20, round(4.05 * S))
    transfers = [during if each.id == "x2" else each for each in history().transfers if each.id != "x3"]
    committed = {name: each for name, each in history().committed.items() if name != "x3"}
    check(history(read("strong", 4, 15, 1, "x"), transfers=transfers, committed=committed))
    with pytest.raises(Refused, match=r"^real time:"):
        check(history(read("strong", 4.06, 15, 1, "x"), transfers=transfers, committed=committed))


def test_a_bound_has_its_tolerance_and_no_more():
    late = (3 * S + 2 * S + TOLERANCE_NS) / S
    check(history(read("bounded", late - 0.001, 29, 2, "x", bound_ns=2 * S)))
    with pytest.raises(Refused, match=r"^bound:"):
        check(history(read("bounded", late + 0.001, 29, 2, "x", bound_ns=2 * S)))
