"""What a consistency level asks for, and the cut that follows. Seed 004; time-log section 10; promises 4 and 5."""

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.reads.consistency import STALENESS_MS, Asked, Seen, asked, cut, guarantee

MS = 1_750_000_000_000
NOW = Timestamp.compose(MS, 7)
NOTHING = Seen()


def at(ms, logical=0):
    return Timestamp.compose(MS + ms, logical)


def needed(level, *, now=NOW, seen=NOTHING, changed=Timestamp.ZERO, **more):
    return guarantee(asked(level, **more), now=now, seen=seen, changed=changed)


# -- the guarantee -----------------------------------------------------------------------------------------------------


def test_strong_insists_on_the_moment_it_was_asked():
    """time-log fact 49: strong is the beginning of the read."""
    assert needed("strong") == NOW


def test_bounded_insists_on_five_seconds_before_it_was_asked():
    """time-log fact 49, section 1: a duration is taken from the physical part, and the logical one stays."""
    assert STALENESS_MS == 5_000
    assert needed("bounded") == Timestamp.compose(MS - 5_000, 7)


def test_another_bound_may_be_asked_for_and_zero_is_strong():
    assert needed("bounded", staleness_s=0.25) == Timestamp.compose(MS - 250, 7)
    assert needed("bounded", staleness_s=0) == needed("strong")


def test_a_bound_longer_than_time_itself_asks_for_nothing():
    early = Timestamp.compose(1_000, 3)
    assert needed("bounded", now=early, staleness_s=86_400) == Timestamp(3)


def test_eventual_insists_on_nothing():
    """time-log fact 49 and section 16.3: the lowest Timestamp there is, so that no check is made."""
    assert needed("eventual") == Timestamp.ZERO


def test_session_insists_on_what_it_wrote_and_on_what_it_saw():
    """time-log fact 49: a session's guarantee is what the client remembers; 15d: for a new one, nothing."""
    assert needed("session") == Timestamp.ZERO
    assert needed("session", seen=Seen(read=at(-9), written=at(-3))) == at(-3)
    assert needed("session", seen=Seen(read=at(-2), written=at(-3))) == at(-2)


@pytest.mark.parametrize("level", ["strong", "session", "bounded", "eventual"])
def test_no_level_goes_back_behind_what_the_session_saw(level):
    """Promise 5, whatever the order in which levels are used."""
    assert needed(level, seen=Seen(read=at(50))) == at(50)


@pytest.mark.parametrize("level", ["bounded", "eventual"])
def test_a_level_below_session_does_not_wait_for_the_sessions_own_write(level):
    seen = Seen(read=at(-9_000), written=at(-1))
    assert needed(level, seen=seen) == needed(level, seen=Seen(read=at(-9_000)))
    assert needed(level, seen=seen) < at(-1)


@pytest.mark.parametrize("level", ["session", "bounded", "eventual"])
def test_no_read_is_older_than_the_last_change_of_its_tables(level):
    """time-log fact 51: an update timestamp larger than what was computed is used."""
    assert needed(level, changed=at(-1)) == at(-1)


def test_a_named_timestamp_is_what_it_says_whatever_was_seen_or_changed():
    """time-log fact 49, customized; promise 4. What was seen is read again as it was then."""
    named = at(-60_000)
    seen = Seen(read=at(0), written=at(0))
    assert guarantee(asked(named), now=NOW, seen=seen, changed=at(-1)) == named
    assert guarantee(asked(at(90)), now=NOW, seen=seen, changed=at(-1)) == at(90)


# -- the cut -----------------------------------------------------------------------------------------------------------


def test_the_last_checkpoint_answers_when_it_is_fresh_enough():
    """checkpoints-and-views section 3: the pinned version is read as it is, without its tail."""
    assert cut(asked("eventual"), Timestamp.ZERO, checkpoint=at(-400)) == at(-400)
    assert cut(asked("bounded"), at(-5_000), checkpoint=at(-400)) == at(-400)


def test_what_is_needed_answers_when_the_checkpoint_is_older():
    """time-log section 15e: never newer than what was waited for, or rows come from the future."""
    assert cut(asked("strong"), NOW, checkpoint=at(-400)) == NOW
    assert cut(asked("eventual"), at(-100), checkpoint=at(-400)) == at(-100)


def test_a_named_timestamp_is_the_cut_though_there_is_a_newer_checkpoint():
    named = at(-60_000)
    assert cut(asked(named), named, checkpoint=at(-400)) == named


# -- seed 004's example ------------------------------------------------------------------------------------------------


def test_client_2_sees_what_client_1_had_done_at_each_of_its_searches():
    """time-log fact 56 and seed 004: {} at t2, {A1} at t6, {A1, A2} at t10, {A2} at t14, though client 2's clock is an
    hour slow: it is never asked. The service time stands still before each search, as if nothing had been consumed."""
    history = [(at(4), "insert", "A1"), (at(8), "insert", "A2"), (at(12), "delete", "A1")]

    def search(now):
        found = set()
        for when, what, row in history:
            if when <= cut(asked("strong"), needed("strong", now=now), checkpoint=at(0)):
                (found.add if what == "insert" else found.discard)(row)
        return found

    assert [search(at(t)) for t in (2, 6, 10, 14)] == [set(), {"A1"}, {"A1", "A2"}, {"A2"}]


def test_an_upsert_is_seen_whole_at_its_timestamp_and_not_before():
    """time-log fact 61: a strong read one Timestamp before a write needs less than the write's."""
    write = Timestamp.compose(MS, 20)
    assert needed("strong", now=Timestamp.compose(MS, 19)) < write
    assert needed("strong", now=write) == write


# -- what a session remembers ------------------------------------------------------------------------------------------


def test_a_session_remembers_the_newest_of_each_kind():
    """time-log section 10: what a session remembers of a write is the largest TimeTick of it."""
    seen = Seen().after_read(at(5)).after_write(at(3)).after_read(at(4)).after_write(at(1))
    assert seen == Seen(read=at(5), written=at(3))


def test_two_sessions_joined_remember_what_both_did():
    assert Seen(at(1), at(9)).joined(Seen(at(4), at(2))) == Seen(at(4), at(9))


# -- the words ---------------------------------------------------------------------------------------------------------


def test_session_is_the_default_and_a_level_names_itself():
    """Seed 004 (and time-log section 16.4): session."""
    assert Asked().level == "session"
    assert str(asked("strong")) == "strong"
    assert str(asked("bounded")) == "bounded 5 s"
    assert str(asked("bounded", 0.25)) == "bounded 0.25 s"
    assert str(asked(NOW)) == str(NOW)


@pytest.mark.parametrize("wrong", ["Strong", "", "linearizable", None, 3, 2.5, True, b"strong"])
def test_a_level_that_there_is_not_is_refused_and_the_levels_are_named(wrong):
    """Promise 8: an int is no Timestamp, since raw milliseconds are not (time-log fact 8)."""
    with pytest.raises(InvalidArgument, match="'strong', 'session', 'bounded', 'eventual' or a Timestamp"):
        asked(wrong)


@pytest.mark.parametrize("wrong", [-1, -0.001, float("nan"), float("inf"), 1e9, "5", True])
def test_a_bound_that_is_no_length_of_time_is_refused_at_every_level(wrong):
    for level in ("strong", "bounded", NOW):
        with pytest.raises(InvalidArgument, match="`staleness` is a number of seconds"):
            asked(level, wrong)


@pytest.mark.parametrize(("seconds", "ms"), [(5, 5_000), (1.001, 1_001), (0.29, 290), (0.0009, 0), (0.0019, 1), (0, 0)])
def test_a_bound_is_whole_milliseconds_and_never_longer_than_asked(seconds, ms):
    assert asked("bounded", seconds).staleness_ms == ms
