"""Recorded cuts as Spark's source sees them: the offset is the epoch (design, "A barrier is a TimeTick")."""

from __future__ import annotations

import threading
import time

import pytest

import tidegate
from tidegate import DatabaseSettings, LogSettings
from tidegate.barrier.cut import Cut, Epoch, Place, encode_cut
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption
from tidegate.log.message import NO_POSITION, Position
from tidegate.spark.cuts import CutFile, Limits, Point, Ticks


def cut(epoch: int, messages: int = 10, nbytes: int = 0) -> Cut:
    places = {"a": Place(Position(messages * epoch), Timestamp(100 * epoch))}
    return Cut(Epoch(epoch), Timestamp(100 * (epoch - 1)), Timestamp(100 * epoch), places, nbytes=nbytes)


@pytest.fixture
def file(tmp_path):
    return CutFile(tmp_path / "cuts")


def test_the_latest_point_is_the_newest_cut_and_the_start_when_there_is_none(file):
    start = Point()
    assert file.latest(start) == start
    file.append(cut(1), cut(2))
    assert file.latest(start) == Point(2, Timestamp(200))
    assert file.latest(Point(2, Timestamp(200))) == Point(2, Timestamp(200))


def test_a_limit_of_epochs_or_messages_takes_at_least_one_epoch(file):
    file.append(*[cut(number) for number in range(1, 6)])
    assert file.latest(Point(), Limits(epochs=2)).epoch == 2
    one = Point(1, Timestamp(100))
    assert file.latest(one, Limits(messages=25)).epoch == 3
    assert file.latest(one, Limits(messages=1)).epoch == 2
    assert file.latest(one, Limits(epochs=3, messages=25)).epoch == 3


def test_a_limit_of_bytes_takes_at_least_one_epoch_and_not_one_too_many(file):
    file.append(*[cut(number, nbytes=size) for number, size in enumerate((500, 40, 40, 0, 40), 1)])
    assert file.latest(Point(), Limits(bytes=100)).epoch == 1
    one = Point(1, Timestamp(100))
    assert file.latest(one, Limits(bytes=100)).epoch == 4
    assert file.latest(one, Limits(bytes=120)).epoch == 5
    assert file.latest(one, Limits(epochs=2, bytes=120)).epoch == 3
    assert file.latest(one, Limits(bytes=1)).epoch == 2


def test_without_recorded_cuts_a_limit_of_bytes_or_messages_ends_at_segments_and_at_least_one_passes(tmp_path):
    """Whoever follows them reads everything, in order, in steps that are bounded."""
    segment_bytes = 16 << 10
    settings = DatabaseSettings(log=LogSettings(tick_interval_ms=5, segment_bytes=segment_bytes), channels=2)
    with tidegate.open(tmp_path / "shop.tide", settings=settings) as db:
        db.sql("CREATE TOPIC audit SHARDS 2")
        for number in range(60):
            with db.transaction() as txn:
                txn.send("audit", {"n": number, "text": "x" * 2000}, key=number)
        last = txn.commit_timestamp
        db.engine.wait_until_visible(last)
        ticks = Ticks(db.path, db.engine.channels)
        assert ticks.latest(Point()).timestamp >= last

        def steps(limits: Limits) -> list[Point]:
            found = [Point()]
            while found[-1].timestamp < last:
                found.append(ticks.latest(found[-1], limits))
                assert found[-1].timestamp > found[-2].timestamp
            return found[1:]

        least = steps(Limits(bytes=1))
        assert steps(Limits(messages=1))[:6] == least[:6]  # The last one ends at the newest tick, which moves on.
        assert len(least) >= 6
        # Each holds at most the segments that it ends, and those that it cuts: one in each channel.
        assert len(steps(Limits(bytes=6 * segment_bytes))) <= len(least) / 2
        assert len(steps(Limits(bytes=1 << 30, messages=1 << 30))) == 1


def test_a_line_that_is_not_whole_yet_is_not_read(file):
    line = encode_cut(cut(2))
    file.append(cut(1))
    with file.path.open("ab") as opened:
        opened.write(line[:20])
        opened.flush()
        assert file.latest(Point()).epoch == 1
        opened.write(line[20:] + b"\n")
        opened.flush()
        assert file.latest(Point()).epoch == 2


def test_the_place_of_a_cut_is_found_by_its_epoch_and_a_forgotten_one_is_read_from_the_beginning(file):
    """Without the place the Timestamp alone finds the same messages: slower, never fewer."""
    file.append(cut(1), cut(2), cut(3))
    assert file.position(Point(2, Timestamp(200)), "a") == 20
    assert file.position(Point(2, Timestamp(200)), "b") == NO_POSITION
    assert file.position(Point(2, Timestamp(201)), "a") == NO_POSITION
    file.release(Point(3, Timestamp(300)))
    assert file.position(Point(2, Timestamp(200)), "a") == NO_POSITION
    assert file.latest(Point(2, Timestamp(200))).epoch == 3


def test_cuts_that_are_said_again_after_a_restart_change_nothing(file):
    file.append(cut(1), cut(2))
    assert file.latest(Point()).epoch == 2
    file.append(cut(1), cut(2), cut(3))
    assert file.latest(Point()).epoch == 3


def test_a_file_that_was_replaced_is_read_from_its_beginning(file):
    file.append(cut(1), cut(2))
    assert file.latest(Point()).epoch == 2
    file.path.unlink()
    file.append(cut(1))
    assert file.latest(Point()).epoch == 1


def test_a_damaged_line_is_an_error_that_names_the_file_and_place(file):
    file.append(cut(1))
    size = file.path.stat().st_size
    with file.path.open("ab") as opened:
        opened.write(b"{}\n")
    with pytest.raises(Corruption, match=f"cuts at offset {size}"):
        file.latest(Point())


def test_waiting_ends_with_the_next_cut_with_the_time_and_when_it_is_told_to(file):
    file.append(cut(1))
    one = Point(1, Timestamp(100))
    began = time.monotonic()
    file.wait(one, 0.05)
    file.wait(one, 30, lambda: True)
    threading.Timer(0.05, lambda: CutFile(file.path).append(cut(2))).start()
    file.wait(one, 30)
    assert file.latest(one).epoch == 2
    assert time.monotonic() - began < 10
