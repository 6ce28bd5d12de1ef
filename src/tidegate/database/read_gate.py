"""`ReadGate`: the owner's side of a read: which cut it gets, and waiting until that cut can be read (seed 004).

The guarantee comes from the owner's oracle. A read waits on service time, which is the lowest tick of the channels of
its tables for what is read from the log, and the last checkpoint for what is not; it asks for what it waits for, and
goes on at once when it is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.catalog.view_fold import view_facts, view_of
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, NotFound, Stalled, TidegateError, WaitTimeout
from tidegate.reads.consistency import Asked, Seen, cut, guarantee
from tidegate.reads.owner_time import OwnerTime
from tidegate.reads.waiting import MAX_LAG_MS, GiveUp, Waiting
from tidegate.runtime.pending import PendingAppend
from tidegate.tables.schema import Table

if TYPE_CHECKING:
    from tidegate.database.engine import Engine
    from tidegate.runtime.channel_writer import ChannelWriter

_LOOK_EVERY_S = 0.05
_BARRIER_MS = 20
"""About what a barrier takes until its cut."""


class ReadAsk(NamedTuple):
    """What a read asks of the owner."""

    asked: Asked
    seen: Seen = Seen()
    tables: Sequence[str] = ()
    """The names of the tables that it reads."""
    timeout_ms: int | None = None
    max_lag_ms: int = MAX_LAG_MS
    checkpoint: bool = False
    """Whether only a checkpoint will do."""
    is_cancelled: Callable[[], bool] | None = None
    """Whether nobody waits for it any more. Within a process only."""


class ReadPlace(NamedTuple):
    """Where a read gets its answer from."""

    at: Timestamp
    """The cut."""
    tables: Mapping[str, Table]
    """As they are in it."""
    waited_ms: int = 0
    views: Mapping[str, View] = {}
    """Those among the names that are views."""
    under: Sequence[Table | View] = ()
    """All that the views read, directly or through other views."""
    checkpoint_ms: int | None = 0
    """About how long a checkpoint takes that is as fresh; None when none may come. Of interest only for views."""


class ReadGate:
    """Lets reads of one database through. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        clocks = _clocks()
        self._time = OwnerTime(engine.log.allocate(1), *clocks)
        self._waiting: dict[str, int] = {}
        """Reads that wait for a tick, by channel."""
        self._writers = {name: engine.log.channel(name, create=False) for name in engine.channels}
        for name, writer in self._writers.items():
            with writer.mutex:
                writer.watchers = (*writer.watchers, partial(self._written, name))

    def _written(self, name: str, items: Sequence[PendingAppend]) -> None:
        """What held a channel may be done: whoever waits for its tick need not wait for the next regular one."""
        if items and self._waiting.get(name):
            with suppress(TidegateError):
                self._writers[name].tick()

    def begin(self, ask: ReadAsk) -> ReadPlace:
        """The cut that a read is answered from, once it can be read.

        Raises: `NotFound` for a table that is not in it; `Stalled`, `WaitTimeout`, naming what holds it up;
        `InvalidArgument` when the session has seen what this database has not.
        """
        engine = self._engine
        now = engine.log.allocate(1)
        if max(ask.seen) > now:
            raise InvalidArgument(
                f"the session has seen {max(ask.seen)}, and this database has come to {now}: it was restored from an"
                f" older copy, or the token belongs to another; begin a new session"
            )
        wall_ms, monotonic_ms = _clocks()
        with self._lock:
            handed_out = self._time.handed_out(
                ask.asked.staleness_ms, now=now, wall_ms=wall_ms, monotonic_ms=monotonic_ms
            )
        changed = engine.tables_changed(ask.tables)
        needed = guarantee(ask.asked, now=now, seen=ask.seen, changed=changed, handed_out=handed_out)
        began = time.monotonic()
        if ask.checkpoint:
            at = self._wait_for_checkpoint(needed, ask)
        else:
            at = cut(ask.asked, needed, checkpoint=engine.pipeline.service_time)
            self._wait_for_ticks(at, ask)
        # Looked up after the cut is decided, so that every change of a table up to it is known.
        tables, views, under = engine.read_at(ask.tables, at)
        waited_ms = round((time.monotonic() - began) * 1000)
        return ReadPlace(at, tables, waited_ms, views, under, self._checkpoint_ms(at) if views else 0)

    def _checkpoint_ms(self, at: Timestamp) -> int | None:
        pipeline = self._engine.pipeline
        if pipeline.service_time >= at:
            return 0
        if not pipeline.has_worker or pipeline.is_paused or pipeline.is_starting or pipeline.failure is not None:
            return None
        # The batch that runs has to end, and one with this barrier has to be done.
        return round(1000 * pipeline.checkpoint_s * (1.5 if pipeline.is_busy else 1.0)) + _BARRIER_MS

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _writers_of(self, names: Sequence[str], at: Timestamp) -> Mapping[str, ChannelWriter]:
        """The channels that tables lie in. All of them for no table in particular, or one that is not known yet."""
        engine, found = self._engine, set[str]()
        try:
            for name in names:
                table = engine.table(name, at)
                found.update(engine.channel_of(table.id, shard) for shard in range(table.shards))
        except NotFound:
            return self._writers
        return {name: self._writers[name] for name in sorted(found)} if found else self._writers

    def _wait_for_ticks(self, needed: Timestamp, ask: ReadAsk) -> None:
        late = _late(self._writers_of(ask.tables, needed), needed)
        if not late:
            return
        with self._lock:
            for name in late:
                self._waiting[name] = self._waiting.get(name, 0) + 1
        try:
            self._wait_for(late, needed, ask)
        finally:
            with self._lock:
                for name in late:
                    self._waiting[name] -= 1

    def _wait_for(self, late: dict[str, ChannelWriter], needed: Timestamp, ask: ReadAsk) -> None:
        waiting = Waiting(needed, _now_ms(), timeout_ms=ask.timeout_ms, max_lag_ms=ask.max_lag_ms)
        while late:
            for writer in late.values():
                writer.tick()
            next(iter(late.values())).wait_for_tick(int(needed) - 1, _LOOK_EVERY_S)
            late = _late(late, needed)
            if not late:
                return
            _check_cancelled(ask, needed)
            now = min(needed, self._engine.log.allocate(1))
            reached = {name: _reached(writer, now) for name, writer in late.items()}
            slowest = min(reached, key=lambda name: reached[name])
            match waiting.look(reached[slowest], _now_ms()):
                case GiveUp() as found:
                    raise _error(found, needed, f"channel {slowest!r}", self._engine.report.what_holds(slowest))

    def _wait_for_checkpoint(self, needed: Timestamp, ask: ReadAsk) -> Timestamp:
        if ask.asked.level == "timestamp":
            raise InvalidArgument(f"{needed} is a time of its own, and no later checkpoint will do for it")
        pipeline = self._engine.pipeline
        waiting = Waiting(needed, _now_ms(), timeout_ms=ask.timeout_ms, max_lag_ms=ask.max_lag_ms)
        asked = False
        while True:
            service = pipeline.service_time
            if service >= needed:
                return service
            _check_cancelled(ask, needed)
            if pipeline.is_paused:
                held_by = pipeline.what_holds()
                raise Stalled(f"the read needs a checkpoint at {needed}: {held_by}; resume it", held_by=held_by)
            asked = asked or pipeline.ask_barrier("a read")
            if pipeline.is_starting:
                waiting.touch(_now_ms())
            # One that has nothing to do is behind only by what it was just asked for.
            reached = service if pipeline.is_busy else max(service, Timestamp(int(needed) - 1))
            match waiting.look(reached, _now_ms()):
                case GiveUp() as given_up:
                    raise _error(given_up, needed, "the pipeline", pipeline.what_holds())
            pipeline.wait_for(service.next(), _LOOK_EVERY_S)


def _late(writers: Mapping[str, ChannelWriter], needed: Timestamp) -> dict[str, ChannelWriter]:
    return {name: each for name, each in writers.items() if each.latest_tick.time_tick < needed}


def _reached(writer: ChannelWriter, now: Timestamp) -> Timestamp:
    """How far a channel is: an idle one has not ticked for long, and is behind only by what is on its way."""
    oldest = writer.status().channel.oldest_in_flight
    upto = now if oldest is None else min(now, oldest)
    return max(writer.latest_tick.time_tick, Timestamp(int(upto) - 1))


def _check_cancelled(ask: ReadAsk, needed: Timestamp) -> None:
    if ask.is_cancelled is not None and ask.is_cancelled():
        raise WaitTimeout(f"the read was cancelled while it waited for {needed}")


def _error(found: GiveUp, needed: Timestamp, what: str, held_by: str) -> TidegateError:
    reached = f"{what} has come to {found.service} and the read needs {needed}"
    if found.why == "timeout":
        return WaitTimeout(f"{reached}; its time was up after {found.waited_ms / 1000:g} s: {held_by}")
    if found.why == "lag":
        text = f"{reached}, which is {found.lag_ms / 1000:,.0f} s behind and more than `max_lag`"
    else:
        text = f"{reached}; after {found.waited_ms / 1000:.1f} s nothing moves"
    return Stalled(
        f"{text}: {held_by}. Read with consistency 'eventual' meanwhile, or try again", why=found.why, held_by=held_by
    )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _clocks() -> tuple[int, int]:
    """The wall clock and the monotonic one, in milliseconds, at the same time."""
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        if time.monotonic_ns() - before < 1_000_000:  # Else something else ran between.
            break
    return wall // 1_000_000, before // 1_000_000


# -- through the socket ----------------------------------------------------------------------------------------------


def pack_ask(ask: ReadAsk) -> dict[str, Any]:
    wanted, seen = ask.asked, ask.seen
    return {
        "asked": [wanted.level, wanted.staleness_ms, int(wanted.at)],
        "seen": [int(seen.read), int(seen.written)],
        "tables": list(ask.tables),
        "timeout_ms": ask.timeout_ms,
        "max_lag_ms": ask.max_lag_ms,
        "checkpoint": ask.checkpoint,
    }


def unpack_ask(head: Mapping[str, Any]) -> ReadAsk:
    level, staleness_ms, at = head["asked"]
    read, written = head["seen"]
    return ReadAsk(
        Asked(level, staleness_ms, Timestamp(at)),
        Seen(Timestamp(read), Timestamp(written)),
        head["tables"],
        head["timeout_ms"],
        head["max_lag_ms"],
        head["checkpoint"],
    )


def pack_place(place: ReadPlace, facts: Callable[[Table], Any]) -> dict[str, Any]:
    found = {name: facts(each) for name, each in place.tables.items()}
    packed = {"at": int(place.at), "tables": found, "waited_ms": place.waited_ms}
    if place.views:
        packed["views"] = {name: view_facts(each) for name, each in place.views.items()}
        packed["under"] = [
            {"view": view_facts(each)} if isinstance(each, View) else {"table": facts(each)} for each in place.under
        ]
        packed["checkpoint_ms"] = place.checkpoint_ms
    return packed


def unpack_place(found: Mapping[str, Any], table_of: Callable[[Any], Table]) -> ReadPlace:
    tables = {name: table_of(each) for name, each in found["tables"].items()}
    views = {name: view_of(each) for name, each in found.get("views", {}).items()}
    under = [view_of(each["view"]) if "view" in each else table_of(each["table"]) for each in found.get("under", ())]
    return ReadPlace(Timestamp(found["at"]), tables, found["waited_ms"], views, under, found.get("checkpoint_ms", 0))
