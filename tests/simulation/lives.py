"""What every simulated world is asked: that promises hold, that it repeats itself, and that it can fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

Simulate = Callable[..., Any]
"""Runs a world with a seed, and `steps` if need be."""


def keeps_its_promises(simulate: Simulate, world: str, seeds: Iterable[int]) -> None:
    for seed in seeds:
        outcome = simulate(seed)
        assert outcome.violation is None, (
            f"{outcome.violation}\nreplay: tidegate simulate --world {world} --seed {seed} --trace\n"
            + "\n".join(outcome.trace[-40:])
        )


def repeats_itself(simulate: Simulate, seed: int, **options: Any) -> None:
    """The same seed gives the same trace, and another one another."""
    first, second = simulate(seed, **options), simulate(seed, **options)
    assert first.digest == second.digest
    assert first.trace == second.trace
    assert first.digest != simulate(seed + 1, **options).digest


def finds(simulate: Simulate, bug: AbstractContextManager[object], seeds: Sequence[int], known: int = 0) -> None:
    """A simulator that cannot fail proves nothing.

    `known` is a seed that has found it, which is tried first; as worlds change it need not any more, and any other will
    do."""
    with bug:
        for seed in sooner([known], seeds):
            if simulate(seed).violation is not None:
                return
    pytest.fail(f"it went unnoticed in {len(seeds)} runs")


def meets(simulate: Simulate, must_happen: Iterable[str], seeds: Sequence[int], rich: Sequence[int] = ()) -> None:
    """Each mark is something that must have happened for the runs to mean anything. In `rich` seeds much happens."""
    marks: Counter[str] = Counter()
    missing = list(must_happen)
    for seed in sooner(rich, seeds):
        marks.update(simulate(seed).marks)
        missing = [mark for mark in missing if not any(mark in each for each in marks)]
        if not missing:
            return
    pytest.fail(f"never happened in {len(seeds)} runs: {missing}")


def sooner(some: Sequence[int], seeds: Sequence[int]) -> list[int]:
    """The same seeds, with some of them first."""
    return [*(each for each in some if each in seeds), *(each for each in seeds if each not in some)]
