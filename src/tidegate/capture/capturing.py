"""`Capture`: a source's transactions, taken into the log one by one by a thread of this process.

It begins with a snapshot, in one transaction, and goes on from exactly there. Whatever fails in between, the position
in the log says where to go on: a source or an owner that cannot be reached is tried again, with growing pauses; what
no trying mends ends the capture, and `error` says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from tidegate.capture.following import Into, target_name
from tidegate.capture.opening import open_source
from tidegate.capture.places import Place, Places
from tidegate.capture.source import Altered, Source, SourceTable
from tidegate.capture.taking import Reopened, Taker
from tidegate.errors import (
    Closed,
    InUse,
    InvalidArgument,
    InvariantBroken,
    OutcomeUnknown,
    Retryable,
    TidegateError,
    Unavailable,
    WaitTimeout,
)
from tidegate.ports.threads import SYSTEM_THREADS, Threads

if TYPE_CHECKING:
    from tidegate.database.database import Database

_logger = logging.getLogger("tidegate.capture")
WAIT_S: Final = 0.1
"""How long a source waits for something new before it is asked whether to stop."""
CONFIRM_EVERY_S: Final = 1.0
KEEP_EVERY_S: Final = 5.0
"""How often a position is kept that has moved without a transaction for us."""
ALTERED_MOST: Final = 10
"""How often a capture begins whose tables are altered each time."""
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 10.0

Progress = Callable[[str, int, int], None]
"""A table of the snapshot, how many of its rows are there, and about how many there are."""


def name_of(source: Source) -> str:
    """What a capture of a source is called when nobody says so."""
    return f"{source.kind}-{source.identity.rsplit('/', 1)[-1]}"


class Capture:
    """A capture at work. Its calls may come from any thread; as a context manager it is stopped at the end."""

    def __init__(
        self,
        db: Database,
        url: str,
        *,
        tables: Sequence[str] | None = None,
        into: Into = None,
        name: str | None = None,
        restart: bool = False,
        progress: Progress | None = None,
        options: dict[str, Any] | None = None,
        threads: Threads = SYSTEM_THREADS,
        opens: Callable[..., Source] | None = None,
    ) -> None:
        """`opens` is what opens the source, if not `open_source`."""
        self._db = db
        self._url: Final = url
        self._threads: Final = threads
        self._opens: Final = opens
        self._wanted: Final = list(tables) if tables is not None else None
        self._into: Final = into
        self._restart = restart
        self._progress: Final = progress
        self._options: Final = dict(options or {})
        self._named: Final = name
        """What the user calls it. Ordering: the source is always opened with this one, and not with what follows."""
        self.name = name or ""
        self.kind = ""
        self.state = "starting"
        """starting, snapshot, following, waiting (for a source or owner that cannot be reached), stopped or failed."""
        self.error: BaseException | None = None
        """Why it waits, or why it has failed."""
        self.snapshot_rows: dict[str, tuple[int, int]] = {}
        """Of the snapshot: rows that were taken and about how many there are, by table."""
        self._behind: dict[str, Any] = {}
        self._taker: Taker | None = None
        self._has_begun = False
        self._left_out: Mapping[str, str] = {}
        self._changed = threads.condition()
        """Covers `state`, `error`, `_asked` and `_answered`."""
        self._stopping = threads.event()
        self._asked = 0
        """How often somebody has asked for everything up to now."""
        self._answered = 0
        if db.is_owner:
            db.engine.captures.append(self.status)
        self._thread = threads.start(self._run, f"tidegate capture {url.partition(':')[0]}")

    # -- for its users -------------------------------------------------------------------------------------------

    @property
    def tables(self) -> dict[str, str]:
        """What its tables are called here, by their names at the source."""
        taker = self._taker
        return {} if taker is None else {name: each.name for name, each in taker.told.targets.items()}

    @property
    def position(self) -> str | None:
        """Up to where the source is in the log."""
        return (self._taker.told.position or None) if self._taker is not None else None

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def status(self) -> dict[str, Any]:
        """Where it is, as data."""
        place = self._taker.told if self._taker is not None else None
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "position": self.position,
            "transactions": 0 if place is None else place.transactions,
            "rows": 0 if place is None else place.rows,
            "tables": self.tables,
            "left_out": dict(self._left_out),
            "behind": self._behind,
            "error": None if self.error is None else str(self.error),
        }

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the snapshot is in the log, or an earlier one is gone on from.

        Raises: what has ended it; `WaitTimeout`.
        """
        self._wait(lambda: self.state in ("following", "waiting"), timeout, "its snapshot")

    def catch_up(self, timeout: float | None = 60.0) -> None:
        """Wait until everything that the source had committed before this call is in the log.

        Raises: what has ended it; `WaitTimeout`.
        """
        with self._changed:
            self._asked += 1
            mine = self._asked
        self._wait(lambda: self._answered >= mine, timeout, "the source")

    def stop(self, timeout: float = 60.0) -> None:
        """End it, behind a whole transaction. It goes on from there when it is started again."""
        self._stopping.set()
        if not self._thread.is_current:
            self._thread.join(timeout)

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait(self, is_there: Callable[[], bool], timeout: float | None, what: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: is_there() or self.state in ("failed", "stopped"), timeout)
            if is_there():
                return
            if self.state == "failed" and self.error is not None:
                raise self.error
            if self.state == "stopped":
                raise Closed(f"capture {self.name!r} has been stopped")
            why = f": {self.error}" if self.error is not None else ""
        raise WaitTimeout(f"capture {self.name!r} has not come to the end of {what} in {timeout} s{why}")

    # -- its thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = PAUSE_MIN_S
        was_ready, begun = False, 0
        while True:
            try:
                self._follow()
                self._note("stopped")
                return
            except Reopened:
                continue
            except Altered as error:
                begun += 1
                if begun == ALTERED_MOST or self._stopping.is_set():
                    self._note("stopped" if self._stopping.is_set() else "failed", error)
                    return
            except (Unavailable, Retryable, OutcomeUnknown) as error:
                was_ready = was_ready or self.state in ("following", "waiting")
                if isinstance(error, InUse | Closed) or not was_ready or self._stopping.is_set():
                    self._note("stopped" if self._stopping.is_set() else "failed", error)
                    return
                if self.state == "following":
                    pause = PAUSE_MIN_S
                _logger.warning("capture %s: %s; trying again in %.1f s", self.name, error, pause)
                self._note("waiting", error)
            except BaseException as error:
                if not isinstance(error, TidegateError):
                    _logger.exception("capture %s", self.name)
                    error = InvariantBroken(f"capture {self.name!r}: {type(error).__name__}: {error}")
                self._note("failed", error)
                return
            if self._stopping.wait(pause):
                self._note("stopped", self.error)
                return
            pause = min(pause * 2, PAUSE_MAX_S)

    def _follow(self) -> None:
        opens = self._opens or open_source
        with closing(opens(self._url, self._named, self._db, **self._options)) as source:
            self.kind = source.kind
            self.name = self.name or name_of(source)
            places = Places(self._db, self.name, source.identity)
            # The same one again: it may know more of a transaction that it has begun once.
            ours = f"tidegate:{self._db.id.hex()}"
            taker = self._taker or Taker(self._db, self.name, places, self._into, ours, self._threads)
            self._taker = taker
            read_before = places.source()
            if read_before is not None and read_before != source.identity and not self._restart:
                raise InvalidArgument(
                    f"capture {self.name!r} has read {read_before}, and this is {source.identity}: give another name,"
                    f" or restart=True to begin anew"
                )
            place = places.load()
            wanted = self._tables_of(place)
            source.refuses, source.unnamed = self._refuses, self._unnamed
            tables = source.tables(wanted)
            self._tables_named(tables)
            self._left_out = dict(source.left_out)
            taker.relay.begin(again=self._has_begun)
            self._has_begun = True
            self._replace_told()
            place = places.load()  # What another one has written until then.
            if place is not None:
                taker.resume(place)
                if place.is_anew and not self._restart:
                    _logger.warning("capture %s: reading everything anew was interrupted, and begins again", self.name)
                    self._restart = True
            with taker.relay.unless_taken_over(), closing(taker.relay):
                if place is None or self._restart:
                    self._snapshot(source, taker, wanted, tables)
                else:
                    shapes = [each.shape for each in place.targets.values() if not each.is_dropped]
                    source.resume(place.position, shapes)
                if self.state != "waiting":  # Else it is told when something has come to its end again.
                    self._note("following")
                self._take_all(source, taker)

    def _tables_of(self, place: Place | None) -> Sequence[str] | None:
        """The tables to take: once it has begun, those that were asked for then.

        Raises: `InvalidArgument` when others are asked for now: they would lack what happened meanwhile.
        """
        if place is None or self._restart:
            return self._wanted
        if self._wanted is not None and set(self._wanted) != set(place.wanted or ()):
            began = "all tables" if place.wanted is None else ", ".join(place.wanted)
            raise InvalidArgument(
                f"capture {self.name!r} has begun with {began}, and not with {', '.join(self._wanted)}; capture these"
                f" under another name, or everything anew with restart=True"
            )
        return place.wanted

    def _unnamed(self, table: str) -> str | None:
        """Why a table of the source can have no name here."""
        try:
            target_name(table, self._into)
        except InvalidArgument as error:
            return str(error)
        return None

    def _refuses(self, table: SourceTable) -> str | None:
        """Why a new table of the source cannot be taken."""
        if (why := self._unnamed(table.name)) is not None:
            return why
        name = target_name(table.name, self._into)
        if self._taker is not None and table.name in self._taker.place.targets:
            return None
        if self._db.find_table(name) is None:
            return None
        return f"there is another table {name!r} here; drop it, or capture anew with into={{{table.name!r}: ...}}"

    def _tables_named(self, tables: Sequence[SourceTable]) -> None:
        """Raises: `InvalidArgument` when `into` names what is not captured."""
        unknown = sorted(set(self._into) - {each.name for each in tables}) if isinstance(self._into, Mapping) else []
        if unknown and (self._taker is None or not self._taker.place.position):
            names = ", ".join(each.name for each in tables) or "none"
            raise InvalidArgument(f"into: {unknown[0]!r} is no table that is captured; there are: {names}")

    def _replace_told(self) -> None:
        """What an earlier capture of this name has to say is of the past."""
        if self._db.is_owner:
            told = self._db.engine.captures
            told[:] = [each for each in told if each == self.status or each()["name"] != self.name]

    def _snapshot(
        self, source: Source, taker: Taker, wanted: Sequence[str] | None, tables: Sequence[SourceTable]
    ) -> None:
        self._note("snapshot")
        anew = bool(taker.place.position)
        # Before tables are made here: until then those of the source may change, and it is begun once more.
        snapshot = source.snapshot()
        with closing(snapshot):
            targets = taker.make_again(tables) if anew else taker.make_targets(tables)
            self.snapshot_rows = {name: (0, count) for name, count in snapshot.rows.items()}
            taker.take_snapshot(snapshot, targets, wanted, self._progressed, anew=anew)
        self._restart = False
        source.confirm(taker.place.position)

    def _progressed(self, table: str, rows: int) -> None:
        done, whole = self.snapshot_rows.get(table, (0, 0))
        self.snapshot_rows[table] = (done + rows, max(whole, done + rows))
        if self._progress is not None:
            try:
                self._progress(table, *self.snapshot_rows[table])
            except Exception as error:
                raise InvalidArgument(
                    f"capture {self.name!r}: `progress` has failed with {type(error).__name__}: {error}"
                ) from error
        if self._stopping.is_set():
            raise Closed(f"capture {self.name!r} was stopped in the midst of its snapshot")

    def _take_all(self, source: Source, taker: Taker) -> None:
        relay = taker.relay
        kept = confirmed = relay.logged.position
        confirmed_at = kept_at = self._threads.monotonic()
        while not self._stopping.is_set():
            with self._changed:
                asked = self._asked
            mark = source.mark() if asked > self._answered else None
            while True:
                for each in taker.looked_through(source.transactions(0.0 if asked > self._answered else WAIT_S)):
                    taker.take(each)
                    if self.state == "waiting" and kept != relay.logged.position:
                        self._note("following")  # It may be long before it has come to the end again.
                    if kept != relay.logged.position:
                        kept, kept_at = relay.logged.position, self._threads.monotonic()
                    if self._stopping.is_set():
                        break
                    if kept != confirmed and self._threads.monotonic() - confirmed_at > CONFIRM_EVERY_S:
                        source.confirm(kept)
                        confirmed, confirmed_at = kept, self._threads.monotonic()
                if asked == self._answered or source.has_passed(mark) or self._stopping.is_set():
                    break
            relay.settle()
            if kept != relay.logged.position:
                kept, kept_at = relay.logged.position, self._threads.monotonic()
            if kept != taker.place.position and self._threads.monotonic() - kept_at > KEEP_EVERY_S:
                taker.keep_position()
                kept, kept_at = taker.place.position, self._threads.monotonic()
            if kept != confirmed:
                source.confirm(kept)
                confirmed, confirmed_at = kept, self._threads.monotonic()
            relay.rest()
            self._behind = source.behind()
            self._left_out = dict(source.left_out)
            if self.state == "waiting":
                self._note("following")
            with self._changed:
                if not self._stopping.is_set():
                    self._answered = asked
                self._changed.notify_all()
        with suppress(TidegateError):
            source.confirm(kept)

    def _note(self, state: str, error: BaseException | None = None) -> None:
        with self._changed:
            self.state = state
            self.error = error
            self._changed.notify_all()
        if state == "stopped" and self._db.is_owner:
            with suppress(ValueError, TidegateError):  # A failed one stays, for whoever asks why nothing comes.
                self._db.engine.captures.remove(self.status)
