"""The public API as a specification: the same calls, the same answers, in the owner's process and through its socket.

Promises 2 (atomic), 3 (an open transaction blocks nobody), 6; transactions.md, "Client", facts 47 to 57; issue 3.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest

import tidegate
from database_rig import Desk
from helpers import eventually
from tidegate import errors
from tidegate.database.transaction import Transaction
from tidegate.log.message import MessageType
from tidegate.txn.txn_id import TxnId


@pytest.fixture(params=["owner", "client"])
def open_desk(request, tmp_path):
    opened = []

    def open_(**options):
        desk = Desk(tmp_path / f"{len(opened)}.tide", request.param, **options)
        opened.append(desk)
        desk.db.sql("CREATE TOPIC t SHARDS 4")
        desk.db.sql("CREATE TOPIC one")
        return desk

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def desk(open_desk):
    return open_desk()


class TestTransactions:
    def test_leaving_its_block_commits_all_of_it_at_one_time_in_every_channel(self, desk):
        """Promise 2: visible everywhere at its commit Timestamp, and nowhere before."""
        with desk.db.transaction() as txn:
            for number in range(20):
                txn.send("t", number, key=number)
            assert txn.state == "OPEN" and txn.commit_timestamp is None
            assert not desk.all()
        found = desk.all()
        assert sorted(each.value for each in found) == list(range(20))
        assert {each.timestamp for each in found} == {txn.commit_timestamp}
        assert {each.txn for each in found} == {txn.id.to_bytes16()}
        assert len({each.channel for each in found}) == 4
        assert txn.state == "COMMITTED"

    def test_an_exception_aborts_it_and_goes_on_to_the_caller(self, desk):
        with pytest.raises(KeyError, match="mine"), desk.db.transaction() as txn:
            txn.send("t", 1)
            raise KeyError("mine")
        assert txn.state == "ABORTED" and txn.commit_timestamp is None
        assert not desk.all() and not desk.open_transactions()

    def test_the_empty_one_commits(self, desk):
        """transactions.md fact 47."""
        with desk.db.transaction() as txn:
            pass
        assert txn.state == "COMMITTED" and txn.commit_timestamp > tidegate.Timestamp.ZERO

    @pytest.mark.parametrize("end", ["commit", "abort"])
    def test_nothing_can_be_added_to_one_that_has_ended(self, desk, end):
        """transactions.md fact 48."""
        txn = desk.db.transaction()
        txn.send("t", 1)
        getattr(txn, end)()
        for call in (lambda: txn.send("t", 2), lambda: txn.read("t", [1]), lambda: txn.ack([])):
            with pytest.raises(errors.InvalidTransactionState, match=f"{txn.id} is {txn.state}") as refused:
                call()
            assert refused.value.state == txn.state
        assert desk.values() == ([1] if end == "commit" else [])

    def test_a_commit_can_be_repeated_and_says_the_same(self, desk):
        """Design: commit and abort are idempotent (unlike transactions.md fact 48; its section 8 says why)."""
        txn = desk.db.transaction()
        txn.send("t", 1)
        first = txn.commit()
        assert txn.commit() == first == txn.commit_timestamp
        assert asyncio.run(txn.commit_async()) == first
        assert desk.db.backend.commit(txn.id, {}, (), None) == first, "also at the owner"
        assert desk.values() == [1]

    def test_an_abort_can_be_repeated_and_neither_end_becomes_the_other(self, desk):
        """transactions.md 1.1: COMMITTED and ABORTED are final."""
        aborted, committed = desk.db.transaction(), desk.db.transaction()
        aborted.abort()
        aborted.abort()
        desk.db.abort(aborted.id)
        with pytest.raises(errors.InvalidTransactionState):
            aborted.commit()
        committed.commit()
        for abort in (committed.abort, lambda: desk.db.abort(str(committed.id))):
            with pytest.raises(errors.InvalidTransactionState, match=str(committed.id)):
                abort()

    def test_after_its_timeout_it_takes_nothing_more(self, desk):
        """transactions.md facts 49 and 57: also without a word from the owner."""
        late, ended = desk.db.transaction(timeout=0.1), desk.db.transaction(timeout=0.1)
        ended.commit()
        time.sleep(0.15)
        with pytest.raises(errors.TransactionExpired, match="timeout"):
            late.send("t", 1)
        assert late.state == "ABORTED"
        with pytest.raises(errors.InvalidTransactionState):
            late.send("t", 2)
        assert ended.state == "COMMITTED"

    def test_one_that_timed_out_at_the_owner_cannot_be_committed(self, desk):
        """transactions.md facts 11 and 50; nothing of it remains, and the list says why."""
        with pytest.raises(errors.TransactionExpired, match="50 ms") as refused, desk.db.transaction(0.05) as txn:
            txn.send("t", 1)
            eventually(lambda: str(txn.id) not in desk.open_transactions(), 5, "its end")
        assert refused.value.reason == "timeout"
        assert txn.state == "ABORTED" and not desk.all()
        (row,) = [each for each in desk.db.transactions() if each["id"] == str(txn.id)]
        assert (row["state"], row["reason"]) == ("aborted", "timeout")

    def test_one_that_was_ended_by_hand_cannot_be_committed(self, desk):
        """transactions.md fact 51; issue: `abort ID` ends one."""
        txn = desk.db.transaction()
        txn.send("t", 1)
        desk.another().abort(str(txn.id), "it hung")
        with pytest.raises(errors.TransactionAborted, match="it hung") as refused:
            txn.commit()
        assert refused.value.reason == "it hung"
        assert txn.state == "ABORTED" and not desk.all()

    @pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "60", True])
    def test_a_timeout_is_a_number_of_seconds(self, desk, timeout):
        with pytest.raises(errors.InvalidArgument, match="seconds above 0"):
            desk.db.transaction(timeout)
        assert not desk.open_transactions()

    def test_a_timeout_has_a_limit(self, open_desk):
        desk = open_desk(transaction_timeout_max_ms=5_000, transaction_timeout_ms=4_000)
        with pytest.raises(errors.LimitExceeded, match="5,000") as refused:
            desk.db.transaction(6)
        assert (refused.value.value, refused.value.limit) == (6_000, 5_000)
        desk.db.transaction(5).abort()

    def test_too_many_open_ones_are_backpressure(self, open_desk):
        desk = open_desk(transactions_max=2, coordinators=1)
        first = desk.db.transaction()
        desk.db.transaction()
        with pytest.raises(errors.Backpressure, match="2 transactions"):
            desk.db.transaction()
        first.abort()
        desk.db.transaction().commit()

    def test_ids_are_unique_rise_and_name_their_coordinator(self, desk):
        """transactions.md fact 55, with several coordinators: each counts for itself, in order of time."""
        ids = [desk.db.transaction().id for _ in range(12)]
        assert {each.coordinator for each in ids} == set(range(4))
        assert [each.counter for each in ids] == sorted({each.counter for each in ids})
        assert all(TxnId.parse(str(each)) == each for each in ids)

    def test_open_ones_are_listed_with_whose_they_are_and_how_long_they_have(self, desk):
        txn = desk.db.transaction(timeout=30)
        (row,) = [each for each in desk.db.transactions() if each["id"] == str(txn.id)]
        assert row["state"] == "open" and 0 <= row["age_ms"] < 30_000
        assert 0 < row["timeout_in_ms"] <= 30_000
        txn.abort()
        assert not desk.open_transactions()

    def test_an_open_one_blocks_nobody(self, open_desk):
        """Promise 3; unlike transactions.md facts 17 and 18, where everything behind it waits."""
        desk = open_desk(transaction_buffer_bytes=1_000)
        held = desk.db.transaction()
        for number in range(20):
            held.send("t", {"held": number, "fill": "x" * 100}, key=number)  # Most of it is in the log by now.
        plain = desk.db.send("t", "plain", key=1)
        with desk.db.transaction() as other:
            other.send("t", "other", key=1)
        assert desk.values() == ["plain", "other"], "visible although it stands behind an open transaction"
        held.commit()
        found = desk.all()
        assert plain.timestamp < other.commit_timestamp < held.commit_timestamp
        assert [each.timestamp for each in found[2:]] == [held.commit_timestamp] * 20

    def test_aborted_messages_never_come(self, open_desk):
        """transactions.md facts 19, 20 and 60."""
        desk = open_desk(transaction_buffer_bytes=500)
        one, two = desk.db.transaction(), desk.db.transaction()
        for number in range(100):
            (one if number % 2 else two).send("t", number, key=number % 7)
        assert not desk.all()
        one.abort()
        two.commit()
        assert sorted(desk.values()) == list(range(0, 100, 2))
        eventually(lambda: _state(desk, one) == "aborted", 5, "the record of its end")

    def test_threads_may_send_with_one_transaction(self, open_desk):
        """transactions.md fact 54: 30 threads; also ahead of the commit, and each thread's messages stay in order."""
        desk = open_desk(transaction_buffer_bytes=2_000)
        with desk.db.transaction() as txn:

            def work(number):
                for turn in range(10):
                    txn.send("t", [number, turn, "x" * 50], key=number)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(30)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        found = desk.all()
        assert len(found) == 300 and {each.timestamp for each in found} == {txn.commit_timestamp}
        for number in range(30):
            assert [each.value[1] for each in found if each.value[0] == number] == list(range(10))

    def test_its_commit_waits_for_what_other_threads_are_sending(self, open_desk, monkeypatch, calls):
        """transactions.md 4 and fact 53: nothing whose send was begun before is left out."""
        desk = open_desk(transaction_buffer_bytes=500)
        backend, inside, go_on = desk.db.backend, threading.Event(), threading.Event()
        write_ahead = backend.write_ahead

        def slowly(*arguments):
            inside.set()
            assert go_on.wait(10)
            write_ahead(*arguments)

        monkeypatch.setattr(backend, "write_ahead", slowly)
        txn = desk.db.transaction()
        txn.send("t", "small")
        sending = calls(lambda: txn.send("t", "x" * 1_000))
        assert inside.wait(10)
        committing = calls(txn.commit)
        time.sleep(0.05)
        assert not committing.done() and txn.state == "COMMITTING"
        with pytest.raises(errors.InvalidTransactionState):
            txn.send("t", "too late")
        go_on.set()
        sending.result(10)
        committing.result(10)
        assert sorted(desk.values()) == ["small", "x" * 1_000]

    def test_when_a_part_failed_the_whole_is_aborted(self, open_desk):
        """transactions.md fact 52: it is never committed without messages whose sender was told that all is well."""
        desk = open_desk(transaction_buffer_bytes=500)
        txn = desk.db.transaction()
        txn.send("t", "before")
        desk.db.abort(str(txn.id), "gone")
        with pytest.raises(errors.TransactionAborted, match="gone"):
            txn.send("t", "x" * 1_000)
        with pytest.raises(errors.TransactionAborted, match=r"a part of it had failed.*gone"):
            txn.commit()
        assert txn.state == "ABORTED" and not desk.all()

    def test_a_commit_that_finds_its_topic_dropped_leaves_nothing(self, desk):
        desk.db.sql("CREATE TOPIC gone")
        with pytest.raises(errors.NotFound, match="gone"), desk.db.transaction() as txn:
            txn.send("t", "kept from the log")
            txn.send("gone", 1)
            desk.owner.sql("DROP TOPIC gone")
        assert txn.state == "ABORTED"
        assert not desk.all() and not desk.open_transactions()

    def test_an_exclusive_append_in_one_of_its_places_ends_it(self, open_desk):
        """Seed 000: force-fail. What it had written there straddles the exclusive message."""
        desk = open_desk(transaction_buffer_bytes=100)
        topic = desk.db.topic("one")
        txn = desk.db.transaction()
        txn.send("one", "x" * 200)
        txn.send("t", "elsewhere")
        channel = desk.engine.log.channel(desk.engine.channel_of(topic.id, 0))
        channel.append(topic.vchannel(0), b"", kind=MessageType.DDL)
        with pytest.raises(errors.TransactionAborted):
            txn.commit()
        assert txn.state == "ABORTED"
        assert not desk.all("t") and not desk.open_transactions()

    def test_dropping_a_topic_ends_what_has_written_there_ahead_of_its_commit(self, open_desk):
        """Seed 000: a change of the catalog is in the timeline, and whatever straddles it is failed and told why."""
        desk = open_desk(transaction_buffer_bytes=100)
        desk.db.sql("CREATE TOPIC gone")
        txn = desk.db.transaction()
        txn.send("gone", "x" * 200)
        txn.send("t", "elsewhere")
        desk.owner.sql("DROP TOPIC gone")
        with pytest.raises(errors.TransactionAborted, match=r"DDL in 'topic/.*gone"):
            txn.commit()
        assert not desk.all("t") and not desk.open_transactions()

    def test_time_goes_on_from_one_commit_to_the_next(self, desk):
        stamps = []
        for number in range(10):
            stamps.append(desk.db.send("t", number, key=number).timestamp)
            with desk.db.transaction() as txn:
                txn.send("t", number, key=number)
                txn.send("one", number)
            stamps.append(txn.commit_timestamp)
        assert stamps == sorted(set(stamps)) and desk.db.last_seen == stamps[-1]


def _state(desk, txn):
    (row,) = [each for each in desk.db.transactions() if each["id"] == str(txn.id)]
    return row["state"]


class TestSending:
    @pytest.mark.parametrize(
        "value",
        [None, True, 0, -1.5, "text: ü", "", b"", b"\x00raw", [1, [2]], {"a": {"b": [None, "c"]}}, {}],
    )
    def test_what_is_sent_comes_out_the_same(self, desk, value):
        desk.db.send("t", value, key="k", headers={"who": "me"})
        with desk.db.transaction() as txn:
            txn.send("t", value)
        sent, with_txn = desk.all()
        assert sent.value == with_txn.value == value and type(sent.value) is type(value)
        assert (sent.key, sent.headers) == ("k", {"who": "me"})
        assert (with_txn.key, with_txn.headers) == (None, {})

    def test_arrow_rows_stay_columns_and_every_row_is_a_message(self, desk):
        table = pa.table({"k": [1, 2, 3, 4, 5, 6, 7, 8], "v": list("abcdefgh")})
        assert desk.db.send("t", table, key="k").messages == 8
        with desk.db.transaction() as txn:
            txn.send("t", table.to_batches()[0], key="k")
            txn.send("one", table)
        rows = table.to_pylist()
        found = desk.all()
        assert sorted((each.value for each in found), key=lambda row: row["k"]) == sorted(
            rows * 2, key=lambda r: r["k"]
        )
        assert len({each.timestamp for each in found}) == 2, "a send over several shards is visible all at once"
        assert desk.values("one") == rows
        desk.db.send("t", "by hand", key=5)
        shard = {each.shard for each in desk.all() if each.value == "by hand"}
        assert shard == {each.shard for each in found if each.value["k"] == 5}, "a key is a key, in a column or not"

    def test_messages_with_one_key_stay_in_order_and_keys_spread(self, desk):
        for number in range(60):
            if number % 3:
                desk.db.send("t", number, key=number % 12)
            else:
                with desk.db.transaction() as txn:
                    txn.send("t", number, key=number % 12)
        found = desk.all()
        for key in range(12):
            mine = [each for each in found if each.key == key]
            assert [each.value for each in mine] == list(range(key, 60, 12))
            assert len({each.shard for each in mine}) == 1
        assert len({each.shard for each in found}) == 4

    def test_messages_without_a_key_go_round_the_shards(self, desk):
        for number in range(8):
            desk.db.send("t", number)
        assert Counter(each.shard for each in desk.all()) == dict.fromkeys(range(4), 2)

    def test_a_text_a_number_and_bytes_are_three_keys(self, desk):
        for key in ("1", 1, b"1"):
            desk.db.send("t", None, key=key)
        assert sorted((each.key for each in desk.all()), key=repr) == sorted(["1", 1, b"1"], key=repr)

    @pytest.mark.parametrize(
        ("value", "options", "error", "says"),
        [
            ({1: 2}, {}, errors.InvalidArgument, "keys inside a value are strings"),
            ((1, 2), {}, errors.InvalidArgument, "send a list"),
            ({"a": {"b": float("nan")}}, {}, errors.InvalidArgument, r"value\.a\.b is nan"),
            ({"a": object()}, {}, errors.InvalidArgument, r"value\.a is an object"),
            (1, {"key": 1.5}, errors.InvalidArgument, "a key is a str, bytes or an int"),
            (1, {"key": 1 << 70}, errors.InvalidArgument, "64 bits"),
            (1, {"key": "x" * 70_000}, errors.InvalidArgument, "send a hash of it"),
            (1, {"headers": {"a": 1}}, errors.InvalidArgument, "headers are strings"),
            ("x" * 3_000, {}, errors.LimitExceeded, "message_bytes_max"),
            (pa.table({"a": [1]}), {"key": "b"}, errors.NotFound, "no column 'b'.*there are: a"),
            (pa.table({"a": [1.5]}), {"key": "a"}, errors.InvalidArgument, "a key column holds"),
            (pa.table({"a": list(range(200))}), {}, errors.LimitExceeded, "batch_rows_max"),
            (
                pa.concat_tables([pa.table({"a": [1]}), pa.table({"a": pa.array([None], pa.int64())})]),
                {"key": "a"},
                errors.InvalidArgument,
                "never null",
            ),
        ],
    )  # fmt: skip
    def test_what_cannot_be_sent_is_refused_at_once_and_nothing_of_it_is(self, open_desk, value, options, error, says):
        """The error names the thing and what to do; the transaction goes on without it."""
        desk = open_desk(log=tidegate.LogSettings(tick_interval_ms=5, message_bytes_max=2_000, batch_rows_max=100))
        for topic in ("t", "one"):
            with pytest.raises(error, match=says):
                desk.db.send(topic, value, **options)
            with desk.db.transaction() as txn:
                txn.send(topic, "before")
                with pytest.raises(error, match=says):
                    txn.send(topic, value, **options)
                txn.send(topic, "after")
            assert sorted(desk.values(topic)) == ["after", "before"]
        assert not desk.open_transactions()

    def test_an_unknown_topic_is_named_with_those_that_come_near(self, desk):
        for call in (lambda: desk.db.send("onn", 1), lambda: desk.db.transaction().send("onn", 1)):
            with pytest.raises(errors.NotFound, match=r"no topic 'onn'.*'one'"):
                call()

    def test_there_must_be_something_to_send(self, desk):
        with pytest.raises(errors.InvalidArgument, match="no rows"):
            desk.db.send("t", pa.table({"a": pa.array([], pa.int64())}))

    def test_a_topic_that_was_made_anew_is_another_one(self, desk):
        """A client that knew the old one looks it up once more."""
        desk.db.send("one", "old")
        desk.owner.sql("DROP TOPIC one")
        with pytest.raises(errors.NotFound, match="one"):
            desk.db.send("one", "nowhere")
        desk.owner.sql("CREATE TOPIC one SHARDS 2")
        desk.db.send("one", "new")
        assert desk.values("one") == ["new"]

    def test_a_send_that_fails_leaves_no_transaction_open(self, open_desk, monkeypatch):
        desk = open_desk()
        rows = pa.table({"k": list(range(20))})
        monkeypatch.setattr(desk.engine.transactions, "_hold_timeout_s", 0.05)
        topic = desk.db.topic("t")
        shard = 1
        channel = desk.engine.log.channel(desk.engine.channel_of(topic.id, shard))
        with channel.reserve(topic.vchannel(shard)):
            waiting = channel.append_async(topic.vchannel(shard), b"", kind=MessageType.DDL)
            with pytest.raises(errors.Backpressure, match="exclusive"):
                desk.db.send("t", rows, key="k")
        waiting.result(5)
        assert not desk.open_transactions()
        assert not desk.all()


class Counters:
    """Counters kept as the newest message of each key. Reads as of any Timestamp."""

    def __init__(self, desk):
        self._desk = desk
        self._lock = threading.Lock()
        self._readers = {}
        self._history = {}

    def value(self, key, at):
        """The newest value of `key` at or below `at`."""
        self._desk.engine.wait_until_visible(at)
        with self._lock:
            log = tidegate.read_log(self._desk.path)
            for name in self._desk.engine.channels:
                reader = self._readers.get(name) or self._readers.setdefault(name, log.transaction_reader(name))
                while reader.after < at and (delivery := reader.read(5)) is not None:
                    for each in delivery.messages():
                        body = tidegate.topics.value.decode(each.body)
                        self._history.setdefault(body.key, []).append((each.time_tick, body.value))
            return next((value for stamp, value in reversed(self._history.get(key, [])) if stamp <= at), 0)

    def close(self):
        for each in self._readers.values():
            each.close()


class TestConflicts:
    def test_a_read_key_that_somebody_wrote_since_is_a_conflict_and_nothing_remains(self, desk):
        """Issue 3: optimistic checks for read-modify-write."""
        for write in (lambda: desk.db.send("t", "other", key="k"), lambda: _write(desk.db, "k")):
            before = len(desk.all())
            txn = desk.db.transaction()
            read_at = txn.read("t", ["k", "l"])
            assert txn.read("t", ["m"]) == read_at
            write()
            txn.send("t", "mine", key="k")
            with pytest.raises(errors.Conflict):
                txn.commit()
            assert txn.state == "ABORTED" and len(desk.all()) == before + 1
            assert "mine" not in desk.values()

    def test_other_keys_other_topics_blind_writes_and_older_writes_are_none(self, desk):
        _write(desk.db, "k")
        reader, blind = desk.db.transaction(), desk.db.transaction()
        reader.read("t", ["k"])
        blind.send("t", "blind", key="k2")
        _write(desk.db, "k2")
        _write(desk.db, "k", topic="one")
        desk.db.send("t", "without a key")
        reader.send("t", "mine", key="k")
        reader.commit()
        blind.commit()
        assert {"mine", "blind"} < {each for each in desk.values() if isinstance(each, str)}

    def test_one_that_read_and_was_aborted_disturbs_nobody(self, desk):
        one, two = desk.db.transaction(), desk.db.transaction()
        for each in (one, two):
            each.read("t", ["k"])
            each.send("t", 1, key="k")
        one.abort()
        two.commit()

    def test_threads_that_increment_counters_lose_no_update(self, desk):
        """Issue 3: the retry helper, with back-off. 6 threads, 3 counters, each step reads, adds one and writes."""
        counters, done, attempts = Counters(desk), Counter(), Counter()

        def work(number):
            rng = random.Random(number)
            for _ in range(12):
                keys = rng.sample("abc", rng.randrange(1, 3))

                def step(txn, keys=keys):
                    attempts[number] += 1
                    at = txn.read("t", keys)
                    for key in keys:
                        txn.send("t", counters.value(key, at) + 1, key=key)

                desk.db.run(step, attempts=200)
                for key in keys:
                    done[number, key] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        counters.close()
        found = desk.all()
        for key in "abc":
            wanted = sum(count for (_, each), count in done.items() if each == key)
            assert [each.value for each in found if each.key == key] == list(range(1, wanted + 1))
        assert sum(attempts.values()) >= 6 * 12

    def test_the_retry_helper_gives_up_and_passes_on_what_is_not_a_conflict(self, desk):
        tries = []

        def meets_another(txn):
            tries.append(txn)
            txn.read("t", ["k"])
            _write(desk.db, "k")
            txn.send("t", "never", key="k")

        with pytest.raises(errors.Conflict):
            desk.db.run(meets_another, attempts=3)
        assert len(tries) == 3 and {each.state for each in tries} == {"ABORTED"}
        with pytest.raises(ZeroDivisionError):
            desk.db.run(lambda txn: tries.append(txn) or 1 / 0)
        assert len(tries) == 4 and tries[-1].state == "ABORTED"
        assert desk.db.run(lambda txn: txn.send("t", "done") or "answer") == "answer"
        assert desk.values().count("done") == 1 and "never" not in desk.values()
        with pytest.raises(errors.InvalidArgument, match="attempts"):
            desk.db.run(lambda txn: None, attempts=0)


def _write(db, key, topic="t"):
    with db.transaction() as txn:
        txn.send(topic, "other", key=key)


class TestLargeTransactions:
    def test_what_is_too_much_to_keep_is_written_ahead_and_is_visible_all_at_once(self, open_desk):
        """Promise 2 over 4 channels and 200 times the buffer: no cut shows a part, and memory stays bounded."""
        desk = open_desk(transaction_buffer_bytes=20_000, redo_bytes=10_000)
        stop, cuts = threading.Event(), []
        watcher = threading.Thread(target=_watch, args=(desk, stop, cuts))
        watcher.start()
        kept = 0
        with desk.db.transaction() as txn:
            for number in range(4_000):
                txn.send("t", {"number": number, "fill": "x" * 1_000}, key=number)
                kept = max(kept, txn._outgoing.nbytes)
            assert kept <= desk.db.limits.buffer_bytes, "it keeps no more than its buffer"
            with desk.db.transaction() as other:
                other.send("t", {"number": -1})
        desk.engine.wait_until_visible(desk.engine.log.allocate(1))
        eventually(lambda: cuts and cuts[-1] == 4_001, 10, "the last cut")
        stop.set()
        watcher.join()
        assert set(cuts) <= {0, 1, 4_001}, "at every cut all of it or nothing"
        found = desk.all()
        assert sorted(each.value["number"] for each in found) == list(range(-1, 4_000))
        assert {each.timestamp for each in found} == {txn.commit_timestamp, other.commit_timestamp}

    def test_an_abort_takes_back_what_was_written_ahead(self, open_desk):
        desk = open_desk(transaction_buffer_bytes=5_000)
        with pytest.raises(RuntimeError), desk.db.transaction() as txn:
            for number in range(100):
                txn.send("t", "x" * 1_000, key=number)
            raise RuntimeError
        desk.db.send("t", "later")
        assert desk.values() == ["later"] and not desk.open_transactions()

    def test_messages_above_any_small_limit_of_the_transport_pass(self, desk):
        value = random.Random(1).randbytes(9 << 20)
        desk.db.send("t", value)
        with desk.db.transaction() as txn:
            txn.send("t", value)
            txn.send("t", value[:100])
        assert [len(each) for each in desk.values()] == [9 << 20, 9 << 20, 100]


def _watch(desk, stop, cuts):
    """How many messages there are at each cut: at or below the smallest tick of all channels."""
    log = tidegate.read_log(desk.path)
    readers = {name: log.transaction_reader(name) for name in desk.engine.channels}
    ticks, waiting, total = dict.fromkeys(readers, 0), [], 0
    while not stop.is_set():
        for name, reader in readers.items():
            delivery = reader.poll()
            if delivery is not None:
                waiting.extend(each.time_tick for each in delivery.messages())
                ticks[name] = delivery.tick.time_tick
        cut = min(ticks.values())
        total += sum(1 for each in waiting if each <= cut)
        waiting = [each for each in waiting if each > cut]
        cuts.append(total)
        time.sleep(0.001)
    for reader in readers.values():
        reader.close()


class TestAsync:
    """`send_async`, `commit_async`, `receive_async`: an event loop goes on meanwhile."""

    def test_they_do_what_the_others_do(self, open_desk):
        desk = open_desk(transaction_buffer_bytes=2_000)

        async def work():
            sent = await desk.db.send_async("t", "sent", key="k")
            async with desk.db.transaction() as txn:
                txn.send("t", "one channel", key="k")
            async with desk.db.transaction() as many:
                for number in range(20):
                    many.send("t", number, key=number)
            async with desk.db.transaction() as large:
                for number in range(20, 40):
                    await large.send_async("t", [number, "x" * 1_000], key=number)
            with pytest.raises(KeyError):
                async with desk.db.transaction() as aborted:
                    aborted.send("t", "never")
                    raise KeyError
            assert aborted.state == "ABORTED"
            assert sent.timestamp < txn.commit_timestamp < many.commit_timestamp < large.commit_timestamp
            consumer = desk.db.subscribe("one", "s")
            await desk.db.send_async("one", "received")
            message = await consumer.receive_async(5)
            assert message.value == "received"
            assert await consumer.receive_async(0.01) is None
            async with desk.db.transaction() as acked:
                await asyncio.to_thread(acked.ack, message)

        asyncio.run(work())
        values = desk.values()
        assert "never" not in values and len(values) == 42

    def test_errors_are_the_same(self, desk):
        async def work():
            with pytest.raises(errors.NotFound):
                await desk.db.send_async("nowhere", 1)
            txn = desk.db.transaction()
            txn.read("t", ["k"])
            _write(desk.db, "k")
            txn.send("t", "never", key="k")
            with pytest.raises(errors.Conflict):
                await txn.commit_async()
            assert txn.state == "ABORTED"
            with pytest.raises(errors.InvalidTransactionState):
                await txn.commit_async()

        asyncio.run(work())

    @pytest.mark.parametrize("what", ["send", "one channel", "many channels", "ahead", "receive"])
    def test_the_loop_goes_on_while_they_wait(self, open_desk, what):
        """Somebody holds a place that each of them needs; the loop's other tasks must not notice."""
        desk = open_desk(transaction_buffer_bytes=1_000)
        topic = desk.db.topic("one")
        channel = desk.engine.log.channel(desk.engine.channel_of(topic.id, 0))
        beats = []

        async def beat():
            while True:
                beats.append(time.monotonic())
                await asyncio.sleep(0.005)

        async def wait():
            if what == "receive":
                assert await desk.db.subscribe("one", "s").receive_async(0.8) is None
                return None
            if what == "send":
                return (await desk.db.send_async("one", "waited")).timestamp
            txn = desk.db.transaction()
            await txn.send_async("one", "waited" if what != "ahead" else ["waited", "x" * 2_000])
            if what != "one channel":
                await txn.send_async("t", 1)
            return await txn.commit_async()

        async def work():
            beating = asyncio.create_task(beat())
            held = channel.reserve(topic.vchannel(0))
            waiting = channel.append_async(topic.vchannel(0), b"", kind=MessageType.DDL)
            try:
                doing = asyncio.create_task(wait())
                await asyncio.sleep(0.8)
                assert what == "receive" or not doing.done()
            finally:
                held.release()
            if what == "ahead":  # A part of it stood before the exclusive message, so that ends it.
                with pytest.raises(errors.TransactionAborted, match="DDL"):
                    await asyncio.wait_for(doing, 10)
            else:
                await asyncio.wait_for(doing, 10)
            await asyncio.wrap_future(_future(waiting))
            beating.cancel()

        asyncio.run(work())
        gaps = [after - before for before, after in pairwise(beats)]
        assert max(gaps) < 0.5, f"the loop stood still for {max(gaps):.3f} s"
        assert desk.values("one") == ([] if what in ("receive", "ahead") else ["waited"])

    def test_a_commit_that_is_cancelled_is_carried_out_and_its_outcome_can_be_asked_for(self, open_desk):
        """Cancelling waits no longer; it does not tear a commit that is under way, nor do it twice."""
        desk = open_desk()
        topic = desk.db.topic("one")
        channel = desk.engine.log.channel(desk.engine.channel_of(topic.id, 0))
        for extra in ((), ("t",)):
            before = len(desk.all("one"))

            async def work(extra=extra):
                txn = desk.db.transaction()
                for each in ("one", *extra):
                    txn.send(each, "once")
                held = channel.reserve(topic.vchannel(0))
                waiting = channel.append_async(topic.vchannel(0), b"", kind=MessageType.DDL)
                try:
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(txn.commit_async(), 0.1)
                finally:
                    held.release()
                await asyncio.wrap_future(_future(waiting))
                return txn

            txn = asyncio.run(work())
            assert txn.commit() == txn.commit_timestamp
            now = [each for each in desk.all("one") if each.value == "once"]
            assert now[-1].timestamp == txn.commit_timestamp
            assert len(desk.all("one")) - before == 1, "once"
            assert not desk.open_transactions()

    def test_many_at_once(self, desk):
        async def work():
            async def one(number):
                async with desk.db.transaction() as txn:
                    txn.send("t", number, key=number)
                    if number % 2:
                        txn.send("one", number)
                return txn.commit_timestamp

            return await asyncio.gather(*[one(number) for number in range(100)])

        stamps = asyncio.run(work())
        assert len(set(stamps)) == 100
        assert {each.value: each.timestamp for each in desk.all()} == dict(enumerate(stamps))
        assert {each.value: each.timestamp for each in desk.all("one")} == {n: stamps[n] for n in range(1, 100, 2)}


def _future(item):
    """A future of an append, for asyncio."""
    from concurrent.futures import Future

    found = Future()
    item.add_done_callback(lambda _: found.set_result(None))
    return found


class TestTheWhole:
    def test_many_threads_use_one_database(self, desk):
        """Each thread's acknowledged messages are there once and in order; nobody is held up for good."""
        stamps = {}

        def work(number):
            rng = random.Random(number)
            for turn in range(25):
                name = f"{number}.{turn}"
                if rng.random() < 0.3:
                    stamps[name] = (desk.db.send("t", name, key=number).timestamp, 1)
                    continue
                txn = desk.db.transaction()
                count = rng.randrange(1, 5)
                for part in range(count):
                    txn.send("t", name, key=part or number)
                if rng.random() < 0.3:
                    txn.abort()
                    continue
                stamps[name] = (txn.commit(), count)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        found = desk.all()
        assert Counter(each.value for each in found) == {name: count for name, (_, count) in stamps.items()}
        assert all(each.timestamp == stamps[each.value][0] for each in found)
        for number in range(8):
            turns = [int(each.value.split(".")[1]) for each in found if each.value.startswith(f"{number}.")]
            assert turns == sorted(turns)

    def test_what_was_acknowledged_is_there_after_reopening_and_what_was_open_is_not(self, open_desk):
        """Promise 6; ids and timestamps go on upwards."""
        desk = open_desk(transaction_buffer_bytes=1_000)
        sent = desk.db.send("t", "sent")
        with desk.db.transaction() as txn:
            txn.send("t", "a", key=1)
            txn.send("t", "b", key=2)
        left, ahead = desk.db.transaction(), desk.db.transaction()
        left.send("t", "left open")
        ahead.send("t", "x" * 2_000)
        desk.close()
        desk.open()
        assert sorted(desk.values()) == ["a", "b", "sent"]
        again = desk.db.send("t", "again")
        assert again.timestamp > txn.commit_timestamp > sent.timestamp
        assert desk.db.transaction().id.counter > left.id.counter
        assert desk.db.backend.find_commit(txn.id) == txn.commit_timestamp
        assert desk.db.backend.find_commit(left.id) is None

    def test_a_closed_database_says_so(self, desk):
        txn, consumer = desk.db.transaction(), desk.db.subscribe("one", "s")
        desk.db.close()
        desk.db.close()
        consumer.close()
        calls = [
            lambda: desk.db.send("t", 1),
            lambda: desk.db.sql("SHOW TOPICS"),
            lambda: desk.db.transaction(),
            lambda: desk.db.status(),
            lambda: desk.db.is_owner,
            txn.commit,
            lambda: consumer.receive(0.1),
            lambda: asyncio.run(desk.db.send_async("t", 1)),
        ]
        for call in calls:
            with pytest.raises(errors.Closed, match="closed"):
                call()

    def test_the_number_of_channels_and_coordinators_is_fixed_when_it_is_created(self, open_desk):
        """Later openings keep what they find, whatever their settings say: keys stay where they are."""
        desk = open_desk(channels=3, coordinators=2)
        for number in range(20):
            desk.db.send("t", number, key=number % 5)
        places = {each.key: each.channel for each in desk.all()}
        desk.close()
        desk.options = {"channels": 7, "coordinators": 5}
        desk.open()
        assert desk.db.channels == 3
        for number in range(20, 40):
            desk.db.send("t", number, key=number % 5)
        found = desk.all()
        assert [each.value for each in found] == list(range(40))
        assert all(places[each.key] == each.channel for each in found)
        assert {desk.db.transaction().id.coordinator for _ in range(10)} == {0, 1}

    @pytest.mark.parametrize("name", ["channels", "coordinators", "lease_ms", "redo_bytes", "connect_ms"])
    @pytest.mark.parametrize("value", [0, -1, 1.5, "4", True, None])
    def test_settings_are_checked_when_they_are_made(self, name, value):
        with pytest.raises(errors.InvalidArgument, match=f"`{name}`"):
            tidegate.DatabaseSettings(**{name: value})

    @pytest.mark.parametrize("statement", ["", "SELEC 1", "CREATE TOPIC", "CREATE TOPIC t SHARDS 0", "DROP TOPIC nix"])
    def test_a_wrong_statement_changes_nothing(self, desk, statement):
        before = desk.db.sql("SHOW TOPICS")
        with pytest.raises(errors.InvalidArgument):
            desk.db.sql(statement)
        assert desk.db.sql("SHOW TOPICS") == before

    def test_statements_of_topics(self, desk):
        with pytest.raises(errors.InvalidArgument, match="exists"):
            desk.db.sql("CREATE TOPIC one")
        desk.db.sql("CREATE TOPIC IF NOT EXISTS one")
        assert [each["name"] for each in desk.db.sql("SHOW TOPICS")] == ["one", "t"]
        (found,) = desk.db.sql("DESCRIBE TOPIC t")
        assert found["shards"] == 4 and len(set(found["channels"])) == 4
        txn = desk.db.transaction()
        assert str(txn.id) in [each["id"] for each in desk.db.sql("SHOW TRANSACTIONS")]

    def test_a_transaction_knows_no_other_attributes(self, desk):
        """Many of them live at once: they have slots."""
        assert not hasattr(desk.db.transaction(), "__dict__") and isinstance(desk.db.transaction(), Transaction)
