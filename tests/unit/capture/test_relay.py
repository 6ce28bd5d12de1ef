"""What a capture has in hand when it fails, stands still or is taken over: nothing lost, nothing twice (promise 7)."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
from capture_rig import captured, rows

from helpers import eventually
from tidegate.capture import capturing, relay
from tidegate.capture.places import Place
from tidegate.capture.source import Rows, Truncated
from tidegate.database.transaction import Transaction
from tidegate.errors import Conflict, InUse, OutcomeUnknown, Unavailable


def test_what_fails_in_the_midst_of_a_transaction_is_whole_the_next_time(db, history):
    with captured(db) as capture:
        fails = iter([True])

        def changes():
            yield Rows("orders", [(1, "half", 0.0)])
            if next(fails, False):
                raise Unavailable("the source went away")
            yield Rows("items", [(1, 1)])

        class Twice:
            def __iter__(self):
                return changes()

        history.transactions.append((1, Twice(), {}))
        capture.catch_up()
        assert rows(db) == [(1, "half", 0.0)] and rows(db, "items", "n") == [(1, 1)]
        assert capture.state == "following" and capture.error is None


def test_of_two_captures_with_one_name_the_one_that_began_last_goes_on(db, history):
    """Both would write each transaction."""
    with captured(db) as first:
        history.insert((0, "a", 0.0))
        first.catch_up()
        with captured(db) as second:
            for number in range(1, 20):
                history.insert((number, "a", 0.0))
                second.catch_up()
            with pytest.raises(InUse, match="another capture named 'shop' has begun"):
                first.catch_up()
            assert (first.state, second.state) == ("failed", "following")
    taken = db.query("SELECT count(*) AS n, count(DISTINCT position) AS p FROM capture_transactions", "strong").rows()
    assert taken == [{"n": 20, "p": 20}]


@pytest.fixture
def commits(monkeypatch):
    """Commits that captures make, by their thread: a test says what happens before each, by its number."""
    found = Commits()
    original = Transaction.commit
    monkeypatch.setattr(relay, "WAITS_S", -1.0)  # The first of all is timed, and all others go to the thread.
    monkeypatch.setattr(relay, "ASKED_EVERY", 1_000_000)

    def commit(txn):
        name = threading.current_thread().name
        if name != relay.COMMITS and not (found.at_once and name.startswith("tidegate capture")):
            return original(txn)
        return found.meet(lambda: original(txn))

    monkeypatch.setattr(Transaction, "commit", commit)
    return found


class Commits:
    def __init__(self):
        self.at_once = False
        """Those without a thread of their own count, too."""
        self.begun = 0
        self.before = {}
        self.after = {}

    def meet(self, commit):
        self.begun += 1
        mine = self.begun
        self.before.get(mine, lambda: None)()
        done = commit()
        self.after.get(mine, lambda: None)()
        return done


@pytest.mark.parametrize(
    "pause", ["before it claims", "before it commits", "while it commits", "for longer than a claim is kept"]
)
def test_one_that_stood_still_while_another_went_on_repeats_nothing(db, history, commits, monkeypatch, pause):
    """A stale capture: whatever it had in hand when it stopped, and however long that was."""
    if pause == "for longer than a claim is kept":
        monkeypatch.setattr(relay, "FRESH_S", 0.0)
    stands, goes_on = threading.Event(), threading.Event()
    held = "commit" if pause == "before it commits" else "_claimed"
    original = getattr(relay.Relay, held)

    def stand():
        stands.set()
        goes_on.wait(60)

    def standing(self, *arguments):
        if self.holder == mine and self.logged.position == "1":
            stand()
        return original(self, *arguments)

    with captured(db) as first:
        mine = first._taker.relay.holder
        if pause == "while it commits":
            commits.before[2] = stand  # Another one is ahead of it.
        else:
            monkeypatch.setattr(relay.Relay, held, standing)
        history.insert((1, "a", 0.0))
        first.catch_up()
        history.commit(Rows("orders", [(1, "b", 0.0)]))
        assert stands.wait(60)
        with captured(db) as second:
            history.commit(Rows("orders", [(1, "c", 0.0)]))
            second.catch_up()
            goes_on.set()
            with pytest.raises(InUse):
                first.catch_up()
            history.insert((2, "d", 0.0))
            second.catch_up()
    assert rows(db) == [(1, "c", 0.0), (2, "d", 0.0)]


def test_one_that_was_overtaken_does_not_come_back(db, history):
    """Its source fails, and is tried again: it was the other one that began last."""
    with captured(db) as first:
        history.insert((1, "a", 0.0))
        first.catch_up()
        fails = iter([True])

        def fail():
            if next(fails, False):
                raise Unavailable("the source went away")

        history.before[2] = lambda: threading.current_thread() is first._thread and fail()
        with captured(db) as second:
            history.insert((2, "b", 0.0))
            second.catch_up()
            with pytest.raises(InUse, match="another capture named 'shop' has begun"):
                first.catch_up()
            history.insert((3, "c", 0.0))
            second.catch_up()
            assert (first.state, second.state) == ("failed", "following")


def test_one_that_is_overtaken_while_it_commits_and_reads_on_does_not_come_back(db, history, commits):
    """What it has read meanwhile asks it to begin again: it must hear of the other one first."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand():
        stands.set()
        goes_on.wait(60)

    with captured(db) as first:
        commits.before[1] = stand
        history.insert((1, "a", 0.0))
        many = [Rows("orders", [(number, "b", 0.0)]) for number in range(2, 102)]
        history.commit(*many, Truncated("items"))
        assert stands.wait(60)
        with captured(db) as second:
            second.catch_up()
            goes_on.set()
            with pytest.raises(InUse):
                first.catch_up()
            history.insert((200, "c", 0.0))
            second.catch_up()
            assert (first.state, second.state) == ("failed", "following")
    assert len(rows(db)) == 102


def test_while_one_commits_the_next_is_read_and_waits_for_it(db, history, commits):
    """A sync of the disk is no time to be idle; but nothing is ever in the log without what was before it."""
    read, goes_on = threading.Event(), threading.Event()
    commits.before[1] = lambda: goes_on.wait(60)

    def changes():
        yield Rows("orders", [(2, "b", 0.0)])
        read.set()

    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        history.transactions.append((2, changes(), {}))
        assert read.wait(60)
        eventually(lambda: commits.begun == 1, 10)
        assert rows(db) == []
        assert (capture.position, capture.status()["transactions"]) == ("0", 0)
        assert commits.begun == 1
        goes_on.set()
        capture.catch_up()
    assert rows(db) == [(1, "a", 0.0), (2, "b", 0.0)]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("outcome", ["before", "after"])
def test_what_was_written_behind_a_commit_that_failed_comes_after_it(
    db, history, commits, outcome, at_once, monkeypatch
):
    """Whether the log has it all the same or not: each once, in their order."""
    commits.at_once = at_once
    if at_once:
        monkeypatch.setattr(relay, "WAITS_S", 1e9)

    def fail():
        raise OutcomeUnknown("the disk has not answered") if outcome == "after" else Unavailable("no room")

    getattr(commits, outcome)[3] = fail
    with captured(db) as capture:
        for number in range(1, 7):
            history.commit(Rows("orders", [(number, "a", 0.0), (0, f"last is {number}", 0.0)]))
        capture.catch_up()
        assert [each[0] for each in rows(db)] == [0, 1, 2, 3, 4, 5, 6]
        assert rows(db)[0] == (0, "last is 6", 0.0)
        taken = db.query("SELECT position FROM capture_transactions ORDER BY position", "strong").rows()
        assert [each["position"] for each in taken] == ["1", "2", "3", "4", "5", "6"]
        assert capture.status()["transactions"] == 6
    assert not [each for each in db.transactions() if each["state"] == "OPEN"]


def test_a_commit_that_is_done_is_told_of_before_the_next_one_comes(db, history):
    """The source says nothing for a while; who asks how far it is need not wait for that."""
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        eventually(lambda: capture.status()["transactions"] == 1, 10)
        assert (capture.position, rows(db)) == ("1", [(1, "a", 0.0)])


def test_a_thread_commits_where_commits_wait_and_only_there(db, monkeypatch):
    """On a fast disk two threads are in each other's way; on a slow one the next transaction is read meanwhile."""
    found = relay.Relay(db, "shop", None)
    found._open = lambda: db.transaction()
    clock, threads = [0.0], []
    times = SimpleNamespace(monotonic=time.monotonic, perf_counter=lambda: clock[0], thread_time=lambda: 0.0)
    monkeypatch.setattr(relay, "time", times)
    monkeypatch.setattr(relay, "ASKED_EVERY", 4)

    class Waiting:
        def __init__(self, seconds):
            self.seconds = seconds

        def commit(self):
            threads.append(threading.current_thread().name == relay.COMMITS)
            clock[0] += self.seconds

    slow, fast = 2 * relay.WAITS_S, relay.WAITS_S / 2
    for seconds in (fast, fast, *[slow] * 5, *[fast] * 5):
        found.commit(Waiting(seconds), Place(""))
    found.close()
    assert threads == [False, False, False, True, True, True, False, True, True, True, False, False]


def test_while_nothing_comes_no_transaction_is_open(db, history, monkeypatch):
    """Promise 3 spares others; a list of open ones that never end would still worry people."""
    monkeypatch.setattr(relay, "FRESH_S", 0.0)
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        capture.catch_up()
        eventually(lambda: not [each for each in db.transactions() if each["state"] == "OPEN"], 10)


def test_a_position_that_moves_without_rows_is_kept_now_and_then(db, history, monkeypatch):
    """Or a source would keep its log for ever for a capture whose tables rest."""
    monkeypatch.setattr(capturing, "KEEP_EVERY_S", 0.0)
    with captured(db) as capture:
        for _ in range(3):
            history.commit()
        capture.catch_up()
        capture.catch_up()
        assert history.confirmed[-1] == 3
    assert db.query("SELECT position FROM capture_positions", "strong").rows() == [{"position": "3"}]
    assert db.query("SELECT * FROM capture_transactions", "strong").rows() == []


def test_nothing_is_confirmed_that_is_not_in_the_log(db, history):
    """Seed 003: a slot advances only after the log has the data."""
    seen = []

    class Watching(list):
        def append(self, position):
            seen.append(
                (position, int(db.query("SELECT position FROM capture_positions", "strong").rows()[0]["position"]))
            )

    history.confirmed = Watching()
    with captured(db) as capture:
        for number in range(10):
            history.insert((number, "a", 0.0))
            capture.catch_up()
    assert len(seen) > 5
    assert all(confirmed <= kept for confirmed, kept in seen)


def test_a_claim_that_an_owner_has_forgotten_is_made_again(db, history, monkeypatch):
    """A takeover in the midst of a transaction is no second capture: the position has not moved."""
    from tidegate.database.transaction import Transaction

    commit, failures = Transaction.commit, iter([1, 1])

    def failing(self):
        if next(failures, None):
            raise Conflict("what was read at another owner")
        return commit(self)

    with captured(db) as capture:
        monkeypatch.setattr(Transaction, "commit", failing)
        history.insert((1, "a", 0.0))
        capture.catch_up()
        assert rows(db) == [(1, "a", 0.0)]
