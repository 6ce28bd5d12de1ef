"""Transactions whose messages are written ahead of their commit: leases, force-fail, ends, restarts. Seed 000."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from helpers import BROKEN, FULL, Calls, Rig, commit_all, drain, drain_whole, eventually, tick, txn_id
from tidegate.errors import (
    Backpressure,
    DiskFull,
    Fenced,
    InvalidArgument,
    InvalidTransactionState,
    LimitExceeded,
    OutcomeUnknown,
    StorageFailed,
    TransactionAborted,
    TransactionExpired,
)
from tidegate.log.message import ALL_VCHANNELS, MessageType
from tidegate.runtime.channel_txn import ChannelTxn
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.log import Log
from tidegate.runtime.pieces import Piece
from tidegate.runtime.reservation import Reservation
from tidegate.txn.marker import Marker
from tidegate.txn.session import SessionState

TXN = txn_id(1)


def whole(rig: Rig, writer: ChannelWriter | None = None) -> list[bytes | None]:
    """All that becomes visible; readers of the files and of memory agree."""
    found = [each.body for each in drain_whole(rig.transactions())]
    if writer is not None:
        assert [each.body for each in drain_whole(rig.transactions(writer))] == found
    return found


def kinds(rig: Rig, txn: bytes = TXN) -> list[str]:
    """What lies in the log of one transaction."""
    return [each.type.name for each in rig.messages() if each.txn == txn]


# -- its life ------------------------------------------------------------------------------------------------------


def test_the_log_holds_begin_bodies_and_a_commit_that_names_them(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a")
    first = txn.append("a", [b"1", b"2"])
    writer.append("z", b"plain")
    second = txn.append("b", pa.RecordBatch.from_pydict({"x": [3]}))
    assert txn.runs == [(first.position, 2), (second.position, 1)]
    done = txn.commit([Piece("c", b"4")])
    tick(writer)
    assert kinds(rig) == ["BEGIN", "INSERT", "INSERT", "INSERT", "INSERT", "COMMIT"]
    marker = next(each for each in rig.messages() if each.type is MessageType.COMMIT)
    assert (marker.position, marker.time_tick) == (done.position, done.time_tick)
    assert Marker.decode(marker.body or b"") == Marker(4, 1, ((first.position, 2), (second.position, 1)))
    found = drain_whole(rig.transactions())
    assert [each.body or each.row for each in found] == [b"plain", b"1", b"2", {"x": 3}, b"4"]
    assert txn.session.state is SessionState.COMMITTED


def test_a_commit_without_messages_commits_nothing_and_succeeds(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    writer.begin(TXN, "a").commit()
    tick(writer)
    assert whole(rig, writer) == []
    assert kinds(rig) == ["BEGIN", "COMMIT"]


def test_after_its_end_it_takes_neither_messages_nor_another_end(rig: Rig) -> None:
    """Time-log facts 21 and 22: Committed and RolledBack are final."""
    writer = rig.writer(inline=True)
    for number, end in enumerate(("commit", "rollback")):
        txn = writer.begin(txn_id(number), "a")
        txn.append("a", end.encode())
        getattr(txn, end)()
        for call in (partial(txn.append, "a", b"late"), txn.commit, txn.rollback):
            with pytest.raises(InvalidTransactionState):
                call()
    tick(writer)
    assert whole(rig, writer) == [b"commit"]


def test_a_rollback_is_written_so_that_nobody_waits_for_the_lease(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a")
    txn.append("a", b"1")
    txn.rollback()
    tick(writer)
    assert kinds(rig) == ["BEGIN", "INSERT", "ROLLBACK"]
    assert whole(rig, writer) == []
    assert writer.sessions.is_idle


def test_wrong_calls_are_refused_and_change_nothing(rig: Rig) -> None:
    """Time-log fact 27: a keepalive below 1 ms, an id that is not known, an id in use."""
    writer = rig.writer(inline=True, message_bytes_max=1000, block_bytes_max=3000)
    txn = writer.begin(TXN, "a")
    txn.append("a", b"1")
    with pytest.raises(InvalidTransactionState, match="begun already"):
        writer.begin(TXN, "a")
    for bad in (b"short", bytes(16)):
        with pytest.raises(InvalidArgument, match="16 bytes"):
            writer.begin(bad, "a")
    with pytest.raises(InvalidArgument, match="keepalive"):
        writer.begin(txn_id(2), "a", keepalive_ms=-1)
    with pytest.raises(InvalidArgument, match="virtual channel"):
        writer.begin(txn_id(2), "")
    with pytest.raises(TransactionExpired, match="not known here"):
        writer.resume(txn_id(9))
    for kind in (MessageType.DDL, MessageType.BEGIN, MessageType.COMMIT, MessageType.ROLLBACK, MessageType.TIME_TICK):
        with pytest.raises(InvalidArgument, match="cannot be part of a transaction"):
            txn.append("a", b"x", kind=kind)
        with pytest.raises(InvalidArgument, match="cannot be part of a transaction"):
            txn.commit([Piece("a", b"x", kind)])
    with pytest.raises(LimitExceeded, match="message_bytes_max"):
        txn.append("a", bytes(1001))
    with pytest.raises(LimitExceeded, match="block_bytes_max"):
        txn.commit([Piece("a", bytes(900))] * 4)
    assert txn.session.in_flight == 0
    txn.append("a", b"2")
    txn.commit([Piece("a", b"3")])
    tick(writer)
    assert whole(rig, writer) == [b"1", b"2", b"3"]
    assert writer.status().channel.in_flight == 0


# -- leases --------------------------------------------------------------------------------------------------------


def test_each_message_renews_the_lease_and_silence_ends_it(rig: Rig) -> None:
    """Time-log fact 20; seed 000: expiry is the last message's TimeTick and the keepalive."""
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a", keepalive_ms=100)
    for _ in range(5):
        rig.oracle.pass_ms(90)
        txn.append("a", b"1")
    rig.oracle.pass_ms(101)
    for call in (lambda: txn.append("a", b"late"), txn.commit, txn.rollback):
        with pytest.raises(TransactionExpired):
            call()
    tick(writer)
    tick(writer)
    assert whole(rig, writer) == []
    assert kinds(rig) == ["BEGIN", *["INSERT"] * 5, "ROLLBACK"]


def test_a_tick_writes_the_rollback_of_what_has_expired_and_frees_everything(rig: Rig) -> None:
    """Time-log fact 23: each is cleaned up once, at the first tick at or above its expiry."""
    writer = rig.writer(inline=True)
    for number in range(20):
        writer.begin(txn_id(number), "a", keepalive_ms=number * 10 + 5).append("a", b"1")
    tick(writer)
    rig.oracle.pass_ms(100)
    tick(writer)
    assert len(writer.sessions) == 10
    rig.oracle.pass_ms(100)
    tick(writer)
    assert writer.sessions.is_idle
    tick(writer)
    tick(writer)
    ends = [each.txn for each in rig.messages() if each.type is MessageType.ROLLBACK]
    assert sorted(ends) == [txn_id(number) for number in range(20)]
    assert whole(rig, writer) == []
    with pytest.raises(TransactionExpired):
        writer.resume(txn_id(3))


def test_one_that_somebody_else_ends_never_expires(rig: Rig) -> None:
    """Time-log fact 27: keepalive infinite."""
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a", keepalive_ms=None)
    txn.append("a", b"1")
    rig.oracle.pass_ms(1 << 40)
    tick(writer)
    txn.commit()
    tick(writer)
    assert whole(rig, writer) == [b"1"]


def test_the_lease_does_not_run_out_while_a_commit_holds_its_place(rig: Rig) -> None:
    """Time-log fact 21: once requested, only the commit itself decides."""
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a", keepalive_ms=10)
    txn.append("a", b"1")
    held = txn.hold()
    rig.oracle.pass_ms(1000)
    tick(writer)
    txn.commit_at(held, [], None)
    tick(writer)
    assert whole(rig, writer) == [b"1"]


# -- nobody waits for it -------------------------------------------------------------------------------------------


def test_while_one_is_open_ticks_go_on_and_last_confirmed_stays_behind(rig: Rig) -> None:
    """Promise 3, and LastConfirmedMessageID of seed 000: messages point back to where the open one begins, ticks do
    not, since whoever assembles by the commit need not go there."""
    writer = rig.writer(inline=True)
    writer.append("a", b"before")
    tick(writer)
    txn = writer.begin(TXN, "a", keepalive_ms=None)
    body = txn.append("a", b"inside")
    begin = body.position - 1
    ticks, marks = [], []
    for _ in range(20):
        marks.append(writer.append("a", b"plain").last_confirmed)
        tick(writer)
        ticks.append(writer.latest_tick)
    assert max(marks) == begin, "they read from where the transaction begins"
    assert [each.last_confirmed for each in ticks] == sorted(each.last_confirmed for each in ticks)
    assert ticks[-1].last_confirmed > body.position + 15, "and a tick goes on from behind it"
    assert len(whole(rig, writer)) == 21
    txn.commit()
    for _ in range(3):
        tick(writer)
        last = writer.append("a", b"plain").last_confirmed
    assert last > body.position


def test_one_that_is_open_for_a_whole_run_costs_the_same_as_at_its_start(rig: Rig) -> None:
    """Promise 3: what is kept does not grow with what is appended beside it, in the writer and in readers."""
    writer = rig.writer(inline=True, segment_bytes=1 << 20)
    txn = writer.begin(TXN, "a", keepalive_ms=None)
    txn.append("a", b"inside")
    reader, raw = rig.transactions(writer), rig.reader(writer)
    held, entries = [], []
    for step in range(600):
        writer.append_batch("a", [b"%d" % step] * 10)
        small = writer.begin(txn_id(step + 10), "b")
        small.append("b", b"small")
        small.commit()
        if step % 10 == 9:
            tick(writer)
            drain_whole(reader)
            drain(raw)
            held.append(reader.status.held_bytes)
            entries.append((len(writer._machine.last_confirmed), len(writer.sessions), len(writer._machine._to_tick)))
    assert len(set(held)) == 1
    assert max(each[0] for each in entries) < 150
    assert max(each[1:] for each in entries) <= (1, 0)
    assert sum(map(len, (writer.sessions._by_expiry, writer.sessions._by_position))) < 300
    txn.commit()
    tick(writer)
    assert [each.body for each in drain_whole(reader)][-1] == b"inside"


# -- exclusive appends ---------------------------------------------------------------------------------------------


def test_an_exclusive_append_fails_those_open_in_its_virtual_channel_and_no_others(rig: Rig) -> None:
    """Time-log facts 24 and 31; seed 000, force-fail."""
    writer = rig.writer(inline=True)
    txns = {name: writer.begin(txn_id(at), name) for at, name in enumerate("abc")}
    txns["b"].append("a", b"b wrote to a")
    for name, txn in txns.items():
        txn.append(name, name.encode())
    writer.append("a", b"ddl", kind=MessageType.DDL)
    for name in "ab":
        for call in (partial(txns[name].append, "c", b"late"), txns[name].commit, txns[name].rollback):
            with pytest.raises(TransactionAborted, match="DDL in 'a'"):
                call()
        with pytest.raises(TransactionAborted, match="DDL in 'a'"):
            writer.resume(txns[name].id)
    txns["c"].commit()
    tick(writer)
    assert whole(rig, writer) == [b"ddl", b"c"]
    assert kinds(rig, txn_id(0)) == ["BEGIN", "INSERT", "ROLLBACK"]


def test_an_exclusive_append_on_all_fails_every_open_transaction(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    txns = [writer.begin(txn_id(number), f"v{number}") for number in range(3)]
    writer.append(ALL_VCHANNELS, b"ddl", kind=MessageType.DDL)
    for txn in txns:
        with pytest.raises(TransactionAborted, match="every virtual channel"):
            txn.commit()
    tick(writer)
    assert writer.sessions.is_idle
    assert whole(rig, writer) == [b"ddl"]


def test_a_commit_that_holds_its_place_is_not_overtaken_by_an_exclusive_append(rig: Rig, calls: Calls) -> None:
    """Time-log fact 30: the exclusive append waits for it; it is neither failed by it nor split."""
    writer = rig.writer(start=True)
    txn = writer.begin(TXN, "a")
    txn.append("b", b"1")
    held = txn.hold(["c"])
    ddls = [writer.append_async(name, name.encode(), kind=MessageType.DDL) for name in "abc"]
    other = writer.append("z", b"other")
    time.sleep(0.02)
    assert not any(each.done() for each in ddls)
    waiting = calls(lambda: writer.begin(txn_id(2), "z").hold(["a"], timeout_s=10))
    time.sleep(0.02)
    assert not waiting.done(), "who comes later does not pass the one who waits to be alone"
    done = txn.commit_at(held, [], None)
    assert all(each.result(10).time_tick > done.time_tick for each in ddls)
    waiting.result(10).release()
    eventually(lambda: writer.status().channel.in_flight == 0)
    tick(writer)
    assert whole(rig, writer)[:2] == [b"1", b"other"]
    assert done.time_tick < other.time_tick


def test_an_exclusive_append_waits_for_no_open_transaction(rig: Rig) -> None:
    """Seed 000: it fails them instead; one that nobody ends would hold it up for as long as its lease."""
    writer = rig.writer(inline=True)
    writer.begin(TXN, "a", keepalive_ms=None).append("a", b"1")
    assert writer.append_async("a", b"ddl", kind=MessageType.DDL).done()


def test_a_message_that_comes_behind_an_exclusive_append_is_refused_or_never_counts(rig: Rig) -> None:
    """Sent before the exclusive append was written and queued behind it: it may be in the log, and is never visible."""
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a")
    rig.deferred = True
    ddl = writer.append_async("a", b"ddl", kind=MessageType.DDL)
    body = txn.append_async("a", b"late")
    rig.deferred = False
    commit_all(writer)
    assert ddl.result().position < body.result().position
    with pytest.raises(TransactionAborted):
        txn.commit()
    tick(writer)
    assert whole(rig, writer) == [b"ddl"]
    rig.crash()
    assert rig.writer().sessions.is_idle


# -- when the disk fails -------------------------------------------------------------------------------------------


def failing_once(rig: Rig, number: int, call: str) -> None:
    left = [number]
    rig.files.rule = lambda each, _: left.pop() if left and each == call else None


def test_a_message_that_failed_may_be_sent_again_when_its_sender_was_told(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a")
    failing_once(rig, FULL, "write")
    with pytest.raises(DiskFull):
        txn.append("a", b"1")
    txn.append("a", b"1")
    txn.commit()
    tick(writer)
    assert whole(rig, writer) == [b"1"]


def test_a_commit_never_goes_without_a_message_that_failed_unseen(rig: Rig) -> None:
    """Promise 2: all or nothing. It can only be rolled back, however often it is asked."""
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a")
    failing_once(rig, BROKEN, "write")
    txn.append_async("a", b"lost")
    txn.append_async("a", b"kept")
    for _ in range(2):
        with pytest.raises(StorageFailed):
            txn.commit()
    txn.rollback()
    tick(writer)
    assert whole(rig, writer) == []


def test_when_the_begin_fails_what_was_sent_behind_it_never_counts(rig: Rig) -> None:
    """Beginning does not wait: a message may be on its way when the BEGIN turns out not to be in the log."""
    writer = rig.writer(inline=True)
    rig.deferred = True
    txn = writer.begin(TXN, "a")
    begin = writer.next_commit()
    body = txn.append_async("a", b"1")
    other = writer.append_async("a", b"other")
    failing_once(rig, FULL, "write")
    writer.run(begin)
    rig.deferred = False
    commit_all(writer)
    assert other.result().messages == 1, "whoever was written with it is not harmed"
    assert body.done()
    for call in (txn.commit, lambda: txn.append("a", b"2")):
        with pytest.raises(TransactionAborted, match="BEGIN"):
            call()
    tick(writer)
    assert whole(rig, writer) == [b"other"]
    writer.begin(TXN, "a").commit()


def test_a_commit_that_failed_may_be_tried_again(rig: Rig) -> None:
    """Time-log fact 25 for one channel: known not to be in the log, so it is open as before."""
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a")
    txn.append("a", b"1")
    failing_once(rig, FULL, "write")
    with pytest.raises(DiskFull):
        txn.commit([Piece("a", b"2")])
    tick(writer)
    assert whole(rig, writer) == []
    txn.append("a", b"3")
    txn.commit([Piece("a", b"2")])
    tick(writer)
    assert whole(rig, writer) == [b"1", b"3", b"2"]


def test_a_commit_whose_outcome_is_not_known_holds_nobody_up(rig: Rig) -> None:
    """Time-log fact 25: not known counts as committed, for the writer. The next write cuts it off, or the next term
    finds it."""
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a")
    txn.append("a", b"1")
    with rig.files.failing(BROKEN, "sync", "create"), pytest.raises(OutcomeUnknown):
        txn.commit()
    assert txn.session.state is SessionState.COMMITTED
    writer.append("a", b"later")
    tick(writer)
    tick(writer)
    assert writer.status().channel.in_flight == 0
    assert whole(rig, writer) == [b"later"]
    assert writer.sessions.is_idle


def test_one_that_was_fenced_while_committing_is_decided_by_the_new_term(rig: Rig) -> None:
    old = rig.writer(inline=True)
    txn = old.begin(TXN, "a")
    txn.append("a", b"1")
    new = rig.writer(inline=True)
    with pytest.raises(Fenced):
        txn.commit()
    new.resume(TXN).commit()
    tick(new)
    assert whole(rig, new) == [b"1"]


# -- threads -------------------------------------------------------------------------------------------------------


def test_messages_of_many_threads_are_all_in_or_refused(rig: Rig) -> None:
    """A commit that begins while other threads send takes what was accepted before, and refuses the rest."""
    writer = rig.writer(start=True, segment_bytes=8 << 20)

    def send(txn: ChannelTxn, name: int, go: threading.Barrier, accepted: list[bytes]) -> None:
        go.wait()
        for at in range(200):
            body = b"%s.%d.%d" % (txn.id, name, at)
            try:
                txn.append_async("a", body)
            except InvalidTransactionState:
                return
            accepted.append(body)

    for round_ in range(20):
        txn, go = writer.begin(txn_id(round_), "a"), threading.Barrier(4)
        accepted: list[bytes] = []
        threads = [threading.Thread(target=send, args=(txn, each, go, accepted)) for each in range(3)]
        for each in threads:
            each.start()
        go.wait()
        time.sleep(0.001)
        done = txn.commit()
        for each in threads:
            each.join()
        tick(writer)
        found = [each.body for each in drain_whole(rig.transactions(after=done.time_tick - 1)) if each.txn == txn.id]
        assert sorted(found) == sorted(accepted)


def test_between_the_request_and_the_place_of_a_commit_nothing_more_is_taken(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of another thread there would have its TimeTick above the commit's. If the commit then fails, the
    transaction takes messages again."""
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a")
    txn.append("a", b"1")
    real = writer.reserve
    refused = []

    def send() -> None:
        with pytest.raises(InvalidTransactionState, match="being committed"):
            txn.append_async("a", b"2")
        refused.append(1)

    def reserve(*places: object, **options: object) -> Reservation:
        send()
        held = real(*places, **options)
        send()
        if len(refused) == 2:
            held.release()
            raise Backpressure("no room")
        return held

    monkeypatch.setattr(writer, "reserve", reserve)
    with pytest.raises(Backpressure):
        txn.commit()
    txn.append("a", b"3")
    done = txn.commit()
    assert len(refused) == 4
    tick(writer)
    assert whole(rig, writer) == [b"1", b"3"]
    assert all(each.time_tick < done.time_tick for each in rig.messages() if each.type is MessageType.INSERT)


# -- restarts ------------------------------------------------------------------------------------------------------


def test_begun_in_term_one_and_committed_in_term_three_it_comes_whole(rig: Rig) -> None:
    """Time-log fact 59: two crashes in between, the second before anything of the second term was committed."""
    writer = rig.writer(inline=True)
    txn = writer.begin(TXN, "a")
    txn.append("a", b"1")
    writer.append("a", b"plain")
    txn.append("b", [b"2", b"3"])
    rig.crash()
    writer = rig.writer(inline=True)
    writer.resume(TXN).append("a", b"4")
    rig.crash()
    writer = rig.writer(inline=True)
    txn = writer.resume(TXN)
    assert txn.session.count == 4
    assert txn.session.vchannels == {"a", "b"}
    txn.append("a", b"5")
    done = txn.commit()
    tick(writer)
    assert whole(rig, writer) == [b"plain", b"1", b"2", b"3", b"4", b"5"]
    assert {each.time_tick for each in drain_whole(rig.transactions()) if each.txn} == {done.time_tick}
    rig.crash()
    assert rig.writer().sessions.is_idle


def test_one_open_for_many_terms_and_segments_is_found_from_where_it_began(rig: Rig) -> None:
    """The place from which open transactions are looked for is carried on by headers, blocks and ticks."""
    writer = rig.writer(inline=True)
    for number in range(30):
        writer.append("a", b"%d" % number * 400)
    txn = writer.begin(TXN, "a", keepalive_ms=None)
    begin = txn.append("a", b"1").position - 1
    for term in range(5):
        for number in range(5):
            writer.append("a", b"%d" % number * 4000)
        tick(writer)
        writer.segments.roll()
        if term % 2:
            tick(writer)
        if term == 3:
            writer.close()
        else:
            rig.crash()
        writer = rig.writer(inline=True)
        assert writer.sessions.first_position == begin
        assert writer.resume(TXN).runs == [(begin + 1, 1)]
        assert writer.segments.open_from == begin
    rig.seal(writer)
    writer.resume(TXN).commit()
    tick(writer)
    assert whole(rig, writer)[-1] == b"1"


def test_a_force_failed_transaction_stays_failed_after_a_crash(rig: Rig) -> None:
    """Time-log fact 60: the log holds no ROLLBACK of it, and its exclusive append is what recovery sees."""
    writer = rig.writer(inline=True)
    txns = [writer.begin(txn_id(number), name, keepalive_ms=None) for number, name in enumerate("ab")]
    for txn in txns:
        txn.append("x", b"1")
    rig.deferred = True
    writer.append_async("a", b"ddl", kind=MessageType.DDL)
    commit = writer.next_commit()
    writer.run(commit)
    rig.crash()
    rig.deferred = False
    writer = rig.writer(inline=True)
    assert "ROLLBACK" not in kinds(rig, txn_id(0))
    assert [each.id for each in writer.sessions] == [txn_id(1)]
    with pytest.raises(TransactionExpired):
        writer.resume(txn_id(0))
    writer.resume(txn_id(1)).commit()
    tick(writer)
    assert whole(rig, writer) == [b"ddl", b"1"]


def test_a_late_body_and_commit_of_an_older_term_never_count(rig: Rig) -> None:
    """Time-log fact 58: Begin and a body, then a new term ticks, then the old writer's late body and commit land."""
    old = rig.writer(inline=True)
    txn = old.begin(TXN, "a")
    txn.append("a", b"1")
    rig.deferred = True
    late = txn.append_async("a", b"2")
    commit = old.next_commit()
    assert commit is not None
    new = rig.writer(inline=True)
    first_tick = new.latest_tick.time_tick
    assert late.first_tick < first_tick
    old.run(commit)
    rig.deferred = False
    with pytest.raises(Fenced):
        late.result()
    with pytest.raises(Fenced):
        txn.commit()
    new.append("a", b"new")
    tick(new)
    assert whole(rig, new) == [b"new"]
    assert new.resume(TXN).session.count == 1, "what the older term wrote in time is there"
    new.resume(TXN).rollback()
    tick(new)
    rig.crash()
    tick(rig.writer())
    assert whole(rig) == [b"new"]


@pytest.mark.parametrize("keepalive_ms", [100, None])
def test_what_expired_while_nobody_had_the_channel_open_is_ended_at_once(rig: Rig, keepalive_ms: int | None) -> None:
    writer = rig.writer(inline=True)
    writer.begin(TXN, "a", keepalive_ms=keepalive_ms).append("a", b"1")
    rig.crash()
    rig.oracle.pass_ms(1000)
    writer = rig.writer(start=True)
    if keepalive_ms is None:
        assert len(writer.sessions) == 1
        writer.resume(TXN).commit()
    else:
        assert writer.sessions.is_idle
        with pytest.raises(TransactionExpired):
            writer.resume(TXN)
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 5, "nothing is left that nobody writes"
    assert kinds(rig)[-1] == ("COMMIT" if keepalive_ms is None else "ROLLBACK")


def test_through_a_log_leases_run_by_the_clock(open_log: Callable[..., Log]) -> None:
    log = open_log()
    writer = log.channel("c")
    txn = writer.begin(TXN, "a", keepalive_ms=30)
    txn.append("a", b"1")
    eventually(lambda: writer.sessions.is_idle)
    with pytest.raises(TransactionExpired):
        txn.commit()


def test_too_many_at_once_are_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = rig.writer(inline=True)
    monkeypatch.setattr(writer.sessions, "_sessions_max", 2)
    txns = [writer.begin(txn_id(number), "a") for number in range(2)]
    with pytest.raises(Backpressure, match="sessions_max"):
        writer.begin(txn_id(7), "a")
    txns[0].rollback()
    tick(writer)
    tick(writer)
    writer.begin(txn_id(7), "a")
