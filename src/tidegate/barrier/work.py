"""What the coordinator of epochs and its workers say to each other, and what it asks of its shell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidegate.barrier.cut import Cut, Pointer, Span
from tidegate.log.message import Term


@dataclass(frozen=True, slots=True)
class Report:
    """A worker has finished its share of a span: its files are durable, and nobody sees them yet."""

    worker: str
    term: Term
    generation: int
    """Of the shares it worked on."""
    span: Span
    files: tuple[str, ...] = ()
    """Names that no other attempt uses."""


class Verdict(StrEnum):
    """What became of a report. Only TAKEN changes anything."""

    TAKEN = "taken"
    REPEATED = "repeated"
    """The same span was reported before, by this term."""
    COMMITTED = "already committed"
    OLD_TERM = "of an old term"
    UNKNOWN_WORKER = "of a worker that is not registered"
    OLD_SHARES = "of shares that were given out anew"
    """If it has not heard where to begin, the worker registers once more, with the term it has."""
    NOT_HANDED_OUT = "of a span that was not handed out"
    FENCED = "to an owner that was replaced"

    @property
    def must_stop(self) -> bool:
        """Whether another is there in this worker's place, or it was given up: it ends, and never asks again."""
        return self is Verdict.OLD_TERM

    @property
    def must_register(self) -> bool:
        """Whether the worker is not known here: it takes a fresh term and registers with whoever owns the pipeline."""
        return self in (Verdict.UNKNOWN_WORKER, Verdict.FENCED)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a report."""

    verdict: Verdict
    why: str
    effects: tuple[Effect, ...] = ()
    discard: tuple[str, ...] = ()
    """Files of the report that are known to be needed by nobody. What is in doubt is left to garbage collection."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A worker forgets what it staged, and begins behind epoch `after` with this share.

    Ordering: it waits until the pointer has reached `after`: a checkpoint may be on its way there.
    """

    worker: str
    term: Term
    generation: int
    after: int
    channels: tuple[str, ...]
    redo: bool
    """Whether the batch it was bound to will be handed out as it is. If not, its own offset log is thrown away."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """A worker that registers or asks for work is told why it gets nothing; the verdict says what it does next."""

    worker: str
    term: Term
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True)
class HandOut:
    """A worker is to fold a span of its channels: what lies above `after` and at or below `upto`, in time.

    May be repeated and lost: `Epochs.work_of` says it again.
    """

    worker: str
    term: Term
    generation: int
    span: Span
    channels: tuple[str, ...]
    after: Cut | None
    """Reading begins at its places; None: at the beginning."""
    upto: Cut


@dataclass(frozen=True, slots=True)
class Commit:
    """Make a checkpoint.

    Ordering: every file of the reports is durable. Write the manifest under `pointer.manifest`, once, however often
    this is repeated; make it durable; then replace the pointer by compare-and-set, at the version at which it was last
    read in this term. Then `committed`, or `commit_failed`.
    """

    pointer: Pointer
    span: Span | None
    """None: only the arrangement of files changes."""
    cut: Cut | None
    reports: tuple[Report, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """What becomes visible: per worker in the order of epochs."""
        return tuple(name for report in self.reports for name in report.files)


@dataclass(frozen=True, slots=True)
class ReadPointer:
    """Nobody knows whether the pointer was replaced: read it, with its version, and tell `pointer_is`."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Staged files that will never be committed. May be removed now, or left to garbage collection."""

    files: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """A newer owner has taken over: stop, and change nothing any more."""

    term: Term


Effect = Begin | Refuse | HandOut | Commit | ReadPointer | Discard | StepDown


class CommitOutcome(StrEnum):
    """How a commit went that did not succeed for certain."""

    ABSENT = "absent"
    """The pointer was not touched: the manifest could not be written, or the store did not take the request."""
    REFUSED = "refused"
    """The pointer's version was another one."""
    UNKNOWN = "unknown"


def share_out(channels: Iterable[str], workers: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Every channel to one worker, evenly, by name alone.

    >>> share_out(["a", "b", "c"], ["x", "y"])
    {'x': ('a', 'c'), 'y': ('b',)}
    """
    names = sorted(set(channels))
    ordered = sorted(set(workers))
    return {worker: tuple(names[at :: len(ordered)]) for at, worker in enumerate(ordered)}
