"""Laws of barriers and checkpoints over arbitrary lives, against twins too simple to be wrong. Seed 001, promise 7."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.barrier.alignment import Alignment, RecordCut
from tidegate.barrier.clock import BarrierClock, BarrierSettings
from tidegate.barrier.collection import Epochs
from tidegate.barrier.cut import (
    Cut,
    Place,
    Pointer,
    Span,
    decode_cut,
    decode_pointer,
    encode_cut,
    encode_pointer,
)
from tidegate.barrier.work import Begin, Commit, CommitOutcome, Discard, Effect, HandOut, Report, Verdict
from tidegate.clock.timestamp import Timestamp

CHANNELS = ("d0", "d1", "d2")
OWNER = 10

# -- records -----------------------------------------------------------------------------------------------------------

u64 = st.integers(0, 2**64 - 1)


@given(
    st.integers(1, 2**60),
    st.lists(u64, min_size=2, max_size=2, unique=True),
    st.dictionaries(st.text(max_size=8), st.tuples(u64, u64), max_size=4),
    st.booleans(),
    st.integers(0, 2**40),
)
def test_a_cut_reads_back_what_was_written(epoch, ends, places, checkpoint, catalog) -> None:
    since, at = sorted(ends)
    cut = Cut(
        epoch, Timestamp(since), Timestamp(at),
        {name: Place(position, Timestamp(min(tick, at))) for name, (position, tick) in places.items()},
        checkpoint, catalog,
    )  # fmt: skip
    assert decode_cut(encode_cut(cut)) == cut


@given(st.builds(Pointer, st.integers(0, 2**60), st.integers(0, 2**60), u64.map(Timestamp), st.integers(0), st.text()))
def test_a_pointer_reads_back_what_was_written(pointer) -> None:
    assert decode_pointer(encode_pointer(pointer)) == pointer


# -- the clock ---------------------------------------------------------------------------------------------------------

deeds = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 4000)),
        st.tuples(st.just("ask"), st.booleans()),
        st.tuples(st.just("pause"), st.booleans()),
        st.tuples(st.just("change"), st.tuples(st.integers(50, 2000), st.integers(1, 6))),
        *[st.tuples(st.just("poll"), st.tuples(st.integers(0, 5), st.booleans()))] * 4,
    ),
    min_size=10,
    max_size=80,
)


@given(deeds)
def test_the_clock_keeps_its_promises_whatever_happens(deeds) -> None:
    """No burst: periodic barriers are an interval apart. No ask is left out. Every N-th is a checkpoint, or sooner."""
    clock = BarrierClock(BarrierSettings(in_flight_max=3), 0)
    now, last_ms, plain, asked, answered, fresh = 0, None, 0, 0, 0, True
    for what, how in deeds:
        if what == "wait":
            now += how
        elif what == "ask":
            asked = clock.ask(now, "flush", checkpoint=how, waits=False)
        elif what == "pause":
            fresh = (clock.pause(now) if how else clock.resume(now)) or fresh
        elif what == "change":
            clock.change(BarrierSettings(*how, in_flight_max=3), now)
            fresh, plain = True, 0
        else:
            in_flight, is_dirty = how
            barrier = clock.poll(now, in_flight=in_flight, is_dirty=is_dirty)
            if barrier is None:
                assert asked == answered
                continue
            assert barrier.answers == asked
            is_periodic, answered = asked == answered, asked
            interval_ms, every = clock.settings.interval_ms, clock.settings.checkpoint_every
            if is_periodic:
                assert clock.paused_since_ms is None
                assert fresh or last_ms is None or now - last_ms >= interval_ms
            plain = 0 if barrier.is_checkpoint else plain + 1
            assert plain < every
            last_ms, fresh = now, False


# -- alignment ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(("begin", *CHANNELS)), st.integers(1, 5)), max_size=80))
def test_a_cut_holds_everything_at_or_below_it_and_its_places_skip_nothing(deeds) -> None:
    """The twin is a channel: messages in physical order, a tick that promises, a reader from the cut's place."""
    alignment = Alignment()
    now = 0
    messages: dict[str, list[int]] = {name: [] for name in CHANNELS}
    ticked = dict.fromkeys(CHANNELS, 0)
    cuts: list[Cut] = []
    for what, size in deeds:
        if what == "begin":
            now += 1
            effects = alignment.begin(Timestamp(now), CHANNELS, is_checkpoint=True, now_ms=0)
        else:
            # Some messages, the newest first, and then a tick that covers only some of them.
            messages[what] += range(now + size, now, -1)
            now += size
            tick = now - size // 2
            ticked[what] = max(ticked[what], tick)
            first = next((at for at, each in enumerate(messages[what]) if each > tick), len(messages[what]))
            effects = alignment.ticked(what, Timestamp(tick), first)
        for effect in effects:
            if isinstance(effect, RecordCut):
                effect.cut.require_after(cuts[-1] if cuts else None)
                cuts.append(effect.cut)
                assert all(at >= effect.cut.timestamp for at in ticked.values())
    for cut in cuts:
        for name in CHANNELS:
            place = cut.places.get(name)
            read = messages[name][place.position if place else 0 :]
            assert {each for each in messages[name] if each > cut.timestamp} <= set(read)


# -- epochs ------------------------------------------------------------------------------------------------------------


@dataclass
class Life:
    """Epochs with workers that may do anything, and a twin of what is committed: files per channel and epoch."""

    epochs: Epochs
    cuts: list[Cut]
    terms: int = OWNER
    files: int = 0
    shares: dict[str, tuple[str, ...]] = field(default_factory=dict)
    content: dict[str, tuple[Span, tuple[str, ...]]] = field(default_factory=dict)
    """Of every file ever written."""
    sent: list[Report] = field(default_factory=list)
    handed: dict[str, HandOut] = field(default_factory=dict)
    visible: list[str] = field(default_factory=list)
    commit: Commit | None = None
    gone: set[str] = field(default_factory=set)
    """Files that were discarded."""

    def take(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Begin):
                self.handed.pop(effect.worker, None)
                self.shares[effect.worker] = effect.channels
            elif isinstance(effect, HandOut):
                assert effect.channels == self.shares[effect.worker]
                assert (effect.upto.epoch, effect.after.epoch if effect.after else 0) == (
                    effect.span.last, effect.span.first - 1,
                )  # fmt: skip
                self.handed[effect.worker] = effect
            elif isinstance(effect, Discard):
                self.gone.update(effect.files)
            elif isinstance(effect, Commit):
                assert not self.gone & set(effect.files)
                assert self.commit is None or self.commit == effect
                self.commit = effect

    def report(self, report: Report) -> Verdict:
        before = (
            self.epochs.pointer,
            self.epochs.committing,
            {n: list(w.reports) for n, w in self.epochs.workers.items()},
        )
        answer = self.epochs.report(report, 0)
        if answer.verdict is not Verdict.TAKEN:
            after = (
                self.epochs.pointer,
                self.epochs.committing,
                {n: list(w.reports) for n, w in self.epochs.workers.items()},
            )
            assert before == after
            assert answer.effects == ()
        assert not set(answer.discard) & set(self.visible)
        assert self.commit is None or not set(answer.discard) & set(self.commit.files)
        self.gone.update(answer.discard)
        self.take(answer.effects)
        return answer.verdict

    def work(self, name: str) -> None:
        out = self.handed.get(name)
        if out is None:
            return
        self.files += 1
        file = f"f{self.files}"
        self.content[file] = (out.span, out.channels)
        report = Report(name, out.term, out.generation, out.span, (file,))
        self.sent.append(report)
        self.report(report)

    def check(self) -> None:
        """Every channel and every epoch up to the pointer exactly once, in files that are still there."""
        assert not self.gone & set(self.visible)
        found = sorted(
            (channel, epoch)
            for file in self.visible
            for span, channels in [self.content[file]]
            for channel in channels
            for epoch in range(span.first, span.last + 1)
        )
        epoch = self.epochs.pointer.epoch
        assert found == sorted((channel, at) for channel in CHANNELS for at in range(1, epoch + 1))


names = st.sampled_from(("a", "b", "c"))
lives = st.lists(
    st.one_of(
        *[st.tuples(st.just("cut"), st.booleans())] * 3,
        *[st.tuples(st.just("work"), names)] * 8,
        st.tuples(st.just("register"), st.tuples(names, st.integers(0, 3))),
        st.tuples(st.just("lost"), names),
        st.tuples(st.just("remove"), names),
        st.tuples(st.just("late"), st.integers(0, 1000)),
        st.tuples(st.just("commit"), st.sampled_from(("done", "absent", "unknown and there", "unknown and not"))),
        *[st.tuples(st.just("commit"), st.just("done"))] * 2,
        st.tuples(st.just("takeover"), st.none()),
        st.tuples(st.just("rewrite"), st.none()),
        st.tuples(st.just("pause"), st.booleans()),
    ),
    min_size=30,
    max_size=120,
)


def play(deeds: list[tuple[str, object]], ahead_max: int) -> Life:
    life = Life(Epochs(OWNER, Pointer().claimed_by(OWNER), [], channels=CHANNELS, ahead_max=ahead_max), [])
    for name in ("a", "b"):
        step(life, "register", (name, 0), ahead_max)
    for what, how in deeds:
        step(life, what, how, ahead_max)
        life.check()
    return life


def step(life: Life, what: str, how: object, ahead_max: int) -> None:
    epochs = life.epochs
    if what == "cut":
        number = len(life.cuts) + 1
        life.cuts.append(Cut(number, Timestamp(number * 10 - 10), Timestamp(number * 10), {}, bool(how)))
        life.take(epochs.record(life.cuts[-1], 0))
    elif what == "work":
        life.work(str(how))
    elif what == "register":
        name, length = how
        life.terms += 1
        last = epochs.pointer.epoch
        life.take(epochs.register(name, life.terms, 0, redo=Span(last + 1, last + length) if length else None))
    elif what == "lost" and how in epochs.workers:
        life.take(epochs.lost(str(how), epochs.workers[str(how)].term, 0))
    elif what == "remove":
        life.handed.pop(str(how), None)
        life.take(epochs.remove(str(how), 0))
    elif what == "late" and life.sent:
        life.report(life.sent[how % len(life.sent)])
    elif what == "commit" and life.commit is not None:
        commit = life.commit
        if how in ("done", "unknown and there"):
            life.commit = None
            life.visible += commit.files
            before = epochs.pointer
            if how == "done":
                life.take(epochs.committed(commit.pointer.checkpoint, 0))
            else:
                epochs.commit_failed(commit.pointer.checkpoint, CommitOutcome.UNKNOWN)
                life.take(epochs.pointer_is(commit.pointer, 0))
            assert epochs.pointer.checkpoint == before.checkpoint + 1
            assert epochs.pointer.epoch >= before.epoch
        elif how == "absent":
            life.take(epochs.commit_failed(commit.pointer.checkpoint, CommitOutcome.ABSENT))
        else:
            life.take(epochs.pointer_is(epochs.pointer, 0))
    elif what == "takeover":
        life.terms += 1
        pointer = epochs.pointer.claimed_by(life.terms)
        life.commit = None
        life.handed.clear()
        life.epochs = Epochs(life.terms, pointer, life.cuts, channels=CHANNELS, ahead_max=ahead_max)
    elif what == "rewrite":
        commit = epochs.rewrite(0)
        life.take((commit,) if commit else ())
    elif what == "pause":
        if how:
            epochs.pause()
        else:
            life.take(epochs.resume(0))


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(lives, st.integers(1, 3))
def test_every_epoch_of_every_channel_is_committed_exactly_once(deeds, ahead_max) -> None:
    """Over deaths, takeovers, changed shares, repeated and late reports, and commits of unknown outcome."""
    play(deeds, ahead_max)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=50)
@given(lives, st.integers(1, 3))
def test_when_workers_work_again_everything_recorded_is_committed(deeds, ahead_max) -> None:
    """Nothing of the past keeps a checkpoint from being made."""
    life = play(deeds, ahead_max)
    step(life, "pause", False, ahead_max)
    step(life, "cut", True, ahead_max)
    for name in ("a", "b", "c"):
        step(life, "register", (name, 0), ahead_max)
    for _ in range(4 * len(life.cuts) + 8):
        for name in ("a", "b", "c"):
            step(life, "work", name, ahead_max)
        step(life, "commit", "done", ahead_max)
    life.check()
    assert life.epochs.pointer.epoch == len(life.cuts)
