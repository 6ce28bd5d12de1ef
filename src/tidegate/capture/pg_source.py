"""`PgSource`: a PostgreSQL database as a source, by logical replication with pgoutput.

A *slot* at the server keeps what this capture has not confirmed, a *publication* says which tables. A position is the
place behind a commit in the server's log, with which server and which of its lives it is of: `0/16B3748 1 7301...`.
Transactions come in the order of their commits. What the server keeps for a slot grows until it is confirmed, so
places without changes of ours come as empty transactions now and then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from tidegate.capture.apply_origin import SAID
from tidegate.capture.pg_changes import Changes
from tidegate.capture.pg_connect import OLDEST, address_of, connect, explained, identity_of
from tidegate.capture.pg_history import check_history
from tidegate.capture.pg_joining import Joining
from tidegate.capture.pg_objects import Objects
from tidegate.capture.pg_poll import Poll
from tidegate.capture.pg_position import Committed, Position, check_position
from tidegate.capture.pg_slots import FREE_S, free_slot, patiently
from tidegate.capture.pg_snapshot import PgSnapshot
from tidegate.capture.pg_stream import Stream
from tidegate.capture.source import Change, Dropped, Reshaped, Snapshot, Source, SourceTable, SourceTransaction
from tidegate.capture.spill import Spill
from tidegate.cdc.pg_txns import Finished, Transactions
from tidegate.errors import Closed, InvalidArgument, InvariantBroken, NotFound, TidegateError

IDLE_BYTES: Final = 16 << 20
"""After so much of the server's log without a change of ours a position comes by itself."""
SLOT_WAIT_S: Final = 15.0
"""How long the server may take to see that the reader before is gone."""
_EPOCH_US: Final = 946_684_800_000_000


class PgSource(Source):
    """An open source in PostgreSQL. `name` is what its slot and publication are named after."""

    kind = "postgresql"

    def __init__(
        self,
        url: str,
        *,
        name: str,
        owner: str = "",
        mode: str | None = None,
        slot: str | None = None,
        publication: str | None = None,
        schema: str | None = None,
        idle_s: float | str | None = None,
    ) -> None:
        """`owner` tells apart captures of one name.

        Raises: `InvalidArgument`, `NotFound`, `Unavailable`.
        """
        given = {"mode": mode, "slot": slot, "publication": publication, "schema": schema, "idle_s": idle_s}
        self.address = address_of(url, name, given, owner)
        self._name = name
        self._idle_s = self.address.idle_s
        self._is_closed = False
        self._reader: Stream | Poll | None = None
        self._sql = connect(self.address, name)
        self.identity = identity_of(self._sql)
        try:
            version = self._sql.info.server_version
            if version < OLDEST:
                raise InvalidArgument(f"PostgreSQL at {self.identity} is older than 13; use a newer one")
            self._objects = Objects(self._sql, self.identity, self.address)
            self._joining = Joining(self._objects, self.address, name, self.identity)
        except BaseException:
            self._sql.close()
            raise
        self._made: tuple[bool, bool] = False, False
        """Whether a publication and a slot were made for a snapshot of which nothing was confirmed so far."""
        self._position: Position | None = None
        """Behind what was given last."""
        self._changes: Changes | None = None
        self._txns = Transactions(Spill, SAID)
        self._finished: Iterator[Finished] = iter(())
        """Complete, and not given yet."""
        self._given: tuple[Finished | None, Iterator[Change]] | None = None
        """The changes that were given last, and the transaction that they are of."""
        self._moved_s = 0.0
        self._asked_s = self._watched_s = 0.0
        self._gone: tuple[list[str], int] = [], 0
        """Tables that were seen to be gone, and the place in the log behind their end."""

    # Beginning --------------------------------------------------------------------------------------------------------

    @property
    def left_out(self) -> dict[str, str]:
        """See `Source`."""
        return self._objects.left_out

    def tables(self, wanted: Sequence[str] | None) -> list[SourceTable]:
        """All are those with a key: PostgreSQL refuses updates and deletes of others as soon as they are published."""
        self._check_open()
        self._objects.unnamed = self.unnamed
        return self._objects.choose(wanted)

    def snapshot(self) -> Snapshot:
        """What is made for it goes again when the source is closed before anything was confirmed.

        Raises: `InUse` while another capture reads the slot, `WaitTimeout` while old transactions keep the server from
        beginning.
        """
        self._check_open()
        self._stop()
        self._free_slot()
        self._objects.drop_slot(FREE_S)  # Before a publication is made anew that another capture may be using.
        self._made = self._objects.publish(), False
        replication = connect(self.address, self._name, replication=True)
        try:
            position, exported = self._objects.new_slot(replication)
            self._made = True, True
            reading = connect(self.address, self._name)
            try:
                with explained(self.identity, "taking a snapshot"):
                    reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    reading.execute(f"SET TRANSACTION SNAPSHOT '{exported}'")
                shapes, rules = self._objects.same_shapes(reading)
                found = PgSnapshot(reading, self.identity, str(position), shapes, rules)
            except BaseException:
                reading.close()
                raise
        finally:
            replication.close()
        self._begin(position, self._objects.chosen)
        return found

    def resume(self, position: str, known: Sequence[SourceTable]) -> None:
        self._check_open()
        self._stop()
        found = Position.of(position)
        self._free_slot()
        begins = check_position(self._sql, self.identity, self.address.slot, found)
        check_history(self._sql, self.identity, self.address, begins, found)
        self._objects.check_published(known)
        self._begin(found, known)

    def _free_slot(self) -> None:
        if self.address.has_own_slot:
            with explained(self.identity, f"looking for slot {self.address.slot!r}"):
                free_slot(self._sql, self.address.slot)

    def _begin(self, position: Position, known: Sequence[SourceTable]) -> None:
        self._position = position
        self._changes = Changes(self._objects, known)
        self._moved_s = time.monotonic()

    def _stop(self) -> None:
        """Let go of whatever is being read."""
        if self._given is not None and self._given[0] is not None:
            self._given[0].held.close()
        self._given = None
        self._joining.close()
        with suppress(TidegateError):
            for each in self._finished:
                each.held.close()
        self._finished = iter(())
        self._txns.close()
        self._txns = Transactions(Spill, SAID)
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _start(self, position: Position) -> Stream | Poll:
        address = self.address
        if address.mode == "polling":
            self._reader = Poll(
                connect(address, self._name), self.identity, address.slot, address.publication, position.lsn
            )
            return self._reader
        # The reader before may have been killed, and the server has not noticed yet.
        self._reader = patiently(lambda: self._stream(position), SLOT_WAIT_S)
        return self._reader

    def _stream(self, position: Position) -> Stream:
        address = self.address
        connection = connect(address, self._name, replication=True)
        try:
            return Stream(connection, self.identity, address.slot, address.publication, position.lsn)
        except BaseException:
            connection.close()
            raise

    # Reading ----------------------------------------------------------------------------------------------------------

    def transactions(self, wait_s: float) -> Iterator[SourceTransaction]:
        """By polling, ends behind one look at the slot: `has_passed` says whether there was more."""
        self._check_open()
        if self._position is None or self._changes is None:
            raise InvalidArgument("a source is read after `snapshot` or `resume`")
        self._settle()
        deadline = time.monotonic() + wait_s
        reader = self._reader or self._start(self._position)
        any_given = False
        while True:
            for finished in self._finished:
                for each in self._joins(finished.end_lsn):
                    any_given = True
                    yield each
                    self._settle()
                found = self._give(finished)
                if found is not None:
                    any_given = True
                    yield found
                    self._settle()
            if any_given and isinstance(reader, Poll):
                return  # The slot would show the same again until it is confirmed.
            with self._looking_again():
                is_more = self._read(reader)
            if is_more:
                continue
            if not self._txns.is_inside:
                for each in self._joins(reader.seen):
                    any_given = True
                    yield each
                    self._settle()
            idle = self._idle(reader)
            if idle is not None:
                any_given = True
                yield idle
            left = deadline - time.monotonic()
            if any_given or left <= 0:
                return
            reader.wait(left)

    @contextmanager
    def _looking_again(self) -> Iterator[None]:
        """Raises: `SourceGone` where something fails because the slot or the publication is gone meanwhile."""
        try:
            yield
        except (NotFound, InvalidArgument):
            if self._position is not None:
                check_position(self._sql, self.identity, self.address.slot, self._position)
                self._objects.watch()
            raise

    def _read(self, reader: Stream | Poll) -> bool:
        """Reads what is there. Whether there was anything, so that it is worth looking again."""
        if isinstance(reader, Stream):
            messages = reader.read()
            self._finished = self._txns.feed(messages)
            return bool(messages)
        # A slot that is being looked at cannot be confirmed: all of it first.
        whole = patiently(lambda: list(self._txns.feed(reader.read())), SLOT_WAIT_S)
        self._finished = iter(whole)
        if any(each.end_lsn > self._at for each in whole):
            return True
        for each in whole:
            each.held.close()
        self._finished = iter(())
        if reader.is_more:
            reader.widen()
        return reader.is_more

    @property
    def _at(self) -> int:
        return self._position.lsn if self._position else 0

    def _give(self, finished: Finished) -> SourceTransaction | None:
        held, position, changes = finished.held, self._position, self._changes
        if position is None or changes is None or not isinstance(held, Spill):
            raise InvariantBroken("a transaction is given before there is a position")
        chunks = held.read(finished.spans)
        if finished.end_lsn <= position.lsn:
            changes.pass_over(chunks)
            held.close()
            return None
        self._position = position.behind(Committed(finished.end_lsn, finished.xid, finished.time_us))
        self._moved_s = time.monotonic()
        going = changes.of(self._heard(chunks), finished.xid)
        self._given = finished, going
        return SourceTransaction(
            str(finished.xid), str(self._position), going, finished.time_us + _EPOCH_US, finished.origin
        )

    def _heard(self, chunks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        """Chunks of a transaction; the server hears that it is being read."""
        for number, each in enumerate(chunks):
            if number and isinstance(self._reader, Stream):
                self._reader.say()
            yield each

    def _settle(self) -> None:
        """The transaction that was given is done with; what was left of it is read, as later ones build on it."""
        if self._given is None:
            return
        finished, going = self._given
        self._given = None
        for _ in going:
            pass
        if finished is not None:
            finished.held.close()

    def _joins(self, lsn: int) -> Iterator[SourceTransaction]:
        """Tables that join before a place in the log: each is made, and then filled."""
        while self._position is not None and self._changes is not None and (joined := self._joining.due(lsn)):
            self._changes.joined(joined.shape)
            yield self._joined(joined.lsn, iter([Reshaped(joined.shape.table)]))
            yield self._joined(joined.end, joined.changes())

    def _joined(self, lsn: int, going: Iterator[Change]) -> SourceTransaction:
        if self._position is None:
            raise InvariantBroken("a table joins before there is a position")
        self._settle()
        self._position = self._position.at(max(self._position.lsn, lsn))
        self._moved_s = time.monotonic()
        self._given = None, going
        return SourceTransaction("", str(self._position), going)

    def _idle(self, reader: Stream | Poll) -> SourceTransaction | None:
        """A position by itself, when there has been nothing else for long or over much."""
        position, now = self._position, time.monotonic()
        if position is None or self._txns.is_inside:
            return None
        if isinstance(reader, Stream) and now - self._asked_s >= self._idle_s:
            self._asked_s = now
            reader.ask()
        dropped = self._dropped(reader.seen, now)
        self._objects.settle(reader.seen)
        if dropped:
            self._position = position.at(max(position.lsn, reader.seen))
            self._moved_s = now
            return SourceTransaction("", str(self._position), [Dropped(name) for name in dropped])
        ahead = reader.seen - position.lsn
        if ahead <= 0 or (ahead < IDLE_BYTES and now - self._moved_s < self._idle_s):
            return None
        self._position = position.at(reader.seen)
        self._moved_s = now
        return SourceTransaction("", str(self._position), ())

    def _dropped(self, seen: int, now: float) -> list[str]:
        """Tables that are gone, once all that was said of them has come: the server's log has no word of that."""
        if now - self._watched_s >= self._idle_s:
            self._watched_s = now
            self._watch()
        names, lsn = self._gone
        if not names or seen < lsn:
            return []
        self._objects.forget(names)
        self._gone = [], 0
        return names

    def _watch(self) -> None:
        """What the catalog says and the log does not."""
        self._gone = self._objects.watch()
        self._joining.begin(self.refuses)

    def confirm(self, position: str) -> None:
        self._check_open()
        found = Position.of(position)
        self._joining.confirmed(found.lsn)
        self._made = False, False
        if self._reader is None and self._position is not None:
            self._start(self._position)
        reader = self._reader
        if reader is not None:
            with self._looking_again():
                patiently(lambda: reader.confirm(found.lsn), SLOT_WAIT_S)

    def mark(self) -> int:
        """Where the server's log is: all that was committed before lies at or before it, and is on its way.

        Raises: `SourceGone` for what the catalog says and the log does not: see `Objects.watch`.
        """
        self._check_open()
        if self._position is not None:
            self._watched_s = time.monotonic()
            self._watch()
        return self._objects.mark()

    def has_passed(self, mark: Any) -> bool:
        reader = self._reader
        passed = reader is not None and max(reader.seen, self._at) >= int(mark) and not self._joining.is_under_way
        if passed and not self._txns.is_inside:
            self._objects.settle(int(mark))
        if not passed and isinstance(reader, Stream):
            reader.ask()
        return passed

    def behind(self) -> dict[str, Any]:
        self._check_open()
        return self._objects.behind(self._at)

    # Ending -----------------------------------------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        """What a capture of this name has at the server now: what `drop` removes."""
        self._check_open()
        return self._objects.leftovers()

    def drop(self) -> None:
        """Remove slot and publication from the server: what is behind the position is lost to this capture."""
        self._check_open()
        self._stop()
        self._objects.drop(SLOT_WAIT_S)
        self._position = None
        self._made = False, False

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the source {self.identity} is closed; open it again")

    def close(self) -> None:
        """Let go of it; slot and publication stay, unless nothing was ever confirmed of them. May be repeated."""
        self._is_closed = True
        with suppress(TidegateError):
            self._stop()
        (has_publication, has_slot), self._made = self._made, (False, False)
        with suppress(TidegateError):
            if has_slot:
                self._objects.drop(FREE_S)
            elif has_publication:
                self._objects.drop_publication()
        self._sql.close()
