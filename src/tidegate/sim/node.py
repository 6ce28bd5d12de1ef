"""`Node`: one simulated process: an oracle, a writer for each channel, clients that append, and a reader in memory.

Everything in it is the real code. Only what is outside of it is simulated, and every step is short, so that the
scheduler can stop it, kill it or let somebody else run between any two effects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Fenced, OutcomeUnknown, Retryable, TidegateError
from tidegate.log.message import MessageType, Position, Term
from tidegate.ports.files import Files
from tidegate.ports.metadata import MetadataStore
from tidegate.runtime.channel_reader import ChannelReader, TailSource
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.commit import Commit
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.oracle import Oracle
from tidegate.runtime.pending import PendingAppend
from tidegate.runtime.reservation import Reservation
from tidegate.runtime.sealer import seal
from tidegate.runtime.settings import Durability, LogSettings
from tidegate.sim.auditor import Auditor, Intent
from tidegate.sim.machine import SimClock, SimTail

VCHANNELS = ("a/0", "a/1", "b/0")


class SimSession:
    """A transaction as far as LastConfirmed cares: open until its commit is acknowledged, or it is given up."""

    def __init__(self, number: int, vchannel: str) -> None:
        self.number = number
        self.vchannel = vchannel
        self.resolved = False

    def is_resolved(self, confirmed: int) -> bool:  # noqa: ARG002
        return self.resolved

    @property
    def id(self) -> bytes:
        return self.number.to_bytes(16, "big")


@dataclass(slots=True)
class Waiting:
    """An append whose outcome its client does not know yet."""

    intent: Intent
    pending: PendingAppend
    session: SimSession | None = None


class NodeChannel:
    """One channel of one process, with the commit it is in the middle of."""

    def __init__(self, node: Node, name: str, writer: ChannelWriter) -> None:
        self.node = node
        self.name = name
        self.writer = writer
        self.stage = ""
        self.commit: Commit | None = None
        self.has_work = False
        self.waiting: list[Waiting] = []
        self.reserved: list[tuple[Reservation, SimSession | None]] = []
        self.open_txns: list[SimSession] = []
        self.reader: ChannelReader | None = None
        self.written: list[tuple[str, int, int]] = []
        """Segment, offset and position, each time the writer had come further."""

    def durable_position(self) -> int:
        """The largest position that the writer's status says is durable."""
        status = self.writer.status()
        now = (status.segment, status.offset, int(status.position))
        if now not in self.written[-1:]:
            self.written.append(now)
        return max(
            (
                position
                for segment, offset, position in self.written
                if segment != status.segment or offset <= status.durable_to
            ),
            default=0,
        )

    def step_commit(self) -> str:
        """One step of the commit under way, or of the next one."""
        writer = self.writer
        if self.commit is None:
            self.has_work = False
            self.commit = writer.next_commit()
            if self.commit is None:
                return "idle"
            self.has_work = True
            self.stage = "write"
            if not self.commit.items:
                self.commit = None
            return "collect"
        commit, stage = self.commit, self.stage
        try:
            if stage == "write":
                writer.write(commit)
                self.stage = "sync"
                return stage
            if stage == "sync":
                writer.sync(commit)
                self.stage = "finish"
                return stage
        except OSError as error:
            outcome = writer.abandon(commit, error)
            self.commit = None
            writer.finish(commit, outcome)
            return f"{stage} failed: {type(outcome).__name__}"
        except TidegateError as error:
            self.commit = None
            writer.finish(commit, error)
            return f"{stage} failed: {type(error).__name__}"
        self.commit = None
        writer.finish(commit)
        return stage


class Node:
    """One process."""

    def __init__(
        self,
        name: str,
        *,
        rng: Random,
        clock: SimClock,
        files: Files,
        store: MetadataStore,
        tails: dict[str, SimTail],
        auditor: Auditor,
        settings: LogSettings,
        held_bytes_max: int,
        note: Callable[[str], None],
    ) -> None:
        self.name = name
        self.paused_until = 0
        self.zombie = False
        self._rng = rng
        self._clock = clock
        self._files = files
        self._store = store
        self._tails = tails
        self._auditor = auditor
        self._settings = settings
        self._held_bytes_max = held_bytes_max
        self._note = note
        self.oracle = Oracle(store, clock, owner=name)
        self.channels: dict[str, NodeChannel] = {}
        self._txns = 0

    def start(self, timeout_s: float) -> None:
        """Become the leader; channels are opened one at a time by `open_channel`."""
        self.oracle.start(timeout_s)

    def open_channel(self, name: str) -> None:
        term = self._next_term(name)
        slot: list[NodeChannel] = []
        writer = ChannelWriter(
            name,
            term,
            files=self._files,
            directory=name,
            tail=self._tails[name],
            allocate=self._allocate,
            wall_ms=self._clock.wall_ms,
            settings=self._settings,
            schedule=lambda: setattr(slot[0], "has_work", True),
            monotonic=self._clock.monotonic,
        )
        slot.append(NodeChannel(self, name, writer))
        self.channels[name] = slot[0]
        self._auditor.said_durable(name, slot[0].durable_position())
        found = writer.recovered
        self._note(f"{self.name} opens {name} at term {term}: cut {found.cut_bytes}, discarded {len(found.discarded)}")

    def _next_term(self, name: str) -> Term:
        while True:
            found = self._store.get(f"channel/{name}")
            term = 1 if found is None else int(found.value) + 1
            expected = 0 if found is None else found.version
            if self._store.compare_and_set(f"channel/{name}", str(term).encode(), expected=expected) is not None:
                return Term(term)

    def _allocate(self, count: int) -> Timestamp:
        first = self.oracle.allocate(count, 0.0)
        self._auditor.allocated(int(first), count)
        return first

    @property
    def is_fenced(self) -> bool:
        """Whether it knows that others have taken over every channel."""
        return bool(self.channels) and not any(each.writer.is_open for each in self.channels.values())

    # Steps

    def step(self) -> str:
        """Do one small thing, chosen at random."""
        rng = self._rng
        if rng.random() < 0.1:
            return self._advance_oracle()
        if not self.channels:
            return "nothing open"
        channel = self.channels[rng.choice(sorted(self.channels))]
        draw = rng.random()
        if self._settings.durability is Durability.INTERVAL and rng.random() < 0.06:
            what = self._sync(channel)
        elif (channel.has_work or channel.commit is not None) and draw < 0.55:
            what = channel.step_commit()
        elif draw < 0.80:
            what = self._append(channel)
        elif draw < 0.88:
            what = self._tick(channel)
        elif draw < 0.92:
            what = self.seal_one(channel)
        else:
            what = self._read(channel)
        self.hear(channel)
        return f"{channel.name} {what}"

    def _advance_oracle(self) -> str:
        try:
            self.oracle.advance()
        except TidegateError as error:
            return f"oracle {type(error).__name__}"
        return "oracle"

    def _append(self, channel: NodeChannel) -> str:
        rng, writer = self._rng, channel.writer
        draw = rng.random()
        vchannel = rng.choice(VCHANNELS)
        try:
            if draw < 0.40:
                return self.append_one(channel, vchannel)
            if draw < 0.55:
                return self._append_batch(channel, vchannel)
            if draw < 0.62:
                intent = self._auditor.asked(channel.name, 1)
                body = _body(channel.name, intent, 0)
                kind = MessageType.DDL
                channel.waiting.append(Waiting(intent, writer.append_async(vchannel, body, kind=kind, timeout_s=0)))
                return "append exclusive"
            if draw < 0.75:
                channel.reserved.append((writer.reserve(vchannel, timeout_s=0), None))
                return "reserve"
            if draw < 0.85 and channel.reserved:
                return self._use_reservation(channel)
            return self._step_txn(channel, vchannel)
        except TidegateError as error:
            return f"append {type(error).__name__}"

    def append_one(self, channel: NodeChannel, vchannel: str = VCHANNELS[0]) -> str:
        intent = self._auditor.asked(channel.name, 1)
        body = _body(channel.name, intent, 0) + b"|" + b"x" * self._rng.choice((0, 10, 700, 6000))
        channel.waiting.append(Waiting(intent, channel.writer.append_async(vchannel, body, timeout_s=0)))
        return "append"

    def _append_batch(self, channel: NodeChannel, vchannel: str) -> str:
        count = self._rng.choice((2, 5, 40))
        intent = self._auditor.asked(channel.name, count)
        bodies = [_body(channel.name, intent, index) for index in range(count)]
        rows: pa.RecordBatch | list[bytes] = bodies
        if self._rng.random() < 0.5:
            rows = pa.RecordBatch.from_pydict({"text": [body.decode() for body in bodies]})
        channel.waiting.append(Waiting(intent, channel.writer.append_batch_async(vchannel, rows, timeout_s=0)))
        return f"append batch of {count}"

    def _use_reservation(self, channel: NodeChannel) -> str:
        reservation, session = channel.reserved.pop(self._rng.randrange(len(channel.reserved)))
        if self._rng.random() < 0.3:
            reservation.release()
            return "release"
        intent = self._auditor.asked(channel.name, 1)
        at = self._allocate(1) if self._rng.random() < 0.5 else None
        pending = reservation.append_async(_body(channel.name, intent, 0), at=at)
        channel.waiting.append(Waiting(intent, pending, session))
        return "append reserved" if at is None else "append reserved, later"

    def _step_txn(self, channel: NodeChannel, vchannel: str) -> str:
        """Begin a transaction, add to one, or commit it."""
        rng, writer = self._rng, channel.writer
        session = rng.choice(channel.open_txns) if channel.open_txns else None
        commits = False
        if session is None or (len(channel.open_txns) < 3 and rng.random() < 0.3):
            self._txns += 1
            session = SimSession(int.from_bytes(self.name.encode(), "big") * 10_000 + self._txns, vchannel)
            channel.open_txns.append(session)
        elif rng.random() < 0.4:
            channel.open_txns.remove(session)
            commits = True
        intent = self._auditor.asked(channel.name, 1, txn=session.number, commits=commits)
        body = _body(channel.name, intent, 0)
        pending = writer.append_async(session.vchannel, body, txn=session.id, session=session, timeout_s=0)
        channel.waiting.append(Waiting(intent, pending, session if commits else None))
        return "transaction ends" if commits else "transaction"

    def _tick(self, channel: NodeChannel) -> str:
        try:
            channel.writer.tick(force=self._rng.random() < 0.2)
        except TidegateError as error:
            return f"tick {type(error).__name__}"
        return "tick"

    def _sync(self, channel: NodeChannel) -> str:
        """What a log does every `sync_interval_ms`."""
        try:
            channel.writer.sync_now()
        except TidegateError as error:
            return f"interval sync {type(error).__name__}"
        return "interval sync"

    def seal_one(self, channel: NodeChannel) -> str:
        closed = channel.writer.segments.closed
        if not closed:
            return "nothing to seal"
        try:
            sealed = seal(self._files, channel.name, closed[0])
        except FileNotFoundError:
            sealed = None
        except OSError as error:
            return f"seal failed: {error.strerror}"
        closed.pop(0)
        return "seal" if sealed else "was sealed"

    def _read(self, channel: NodeChannel) -> str:
        if channel.reader is None:
            files = ChannelFiles(self._files, channel.name)
            source = TailSource(files, self._tails[channel.name], is_written=lambda: True)
            sampled = self._auditor.sample(channel.name, self._rng.randrange(1 << 30))
            tick, position = sampled if sampled is not None and self._rng.random() < 0.7 else (0, 0)
            channel.reader = ChannelReader(
                files,
                source,
                position=Position(position),
                after=Timestamp(tick),
                writer=channel.writer,
                held_bytes_max=self._held_bytes_max,
            )
        reader = channel.reader
        after = reader.after
        delivery = reader.poll()
        if delivery is None:
            return "reader waits"
        self._auditor.delivered(channel.name, f"reader in {self.name}", after, delivery)
        self._note(f"{self.name} reader {channel.name} {int(delivery.tick.time_tick)} {len(delivery)}")
        if self._rng.random() < 0.1:
            channel.reader = None
        return f"reads {len(delivery)}" + (" from memory" if reader.tailing else "")

    def hear(self, channel: NodeChannel) -> None:
        """Let clients learn what became of their appends, and how far the log is durable."""
        self._auditor.said_durable(channel.name, channel.durable_position())
        still = []
        for each in channel.waiting:
            if not each.pending.done():
                still.append(each)
                continue
            error = each.pending.error
            if error is None:
                appended = each.pending.result()
                self._auditor.was_acknowledged(each.intent, appended)
                self._note(f"ack {each.intent.number} {int(appended.time_tick)} {int(appended.position)}")
            elif isinstance(error, Retryable):
                self._auditor.was_refused(each.intent)
                self._note(f"refused {each.intent.number} {type(error).__name__}")
            elif not isinstance(error, OutcomeUnknown | Fenced | TidegateError):
                raise error
            else:
                self._note(f"unknown {each.intent.number} {type(error).__name__}")
            if each.session is not None:
                each.session.resolved = True
        channel.waiting = still


def _body(channel: str, intent: Intent, index: int) -> bytes:
    return f"{channel}|{intent.number}|{index}".encode()
