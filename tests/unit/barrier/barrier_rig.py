"""Helpers: a coordinator of epochs with workers that do what they are told."""

from tidegate.barrier.collection import Epochs
from tidegate.barrier.cut import Cut, Pointer, Span
from tidegate.barrier.work import Begin, Commit, Discard, HandOut, Report
from tidegate.clock.timestamp import Timestamp

CHANNELS = ("d0", "d1", "d2")
OWNER = 10
"""The owner's term. Those of workers are above it."""


def cut(epoch, *, checkpoint=True):
    return Cut(epoch, Timestamp((epoch - 1) * 100), Timestamp(epoch * 100), {}, checkpoint)


def make(*workers, cuts=0, pointer=None, **how):
    """An owner, and workers with the terms 11, 12, ... that have begun; so many cuts are recorded."""
    epochs = Epochs(OWNER, pointer or Pointer().claimed_by(OWNER), [], channels=CHANNELS, **how)
    for at, name in enumerate(workers):
        epochs.register(name, OWNER + 1 + at, 0)
    for epoch in range(1, cuts + 1):
        epochs.record(cut(epoch), epoch * 10)
    return epochs


def report(epochs, name, *, span=None, term=None, generation=None, files=None):
    worker = epochs.workers[name]
    span = Span(*span) if span else worker.handed
    term = term or worker.term
    return Report(
        name, term, epochs.generation if generation is None else generation, span,
        (f"{name}.{term}.{span.first}-{span.last}",) if files is None else files,
    )  # fmt: skip


def finish(epochs, name, now_ms=0):
    """The worker reports what it was handed. Returns the effects."""
    answer = epochs.report(report(epochs, name), now_ms)
    assert answer.verdict == "taken", answer
    return answer.effects


def of(kind, effects):
    return [effect for effect in effects if isinstance(effect, kind)]


def commits(effects):
    return of(Commit, effects)


def hand_outs(effects):
    return {effect.worker: tuple(effect.span) for effect in of(HandOut, effects)}


def begins(effects):
    return {effect.worker: effect for effect in of(Begin, effects)}


def discarded(effects):
    return [name for effect in of(Discard, effects) for name in effect.files]
