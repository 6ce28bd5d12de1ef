"""Messages of pgoutput into whole transactions (capture.md section 4): v1, v2, subtransactions, in bounded memory."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.capture.spill import Spill
from tidegate.cdc.pg_txns import Finished, Transactions
from tidegate.errors import SourceUnreadable


def begin(xid: int) -> bytes:
    return b"B" + struct.pack(">QqI", 0, 0, xid)


def commit(end: int) -> bytes:
    return b"C\0" + struct.pack(">QQq", end - 1, end, 5)


def start(xid: int, first: bool = True) -> bytes:
    return b"S" + struct.pack(">IB", xid, first)


STOP = b"E"


def streamed_commit(xid: int, end: int) -> bytes:
    return b"c" + struct.pack(">IBQQq", xid, 0, end - 1, end, 5)


def abort(xid: int, sub: int) -> bytes:
    return b"A" + struct.pack(">II", xid, sub)


def row(text: str, xid: int | None = None) -> bytes:
    return b"I" + (b"" if xid is None else struct.pack(">I", xid)) + text.encode()


def relation(text: str, xid: int | None = None) -> bytes:
    return b"R" + (b"" if xid is None else struct.pack(">I", xid)) + text.encode()


def origin(name: str) -> bytes:
    return b"O" + struct.pack(">Q", 1) + name.encode() + b"\0"


def message(content: str, prefix: str = "ours", *, transactional: bool = True, xid: int | None = None) -> bytes:
    named = b"" if xid is None else struct.pack(">I", xid)
    data = content.encode()
    head = struct.pack(">BQ", transactional, 9)
    return b"M" + named + head + prefix.encode() + b"\0" + struct.pack(">I", len(data)) + data


def said(finished: Finished) -> list[str]:
    assert isinstance(finished.held, Spill)
    return [each[1:].decode() for chunk in finished.held.read(finished.spans) for each in chunk]


def feed(*messages: bytes) -> list[tuple[int, list[str]]]:
    return [(each.xid, said(each)) for each in Transactions(Spill).feed(messages)]


def test_a_transaction_is_what_lies_between_begin_and_commit():
    """capture.md section 4: B, R, I..., C. Names of types and messages of applications are nothing of rows."""
    found = feed(begin(7), relation("t"), row("a"), b"Y" + bytes(8), row("b"), message("x"), commit(50))
    assert found == [(7, ["t", "a", "b"])]


def test_it_says_where_it_ends_when_it_was_and_where_it_came_from():
    one, two = Transactions(Spill).feed(
        [begin(7), origin("elsewhere"), row("a"), commit(50), begin(8), commit(60)],
    )
    assert (one.xid, one.end_lsn, one.time_us, one.origin) == (7, 50, 5, "elsewhere")
    assert two.origin is None and said(two) == []


def test_a_message_of_the_transaction_says_where_it_came_from():
    """Where a role may not use origins, and where the server has no room for one that says all of it."""
    messages = [
        begin(7), origin("short"), message("in full"), row("a"), commit(50),
        begin(8), message("x", "others"), row("a"), commit(60),
        message("in full", transactional=False),
        begin(9), message("in full", transactional=False), row("a"), commit(70),
        start(6), message("streamed", xid=6), row("a", 6), STOP, streamed_commit(6, 80),
    ]  # fmt: skip
    found = [(each.xid, each.origin, said(each)) for each in Transactions(Spill, "ours").feed(messages)]
    assert found == [(7, "in full", ["a"]), (8, None, ["a"]), (9, None, ["a"]), (6, "streamed", ["a"])]
    assert [each.origin for each in Transactions(Spill).feed(messages)] == ["short", None, None, None]


def test_a_streamed_transaction_comes_at_its_commit():
    """Parts of two of them, and a small one in between, which is first because it commits first."""
    found = feed(
        start(7), row("a", 7), STOP,
        start(8), row("x", 8), STOP,
        begin(9), row("small"), commit(40),
        start(7, False), row("b", 7), STOP,
        streamed_commit(8, 50), streamed_commit(7, 60),
    )  # fmt: skip
    assert found == [(9, ["small"]), (8, ["x"]), (7, ["a", "b"])]


def test_a_streamed_transaction_that_is_undone_never_comes():
    machine = Transactions(Spill)
    assert list(machine.feed([start(7), row("a", 7), STOP])) == [] and machine.open == 1
    assert list(machine.feed([abort(7, 7)])) == [] and machine.open == 0
    # Its id may come again, as they go round.
    assert [said(each) for each in machine.feed([start(7), row("b", 7), STOP, streamed_commit(7, 9)])] == [["b"]]


def test_an_undone_subtransaction_takes_only_its_own_changes_with_it():
    found = feed(
        start(7), row("a", 7), row("b", 8), row("c", 7), row("d", 9), row("e", 8), STOP,
        abort(7, 8), abort(7, 99),
        start(7, False), row("f", 7), row("g", 9), STOP, streamed_commit(7, 50),
    )  # fmt: skip
    assert found == [(7, ["a", "c", "d", "f", "g"])]


def test_what_an_undone_subtransaction_said_of_a_table_stays():
    """The server says it once for all of a transaction, whichever part says it."""
    found = feed(start(7), relation("t", 8), row("a", 8), STOP, abort(7, 8), start(7, False), row("b", 7), STOP,
                 streamed_commit(7, 50))  # fmt: skip
    assert found == [(7, ["t", "b"])]


def test_positions_wait_while_a_transaction_is_coming():
    machine = Transactions(Spill)
    for message, inside in [(begin(1), True), (row("a"), True), (commit(5), False), (start(2), True), (STOP, False)]:
        list(machine.feed([message]))
        assert machine.is_inside is inside


def test_messages_where_they_cannot_be_are_refused():
    for messages in (
        [row("a")],
        [commit(5)],
        [begin(1), begin(2)],
        [STOP],
        [begin(1), start(2)],
        [start(2), commit(5)],
        [start(2), abort(2, 2)],
        [origin("x")],
        [b"?"],
    ):
        with pytest.raises(SourceUnreadable):
            list(Transactions(Spill).feed(messages))


def test_what_is_remembered_does_not_grow_with_a_transaction():
    """Places, not messages: one span for as long as one subtransaction goes on."""
    machine = Transactions(lambda: Spill(limit=1000))
    list(machine.feed([start(7)]))
    list(machine.feed(row(f"{number}", 7) for number in range(5000)))
    (found,) = machine.feed([STOP, streamed_commit(7, 9)])
    assert len(found.spans) == 1 and isinstance(found.held, Spill) and found.held.is_on_disk
    assert said(found) == [f"{number}" for number in range(5000)]
    found.held.close()


def test_closing_lets_go_of_what_is_held():
    held: list[Spill] = []

    def hold() -> Spill:
        held.append(Spill(limit=1))
        return held[-1]

    machine = Transactions(hold)
    list(machine.feed([start(7), row("a", 7), STOP, begin(8), row("b")]))
    assert [each.is_on_disk for each in held] == [True, True]
    machine.close()
    assert [each.is_on_disk for each in held] == [False, False]


@given(st.data())
def test_any_mixture_of_transactions_gives_what_each_has_left(data):
    """A twin that keeps lists: parts of several streamed transactions, subtransactions and their ends in any order."""
    messages: list[bytes] = []
    twin: dict[int, list[tuple[int, str]]] = {}
    expected: list[tuple[int, list[str]]] = []
    number = 0
    for step in range(data.draw(st.integers(0, 40))):
        xid = data.draw(st.sampled_from([100, 200, 300]))
        match data.draw(st.sampled_from(["part", "undo", "abort", "commit", "small"])):
            case "part":
                messages.append(start(xid, xid not in twin))
                for _ in range(data.draw(st.integers(0, 4))):
                    sub = xid + data.draw(st.integers(0, 3))
                    number += 1
                    messages.append(row(str(number), sub))
                    twin.setdefault(xid, []).append((sub, str(number)))
                twin.setdefault(xid, [])
                messages.append(STOP)
            case "undo" if xid in twin:
                sub = xid + data.draw(st.integers(1, 3))
                messages.append(abort(xid, sub))
                twin[xid] = [each for each in twin[xid] if each[0] != sub]
            case "abort" if xid in twin:
                messages.append(abort(xid, xid))
                del twin[xid]
            case "commit" if xid in twin:
                messages.append(streamed_commit(xid, step + 1))
                expected.append((xid, [text for _, text in twin.pop(xid)]))
            case "small":
                number += 1
                messages += [begin(999), row(str(number)), commit(step + 1)]
                expected.append((999, [str(number)]))
    limit = data.draw(st.sampled_from([1, 30, 10_000]))
    machine = Transactions(lambda: Spill(limit))
    found = []
    for each in machine.feed(messages):
        found.append((each.xid, said(each)))
        each.held.close()
    machine.close()
    assert found == expected
