"""What tests of the engine share: a database in a directory of its own that can be restarted and can crash."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate.clock.timestamp import Timestamp
from tidegate.database.clients import OWNER
from tidegate.database.engine import Engine
from tidegate.database.received import Received
from tidegate.database.settings import DatabaseSettings
from tidegate.database.sub_host import SubscriptionHost
from tidegate.runtime.pieces import Piece
from tidegate.runtime.settings import LogSettings
from tidegate.runtime.steps import run
from tidegate.topics.routing import shard_of
from tidegate.topics.value import encode
from tidegate.txn.txn_id import TxnId

SOON_S = 5.0
"""Long enough for whatever must come."""
NEVER_S = 0.05
"""How long to wait for what must not come; ticks come when somebody waits, so this is long."""


class House:
    """A database that lives on over restarts and crashes; each crash goes on in a copy of its files."""

    def __init__(self, root: Path, **settings: Any) -> None:
        log = LogSettings(**{"segment_bytes": 64 << 10, "tick_interval_ms": 20, **settings.pop("log", {})})
        self._settings = DatabaseSettings(log=log, channels=settings.pop("channels", 3), coordinators=2, **settings)
        self._root = root
        self._life = 0
        self.engine = Engine(root / "0", self._settings)
        self._left: list[Engine] = []

    def restart(self) -> None:
        """Close the database and open it again."""
        self.engine.close()
        self.engine = Engine(self._root / str(self._life), self._settings)

    def crash(self) -> None:
        """Go on with what is on disk now: appends are synced, so a copy of the files is what a crash leaves."""
        self._life += 1
        path = self._root / str(self._life)
        engine = self.engine
        engine._stop.set()  # Nothing may change while files are copied one after the other.
        engine._thread.join()
        engine.log.seal()
        with engine.log._sealing:
            shutil.copytree(engine.path, path)
        with sqlite3.connect(path / "meta.sqlite") as store:
            store.execute("DELETE FROM lease")  # Its holder is dead; waiting for that takes seconds.
        store.close()
        self._left.append(self.engine)
        self.engine = Engine(path, self._settings)

    def close(self) -> None:
        for each in [self.engine, *self._left]:
            each.close()

    # -- topics --------------------------------------------------------------------------------------------------

    def topic(self, name: str, shards: int = 1) -> None:
        self.engine.change_catalog(lambda catalog: catalog.plan_create_topic(name, shards=shards))

    def writes(self, topic: str, values: Sequence[Any], key: Any = None) -> dict[str, list[Piece]]:
        """Messages by channel; those without a key go round the shards."""
        found: dict[str, list[Piece]] = {}
        at = self.engine.topic(topic)
        for turn, value in enumerate(values):
            shard = shard_of(key, at.shards, turn=turn)
            piece = Piece(at.vchannel(shard), encode(value, key))
            found.setdefault(self.engine.channel_of(at.id, shard), []).append(piece)
        return found

    def send(self, topic: str, *values: Any, key: Any = None) -> Timestamp:
        """Send each value as a message of its own; the last one's Timestamp."""
        at, sent = self.engine.topic(topic), Timestamp.ZERO
        for turn, value in enumerate(values):
            shard = shard_of(key, at.shards, turn=turn)
            channel = self.engine.channel_of(at.id, shard)
            sent = self.engine.send({channel: [Piece(at.vchannel(shard), encode(value, key))]})
        return sent

    def send_together(self, topic: str, *values: Any) -> Timestamp:
        """Send them as one transaction."""
        return self.engine.commit(self.engine.begin(), self.writes(topic, values))

    def write_ahead(self, txn: TxnId, topic: str, *values: Any) -> None:
        """Write messages of an open transaction into the log now."""
        self.engine.write_ahead(txn, self.writes(topic, values))

    # -- subscriptions -------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, name: str = "s", *, client: str = OWNER, **options: Any) -> Sub:
        options.setdefault("start", "earliest")
        consumer = self.engine.subscriptions.subscribe(client, topic, name, **options)
        return Sub(self, topic, name, consumer)


class Sub:
    """One consumer of a subscription, as tests use it."""

    def __init__(self, house: House, topic: str, name: str, consumer: str) -> None:
        self._house = house
        self.topic = topic
        self.name = name
        self.consumer = consumer

    @property
    def host(self) -> SubscriptionHost:
        return self._house.engine.subscriptions.of(self.consumer)

    def receive(self, count: int = 1, timeout_s: float = SOON_S) -> list[Received]:
        """Exactly `count` messages, or as many as there are when the time is up."""
        found: list[Received] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count and (left := deadline - time.monotonic()) > 0:
            found += self.host.receive(self.consumer, count - len(found), left)
        return found

    def values(self, count: int = 1, timeout_s: float = SOON_S) -> list[Any]:
        return [each.value for each in self.receive(count, timeout_s)]

    def nothing(self, timeout_s: float = NEVER_S) -> bool:
        """Whether nothing comes."""
        found = self.host.receive(self.consumer, 100, timeout_s)
        assert not found, found
        return True

    def ack(self, messages: Received | Sequence[Received], txn: TxnId | None = None) -> None:
        ids = [each.id for each in ([messages] if isinstance(messages, Received) else messages)]
        host = self.host
        run(host.ack(self.consumer, ids) if txn is None else host.ack_in_txn(txn, self.consumer, ids))

    def ack_cumulative(self, message: Received, txn: TxnId | None = None) -> None:
        host = self.host
        if txn is None:
            run(host.ack_cumulative(self.consumer, message.id))
        else:
            run(host.ack_cumulative_in_txn(txn, self.consumer, message.id))

    def nack(self, *messages: Received, delay_ms: int = 0) -> None:
        self.host.nack(self.consumer, [each.id for each in messages], delay_ms)

    def redeliver(self) -> None:
        self.host.redeliver(self.consumer)

    def stats(self) -> dict[str, Any]:
        return self._house.engine.subscriptions.stats(self.topic, self.name)

    def close(self) -> None:
        self._house.engine.subscriptions.disconnect(self.consumer)
