"""What is held of a transaction: few messages in memory, many in a file that nobody finds (issue 7: bounded memory)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.capture import spill
from tidegate.capture.spill import Spill
from tidegate.errors import InvariantBroken


@given(st.lists(st.binary(max_size=40), max_size=40), st.sampled_from([0, 20, 100, 10_000]), st.data())
def test_what_is_read_is_what_was_put_at_those_places(messages, limit, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=6)))
    held = Spill(limit)
    places = [0]
    for each in messages:
        held.append(each)
        places.append(held.end)
    spans = [(places[one], places[two]) for one, two in zip(cuts[::2], cuts[1::2]) if one < two]
    wanted = [each for one, two in zip(cuts[::2], cuts[1::2]) for each in messages[one:two]]
    assert [each for chunk in held.read(spans) for each in chunk] == wanted
    assert [each for chunk in held.read([(0, held.end)]) for each in chunk] == messages
    held.close()


def test_few_stay_in_memory_and_many_do_not():
    held = Spill(limit=100)
    held.append(bytes(50))
    assert not held.is_on_disk
    held.append(bytes(50))
    assert held.is_on_disk
    held.close()
    held.close()
    assert not held.is_on_disk and held.end == 0


def test_much_is_read_back_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr(spill, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(spill, "CHUNK_MESSAGES", 7)
    messages = [bytes([number % 250]) * (number * 13 % 300) for number in range(200)]
    for limit in (1, 1 << 20):
        held = Spill(limit)
        for each in messages:
            held.append(each)
        chunks = list(held.read([(0, held.end)]))
        assert max(len(chunk) for chunk in chunks) <= 7
        assert [each for chunk in chunks for each in chunk] == messages
        held.close()


def test_a_file_that_was_cut_off_is_noticed():
    held = Spill(limit=1)
    held.append(bytes(100))
    assert held._file is not None
    held._file.truncate(10)
    with pytest.raises(InvariantBroken, match="too early"):
        list(held.read([(0, held.end)]))
    held.close()
