"""What a capture has in hand when it fails, stands still or is taken over: nothing lost, nothing twice (promise 7)."""

from __future__ import annotations

import threading

import pytest
from capture_rig import captured, rows

import tidegate
from helpers import eventually
from tidegate.capture import capturing, relay
from tidegate.capture.source import Rows, Truncated
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
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
    """Runs that captures commit, by their thread: a test says what happens before and after each, by its number."""
    found = Commits()
    original = Database.commit_run

    def commit_run(db, guard, run):
        found.sizes.append(len(run))
        return found.meet(lambda: original(db, guard, run))

    monkeypatch.setattr(Database, "commit_run", commit_run)
    return found


def at_once(history, *transactions):
    """Transactions that the source gives without a pause."""
    first = len(history.transactions) + 1
    history.transactions.extend((first + n, changes, {}) for n, changes in enumerate(transactions))


class Commits:
    def __init__(self):
        self.begun = 0
        self.sizes = []
        """How many transactions each run had."""
        self.times = []
        """Their commit Timestamps."""
        self.before = {}
        self.after = {}

    def meet(self, commit):
        self.begun += 1
        mine = self.begun
        self.before.get(mine, lambda: None)()
        done = commit()
        self.times.extend(done)
        self.after.get(mine, lambda: None)()
        return done


@pytest.mark.parametrize(
    "pause", ["before it is committed", "before it commits", "while it commits", "for longer than a guard is kept"]
)
def test_one_that_stood_still_while_another_went_on_repeats_nothing(db, history, commits, monkeypatch, pause):
    """A stale capture: whatever it had in hand when it stopped, and however long that was."""
    if pause == "for longer than a guard is kept":
        monkeypatch.setattr(relay, "GUARD_S", 0.0)
    stands, goes_on = threading.Event(), threading.Event()
    held = "commit" if pause == "before it commits" else "_commit_run"
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


def test_what_gathers_while_one_commits_is_one_write(db, history, commits):
    """A slow disk costs latency and not throughput; each is a transaction by itself all the same (promise 2)."""
    goes_on = threading.Event()
    commits.before[1] = lambda: goes_on.wait(60)
    count = 2 * relay.RUN_MOST + 19
    with captured(db) as capture:
        at_once(history, *[[Rows("orders", [(n, "a", 0.0)]), Rows("items", [(n, 1)])] for n in range(count)])
        eventually(lambda: len(capture._taker.relay._gathered) == 2 * relay.RUN_MOST, 10)
        goes_on.set()
        capture.catch_up()
    assert max(commits.sizes) == relay.RUN_MOST
    assert sum(commits.sizes) == count
    assert len(set(commits.times)) == count
    for number in (0, 1, count // 2, count - 1):
        cut = "SELECT (SELECT count(*) FROM orders) AS o, (SELECT count(*) FROM items) AS i, position AS p"
        found = db.query(f"{cut} FROM capture_positions", commits.times[number]).rows()
        assert found == [{"o": number + 1, "i": number + 1, "p": str(number + 1)}]


def test_what_gathers_is_bounded_by_its_bytes(db, history, commits, monkeypatch):
    """Many transactions of nearly a buffer each would be hundreds of megabytes."""
    monkeypatch.setattr(relay, "RUN_BYTES", 100_000)
    goes_on = threading.Event()
    commits.before[1] = lambda: goes_on.wait(60)
    with captured(db) as capture:
        at_once(history, *[[Rows("orders", [(number, "a" * 40_000, 0.0)])] for number in range(1, 30)])
        gathered = capture._taker.relay._gathered
        eventually(lambda: len(gathered) == 2, 10)
        goes_on.set()
        most = 0
        while capture.status()["transactions"] < 29 and capture.is_running:
            most = max(most, len(gathered))
        assert most <= 2
    assert len(rows(db)) == 29


@pytest.mark.parametrize("outcome", ["before", "after"])
def test_what_was_written_behind_a_commit_that_failed_comes_after_it(db, history, commits, outcome):
    """Whether the log has it all the same or not: each once, in their order."""

    def fail():
        raise OutcomeUnknown("the disk has not answered") if outcome == "after" else Unavailable("no room")

    getattr(commits, outcome)[3] = fail
    with captured(db) as capture:
        for number in range(1, 7):
            history.commit(Rows("orders", [(number, "a", 0.0), (0, f"last is {number}", 0.0)]))
            if number < 4:  # Each a run by itself; of the others as it comes.
                eventually(lambda number=number: commits.begun >= number, 10)
        capture.catch_up()
        assert [each[0] for each in rows(db)] == [0, 1, 2, 3, 4, 5, 6]
        assert rows(db)[0] == (0, "last is 6", 0.0)
        taken = db.query("SELECT position FROM capture_transactions ORDER BY position", "strong").rows()
        assert [each["position"] for each in taken] == ["1", "2", "3", "4", "5", "6"]
        assert capture.status()["transactions"] == 6
    assert not [each for each in db.transactions() if each["state"] == "OPEN"]


def test_one_that_is_larger_than_memory_waits_for_those_before_it(db, history, commits):
    """It has been written ahead, and is no part of a run."""
    size = db.limits.buffer_bytes
    goes_on = threading.Event()
    commits.before[1] = lambda: goes_on.wait(60)
    with captured(db) as capture:
        at_once(
            history,
            [Rows("orders", [(1, "a", 0.0)])],
            [Rows("orders", [(2, "b" * size, 0.0)]), Rows("orders", [(3, "c" * size, 0.0)])],
            [Rows("orders", [(4, "d", 0.0)])],
        )
        eventually(lambda: [each for each in db.transactions() if each["channels"]], 10)
        assert rows(db) == []
        goes_on.set()
        capture.catch_up()
    assert [each[0] for each in rows(db)] == [1, 2, 3, 4]
    assert commits.sizes == [1, 1]


def test_one_that_is_larger_than_memory_meets_a_capture_that_has_begun_meanwhile(db, history):
    """It claims that nobody has when those before it are in the log, and not before."""
    stands, goes_on = threading.Event(), threading.Event()

    def changes():
        yield Rows("orders", [(2, "b" * db.limits.buffer_bytes, 0.0)])
        if threading.current_thread() is first._thread:
            stands.set()
            goes_on.wait(60)

    with captured(db) as first:
        history.insert((1, "a", 0.0))
        first.catch_up()

        class Again:
            def __iter__(self):
                return changes()

        history.transactions.append((2, Again(), {}))
        assert stands.wait(60)
        with captured(db) as second:
            second.catch_up()
            goes_on.set()
            with pytest.raises(InUse):
                first.catch_up()
            assert (first.state, second.state) == ("failed", "following")
    assert db.query("SELECT count(*) AS n FROM capture_transactions", "strong").rows() == [{"n": 2}]


def test_a_guard_is_changed_before_its_time_is_up(db, history, monkeypatch):
    """A capture that is never idle outlives the timeout of any transaction."""
    monkeypatch.setattr(relay, "GUARD_S", 0.0)
    with captured(db) as capture:
        guards = set()
        for number in range(1, 4):
            history.insert((number, "a", 0.0))
            capture.catch_up()
            guards.add(capture._taker.relay._guard.id)
    assert len(guards) == 3
    assert len(rows(db)) == 3


def test_a_commit_that_is_done_is_told_of_before_the_next_one_comes(db, history):
    """The source says nothing for a while; who asks how far it is need not wait for that."""
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        eventually(lambda: capture.status()["transactions"] == 1, 10)
        assert (capture.position, rows(db)) == ("1", [(1, "a", 0.0)])


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


def test_a_claim_that_an_owner_has_forgotten_is_made_again(db, history, commits):
    """A takeover in the midst of a transaction is no second capture: the position has not moved."""

    def fail():
        raise Conflict("what was read at another owner")

    commits.before[1] = commits.before[2] = fail
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        capture.catch_up()
        assert rows(db) == [(1, "a", 0.0)]


@pytest.mark.parametrize("kind", ["small", "larger than memory"])
def test_a_capture_goes_on_in_the_process_that_takes_over(tmp_path, history, kind, caplog):
    """What it had begun at the owner that is gone is begun again, at once: nothing lost, nothing twice."""
    settings = DatabaseSettings(pipeline=False)
    owner = tidegate.open(tmp_path / "y.tide", settings=settings)
    with tidegate.open(tmp_path / "y.tide", settings=settings) as here, captured(here) as capture:
        assert not here.is_owner
        history.insert((1, "a", 0.0))
        capture.catch_up()
        owner.close()
        size = 1 if kind == "small" else here.limits.buffer_bytes
        for number in range(2, 6):
            history.commit(Rows("orders", [(number, "b" * size, 0.0)]), Rows("items", [(number, 1)]))
            capture.catch_up()
        assert here.is_owner and capture.is_running
        assert [each[0] for each in rows(here)] == [1, 2, 3, 4, 5]
        taken = here.query("SELECT position FROM capture_transactions ORDER BY position", "strong").rows()
        assert [each["position"] for each in taken] == ["1", "2", "3", "4", "5"]
        assert len([each for each in caplog.records if "trying again" in each.getMessage()]) <= 2
