"""The auditor on a loss of power: exactly what a durability allows to be lost may be gone."""

import numpy as np
import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.log.batch import Batch, body_rows
from tidegate.log.message import Position, Term, Tick
from tidegate.runtime.channel_reader import Delivery
from tidegate.runtime.pending import Appended
from tidegate.sim.auditor import Auditor, Violation


class Told:
    """An auditor that was told of appends at positions 1, 2, 3 ... and TimeTicks ten times that."""

    def __init__(self, *sizes, all_durable=False):
        self.auditor = Auditor(["c"], all_durable=all_durable)
        self.files = {}
        position = 1
        for size in sizes:
            intent = self.auditor.asked("c", size)
            first = position * 10
            self.auditor.was_acknowledged(intent, Appended(Timestamp(first), Position(position), Position(1), size))
            self.files |= {first + part: position + part for part in range(size)}
            position += size

    def lose_power(self, *kept):
        found = {tick: position for tick, position in self.files.items() if position in kept}
        return self.auditor.power_was_lost("c", found, max(kept, default=0))

    def read(self, number, tick, position, term=1):
        batch = Batch(
            time_ticks=np.array([tick], np.uint64),
            positions=np.array([position], np.uint64),
            last_confirmed=np.ones(1, np.uint64),
            types=np.full(1, 2, np.uint8),
            vchannel_ids=np.zeros(1, np.uint16),
            vchannels=("v",),
            rows=body_rows([f"c|{number}|0".encode()]),
            term=Term(term),
        )
        place = Position(position)
        self.auditor.delivered("c", "reader", tick - 1, Delivery((batch,), Tick(Timestamp(tick), place, place, True)))


def test_with_durability_sync_nothing_may_be_gone():
    assert Told(1, 1, 1, all_durable=True).lose_power(1, 2, 3) == 0
    with pytest.raises(Violation, match="survival: c lost what was durable, from position 3"):
        Told(1, 1, 1, all_durable=True).lose_power(1, 2)


def test_otherwise_the_end_may_be_gone_but_not_what_was_said_to_be_durable():
    told = Told(1, 1, 1, 1)
    told.auditor.said_durable("c", 2)
    assert told.lose_power(1, 2) == 2
    told = Told(1, 1, 1, 1)
    told.auditor.said_durable("c", 3)
    with pytest.raises(Violation, match=r"survival: c ends at 2, .* durable up to 3"):
        told.lose_power(1, 2)
    told = Told(1, 1, 1, 1)
    told.auditor.said_durable("c", 2)
    with pytest.raises(Violation, match="survival: c lost what was durable, from position 2"):
        told.lose_power(1, 3)


def test_a_hole_is_a_broken_promise():
    with pytest.raises(Violation, match="prefix: c lost position 2 and kept position 3"):
        Told(1, 1, 1).lose_power(1, 3)


def test_a_part_of_a_batch_is_a_broken_promise():
    with pytest.raises(Violation, match="whole: a loss of power left a part of append 2"):
        Told(1, 3).lose_power(1, 2, 3)


def test_what_stayed_must_be_where_it_was():
    told = Told(1, 1)
    with pytest.raises(Violation, match="survival: c has 20 at position 7, not 2"):
        told.auditor.power_was_lost("c", {10: 1, 20: 7}, 7)


def test_what_is_gone_is_not_asked_for_any_more_and_must_not_come_back():
    told = Told(1, 1)
    assert told.lose_power(1) == 1
    told.read(1, 10, 1)
    with pytest.raises(Violation, match="absence: reader got append 2 at 20, which a loss of power had taken away"):
        told.read(2, 20, 2)


def test_a_position_a_reader_knows_comes_back_only_when_it_was_lost_and_in_a_higher_term():
    told = Told(1, 1)
    told.read(2, 20, 2)
    new = told.auditor.asked("c", 1).number
    with pytest.raises(Violation, match="order: reader got 90 of term 2 at position 2, where 20 of term 1 was"):
        told.read(new, 90, 2, term=2)
    assert told.lose_power(1) == 1
    with pytest.raises(Violation, match="order: reader got 90 of term 1 at position 2"):
        told.read(new, 90, 2, term=1)
    told.read(new, 90, 2, term=2)
