"""Cuts, spans and the pointer, and how they are written. Checkpoints-and-views section 1 and 2.5."""

import json

import pytest

from tidegate.barrier.cut import Cut, Place, Pointer, Span, decode_cut, decode_pointer, encode_cut, encode_pointer
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption, InvariantBroken, NotLeader


def cut(epoch=1, since=0, at=100, places=None, **more):
    return Cut(epoch, Timestamp(since), Timestamp(at), places or {}, **more)


def test_a_cut_reads_back_what_was_written():
    written = cut(7, 90, 100, {"d0": Place(5, Timestamp(99)), "system": Place(1, Timestamp(100))},
                  is_checkpoint=False, catalog_version=3)  # fmt: skip
    assert decode_cut(encode_cut(written)) == written


def test_the_bytes_of_a_cut_are_fixed():
    """A record in the log: what is written today is read by every later version."""
    assert encode_cut(cut(2, 100, 200, {"b": Place(4, Timestamp(150)), "a": Place(0, Timestamp(9))})) == (
        b'{"version":1,"epoch":2,"since":100,"timestamp":200,"checkpoint":true,"catalog":0,'
        b'"places":{"a":[0,9],"b":[4,150]}}'
    )


def test_the_bytes_of_the_pointer_are_fixed():
    pointer = Pointer(3, 9, Timestamp(200), 4, "000000000003-000004")
    assert encode_pointer(pointer) == (
        b'{"version":1,"checkpoint":3,"epoch":9,"timestamp":200,"term":4,"manifest":"000000000003-000004"}'
    )
    assert decode_pointer(encode_pointer(pointer)) == pointer


@pytest.mark.parametrize("decode", [decode_cut, decode_pointer])
@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"version":1}', b'{"version":1,"places":[1]}'])
def test_what_is_not_a_record_is_corruption(decode, data):
    with pytest.raises(Corruption):
        decode(data)


@pytest.mark.parametrize(
    ("decode", "data"), [(decode_cut, encode_cut(cut())), (decode_pointer, encode_pointer(Pointer()))]
)
def test_a_record_of_a_newer_version_is_not_guessed_at(decode, data):
    newer = json.dumps({**json.loads(data), "version": 2}).encode()
    with pytest.raises(Corruption, match="newer Tidegate"):
        decode(newer)


def test_a_damaged_cut_that_breaks_the_laws_is_corruption():
    damaged = json.loads(encode_cut(cut(1, 0, 100)))
    with pytest.raises(Corruption):
        decode_cut(json.dumps({**damaged, "since": 100}).encode())


def test_timestamps_of_cuts_strictly_rise():
    """Section 1: strictly greater than the previous; curr > prev."""
    with pytest.raises(InvariantBroken):
        cut(1, 100, 100)


def test_an_epoch_begins_where_the_one_before_ends():
    """Section 1: barrier_n.prev == barrier_{n-1}.curr, and it cannot be computed as curr - 1."""
    first = cut(1, 0, 100)
    cut(2, 100, 200).require_after(first)
    first.require_after(None)
    for wrong in (cut(2, 99, 200), cut(3, 100, 200), cut(1, 100, 200)):
        with pytest.raises(InvariantBroken):
            wrong.require_after(first)
    with pytest.raises(InvariantBroken):
        cut(1, 50, 100).require_after(None)


def test_a_cut_never_names_a_place_behind_itself():
    """LastConfirmed: reading from there would skip what lies between the barrier and the tick."""
    with pytest.raises(InvariantBroken, match="d0"):
        cut(1, 0, 100, {"d0": Place(5, Timestamp(101))})


def test_the_next_checkpoint_names_the_one_before():
    pointer = Pointer().claimed_by(7).next(5, Timestamp(100))
    assert pointer == Pointer(1, 5, Timestamp(100), 7, "000000000001-000007")
    assert pointer.previous == 0
    assert pointer.next(6, Timestamp(200)).previous == 1


def test_manifests_of_two_owners_have_different_names():
    old, new = Pointer().claimed_by(7), Pointer().claimed_by(8)
    assert old.next(1, Timestamp(1)).manifest != new.next(1, Timestamp(1)).manifest


def test_only_a_newer_owner_claims_the_pointer():
    claimed = Pointer(3, 9, Timestamp(200), 4, "m").claimed_by(6)
    assert claimed == Pointer(3, 9, Timestamp(200), 6, "m")
    with pytest.raises(NotLeader, match="term 6"):
        claimed.claimed_by(5)


def test_a_span_prints_as_its_epochs():
    assert str(Span(3, 3)) == "epoch 3"
    assert str(Span(3, 5)) == "epochs 3 to 5"
