"""`Applier`: brings a target from where it is to a cut of the database, chunk by chunk.

How far a target is, it says itself: `tidegate_applied` is written in the transaction of each chunk. So whatever ends an
applier, at whatever point, the next one goes on from there: nothing is missing and nothing comes twice. A chunk is
whole transactions, so at each of its commits the target is the tables as of one commit here.

What the rows of a chunk were before is asked of the database at the Timestamp that the target is at; it is what the
target must have, unless the policy is to overwrite.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from tidegate.capture.applied import Applied
from tidegate.capture.apply_chunk import ChunkWriter
from tidegate.capture.apply_feed import LogFeed, Window
from tidegate.capture.apply_origin import applied_by, first_of, has_come_round, is_one_of, origin_text
from tidegate.capture.apply_rows import Before, Parts
from tidegate.capture.filling import Filling
from tidegate.capture.target import ApplyConflict, Conflict, State, Target, Violation, Written, open_target
from tidegate.capture.target_tables import TableWriter, check_is_apart, fit, in_order, renew, state_of
from tidegate.cdc.apply_plan import cut_by_place
from tidegate.clock.timestamp import Timestamp
from tidegate.database.read_gate import ReadAsk, ReadPlace
from tidegate.errors import InvalidArgument, NotFound, Truncated
from tidegate.reads.consistency import Asked
from tidegate.tables.schema import Table

if TYPE_CHECKING:
    from tidegate.database.replication_calls import ReplicationCalls

_logger = logging.getLogger("tidegate.capture")
Policy = Literal["stop", "overwrite", "skip"]
Start = Literal["snapshot", "now"] | Timestamp

_How = Literal["put off", "looked at", "checked at once"]
"""What becomes of foreign keys that can be put off: at first the end says that one does not hold, and not which."""
_NEXT: Final[Mapping[str, _How]] = {"put off": "looked at", "looked at": "checked at once"}
"""Where rows are to be left out: look for those whose foreign keys do not hold; then have others checked at once."""

WINDOW_ROWS: Final = 20_000
"""About how many rows are looked at together: the rows before them are asked for at once."""
_IDLE_MS: Final = 60_000
"""How far the position that is written stays behind when no table changes."""


class Applier:
    """One target and one name. One thread at a time."""

    def __init__(
        self,
        db: ReplicationCalls,
        tables: Sequence[str],
        url: str,
        *,
        name: str,
        policy: Policy,
        chunk_rows: int,
        start: Start,
        restart: bool,
    ) -> None:
        self._db = db
        self._tables = list(dict.fromkeys(tables))
        self._url = url
        self._name = name
        self._policy = policy
        self._chunk_rows = chunk_rows
        self._start = start
        self._restart = restart
        self.origin: Final = f"tidegate:{db.id.hex()}"
        """What the target says of who has written."""
        self.done: Final = Applied()
        self.watch: Callable[[], None] = lambda: None
        """Called after each chunk; may raise."""
        self._target: Target | None = None
        self._state: State | None = None
        self._written: Written | None = None
        """What the target says of itself."""
        self._feed: LogFeed | None = None
        self._writers: dict[str, TableWriter] = {}
        self._order: list[str] = []
        self._is_old = False
        """Whether the writers are of an earlier call: the target's tables may have other constraints by now."""

    # -- the whole -------------------------------------------------------------------------------------------------

    def catch_up(self) -> Timestamp:
        """Apply all that was committed before the call; the cut that the target is at then.

        Raises: `ApplyConflict`; what reading and the target raise. Then nothing is half done, and it can be repeated.
        """
        try:
            place = self._cut(self._tables)
            target = self._open()
            self._is_old = bool(self._writers)
            if self._state is not None and self._state.position > place.at:
                place = self._cut(self._tables)  # Somebody else may have come further under this name meanwhile.
            self._begin(target, place)
            feed = self._feed
            if feed is None:
                feed = self._feed = LogFeed(self._db, self._tables, self.done.position, WINDOW_ROWS)
            for window in feed.windows(place.tables, place.at):
                self._window(target, place.tables, window)
            self._create_empty(target, place)
            return place.at
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the target; the next `catch_up` asks it where it is."""
        target, self._target = self._target, None
        feed, self._feed = self._feed, None
        self._state, self._written = None, None
        self._writers.clear()
        if target is not None:
            target.rollback()
            target.close()
        if feed is not None:
            feed.close()

    def _cut(self, names: Sequence[str]) -> ReadPlace:
        place = self._db.again(lambda: self._db.backend.begin_read(ReadAsk(Asked("strong"), tables=names)))
        if place.views:
            view = next(iter(place.views))
            raise InvalidArgument(f"{view!r} is a view, and tables are applied; its changes can be subscribed to")
        return place

    def _open(self) -> Target:
        if self._target is None:
            self._target = target = open_target(self._url)
            target.prepare()
            self._state = target.state(self._name)
            self._written = None if self._state is None else self._state.written
        return self._target

    # -- beginning -------------------------------------------------------------------------------------------------

    def _begin(self, target: Target, place: ReadPlace) -> None:
        """Give the target the rows of tables that it has not had."""
        state = self._state
        if state is not None:
            self._check_all_are_named(target, state)
        if state is None or self._restart:
            self._from_nothing(target, place)
            return
        if applied_by(state.origin) != self.origin:
            raise InvalidArgument(
                f"{target.shown}: what was applied under the name {self._name!r} came from another database"
                f" ({state.origin}, and this is {self.origin}); give this one another name"
            )
        if state.position > place.at:
            raise InvalidArgument(
                f"{target.shown} is at {state.position}, and this database has come to {place.at}: it was restored from"
                f" an older copy; start anew with restart=True"
            )
        for name in self._tables:
            known = state.tables.get(name)
            if known is not None and known.id != place.tables[name].id:
                raise InvalidArgument(
                    f"table {name!r} was dropped and created again since {state.position}; start anew with"
                    f" restart=True, which replaces the rows at {target.shown}"
                )
        if self._feed is None:
            # It may have lost what it had committed: then it goes on from there, wherever we had been.
            self.done.position = state.position
        fresh = [name for name in self._tables if name not in state.tables]
        if fresh:
            self._copy(target, place.tables, fresh, state.position)

    def _check_all_are_named(self, target: Target, state: State) -> None:
        """All tables of a name have one position: one that is left out would lack what it passes over, for ever."""
        left = [
            name for name in state.tables if name not in self._tables and self._is_here(name, state.tables[name].id)
        ]
        if left and applied_by(state.origin) == self.origin:
            raise InvalidArgument(
                f"{target.shown}: under the name {self._name!r} also {', '.join(map(repr, left))} is applied, and all"
                f" tables of a name are at one position: give all of them"
                f" ({', '.join([*left, *self._tables])}),"
                f" or another name=... for those you mean"
            )

    def _is_here(self, name: str, id: int) -> bool:
        try:
            return self._db.again(lambda: self._db.backend.table(name)).id == id
        except NotFound:
            return False  # It was dropped: nothing of it is to come.

    def _from_nothing(self, target: Target, place: ReadPlace) -> None:
        at = place.at
        if isinstance(self._start, Timestamp):
            if self._start > at:
                raise InvalidArgument(f"start is {self._start}, and this database has come to {at}")
            at = self._start
            self._feed = LogFeed(self._db, self._tables, at, WINDOW_ROWS)
            try:
                self._feed.check(place.tables, place.at)  # First: once written, the position stays.
            except Truncated as error:
                raise Truncated(
                    f"start is {at}, and the log of {self._db.path} does not have what follows it any more"
                    f" ({error.__cause__ or error});"
                    f" start with 'snapshot', 'now' or a later Timestamp"
                ) from error
        before = self._state

        def fill(how: _How) -> None:
            if before is not None:
                target.forget(self._name)
            self._state, self._written = State(at, self.origin), None
            names = [name for name in self._tables if place.tables[name].existed(at)]
            if before is not None:
                self._renew(target, place, names, at, before)
            self._fit(target, place.tables, names, at)
            if before is not None:
                self._filling(target).clear()
            if self._start == "snapshot":
                self._filling(target).copy(self._order, at, is_checked=how == "looked at")

        self._fill(target, at, fill)
        self._restart = False

    def _renew(self, target: Target, place: ReadPlace, names: Sequence[str], at: Timestamp, before: State) -> None:
        """Have the columns follow where a restart empties what this name has filled."""
        for name in names:
            table, known = place.tables[name], before.tables.get(name)
            if known is not None:
                is_same = applied_by(before.origin) == self.origin and known.id == table.id
                renew(target, name, table.at(at), known if is_same else None)

    def _fill(self, target: Target, at: Timestamp, fill: Callable[[_How], None]) -> None:
        """Have the target filled, and be at a Timestamp, by one transaction of its."""
        kept = self.done.kept()
        how: _How = "put off"
        while True:
            self._mark(target, self.origin)
            target.begin(deferred=how != "checked at once")
            try:
                fill(how)
                self._put(target, at)
                target.commit()
                break
            except Violation as violation:
                error = self._forbidden(target, violation, at)
                target.rollback()
                if self._policy != "skip" or how not in _NEXT:
                    raise error from violation
                self._restore(target)
                self.done.undo(kept)
                how = _NEXT[how]
        self._settled(at)

    def _copy(self, target: Target, tables: Mapping[str, Table], names: Sequence[str], at: Timestamp) -> None:
        """Tables that were added to those that are applied, as they were when the target was."""

        def fill(how: _How) -> None:
            there = [name for name in names if tables[name].existed(at)]
            self._fit(target, tables, there, at)
            ordered = [name for name in self._order if name in there]
            self._filling(target).copy(ordered, at, is_checked=how == "looked at")

        self._fill(target, at, fill)

    def _create_empty(self, target: Target, place: ReadPlace) -> None:
        """Tables that are newer than where the target was, and have no rows yet."""
        names = [name for name in self._tables if name not in self._the_state().tables]
        if names:
            self._mark(target, self.origin)
            target.begin()
            self._fit(target, place.tables, names, place.at)
            self._put(target, place.at)
            target.commit()
            self._settled(place.at)

    def _filling(self, target: Target) -> Filling:
        """Ordering: the tables were made to fit."""
        return Filling(self._db, target, self._order, self._writers, self._policy, self.done, lambda: self.watch())

    def _forbidden(self, target: Target, violation: Violation, at: Timestamp) -> ApplyConflict:
        """A constraint that does not hold, of which no row is known."""
        text = f"a constraint of the target forbids it ({violation}{self._broken(target)})"
        conflict = Conflict("", {}, text, None, None, None, at)
        other = "" if self._policy == "skip" else ", or go on with policy 'skip'"
        return ApplyConflict(
            f"{target.shown}: {text}, of the transaction at {at}. Nothing of that transaction was applied, and all"
            f" before it was: mend the rows and repeat{other}",
            conflict=conflict,
            target=target.shown,
        )

    def _broken(self, target: Target) -> str:
        with suppress(Exception):
            found = target.broken_references(self._order)
            return f": {found}" if found else ""
        return ""

    def _mark(self, target: Target, origin: str) -> None:
        target.mark_origin(origin, self._name)
        if target.unsaid and not self.done.warning:
            _logger.warning("%s", target.unsaid)
        self.done.warning = target.unsaid

    # -- tables at the target --------------------------------------------------------------------------------------

    def _fit(self, target: Target, tables: Mapping[str, Table], names: Iterable[str], at: Timestamp) -> None:
        """Have writers for the schemas at a time, within the target's transaction; what it lacks is added."""
        state = self._the_state()
        changed = False
        for name in names:
            schema = tables[name].at(at)
            writer = self._writers.get(name)
            if writer is None or writer.schema.version != schema.version:
                known = state.tables.get(name)
                self._writers[name] = fit(target, name, schema, known)
                check_is_apart(target, name, state.tables)
                state.tables[name] = state_of(tables[name].id, self._writers[name], known)
                changed = True
        if changed:
            self._order = in_order(self._tables, self._writers)
            for writer in self._writers.values():
                writer.loosen([self._writers[each] for each in self._order])

    def _the_state(self) -> State:
        if self._state is None:
            self._state = State(Timestamp.ZERO, self.origin)
        return self._state

    def _put(self, target: Target, at: Timestamp, origin: str | None = None) -> None:
        state = self._the_state()
        state.position, state.origin = at, origin or self.origin
        target.put_state(
            self._name,
            state,
            self._written,
            datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds"),
        )

    def _settled(self, at: Timestamp) -> None:
        """The target's commit was carried out."""
        self._written = self._the_state().written
        self.done.position = at

    # -- windows ---------------------------------------------------------------------------------------------------

    def _window(self, target: Target, tables: Mapping[str, Table], window: Window) -> None:
        if not len(window.times):
            self._pass(target, window.upto)
            return
        firsts = [self._first(window, time) for time in window.times.tolist()]
        left_out = [self._is_left_out(target, window, time) for time in window.times.tolist()]
        before = Before(self._db, self.writer, tables, window, 2 * WINDOW_ROWS) if self._policy != "overwrite" else None
        for chunk in cut_by_place(window.rows.tolist(), left_out, firsts, self._chunk_rows):
            times = window.times[chunk.first : chunk.end].tolist()
            is_last = chunk.end == len(window.times)
            if chunk.is_left_out:
                self.done.left_out += len(times)
                if before is not None:
                    before.moved(times[-1])
                self._pass(target, window.upto if is_last else Timestamp(times[-1]))
                continue
            self._whole(target, tables, window, chunk.first, chunk.end, before)
            self.watch()

    def _whole(
        self,
        target: Target,
        tables: Mapping[str, Table],
        window: Window,
        first: int,
        end: int,
        before: Before | None,
    ) -> None:
        """Apply some transactions of a window as one of the target; fewer at once when that is a conflict.

        With `skip` in halves, so that few are alone; else each alone, up to the one that conflicts.
        """
        times = window.times[first:end].tolist()
        upto = window.upto if end == len(window.times) else None
        is_old = self._is_old
        try:
            size = len(times), int(window.rows[first:end].sum())
            self._chunk(target, tables, window, times[0], times[-1], upto, before, size)
        except ApplyConflict:
            if len(times) == 1 and not is_old:
                raise
            step = (len(times) + 1) // 2 if self._policy == "skip" else 1
            for each in range(first, end, step):
                self._whole(target, tables, window, each, min(each + step, end), before)

    def _first(self, window: Window, time: int) -> str | None:
        """Where a transaction first happened; None when that is here."""
        source = window.source(time)
        return None if source is None else first_of(window.origins.get(time), source)

    def _is_left_out(self, target: Target, window: Window, time: int) -> bool:
        """Whether the target has had a transaction before we have."""
        source = window.source(time)
        if source is None:
            return False
        origin = window.origins.get(time)
        if source in target.known_as or has_come_round(origin, source, self.origin):
            return True
        return is_one_of(first_of(origin, source), target.known_as)

    def _pass(self, target: Target, at: Timestamp) -> None:
        """Nothing is to be written up to here. That is written down now and then."""
        self.done.position = max(self.done.position, at)
        if self._written is not None and at.ms_since(self._written.position) >= _IDLE_MS:
            self._mark(target, self.origin)
            target.begin()
            self._put(target, at)
            target.commit()
            self._settled(at)

    def _chunk(
        self,
        target: Target,
        tables: Mapping[str, Table],
        window: Window,
        first: int,
        last: int,
        upto: Timestamp | None,
        before: Before | None,
        size: tuple[int, int],
        *,
        how: _How = "put off",
    ) -> None:
        """Apply transactions from one Timestamp to another as one of the target.

        `size` is how many transactions and rows. With `skip`, one that is alone leaves out what conflicts; of several,
        that is a conflict.
        """
        at = Timestamp(last) if upto is None else upto
        origin = origin_text(self.origin, self._first(window, first))
        self._mark(target, origin)
        target.begin(deferred=how != "checked at once")
        is_skipping = self._policy == "skip" and first == last
        policy = self._policy if is_skipping or self._policy != "skip" else "stop"
        try:
            self._fit(target, tables, window.changes, window.upto)
            self._put(target, at, origin)  # First: whoever has moved the position has changed the rows, too.
            parts = Parts(self.writer, window, first, last, before)
            writer = ChunkWriter(target, policy, self._order, self._writers)
            skipped = writer.write(parts.of, Timestamp(last), is_checked=how == "looked at", in_turn=how != "put off")
            if skipped and self._is_old:
                raise _LookAgain
            target.commit()
        except Violation as violation:
            if is_skipping and how in _NEXT:
                target.rollback()
                self._restore(target)
                self._chunk(target, tables, window, first, last, upto, before, size, how=_NEXT[how])
                return
            error = self._forbidden(target, violation, Timestamp(last))
            target.rollback()
            self._restore(target)
            raise error from violation
        except _LookAgain:
            target.rollback()
            self._restore(target)
            self._chunk(target, tables, window, first, last, upto, before, size, how=how)
            return
        except ApplyConflict:
            target.rollback()
            self._restore(target)
            raise
        self.done.count(*size)
        self.done.note(skipped)
        self._settled(at)  # Last: who waits for the position sees the figures.
        if before is not None:
            before.moved(last)

    def _restore(self, target: Target) -> None:
        """After a rollback: what was added to tables is gone with it, and is to be looked at again."""
        self._state = target.state(self._name)
        self._writers.clear()
        self._is_old = False

    def writer(self, table: str) -> TableWriter:
        """Ordering: within a transaction of the target that has made it fit."""
        return self._writers[table]


class _LookAgain(Exception):
    """Rows were left out, by what an earlier call knew of the target's tables."""
