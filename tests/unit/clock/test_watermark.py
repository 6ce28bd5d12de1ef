"""Collecting watermarks: seed 004 (TimeTick), reference section 11, facts 55 and 57."""

from __future__ import annotations

import threading

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.clock.watermark import InFlight, Watermark, WatermarkCollector
from tidegate.errors import InvalidArgument, InvariantBroken, NotFound

T = Timestamp


def collector(*sources: str) -> WatermarkCollector:
    made = WatermarkCollector()
    for source in sources:
        made.register(source)
    return made


# -- the collector -------------------------------------------------------------------------------------------


def test_fact_55_a_round_completes_only_when_every_source_has_reported() -> None:
    collected = collector("p1", "p2")
    assert collected.waits_for() == ["p1", "p2"]
    assert collected.report("p1", T(100)) is None
    assert collected.waits_for() == ["p2"]
    assert collected.current is None
    assert collected.report("p2", T(102)) == Watermark(T(100))
    assert collected.current == Watermark(T(100))
    assert collected.waits_for() == ["p1", "p2"], "the next round has begun"


def test_a_collector_without_sources_emits_nothing() -> None:
    collected = collector("p1")
    assert collected.remove("p1") is None
    assert collected.current is None


def test_an_unknown_source_is_an_error() -> None:
    collected = collector("p1")
    with pytest.raises(NotFound, match="'p2' is not registered"):
        collected.report("p2", T(1))
    with pytest.raises(NotFound):
        collected.remove("p2")
    with pytest.raises(InvalidArgument, match="registered already"):
        collected.register("p1")


def test_a_report_that_goes_back_is_ignored_and_does_not_fill_the_slot() -> None:
    collected = collector("p1", "p2")
    collected.report("p1", T(100))
    assert collected.report("p2", T(100)) is not None
    assert collected.report("p1", T(99)) is None
    assert collected.waits_for() == ["p1", "p2"]
    assert collected.report("p1", T(100)) is None, "the same again is no step back"
    assert collected.waits_for() == ["p2"]


def test_a_later_report_replaces_an_earlier_one_of_the_same_round() -> None:
    collected = collector("p1", "p2")
    collected.report("p1", T(10))
    collected.report("p1", T(30))
    assert collected.report("p2", T(20)) == Watermark(T(20))


def test_removing_a_dead_source_completes_the_round_it_held_up() -> None:
    collected = collector("p1", "p2", "p3")
    collected.report("p1", T(10))
    collected.report("p2", T(5))
    assert collected.remove("p3") == Watermark(T(5))
    collected.report("p1", T(20))
    assert collected.remove("p2") == Watermark(T(20)), "what it reported went with it"


def test_a_source_that_joins_late_cannot_take_the_watermark_back() -> None:
    collected = collector("p1")
    assert collected.report("p1", T(100)) == Watermark(T(100))
    collected.register("p2")
    collected.report("p1", T(200))
    assert collected.report("p2", T(7)) == Watermark(T(100))
    collected.remove("p2")
    collected.register("p2")
    collected.report("p1", T(300))
    assert collected.report("p2", T(3)) == Watermark(T(100)), "registered anew, its past is forgotten"


def test_each_channel_has_its_own_minimum_over_values_and_defaults() -> None:
    collected = collector("p1", "p2", "ddl")
    collected.report("p1", T(100), {"a": T(40), "b": T(60)})
    collected.report("p2", T(90), {"a": T(50)})
    emitted = collected.report("ddl", T(80))
    assert emitted == Watermark(T(80), {"a": T(40), "b": T(60)})
    assert (emitted.of("a"), emitted.of("b"), emitted.of("c"), emitted.least) == (40, 60, 80, 40)
    assert Watermark(T(80)).least == 80


def test_a_channel_no_longer_named_goes_by_the_defaults_again() -> None:
    collected = collector("p1")
    collected.report("p1", T(100), {"a": T(40)})
    emitted = collected.report("p1", T(110))
    assert emitted is not None
    assert emitted.of("a") == 110


def test_a_channel_named_for_the_first_time_does_not_fall_below_what_held_for_it() -> None:
    collected = collector("p1")
    collected.report("p1", T(100))
    emitted = collected.report("p1", T(120), {"a": T(30)})
    assert emitted is not None
    assert emitted.of("a") == 100


# -- one source's own minimum --------------------------------------------------------------------------------


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def __call__(self) -> Timestamp:
        self.value += 1
        return T(self.value)


def test_seed_004_the_minimum_is_below_the_oldest_that_is_still_in_flight() -> None:
    """t1 to t4 begin and t3 finishes first: nothing above t0 may be promised yet."""
    allocate, flight = Counter(), InFlight()
    t1, t2, t3, t4 = (flight.begin(allocate) for _ in range(4))
    flight.finish(t3)
    assert flight.minimum(allocate()) == t1 - 1
    flight.finish(t1)
    assert flight.minimum(allocate()) == t2 - 1
    flight.finish(t2)
    assert flight.minimum(allocate()) == t4 - 1
    assert (flight.oldest(), len(flight)) == (t4, 1)
    flight.finish(t4)
    now = allocate()
    assert flight.minimum(now) == now
    assert flight.oldest() is None


def test_the_minimum_does_not_fall_for_an_older_now() -> None:
    flight = InFlight()
    assert flight.minimum(T(10)) == 10
    assert flight.minimum(T(9)) == 10


def test_fact_57_no_minimum_passes_a_timestamp_that_is_taken_and_not_yet_recorded() -> None:
    """The seed's race: 1 is taken, then 2 is taken and recorded, then 2 is reported, then 1 is recorded."""
    flight = InFlight()
    minimum: list[Timestamp] = []
    reporter = threading.Thread(target=lambda: minimum.append(flight.minimum(T(2))))

    def allocate() -> Timestamp:
        reporter.start()
        assert flight._lock.locked(), "whoever asks for the minimum now waits until 1 is recorded"
        return T(1)

    flight.begin(allocate)
    reporter.join()
    assert minimum == [0]


def test_finishing_what_is_not_in_flight_is_an_error() -> None:
    flight = InFlight()
    ts = flight.begin(lambda: T(5))
    flight.finish(ts)
    for unknown in (ts, T(6)):
        with pytest.raises(NotFound):
            flight.finish(unknown)


def test_an_allocation_at_or_below_a_promise_is_a_defect() -> None:
    flight = InFlight()
    flight.minimum(T(10))
    with pytest.raises(InvariantBroken):
        flight.begin(lambda: T(10))
    flight.begin(lambda: T(11))
    with pytest.raises(InvariantBroken):
        flight.begin(lambda: T(11))
    assert len(flight) == 1


def test_one_straggler_does_not_keep_every_later_entry_in_memory() -> None:
    allocate, flight = Counter(), InFlight()
    straggler = flight.begin(allocate)
    for _ in range(10_000):
        flight.finish(flight.begin(allocate))
    assert len(flight._heap) < 200
    assert flight.minimum(allocate()) == straggler - 1


def test_fact_57_many_writers_at_once_never_make_the_minimum_fall() -> None:
    allocate, flight = Counter(), InFlight()
    minima: list[Timestamp] = []
    finished = threading.Event()

    def write() -> None:
        for _ in range(300):
            ts = flight.begin(allocate)
            flight.finish(ts)

    def watch() -> None:
        while not finished.is_set():
            minima.append(flight.minimum(T.ZERO))

    watcher = threading.Thread(target=watch)
    writers = [threading.Thread(target=write) for _ in range(8)]
    for thread in (watcher, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    finished.set()
    watcher.join()
    assert minima == sorted(minima)
    assert flight.minimum(T(allocate.value)) == 2400
