"""Who may be in a virtual channel at the same time. Seed 000's lock, facts 29 and 30."""

from __future__ import annotations

import pytest

from tidegate.errors import InvariantBroken
from tidegate.log.append_locks import AppendLocks
from tidegate.log.message import ALL_VCHANNELS


def test_ordinary_appends_share_a_virtual_channel() -> None:
    locks = AppendLocks()
    assert locks.try_shared("a")
    assert locks.try_shared("a")
    assert locks.holders() == {"a": "shared by 2"}


def test_an_exclusive_append_waits_for_the_same_virtual_channel_only() -> None:
    """Fact 30: it waits for a writer of the same virtual channel, not for one of another."""
    locks = AppendLocks()
    locks.try_shared("a")
    assert not locks.try_exclusive("a")
    assert locks.try_exclusive("b")
    assert not locks.try_shared("b")
    assert not locks.may_share("b")
    assert locks.try_shared("a")
    locks.release_shared("a")
    assert not locks.try_exclusive("a")
    locks.release_shared("a")
    assert locks.try_exclusive("a")


def test_exclusive_excludes_exclusive() -> None:
    locks = AppendLocks()
    assert locks.try_exclusive("a")
    assert not locks.try_exclusive("a")


@pytest.mark.parametrize("held", ["shared", "exclusive"])
def test_one_for_all_waits_for_everybody_and_then_keeps_everybody_out(held: str) -> None:
    """Facts 29, 30: a global exclusive waits for a running shared writer; and it blocks ticks, too."""
    locks = AppendLocks()
    assert locks.try_shared("a") if held == "shared" else locks.try_exclusive("a")
    assert not locks.try_exclusive(ALL_VCHANNELS)
    locks.release_shared("a") if held == "shared" else locks.release_exclusive("a")
    assert locks.try_exclusive(ALL_VCHANNELS)
    assert not locks.try_shared("b")
    assert not locks.try_exclusive("b")
    assert not locks.try_exclusive(ALL_VCHANNELS)
    assert not locks.may_share(ALL_VCHANNELS), "ticks share all virtual channels"
    assert locks.holders() == {ALL_VCHANNELS: "exclusive"}
    locks.release_exclusive(ALL_VCHANNELS)
    assert locks.try_shared("b")


def test_ticks_pass_an_exclusive_append_of_one_virtual_channel() -> None:
    locks = AppendLocks()
    locks.try_exclusive("a")
    assert locks.may_share(ALL_VCHANNELS)


def test_letting_go_of_what_is_not_held_is_our_defect() -> None:
    locks = AppendLocks()
    locks.try_shared("a")
    locks.release_shared("a")
    assert locks.is_idle
    with pytest.raises(InvariantBroken, match="'a' is not held"):
        locks.release_shared("a")
    with pytest.raises(InvariantBroken, match="alone"):
        locks.release_exclusive("a")
