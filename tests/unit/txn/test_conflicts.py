"""Conflicts: read-modify-write that somebody overtook is refused, in a bounded window (the issue's "Conflicts")."""

from __future__ import annotations

from timeit import default_timer
from typing import Any

import numpy as np
import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, InvariantBroken, LimitExceeded
from tidegate.txn.conflicts import SMALL_MAX, UNMADE_MAX, Claim, ConflictWindow, KeySet, MustWait, ReadSet, Written

A, B, C = 11, 22, (1 << 64) - 1


class Db:
    """A window with an oracle that counts."""

    def __init__(self, **settings: Any) -> None:
        self.clock = 100
        self.window = ConflictWindow(self.now(), **settings)

    def now(self) -> Timestamp:
        self.clock += 1
        return Timestamp(self.clock)

    def read(self, *keys: int) -> ReadSet:
        reads = self.window.begin_read(self.now())
        self.window.note(reads, keys, "accounts")
        return reads

    def claim(self, reads: ReadSet | None, *keys: int) -> Claim:
        claim = self.window.try_commit(reads, keys)
        assert isinstance(claim, Claim)
        return claim

    def commit(self, reads: ReadSet | None, *keys: int) -> Timestamp:
        claim = self.claim(reads, *keys)
        when = self.now()
        self.window.finish(claim, when)
        return when


def test_a_commit_to_a_key_that_was_read_in_between_is_a_conflict() -> None:
    db = Db()
    mine = db.read(A, B)
    when = db.commit(None, B)
    with pytest.raises(
        Conflict, match=r"a key of 'accounts' that the transaction had read at .* was written"
    ) as caught:
        db.claim(mine, A)
    assert str(when) in str(caught.value)
    assert mine.ended


def test_a_commit_to_another_key_is_none() -> None:
    db = Db()
    mine = db.read(A)
    db.commit(None, B)
    db.commit(mine, A)


def test_a_commit_before_the_reading_began_is_none() -> None:
    db = Db()
    other = db.read(C)  # keeps the window recording
    db.commit(None, A)
    db.commit(db.read(A), A)
    db.window.end_read(other)


def test_a_commit_that_took_its_timestamp_before_the_reading_began_is_none_when_it_finishes_later() -> None:
    """The reading sees it: at its timestamp everything below has arrived (promise 4)."""
    db = Db()
    claim = db.claim(None, A)
    before = db.now()
    mine = db.read(A)
    db.window.finish(claim, before)
    db.commit(mine, A)


def test_an_abort_in_between_is_none() -> None:
    db = Db()
    mine = db.read(A)
    db.window.finish(db.claim(None, A), None)
    db.commit(mine, A)


def test_of_two_that_read_and_write_one_key_the_first_wins_and_the_second_runs_again() -> None:
    db = Db()
    one, two = db.read(A), db.read(A)
    db.commit(one, A)
    with pytest.raises(Conflict, match="run it again"):
        db.claim(two, A)
    db.commit(db.read(A), A)


def test_a_commit_under_way_decides_so_the_reader_of_its_keys_waits() -> None:
    db = Db()
    mine = db.read(A)
    under_way = db.claim(None, A)
    assert db.window.try_commit(mine, [B]) == MustWait(under_way)
    assert not mine.ended
    db.window.finish(under_way, None)
    assert under_way.finished
    db.commit(mine, B)


def test_a_writer_of_a_key_that_a_commit_under_way_has_read_waits() -> None:
    """Else a snapshot between the two would show the later one without the earlier: T reads A and writes B,
    U writes A below T's timestamp, and whoever reads in between sees A new and B old."""
    db = Db()
    t = db.claim(db.read(A), B)
    assert db.window.try_commit(None, [A]) == MustWait(t)
    db.window.finish(t, db.now())
    db.commit(None, A)


def test_write_skew_is_a_conflict() -> None:
    """Each reads what the other writes: in no order does both make sense."""
    db = Db()
    one, two = db.read(A), db.read(B)
    claim = db.claim(one, B)
    assert db.window.try_commit(two, [A]) == MustWait(claim)
    db.window.finish(claim, db.now())
    with pytest.raises(Conflict):
        db.claim(two, A)


def test_two_plain_writers_of_one_key_do_not_wait_for_each_other() -> None:
    db = Db()
    one, two = db.claim(None, A), db.claim(None, A)
    db.window.finish(two, db.now())
    db.window.finish(one, db.now())


def test_whoever_waits_holds_no_claim() -> None:
    """Why there is no deadlock: the one that waits is in nobody's way."""
    db = Db()
    first = db.claim(db.read(A), B)
    waiting = db.read(B)
    assert isinstance(db.window.try_commit(waiting, [C]), MustWait)
    assert db.window.status().claims == 1
    db.window.finish(db.claim(db.read(C), C), db.now())
    db.window.finish(first, None)
    db.commit(waiting, C)


def test_a_transaction_does_not_conflict_with_its_own_write() -> None:
    db = Db()
    db.commit(db.read(A), A)


def test_without_readers_a_commit_is_not_recorded_and_its_keys_are_not_even_made() -> None:
    db = Db()

    def keys() -> tuple[int, ...]:
        raise AssertionError("nobody needs them")

    claim = db.window.try_commit(None, keys)
    assert isinstance(claim, Claim)
    db.window.finish(claim, db.now())
    reader_above = db.read(A)
    claim = db.window.try_commit(None, keys)
    assert isinstance(claim, Claim)
    db.window.finish(claim, Timestamp(reader_above.timestamp - 1))
    assert db.window.status().keys == 0


def test_a_reading_that_is_entered_late_is_refused_rather_than_blind() -> None:
    """It took its timestamp, then a commit that nobody was below finished: that one is not recorded."""
    db = Db()
    late = db.now()
    db.commit(None, A)
    with pytest.raises(Conflict, match="begin again with a fresh timestamp"):
        db.window.begin_read(late)
    db.commit(db.read(A), A)


def test_the_window_forgets_what_every_reader_began_above() -> None:
    db = Db()
    old, young = db.read(A), None
    db.commit(None, B, C)
    young = db.read(A)
    db.commit(None, B)
    assert db.window.status().keys == 3
    db.window.end_read(old)
    assert db.window.status().keys == 1
    db.window.end_read(old)
    assert db.window.status().readers == 1
    db.commit(young, A)
    status = db.window.status()
    assert (status.keys, status.commits, status.readers, status.oldest_reader, status.claims) == (0, 0, 0, None, 0)


def test_above_its_bound_the_window_gives_up_the_oldest_and_refuses_who_is_older() -> None:
    db = Db(keys_max=3)
    old = db.read(A)
    dropped = db.commit(None, 1, 2)
    young = db.read(B)
    db.commit(None, 3, 4)
    assert db.window.floor == dropped
    assert db.window.status().keys == 2
    with pytest.raises(Conflict, match="older than the window of recent writes"):
        db.claim(old, A)
    db.commit(young, B)


def test_a_commit_larger_than_the_window_refuses_every_older_reader_and_no_younger_one() -> None:
    db = Db(keys_max=3)
    old = db.read(A)
    when = db.commit(None, 1, 2, 3, 4)
    assert (db.window.floor, db.window.status().keys) == (when, 0)
    with pytest.raises(Conflict, match="older than the window"):
        db.claim(old, A)
    db.commit(db.read(A), A)


def test_an_older_transaction_that_noted_nothing_is_not_refused() -> None:
    db = Db(keys_max=1)
    old = db.window.begin_read(db.now())
    db.commit(None, 1, 2)
    db.commit(old, A)


def test_after_a_start_readings_of_before_are_refused() -> None:
    before = Timestamp(5)
    window = ConflictWindow(Timestamp(9))
    with pytest.raises(Conflict, match="older than the window"):
        window.begin_read(before)
    window.begin_read(Timestamp(10))


def test_the_newest_of_several_writers_counts_in_whatever_order_they_finish() -> None:
    db = Db()
    old = db.read(C)
    one, two = db.claim(None, A), db.claim(None, A)
    early, late_reader, late = db.now(), db.now(), db.now()
    mine = db.window.begin_read(late_reader)
    db.window.note(mine, [A])
    db.window.finish(two, late)
    db.window.finish(one, early)
    with pytest.raises(Conflict, match="a key that the transaction had read"):
        db.claim(mine, A)
    db.window.end_read(old)


def test_giving_up_an_older_write_of_a_key_keeps_the_newer_one() -> None:
    db = Db()
    old = db.read(C)
    db.commit(None, A)
    mine = db.read(A)
    db.commit(None, A)
    db.window.end_read(old)
    assert db.window.status().commits == 1
    with pytest.raises(Conflict, match="'accounts'"):
        db.claim(mine, B)


def test_what_one_reads_is_limited() -> None:
    db = Db(read_keys_max=3)
    mine = db.read(1, 2)
    db.window.note(mine, [1], "accounts")
    with pytest.raises(LimitExceeded, match="read_keys_max"):
        db.window.note(mine, [3, 4])
    assert len(mine) == 2
    db.window.note(mine, [3])


def test_misuse_is_a_defect() -> None:
    db = Db()
    mine = db.read(A)
    claim = db.claim(mine, A)
    with pytest.raises(InvariantBroken, match="has ended"):
        db.window.note(mine, [B])
    with pytest.raises(InvariantBroken, match="has ended"):
        db.window.try_commit(mine, [B])
    with pytest.raises(InvariantBroken, match="below its reads"):
        db.window.finish(claim, mine.timestamp)
    db.window.finish(claim, None)
    with pytest.raises(InvariantBroken, match="finished twice"):
        db.window.finish(claim, None)


def test_readers_that_ended_do_not_pile_up_behind_one_that_reads_for_long() -> None:
    db = Db()
    db.read(A)
    for _ in range(1000):
        db.window.end_read(db.read(A))
    assert db.window.status().readers == 1
    assert len(db.window._readers) < 50


SIZES = [0, 1, 3, SMALL_MAX, SMALL_MAX + 1, 20_000]


@pytest.mark.parametrize("reads", SIZES)
@pytest.mark.parametrize("writes", SIZES)
def test_sets_of_every_size_are_compared_alike(reads: int, writes: int) -> None:
    """Small sets are Python sets, large ones sorted arrays; the first and last numbers of 64 bits are among them."""
    rng = np.random.default_rng(reads * 31 + writes)
    pool = np.unique(rng.integers(1, (1 << 64) - 1, reads + writes + 10, np.uint64))[: reads + writes]
    pool = rng.permutation(pool)
    read, written = pool[:reads], pool[reads:]
    assert not KeySet(read).meets(KeySet(written))
    for shared in (0, (1 << 64) - 1):
        extra = np.array([shared], np.uint64)
        assert KeySet(np.append(read, extra)).meets(KeySet(np.append(written, extra)))
        assert not KeySet(np.append(read, extra)).meets(KeySet(written))
        assert not KeySet(read).meets(KeySet(np.append(written, extra)))
        db = Db()
        mine = db.window.begin_read(db.now())
        db.window.note(mine, np.append(read, extra))
        claim = db.window.try_commit(None, np.append(written, extra))
        assert isinstance(claim, Claim)
        assert db.window.try_commit(mine, ()) == MustWait(claim)
        db.window.finish(claim, db.now())
        with pytest.raises(Conflict):
            db.window.try_commit(mine, ())
        mine = db.window.begin_read(db.now())
        db.window.note(mine, read)
        claim = db.window.try_commit(None, np.append(written, extra))
        assert isinstance(claim, Claim)
        db.window.finish(claim, db.now())
        assert isinstance(db.window.try_commit(mine, ()), Claim)


def test_large_sets_cost_no_step_per_key() -> None:
    """300,000 keys written while 300,000 others were read."""
    db = Db()
    read, written = np.arange(0, 600_000, 2, np.uint64), np.arange(1, 600_000, 2, np.uint64)
    mine = db.window.begin_read(db.now())
    start = default_timer()
    db.window.note(mine, read)
    claim = db.window.try_commit(None, written)
    assert isinstance(claim, Claim)
    db.window.finish(claim, db.now())
    assert isinstance(db.window.try_commit(mine, ()), Claim)
    assert default_timer() - start < 1.0


class Counted:
    """Keys that note when their hashes are made."""

    def __init__(self, *keys: int) -> None:
        self.keys = keys
        self.made = 0

    def __call__(self) -> tuple[int, ...]:
        self.made += 1
        return self.keys


def test_what_was_written_to_tables_that_nobody_reads_is_never_hashed() -> None:
    """A capture reads one key of its own all the time, beside writers of everything."""
    db = Db()
    mine = db.read(A)
    elsewhere = Counted(B, C)
    claim = db.window.try_commit(None, Written(elsewhere, frozenset({"orders", "items"}), 2))
    assert isinstance(claim, Claim)
    db.commit(db.read(C), C)  # It reads and writes accounts, beside a commit to other tables that is under way.
    db.window.finish(claim, db.now())
    assert db.window.status().keys == 3
    db.commit(mine, A)
    assert elsewhere.made == 0
    assert db.window.status().keys == 0


def test_what_was_written_to_the_table_that_was_read_is_looked_at() -> None:
    db = Db()
    for writes, refused in ((A, True), (B, False)):
        mine = db.read(A)
        claim = db.window.try_commit(None, Written(lambda key=writes: (key,), frozenset({"items", "accounts"}), 1))
        assert isinstance(claim, Claim)
        assert isinstance(db.window.try_commit(mine, (A,)), MustWait) == refused
        if not refused:
            continue
        db.window.finish(claim, db.now())
        with pytest.raises(Conflict):
            db.window.try_commit(mine, (A,))


def test_keys_whose_table_is_not_said_are_looked_for_in_all() -> None:
    db = Db()
    mine = db.window.begin_read(db.now())
    db.window.note(mine, [A])
    claim = db.window.try_commit(None, Written(lambda: (A,), frozenset({"items"}), 1))
    assert isinstance(claim, Claim)
    db.window.finish(claim, db.now())
    with pytest.raises(Conflict):
        db.window.try_commit(mine, ())


def test_few_commits_hold_on_to_their_rows() -> None:
    """Until its hashes are made a commit holds what it has written, and somebody may read for hours."""
    db = Db()
    db.read(A)
    written = [Counted(B + number) for number in range(UNMADE_MAX + 10)]
    for each in written:
        claim = db.window.try_commit(None, Written(each, frozenset({"orders"}), 1))
        assert isinstance(claim, Claim)
        db.window.finish(claim, db.now())
    assert [each.made for each in written] == [1] * 10 + [0] * UNMADE_MAX
    large = Counted(*range(1000, 1000 + SMALL_MAX + 1))
    claim = db.window.try_commit(None, Written(large, frozenset({"orders"}), SMALL_MAX + 1))
    assert isinstance(claim, Claim)
    db.window.finish(claim, db.now())
    assert large.made == 1
