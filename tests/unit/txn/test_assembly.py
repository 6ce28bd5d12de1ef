"""Assembly: a transaction is visible at its COMMIT's TimeTick, whole or not at all. Promises 1 to 3, seed 000,
time-log section 7.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import Corruption, InvariantBroken
from tidegate.log.batch import Batch, RunBatch, body_rows
from tidegate.log.message import ALL_VCHANNELS, MessageType, Term
from tidegate.txn import assembly
from tidegate.txn.assembly import Assembler
from tidegate.txn.marker import Marker, Run

A, B, C = (bytes([each]) * 16 for each in (0xA, 0xB, 0xC))
INSERT, BEGIN, COMMIT, ROLLBACK = (
    MessageType.INSERT,
    MessageType.BEGIN,
    MessageType.COMMIT,
    MessageType.ROLLBACK,
)

Given = tuple[int, MessageType, bytes | None, bytes]


def plain(at: int) -> Given:
    return (at, INSERT, None, b"%d" % at)


def body(at: int, txn: bytes, kind: MessageType = INSERT) -> Given:
    return (at, kind, txn, b"%d" % at)


def begin(at: int, txn: bytes) -> Given:
    return (at, BEGIN, txn, b"")


def commit(at: int, txn: bytes, before: int = 0, *runs: Run) -> Given:
    return (at, COMMIT, txn, Marker.over(runs, before=before).encode())


def rollback(at: int, txn: bytes) -> Given:
    return (at, ROLLBACK, txn, b"")


def batch(*given: Given, positions: Sequence[int] | None = None, term: int = 1) -> Batch:
    """Messages at TimeTick = position unless told otherwise; LastConfirmedMessageID is ten less."""
    ticks = np.array([each[0] for each in given], np.uint64)
    names = ("v", ALL_VCHANNELS)
    return Batch(
        time_ticks=ticks,
        positions=ticks if positions is None else np.array(positions, np.uint64),
        last_confirmed=ticks - np.uint64(10),
        types=np.array([each[1] for each in given], np.uint8),
        vchannel_ids=np.array([int(each[1].is_system) for each in given], np.uint16),
        vchannels=names,
        rows=body_rows([each[3] for each in given]),
        term=Term(term),
        txns=np.frombuffer(b"".join(each[2] or bytes(16) for each in given), "V16"),
    )


def columns(first: int, count: int, txn: bytes) -> Batch:
    """An Arrow append of one transaction."""
    ticks = np.arange(first, first + count, dtype=np.uint64)
    return Batch(
        time_ticks=ticks,
        positions=ticks,
        last_confirmed=np.zeros(count, np.uint64),
        types=np.full(count, INSERT, np.uint8),
        vchannel_ids=np.zeros(count, np.uint16),
        vchannels=("v",),
        rows=pa.RecordBatch.from_pydict({"n": pa.array(ticks)}),
        term=Term(1),
        txns=np.frombuffer(txn * count, "V16"),
    )


class Files:
    """What can be fetched, and what was."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = list(batches)
        self.asked: list[list[Run]] = []

    def __call__(self, runs: list[Run]) -> list[Batch]:
        self.asked.append(runs)
        return self.batches


def never(runs: list[Run]) -> list[Batch]:
    raise AssertionError(f"fetched {runs}")


def shown(batches: Sequence[Batch]) -> list[tuple[int, int]]:
    """TimeTick and position of each message."""
    out: list[tuple[int, int]] = []
    for each in batches:
        bodies = each.rows.column(0).to_pylist()
        assert [int(value) for value in bodies] == each.positions.tolist(), "rows moved along with their columns"
        out += zip(each.time_ticks.tolist(), each.positions.tolist(), strict=True)
    return out


# -- what passes ---------------------------------------------------------------------------------------------------


def test_batches_without_transactions_pass_untouched() -> None:
    run = RunBatch(
        first_tick=1, first_position=1, last_confirmed=0, kind=2, vchannel="v", rows=body_rows([b"1"]), term=Term(1)
    )
    zeros = batch(plain(20), plain(21))
    found = Assembler(never).take([run, zeros])
    assert [id(each) for each in found] == [id(run), id(zeros)], "the same objects, nothing copied"
    assert Assembler(never).take([]) == []


def test_a_transaction_takes_the_time_tick_and_last_confirmed_of_its_commit() -> None:
    """Fact 35: begin, insert, commit at 3 with LastConfirmed 3 yields one entry of size 1 at 3."""
    found = Assembler(never).take([batch(begin(11, A), body(12, A), commit(13, A, 1), plain(14))])
    messages = [message for each in found for message in each.messages()]
    assert [(int(m.time_tick), m.position, m.last_confirmed, m.type, m.vchannel, m.txn) for m in messages] == [
        (13, 12, 3, INSERT, "v", A),
        (14, 14, 4, INSERT, "v", None),
    ]


def test_an_open_transaction_holds_back_nobody_and_an_unknown_rollback_says_nothing() -> None:
    """Promise 3, fact 33: plain messages and other transactions pass while one is open."""
    assembler = Assembler(never)
    first = assembler.take([batch(plain(11), begin(12, A), body(13, A), plain(14), body(15, B), commit(16, B, 1))])
    assert shown(first) == [(11, 11), (14, 14), (16, 15)]
    assert assembler.status.open_transactions == 1
    assert shown(assembler.take([batch(rollback(17, C), plain(18))])) == [(18, 18)]
    assert shown(assembler.take([batch(body(19, A), plain(20), commit(21, A, 0, (13, 1), (19, 1)), plain(22))])) == [
        (20, 20),
        (21, 13),
        (21, 19),
        (22, 22),
    ]
    assert (assembler.status.held_bytes, assembler.status.open_transactions) == (0, 0)


def test_several_transactions_at_once_are_found_without_looking_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions whole within a batch take the way over columns: nothing is done for each one."""
    monkeypatch.setattr(Assembler, "_commit", lambda *_: pytest.fail("looked at one transaction"))
    given = batch(
        body(11, A), body(12, A), commit(13, A, 2), plain(14),
        begin(15, B), commit(16, B),
        body(17, C), commit(18, C, 1),
    )  # fmt: skip
    found = Assembler(never).take([given])
    assert shown(found) == [(13, 11), (13, 12), (14, 14), (18, 17)]


def test_a_transaction_without_messages_vanishes() -> None:
    """Section 7.3: zero bodies are legal."""
    assembler = Assembler(never)
    assert assembler.take([batch(begin(11, A), commit(12, A))]) == []
    assert assembler.take([batch(commit(13, B))]) == []
    assert assembler.status.committed == 2


def test_transactions_interleaved_message_by_message_come_out_apart() -> None:
    given = batch(
        body(11, A), body(12, B), body(13, A), body(14, B),
        commit(15, B, 1, (12, 1)), plain(16), commit(17, A, 0, (11, 1), (13, 1)),
    )  # fmt: skip
    assert shown(Assembler(never).take([given])) == [(15, 12), (15, 14), (16, 16), (17, 11), (17, 13)]


@pytest.mark.parametrize("alone", [True, False])
def test_messages_of_a_transaction_keep_their_physical_order(alone: bool) -> None:
    """Section 7.3: bodies keep their ids and order, whatever their TimeTicks were."""
    given = batch(body(11, A), body(12, A), body(13, A), commit(14, A, 3), plain(24), positions=[22, 20, 21, 23, 24])
    given = replace(given, rows=body_rows([b"22", b"20", b"21", Marker.at_once(3).encode(), b"24"]))
    found = Assembler(never).take([given.slice(0, 4) if alone else given])
    assert shown(found) == [(14, 20), (14, 21), (14, 22), (24, 24)][: 3 if alone else 4]


def test_a_commit_placed_late_in_the_log_still_comes_at_its_time_tick() -> None:
    """Design, cross-channel commit: a reserved COMMIT stands behind messages that are later in time."""
    given = batch(body(11, A), commit(12, A, 0, (11, 1)), plain(13), positions=[11, 14, 13])
    assert shown(Assembler(never).take([given])) == [(12, 11), (13, 13)]


def test_a_large_append_and_its_commit_share_the_memory_of_the_log() -> None:
    """An Arrow block of 10,000 rows, then a block with the COMMIT: only the system columns are new."""
    large = columns(11, 10_000, A)
    (found,) = Assembler(never).take([large, batch(commit(10_011, A, 10_000))])
    assert found.rows is large.rows
    assert set(found.time_ticks.tolist()) == {10_011}
    assert set(found.last_confirmed.tolist()) == {10_001}
    assert found.positions is large.positions


def test_messages_of_different_shape_and_term_stay_next_to_each_other() -> None:
    """Fact 59: begun in term 1, committed in term 3, delivered whole."""
    assembler = Assembler(never)
    assembler.take([columns(11, 3, A), batch(body(14, A), plain(15), term=2)])
    found = assembler.take([batch(body(16, A), body(17, B), commit(18, A, 0, (11, 4), (16, 1)), plain(19), term=3)])
    assert [(each.term, each.positions.tolist(), each.rows.schema.names) for each in found] == [
        (1, [11, 12, 13], ["n"]),
        (2, [14], ["body"]),
        (3, [16], ["body"]),
        (3, [19], ["body"]),
    ]
    assert [set(each.time_ticks.tolist()) for each in found] == [{18}, {18}, {18}, {19}]


def test_many_single_messages_come_out_as_one_batch() -> None:
    assembler = Assembler(never)
    for at in range(11, 111, 2):
        assembler.take([batch(body(at, A), plain(at + 1))])
    (found,) = assembler.take([batch(commit(111, A, 0, *((at, 1) for at in range(11, 111, 2))))])
    assert len(found) == 50


def test_upserts_of_a_transaction_become_visible_together() -> None:
    """Fact 61: delete and insert of one key, committed at 20: nothing of it is seen at 19, all of it at 20."""
    assembler = Assembler(never)
    assert assembler.take([batch(body(17, A, MessageType.DELETE), body(18, A), plain(19))])[0].positions.tolist() == [
        19
    ]
    (found,) = assembler.take([batch(commit(20, A, 0, (17, 2)))])
    assert found.types.tolist() == [MessageType.DELETE, INSERT]
    assert found.time_ticks.tolist() == [20, 20]


# -- what does not -------------------------------------------------------------------------------------------------


def test_what_was_rolled_back_is_dropped_with_what_came_before_and_after() -> None:
    assembler = Assembler(never)
    assembler.take([batch(body(11, A), body(12, A))])
    assert assembler.status.held_bytes > 0
    assert shown(assembler.take([batch(body(13, A), plain(14), rollback(15, A), body(16, A))])) == [(14, 14)]
    assert assembler.take([batch(body(17, A)), batch(rollback(18, A), begin(19, A))]) == []
    status = assembler.status
    assert (status.held_bytes, status.open_transactions, status.rolled_back) == (0, 0, 1)


@pytest.mark.parametrize("together", [True, False])
def test_a_message_that_comes_behind_its_commit_is_neither_shown_nor_kept(together: bool) -> None:
    assembler = Assembler(never)
    whole = [body(11, A), commit(12, A, 1), plain(13), body(14, A)]
    parts = [whole] if together else [whole[:3], whole[3:]]
    found = [each for part in parts for each in assembler.take([batch(*part)])]
    assert shown(found) == [(12, 11), (13, 13)]
    assert (assembler.status.held_bytes, assembler.status.unnamed) == (0, 1)


def test_a_message_that_the_commit_does_not_name_is_not_part_of_the_transaction() -> None:
    """The marker decides: a reader that started behind such a message could not even know of it."""
    assembler = Assembler(never)
    assembler.take([batch(body(11, A), body(12, A), body(13, B), plain(14))])
    assert shown(assembler.take([batch(commit(15, A, 0, (12, 1)))])) == [(15, 12)]
    assert shown(assembler.take([batch(body(16, B), commit(17, B, 1), plain(18))])) == [(17, 16), (18, 18)]
    assert assembler.status.held_bytes == 0, "also when the rest was whole within one batch"
    found = assembler.take([batch(body(21, C), plain(22)), batch(body(23, C), commit(24, C, 1), plain(25))])
    assert shown(found) == [(22, 22), (24, 23), (25, 25)]
    assert assembler.status.held_bytes == 0, "and when all came with one tick"


def test_a_commit_written_twice_is_delivered_once() -> None:
    """Section 7.3: the COMMIT of a transaction that is known to have ended is a duplicate."""
    assembler = Assembler(never)
    found = assembler.take([batch(body(11, A), commit(12, A, 1), plain(13))])
    found += assembler.take([batch(commit(14, A, 0, (11, 1)), plain(15))])
    assert shown(found) == [(12, 11), (13, 13), (15, 15)]


def test_both_outcomes_for_one_transaction_are_refused() -> None:
    assembler = Assembler(never)
    assembler.take([batch(rollback(11, A), body(12, B), commit(13, B, 1))])
    with pytest.raises(InvariantBroken, match=f"{A.hex()}: COMMIT at position 14 though it was rolled back"):
        assembler.take([batch(commit(14, A))])
    with pytest.raises(InvariantBroken, match=f"{B.hex()}: ROLLBACK at position 15 though it was committed"):
        assembler.take([batch(rollback(15, B))])


def test_a_control_message_without_a_transaction_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="COMMIT at position 12 names no transaction"):
        Assembler(never).take([batch(body(11, A), (12, COMMIT, None, Marker.at_once(0).encode()))])


def test_a_commit_without_a_marker_is_refused() -> None:
    odd = replace(columns(11, 2, A), types=np.array([INSERT, COMMIT], np.uint8))
    with pytest.raises(InvariantBroken, match="COMMIT at position 12 has columns and no commit marker"):
        Assembler(never).take([odd])


def test_the_memory_of_ended_transactions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "ENDED_MAX", 10)
    assembler = Assembler(never)
    for at in range(100, 1100, 10):
        txn, other = at.to_bytes(16, "big"), at.to_bytes(16, "little")
        given = [plain(at), begin(at + 1, txn), commit(at + 2, txn), rollback(at + 3, other)]
        assembler.take([batch(*given)])
        for _ in range(5):
            assembler.take([batch(*given[:3])]) if at % 3 else None
    ended = assembler._ended
    assert 10 <= len(ended._how) <= 20
    assert ended._waiting == sum(map(len, ended._columns)) <= 20
    assert ended.get(txn) == COMMIT
    assert ended.get(other) == ROLLBACK


# -- what memory does not hold -------------------------------------------------------------------------------------


def test_a_reader_that_started_behind_a_message_fetches_exactly_that() -> None:
    """Design: a reader fetches the named positions and never re-reads from the oldest open transaction."""
    files = Files(batch(body(5, A), body(6, A)), batch(body(8, A)))
    assembler = Assembler(files)
    found = assembler.take([batch(body(11, A), plain(12), commit(13, A, 0, (5, 2), (8, 1), (11, 1)))])
    assert shown(found) == [(12, 12), (13, 5), (13, 6), (13, 8), (13, 11)]
    assert files.asked == [[(5, 2), (8, 1)]]
    assert (assembler.status.fetched_transactions, assembler.status.fetched_messages) == (1, 3)


def test_a_time_tick_filter_that_cuts_a_transaction_takes_nothing_away() -> None:
    """Fact 36: above 12 the COMMIT at 13 counts, and with it the messages at 11 and 12."""
    files = Files(batch(body(11, A), body(12, A)))
    assert shown(Assembler(files).take([batch(commit(13, A, 2), plain(14))])) == [(13, 11), (13, 12), (14, 14)]
    assert files.asked == [[(11, 2)]]


def test_fetching_whole_blocks_brings_in_no_neighbours() -> None:
    block = batch(plain(4), body(5, A), body(6, B), body(7, A), begin(8, A))
    run = RunBatch(
        first_tick=9, first_position=9, last_confirmed=0, kind=2, vchannel="v", rows=body_rows([b"9"]), term=Term(1)
    )
    found = Assembler(Files(block, run)).take([batch(commit(13, A, 0, (5, 1), (7, 1)))])
    assert shown(found) == [(13, 5), (13, 7)]


def test_beyond_its_memory_it_forgets_the_largest_and_fetches_that_again() -> None:
    large, small = columns(11, 1000, A), batch(body(2000, B))
    files = Files(large)
    assembler = Assembler(files, bytes_max=8_000)
    assert assembler.take([large, small]) == []
    status = assembler.status
    assert (status.open_transactions, status.forgotten) == (1, 1)
    assert 0 < status.held_bytes <= 8_000
    (found,) = assembler.take([batch(commit(2001, B, 1))])
    assert found.positions.tolist() == [2000]
    (found,) = assembler.take([batch(commit(2002, A, 0, (11, 1000)))])
    assert found.rows.equals(large.rows)
    assert files.asked == [[(11, 1000)]]


def test_among_small_ones_it_forgets_the_oldest() -> None:
    """Otherwise transactions that nobody ever ends would fill its memory for good."""
    files = Files(batch(body(1001, (1).to_bytes(16, "big"))))
    assembler = Assembler(files, bytes_max=6_000)
    for number in range(1, 41):
        assembler.take([batch(body(1000 + number, number.to_bytes(16, "big")), plain(2000 + number))])
        assert assembler.status.held_bytes <= 6_000
    assert assembler.status.forgotten + assembler.status.open_transactions == 40
    assert len(assembler.take([batch(commit(3000, (40).to_bytes(16, "big"), 0, (1040, 1)))])) == 1
    assert files.asked == []
    assert len(assembler.take([batch(commit(3001, (1).to_bytes(16, "big"), 0, (1001, 1)))])) == 1
    assert files.asked == [[(1001, 1)]]


def test_a_small_part_of_a_large_batch_does_not_keep_all_of_it_in_memory() -> None:
    given = batch(*(plain(at) for at in range(11, 1011)), body(1011, A))
    assembler = Assembler(never)
    assembler.take([given])
    assert assembler.status.held_bytes < 2_000
    (held,) = assembler._open[A].batches
    theirs = given.rows.column(0).buffers()[2]
    ours = held.rows.column(0).buffers()[2]
    assert not theirs.address <= ours.address < theirs.address + theirs.size
    assert held.time_ticks.base is not given.time_ticks


@pytest.mark.parametrize(
    "fetched",
    [
        [],
        [batch(body(5, A))],
        [batch(body(5, A), body(6, B))],
        [batch(body(5, A), begin(6, A))],
        [batch(body(5, A), plain(6))],
    ],
    ids=["none", "one", "foreign", "control", "plain"],
)
def test_a_transaction_that_is_not_whole_is_not_delivered(fetched: list[Batch]) -> None:
    """Fact 58: never a part of a transaction; the error says which one, where, and what is missing."""
    assembler = Assembler(Files(*fetched))
    expected = f"{A.hex()}: its COMMIT at position 13 names 3 messages and {2 if fetched else 1} were found"
    with pytest.raises(InvariantBroken, match=expected):
        assembler.take([batch(plain(10), body(11, A), commit(13, A, 0, (5, 2), (11, 1)))])


@pytest.mark.parametrize("others", [(), (plain(14),)], ids=["alone", "among others"])
def test_only_messages_of_the_transaction_count_for_it_though_others_stand_in_their_place(others: tuple[Given]) -> None:
    """Fact 58, for what lies directly before a COMMIT: a BEGIN, another transaction's message, a plain one, a gap."""
    for stranger in (begin(11, A), body(11, B), plain(11), commit(11, B), body(10, A)):
        with pytest.raises(InvariantBroken, match="COMMIT at position 13 names 2 messages and 1 were found"):
            Assembler(Files()).take([batch(stranger, body(12, A), commit(13, A, 2), *others)])


def test_a_message_that_is_found_twice_does_not_count_for_another() -> None:
    with pytest.raises(InvariantBroken, match="the first that is missing at position 6"):
        Assembler(Files(batch(body(5, A), body(5, A)))).take([batch(commit(13, A, 0, (5, 2)))])


def test_a_message_that_is_found_twice_is_not_delivered_twice() -> None:
    with pytest.raises(InvariantBroken, match="names 1 messages and 2 were found"):
        Assembler(Files(batch(body(5, A), body(5, A)))).take([batch(commit(13, A, 0, (5, 1)))])


@pytest.mark.parametrize("marker", [Marker.at_once(3), Marker(1, 1)])
def test_a_marker_that_counts_otherwise_than_the_log_is_noticed_also_among_whole_ones(marker: Marker) -> None:
    given = batch(body(10, C), commit(11, C, 1), body(12, A), body(13, A), (14, COMMIT, A, marker.encode()))
    if marker.count == 1:
        # The other message is one that the COMMIT does not name.
        assembler = Assembler(never)
        assert shown(assembler.take([given])) == [(11, 10), (14, 13)]
        assert (assembler.status.unnamed, assembler.status.held_bytes) == (1, 0)
    else:
        with pytest.raises(InvariantBroken, match="names 3 messages and 2 were found"):
            Assembler(Files()).take([given])


def test_a_failed_fetch_changes_nothing_and_can_be_repeated() -> None:
    tries: list[Any] = [Corruption("c/1.seg", 512, "a block is damaged"), [batch(body(5, C))]]

    def fetch(runs: list[Run]) -> list[Batch]:
        found = tries.pop(0)
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    assembler = Assembler(fetch)
    assembler.take([batch(body(9, B), body(10, A))])
    before = assembler.status
    given = [batch(commit(11, A, 1), body(12, B), rollback(13, B), body(14, A)), batch(commit(15, C, 0, (5, 1)))]
    with pytest.raises(Corruption):
        assembler.take(given)
    assert assembler.status == before
    assert shown(assembler.take(given)) == [(11, 10), (15, 5)]
    assert assembler.status.held_bytes == 0
