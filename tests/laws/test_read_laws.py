"""Laws of reads over arbitrary lives: sessions never go back, waits end in time, tokens hold. Promise 5."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tidegate.clock.timestamp import LOGICAL_COUNT, PHYSICAL_MS_MAX, Timestamp
from tidegate.errors import InvalidArgument
from tidegate.reads.consistency import Asked, Seen, asked, cut, guarantee
from tidegate.reads.token import decode, encode
from tidegate.reads.waiting import GiveUp, LookAgain, Ready, Waiting

MS = 1_750_000_000_000
u64 = st.integers(0, 2**64 - 1)
stamps = st.builds(Timestamp.compose, st.integers(MS - 10_000, MS + 10_000), st.integers(0, LOGICAL_COUNT - 1))
anytime = u64.map(Timestamp)
seens = st.builds(Seen, stamps, stamps)
levels = st.sampled_from(("strong", "session", "bounded", "eventual"))
bounds = st.integers(0, 20_000)
wanteds = st.builds(Asked, levels, bounds)

# -- the guarantee -----------------------------------------------------------------------------------------------------


@given(wanteds, stamps, seens, stamps, stamps, seens, stamps)
def test_the_guarantee_never_falls_when_what_it_depends_on_rises(wanted, now, seen, changed, now2, seen2, changed2):
    """Promise 5: time, what was seen and changes of tables only go on, and so does what is insisted on."""
    before = guarantee(wanted, now=now, seen=seen, changed=changed)
    after = guarantee(wanted, now=max(now, now2), seen=seen.joined(seen2), changed=max(changed, changed2))
    assert after >= before


@given(stamps, seens, stamps, bounds)
def test_a_stronger_level_never_insists_on_less(now, seen, changed, bound):
    """In the order of seed 004. Where a session has written after `now`, only it may be ahead of strong."""

    def of(level):
        return guarantee(Asked(level, bound), now=now, seen=seen, changed=changed)

    assert of("strong") >= of("bounded") >= of("eventual")
    assert of("session") >= of("eventual")
    if seen.written <= now:
        assert of("strong") >= of("session")


@given(st.integers(0, PHYSICAL_MS_MAX), st.integers(0, LOGICAL_COUNT - 1), st.floats(0, 1e9, exclude_max=True), seens)
def test_bounded_is_never_older_than_its_bound(ms, logical, staleness_s, seen):
    """time-log section 15c. By the owner's time, in whatever fractions of a second the bound is given."""
    now = Timestamp.compose(ms, logical)
    wanted = asked("bounded", staleness_s)
    needed = guarantee(wanted, now=now, seen=seen, changed=Timestamp.ZERO)
    for checkpoint in (Timestamp.ZERO, now):
        age_ms = now.ms_since(cut(wanted, needed, checkpoint=checkpoint))
        assert age_ms <= staleness_s * 1000 + 1e-6


@given(st.one_of(wanteds, stamps.map(asked)), stamps, seens, stamps, stamps)
def test_a_cut_holds_what_is_needed_and_is_no_newer_than_need_or_checkpoint(wanted, now, seen, changed, checkpoint):
    """time-log section 15e: so it is served as soon as what is needed and the checkpoint are."""
    needed = guarantee(wanted, now=now, seen=seen, changed=changed)
    at = cut(wanted, needed, checkpoint=checkpoint)
    assert needed <= at <= max(needed, checkpoint)


events = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 3_000)),
        st.tuples(st.just("write"), st.just(0)),
        st.tuples(st.just("checkpoint"), st.integers(0, 100)),
        st.tuples(st.just("change"), st.just(0)),
        st.tuples(st.just("token"), st.just(0)),
        st.tuples(levels, bounds),
        st.tuples(st.just("named"), st.integers(0, 10_000)),
    ),
    max_size=40,
)


@given(events)
def test_a_sessions_cuts_never_go_back_for_any_mix_of_levels(life):
    """Promises 4 and 5 over a whole life: named Timestamps, tokens and other people's changes in between. Each answer
    also holds what its level says, by a twin that keeps lists."""
    database, seen, now = b"d" * 16, Seen(), Timestamp.compose(MS)
    checkpoint, changed = Timestamp.ZERO, Timestamp.ZERO
    cuts: list[Timestamp] = []
    writes: list[Timestamp] = []
    for what, number in life:
        now = now.next()
        match what:
            case "wait":
                now = now.add(milliseconds=number)
            case "write":
                writes.append(now)
                seen = seen.after_write(now)
            case "checkpoint":
                checkpoint = max(checkpoint, now.add(milliseconds=-number))
            case "change":
                changed = now
            case "token":
                seen = decode(encode(database, seen), database)
            case "named":
                at = now.add(milliseconds=-number)
                assert guarantee(asked(at), now=now, seen=seen, changed=changed) == at
                seen = seen.after_read(at)
                cuts.append(at)
            case level:
                wanted = Asked(level, number)
                at = cut(wanted, guarantee(wanted, now=now, seen=seen, changed=changed), checkpoint=checkpoint)
                assert all(at >= each for each in cuts)
                assert at >= changed
                assert level != "session" or all(at >= each for each in writes)
                assert level != "strong" or at == now
                assert level != "bounded" or now.ms_since(at) <= number
                seen = seen.after_read(at)
                cuts.append(at)


@given(st.lists(seens, max_size=5), st.randoms())
def test_joining_sessions_knows_no_order_and_forgets_nothing(sessions, rng):
    def joined(those):
        whole = Seen()
        for each in those:
            whole = whole.joined(each)
        return whole

    mixed = list(sessions)
    rng.shuffle(mixed)
    assert joined(sessions) == joined(mixed)
    assert joined(sessions + mixed) == joined(sessions)
    assert all(joined(sessions).read >= each.read and joined(sessions).written >= each.written for each in sessions)


# -- waiting -----------------------------------------------------------------------------------------------------------

moves = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), max_size=20)
"""After so many milliseconds, the service time rises by so many."""


def _ending(needed_ms, served, stall_ms, timeout_ms, max_lag_ms):
    """A twin that goes through all milliseconds, and knows what is served at each: when the wait ends, and how."""
    stands_since = 0
    for now in range(10_000):
        if now and served(now) > served(now - 1):
            stands_since = now
        if served(now) >= needed_ms:
            return now, "ready"
        if needed_ms - served(now) > max_lag_ms:
            return now, "lag"
        if now - stands_since >= stall_ms:
            return now, "stalled"
        if timeout_ms is not None and now >= timeout_ms:
            return now, "timeout"
    raise AssertionError("it never ends")


@given(
    st.integers(1, 300),
    moves,
    st.integers(1, 60),
    st.one_of(st.none(), st.integers(0, 500)),
    st.sampled_from((50, 86_400_000)),
)
def test_a_wait_that_is_looked_at_on_every_move_ends_exactly_when_it_should(needed_ms, life, stall, timeout, max_lag):
    """Seed 004: it never misses and never overstays, though the driver looks only when the service time moves and when
    it was told to."""
    moved = {}
    now = total = 0
    for after, by in life:
        now, total = now + after, total + by
        moved[now] = total

    def served(ms):
        return max((to for at, to in moved.items() if at <= ms), default=0)

    waiting = Waiting(Timestamp.compose(MS + needed_ms), 0, timeout_ms=timeout, max_lag_ms=max_lag, stall_ms=stall)
    now = 0
    while isinstance(found := waiting.look(Timestamp.compose(MS + served(now)), now), LookAgain):
        assert found.at_ms > now, "it would be looked at for ever"
        now = min([found.at_ms, *(at for at in moved if at > now)])
    how = "ready" if isinstance(found, Ready) else found.why
    assert (now, how) == _ending(needed_ms, served, stall, timeout, max_lag)
    if isinstance(found, GiveUp):
        assert (found.waited_ms, found.lag_ms) == (now, needed_ms - served(now))


@given(anytime, anytime, st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_wait_is_ready_exactly_when_the_service_time_is_there(needed, service, began_ms, later_ms):
    found = Waiting(needed, began_ms).look(service, began_ms + later_ms)
    assert isinstance(found, Ready) == (service >= needed)


# -- tokens ------------------------------------------------------------------------------------------------------------

databases = st.binary(min_size=16, max_size=16)
any_seen = st.builds(Seen, anytime, anytime)


@given(databases, any_seen)
def test_a_token_reads_back_what_was_written(database, seen):
    assert decode(encode(database, seen), database) == seen


@given(databases, any_seen, st.integers(0, 10**6), st.characters())
def test_a_token_with_one_character_damaged_is_refused(database, seen, place, instead):
    token = encode(database, seen)
    place %= len(token)
    damaged = token[:place] + instead + token[place + 1 :]
    assume(damaged != token)
    _is_refused(damaged, database)


@given(databases, any_seen, st.integers(0, 10**6), st.text(min_size=1, max_size=5))
def test_a_token_with_something_put_in_or_cut_off_is_refused(database, seen, place, extra):
    token = encode(database, seen)
    place %= len(token)
    _is_refused(token[:place] + extra + token[place:], database)
    _is_refused(token[:place], database)
    _is_refused(token + extra, database)


@given(st.text(max_size=80), databases)
def test_any_other_text_is_refused(text, database):
    _is_refused(text, database)
    _is_refused("tg1-" + text, database)


@given(databases, databases, any_seen)
def test_a_token_counts_in_its_own_database_alone(here, there, seen):
    assume(here != there)
    _is_refused(encode(there, seen), here)


def _is_refused(token, database):
    try:
        decode(token, database)
    except InvalidArgument:
        return
    raise AssertionError(f"{token!r} was taken for a token")
