"""`Report`: what a database says of itself, as plain data: what waits, on what, and since when.

Everything in it can be written as JSON. A Timestamp is a number, and beside it the same as text, named `..._time`.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.database.clients import OWNER, Client
from tidegate.database.live_transactions import Entry
from tidegate.database.sub_acks import Acks
from tidegate.errors import TidegateError
from tidegate.pipeline.view_report import view_rows
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.snapshots.manifest import Manifest
from tidegate.txn.coordinator_records import Transaction, TxnState
from tidegate.txn.txn_id import TxnId

if TYPE_CHECKING:
    from tidegate.database.engine import Engine

ENDING_MAX_MS: Final = 1_000
"""A commit or abort that takes longer is carried on in the background."""
_RATE_OVER_S: Final = 5.0
_SAMPLE_EVERY_S: Final = 0.25
_COUNTED_MAX: Final = 200
"""Subscriptions whose backlog is counted for one report; counting reads what was not delivered."""
_CHANNEL: Final = "channel/"
_SUBSCRIPTION: Final = "subscription/"

Holders = dict[tuple[str, int], TxnId]
"""Who took a place in a channel, by its TimeTick."""


class Rates:
    """Commits and aborts a second over the last seconds. One thread samples, others read."""

    def __init__(self, totals: Callable[[], tuple[int, int]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._totals = totals
        self._monotonic = monotonic
        self._samples = deque([(monotonic(), *totals())])

    def sample(self) -> None:
        """Called often; keeps a few samples a second, and no more of them than the last seconds need."""
        now, samples = self._monotonic(), self._samples
        if now - samples[-1][0] >= _SAMPLE_EVERY_S:
            samples.append((now, *self._totals()))
            while len(samples) > 2 and now - samples[1][0] >= _RATE_OVER_S:
                samples.popleft()

    def now(self) -> dict[str, float]:
        """Rates as of now, and the seconds they are over."""
        began, committed, aborted = self._samples[0]
        done, undone = self._totals()
        over = max(self._monotonic() - began, 0.001)
        return {
            "commits_per_s": round((done - committed) / over, 1),
            "aborts_per_s": round((undone - aborted) / over, 1),
            "rates_over_s": round(over, 1),
        }


class Report:
    """Reports on one engine. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        """Ordering: made when everything else of the engine is."""
        self._engine = engine
        self.rates: Final = Rates(engine.transactions.totals)
        self._opened: Final = engine.log.allocate(1)

    # -- transactions ------------------------------------------------------------------------------------------------

    def transactions(self, finished: int | None = None) -> list[dict[str, Any]]:
        """Transactions: live ones oldest first, then those that ended last; at most `finished` of the latter."""
        now_ms = self._engine.log.allocate(1).physical_ms
        clients = {each.id: each for each in self._engine.clients.all()}
        subscriptions = {each.vchannel: each for each in self._engine.catalog.subscriptions()}
        names = {vchannel: f"{each.topic}/{each.name}" for vchannel, each in subscriptions.items()}
        first = {channel: found[0] for channel, found in self._first_sessions().items()}
        return [
            self._transaction(txn, entry, now_ms, clients, names, first)
            for txn, entry in self._engine.transactions.look(finished=finished)
        ]

    def _transaction(
        self,
        txn: Transaction,
        entry: Entry | None,
        now_ms: int,
        clients: Mapping[str, Client],
        subscriptions: Mapping[str, str],
        first: Mapping[str, TxnId],
    ) -> dict[str, Any]:
        has_ended = txn.state.has_ended
        participants = sorted({*txn.participants, *(entry.enlisted if entry is not None else ())})
        age_ms = max((txn.ended_ms if has_ended and txn.ended_ms else now_ms) - txn.opened_ms, 0)
        found = {
            "id": str(txn.id),
            "state": str(txn.state),
            "client": txn.client,
            "client_name": self._client_name(txn.client, txn.opened_ms, clients),
            "opened_ms": txn.opened_ms,
            "age_ms": age_ms,
            "timeout_in_ms": None if has_ended else txn.deadline_ms - now_ms,
            "participants": participants,
            "channels": [each.removeprefix(_CHANNEL) for each in participants if each.startswith(_CHANNEL)],
            "subscriptions": [
                subscriptions.get(each, each.removeprefix(_SUBSCRIPTION))
                for each in participants
                if each.startswith(_SUBSCRIPTION)
            ],
            **stamp("commit_timestamp", txn.commit_timestamp),
            "reason": txn.reason,
            "ended_ms": txn.ended_ms or None,
            "hanging": None if has_ended else _hanging(txn, entry, now_ms),
        }
        if entry is not None:
            found["waits"] = _waits(txn.id, entry, now_ms, subscriptions, first)
        return found

    def _client_name(self, client: str, since_ms: int, clients: Mapping[str, Client]) -> str:
        if client != OWNER:
            return clients[client].name if client in clients else f"{client}, gone"
        if since_ms < self._opened.physical_ms:
            return "an owner before"
        return f"owner, process {os.getpid()}"

    # -- the whole ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The state of the database."""
        engine = self._engine
        now = engine.log.allocate(1)
        log = engine.log.status()
        live = engine.transactions.look(finished=0)
        channels = self._channels(now, [entry for _, entry in live if entry is not None])
        return {
            "path": str(engine.path),
            **stamp("now", now),
            "owner": {"pid": os.getpid(), "open_for_ms": max(now.ms_since(self._opened), 0)},
            "clients": self._clients([txn for txn, _ in live]),
            "tables": self._tables(),
            "views": self.views(),
            "topics": self._topics(),
            "subscriptions": self._subscriptions(),
            "captures": [told() for told in list(engine.captures)],
            "applies": [told() for told in list(engine.applies)],
            "channels": channels,
            "pipeline": self._pipeline(channels),
            "watermark": {
                **stamp("at", log.watermark["at"]),
                "behind_ms": None if log.watermark["at"] is None else now.ms_since(log.watermark["at"]),
                "held_by": log.watermark["held_by"],
            },
            "transactions": self._counts(now, [txn for txn, _ in live]),
            "oracle": {name: int(each) if isinstance(each, Timestamp) else each for name, each in log.oracle.items()},
            "troubles": [f"{what}: {why}" for what, why in sorted(log.troubles.items())],
        }

    def _clients(self, live: list[Transaction]) -> list[dict[str, Any]]:
        now = time.monotonic()
        begun: dict[str, int] = {}
        for txn in live:
            begun[txn.client] = begun.get(txn.client, 0) + 1
        return [
            {
                "id": each.id,
                "name": each.name if each.id != OWNER else f"owner, process {os.getpid()}",
                "connected_ms": round((now - each.since_s) * 1000),
                "silent_ms": None if each.lease_s is None else round((now - each.seen_s) * 1000),
                "lease_ms": None if each.lease_s is None else round(each.lease_s * 1000),
                "transactions": begun.get(each.id, 0),
            }
            for each in self._engine.clients.all()
        ]

    def _tables(self) -> list[dict[str, Any]]:
        """Tables, and what the last checkpoint holds of them."""
        engine = self._engine
        try:
            manifest, error = engine.pipeline.store.manifest(), None
        except TidegateError as found:  # Damaged: everything else is still worth telling.
            manifest, error = Manifest(), str(found)
        rows = []
        for each in engine.catalog.tables():
            files = manifest.files(each.id)
            rows.append(
                {
                    "name": each.name,
                    "columns": len(each.schema.columns),
                    "key": [column.name for column in each.schema.key_columns],
                    "shards": each.shards,
                    "channels": sorted({engine.channel_of(each.id, shard) for shard in range(each.shards)}),
                    "schema_version": each.schema.version,
                    "files": len(files),
                    "layers": sum(not file.is_base for file in files),
                    "bytes": sum(file.bytes for file in files),
                    **stamp("created", each.created),
                    "error": error,
                }
            )
        return rows

    def views(self) -> list[dict[str, Any]]:
        """How the views stand at the last checkpoint, and how far those are that are being filled."""
        engine = self._engine
        try:
            manifest, error = engine.pipeline.store.manifest(), None
        except TidegateError as found:  # Damaged: which views there are is still worth telling.
            manifest, error = None, str(found)
        pipeline = engine.pipeline
        now = Timestamp(engine.log.allocate(1))
        views = engine.catalog.views()
        return view_rows(views, manifest, now, fills=pipeline.fills, seconds=pipeline.view_s, error=error)

    def _pipeline(self, channels: list[dict[str, Any]]) -> dict[str, Any]:
        """The pipeline, and how long what is oldest has been in each stage; None while it starts."""
        found = self._engine.pipeline.status()
        behind = {each["name"]: each["tick_behind_ms"] for each in channels if "tick_behind_ms" in each}
        lags = found.pop("lags", {})  # Nothing while it starts.
        late = [lags[name] for name in ("barrier_to_report_ms", "report_to_checkpoint_ms") if name in lags]
        found["lag"] = {
            "append_to_tick_ms": max(behind.values(), default=None),
            "slowest_channel": max(behind, key=lambda name: behind[name], default=None),
            "tick_to_barrier_ms": lags.get("tick_to_barrier_ms"),
            "barrier_to_checkpoint_ms": max(late, default=None),
            **lags,
        }
        return found

    def _topics(self) -> list[dict[str, Any]]:
        engine = self._engine
        return [
            {
                "name": each.name,
                "shards": each.shards,
                "channels": sorted({engine.channel_of(each.id, shard) for shard in range(each.shards)}),
                "subscriptions": len(engine.catalog.subscriptions(each.name)),
                **stamp("created", each.created),
            }
            for each in engine.catalog.topics()
        ]

    def _subscriptions(self) -> list[dict[str, Any]]:
        found = []
        for number, each in enumerate(self._engine.catalog.subscriptions()):
            row: dict[str, Any] = {"topic": each.topic, "name": each.name, "kind": each.kind}
            if number < _COUNTED_MAX:
                try:
                    row = self._engine.subscriptions.stats(each.topic, each.name)
                except TidegateError as error:  # It was dropped meanwhile, or its log cannot be read.
                    row["error"] = str(error)
            found.append(row)
        return found

    def _channels(self, now: Timestamp, entries: list[Entry]) -> list[dict[str, Any]]:
        holders: Holders = {
            (name, int(place.time_tick)): entry.id
            for entry in entries
            for name, place in entry.places.items()
            if place.is_held
        }
        first = self._first_sessions()
        found = []
        for name in ("system", *self._engine.channels):
            writer = self._writer(name)
            if writer is None:
                found.append({"name": name, "error": f"channel {name!r} is closed; open the database again"})
                continue
            status = writer.status()
            channel = status.channel
            row = {
                "name": name,
                "term": int(channel.term),
                "position": int(status.position),
                "last_confirmed": int(channel.last_confirmed),
                **stamp("allocated", channel.allocated),
                **stamp("confirmed", channel.confirmed),
                **stamp("tick", channel.synced),
                "tick_behind_ms": max(now.ms_since(channel.synced), 0),
                "queued": status.queued,
                "in_flight": channel.in_flight,
                "in_flight_bytes": status.in_flight_bytes,
                "held_by": None,
                "kept_for": None,
                "error": status.last_error,
            }
            if channel.oldest_in_flight is not None:
                txn = holders.get((name, int(channel.oldest_in_flight)))
                row["held_by"] = {
                    "transaction": None if txn is None else str(txn),
                    "places": list(channel.oldest_places),
                    **stamp("since", channel.oldest_in_flight),
                    "for_ms": max(now.ms_since(channel.oldest_in_flight), 0),
                }
            if name in first:
                row["kept_for"] = {"transaction": str(first[name][0]), "position": first[name][1]}
            found.append(row)
        return found

    def what_holds(self, channel: str) -> str:
        """Why a channel's ticks do not go on, and what to do."""
        now = self._engine.log.allocate(1)
        entries = [entry for _, entry in self._engine.transactions.look(finished=0) if entry is not None]
        row = next(each for each in self._channels(now, entries) if each["name"] == channel)
        if row.get("error"):
            return f"it cannot write: {row['error']}"
        held = row["held_by"]
        if held is None:
            return "its disk does not answer; `tidegate status` shows it"
        where = ", ".join(held["places"][:3]) or "all its places"
        since = f"since {held['since_time']} ({held['for_ms'] / 1000:.1f} s)"
        if held["transaction"] is not None:
            return (
                f"transaction {held['transaction']} holds {where} {since} while its commit is written;"
                f" `tidegate transactions` shows it"
            )
        return f"an append to {where} is under way {since}; `tidegate status` shows the channel"

    def _writer(self, name: str) -> ChannelWriter | None:
        try:
            return self._engine.log.channel(name, create=False)
        except TidegateError:
            return None

    def _first_sessions(self) -> dict[str, tuple[TxnId, int]]:
        """In each channel the open transaction that begins first, and where: LastConfirmed and retention stay there."""
        found = {}
        for name in self._engine.channels:
            writer = self._writer(name)
            if writer is not None:
                with writer.mutex:
                    session = writer.sessions.first_session
                if session is not None and session.first_position is not None:
                    found[name] = (TxnId.from_bytes16(session.id), session.first_position)
        return found

    def _counts(self, now: Timestamp, live: list[Transaction]) -> dict[str, Any]:
        counted = self._engine.transactions.status()
        states = Counter(txn.state for txn in live)
        window = counted["conflict_window"]
        oldest = next((txn for txn in live if txn.state is TxnState.OPEN), None)
        clients = {each.id: each for each in self._engine.clients.all()}
        return {
            **{name: value for name, value in counted.items() if not name.startswith("oldest_open")},
            "states": {**counted["states"], **{name: states[name] for name in TxnState if not name.has_ended}},
            **self.rates.now(),
            "oldest_open": None
            if oldest is None
            else {
                "id": str(oldest.id),
                "age_ms": max(now.physical_ms - oldest.opened_ms, 0),
                "timeout_in_ms": oldest.deadline_ms - now.physical_ms,
                "client": oldest.client,
                "client_name": self._client_name(oldest.client, oldest.opened_ms, clients),
            },
            "conflict_window": {
                **{name: value for name, value in window.items() if not isinstance(value, Timestamp)},
                **stamp("floor", window["floor"]),
                **stamp("oldest_reader", window["oldest_reader"]),
            },
        }


def stamp(name: str, at: Timestamp | None) -> dict[str, Any]:
    """A Timestamp as data: the number, and beside it the same as text."""
    return {name: None if at is None else int(at), f"{name}_time": None if at is None else str(at)}


def _hanging(txn: Transaction, entry: Entry | None, now_ms: int) -> str | None:
    """Why it has to be looked at; None when it has not."""
    if txn.state is TxnState.OPEN:
        half = (txn.deadline_ms - txn.opened_ms) // 2
        return "open for more than half of its timeout" if now_ms - txn.opened_ms > half else None
    since = entry.ending_ms if entry is not None else 0
    if txn.commit_timestamp is not None:
        since = since or txn.commit_timestamp.physical_ms
    if now_ms - since <= ENDING_MAX_MS:
        return None
    what = f"{txn.state} for more than {ENDING_MAX_MS // 1000} s"
    decided = txn.state is TxnState.ABORTING or txn.commit_timestamp is not None
    return f"{what}; it is decided, and carried on in the background" if decided else f"{what}; its write is under way"


def _waits(
    id: TxnId, entry: Entry, now_ms: int, subscriptions: Mapping[str, str], first: Mapping[str, TxnId]
) -> dict[str, Any]:
    """What waits for it."""
    return {
        "places": [
            {"channel": name, **stamp("at", each.time_tick), "for_ms": max(now_ms - each.time_tick.physical_ms, 0)}
            for name, each in sorted(entry.places.items())
            if each.is_held
        ],
        "written_ahead": [
            {
                "channel": name,
                "messages": each.session.count,
                "bytes": each.session.nbytes,
                "position": each.session.first_position,
                "keeps_log": first.get(name) == id,
            }
            for name, each in sorted(entry.sessions.items())
        ],
        "pending_acks": {
            subscriptions.get(name, name.removeprefix(_SUBSCRIPTION)): who.pending(id)
            for name, who in sorted(entry.enlisted.items())
            if isinstance(who, Acks)
        },
    }
