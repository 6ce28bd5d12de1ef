"""The node-local allocator: reference section 2.1, facts 6 and 7."""

from __future__ import annotations

import threading

import pytest

from tidegate.clock.allocator import LocalAllocator
from tidegate.clock.timestamp import LOGICAL_COUNT, Timestamp
from tidegate.errors import ClockStalled, InvalidArgument, InvariantBroken, LimitExceeded, WaitTimeout


class Source:
    """Hands out consecutive runs and notes their sizes."""

    def __init__(self, start: int = 1) -> None:
        self.next = start
        self.sizes: list[int] = []

    def __call__(self, count: int) -> Timestamp:
        first = self.next
        self.next += count
        self.sizes.append(count)
        return Timestamp(first)


def no_more(count: int) -> Timestamp:
    raise ClockStalled("no more")


def test_fact_6_an_offered_range_is_used_up_and_then_the_fetch_decides() -> None:
    allocator = LocalAllocator(no_more)
    assert allocator.offer(1, 100)
    assert not allocator.offer(90, 100), "the range has not been used up, and must not be cut"
    assert sum(allocator.allocate() for _ in range(100)) == 5050
    assert not allocator.offer(90, 100)
    with pytest.raises(ClockStalled):
        allocator.allocate()
    assert allocator.offer(101, 100)
    assert allocator.allocate() == 101


def test_one_fetch_serves_a_batch_of_allocations() -> None:
    source = Source()
    allocator = LocalAllocator(source, batch=10)
    assert [allocator.allocate() for _ in range(25)] == list(range(1, 26))
    assert source.sizes == [10, 10, 10]


def test_a_run_is_contiguous_even_if_the_rest_of_the_range_is_given_up_for_it() -> None:
    source = Source()
    allocator = LocalAllocator(source, batch=10)
    assert allocator.allocate(7) == 1
    assert allocator.allocate(4) == 11
    assert allocator.allocate(50) == 21
    assert source.sizes == [10, 10, 50]


@pytest.mark.parametrize(("count", "error"), [(0, InvalidArgument), (LOGICAL_COUNT + 1, LimitExceeded)])
def test_a_wrong_count_is_refused(count: int, error: type[Exception]) -> None:
    source = Source()
    with pytest.raises(error):
        LocalAllocator(source).allocate(count)
    with pytest.raises(error):
        LocalAllocator(source, batch=count)
    with pytest.raises(InvalidArgument):
        LocalAllocator(source).offer(1, 0)
    assert source.sizes == []


def test_after_sync_the_next_allocation_is_above_what_others_fetched_meanwhile() -> None:
    source = Source()
    allocator = LocalAllocator(source, batch=10)
    allocator.allocate()
    others = source(100)
    assert allocator.allocate() < others
    allocator.sync()
    assert allocator.allocate() > others
    assert not allocator.offer(5, 5), "the end of a dropped range still counts"


def test_a_range_is_dropped_by_age_and_never_taken_for_younger_than_it_is() -> None:
    source = Source()
    allocator = LocalAllocator(source, batch=10)
    assert not allocator.sync_if_older(1.0, now=100.0), "there is none"
    allocator.allocate()
    assert not allocator.sync_if_older(1.0, now=101.0)
    assert allocator.sync_if_older(1.0, now=101.1)
    assert allocator.allocate() == 11
    unseen = LocalAllocator(source, batch=10)
    unseen.allocate()
    assert unseen.sync_if_older(1e9, now=0.0), "of unknown age"


def test_fact_7_after_a_barrier_the_next_allocation_is_strictly_above_it() -> None:
    source = Source()
    allocator = LocalAllocator(source, batch=10)
    allocator.barrier_until(Timestamp(1))
    assert allocator.allocate() > 1
    assert source.sizes == [10], "the range reached it"
    source.next = 500
    allocator.barrier_until(Timestamp(400))
    assert allocator.allocate() > 400
    assert source.sizes == [10, 10], "one fetch was enough"


def test_fact_7_a_far_barrier_waits_until_an_allocation_gets_there() -> None:
    fetched = threading.Semaphore(0)
    source = Source()

    def fetch(count: int) -> Timestamp:
        fetched.release()
        return source(count)

    allocator = LocalAllocator(fetch, batch=10)
    done = threading.Event()

    def wait() -> None:
        allocator.barrier_until(Timestamp(10_000), timeout_s=60)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(2):  # the fast path and the second try have both been too low
        assert fetched.acquire(timeout=30)
    assert not done.is_set()
    assert allocator.offer(20_000, 10)
    allocator.allocate()
    assert done.wait(30)
    thread.join()
    assert allocator.allocate() > 10_000


def test_a_barrier_that_nothing_reaches_times_out_and_says_how_far_it_got() -> None:
    allocator = LocalAllocator(Source(), batch=10)
    with pytest.raises(WaitTimeout, match="the oracle is at"):
        allocator.barrier_until(Timestamp.MAX, timeout_s=0.01)
    with pytest.raises(WaitTimeout):
        allocator.barrier_until(Timestamp.MAX, timeout_s=0)


def test_a_fetch_that_goes_back_is_a_defect_and_hands_out_nothing() -> None:
    source = Source(1000)
    allocator = LocalAllocator(source, batch=10)
    allocator.allocate()
    allocator.sync()
    source.next = 5
    with pytest.raises(InvariantBroken):
        allocator.allocate()


def test_threads_share_a_range_without_repeating_a_timestamp() -> None:
    allocator = LocalAllocator(Source(), batch=7)
    taken: list[list[int]] = [[] for _ in range(4)]

    def work(mine: list[int]) -> None:
        for n in range(500):
            if n % 50 == 0:
                allocator.sync()
            mine.append(allocator.allocate())

    threads = [threading.Thread(target=work, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in taken)
    assert len({ts for mine in taken for ts in mine}) == 2000
