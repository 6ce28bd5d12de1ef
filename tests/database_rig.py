"""What tests of the public API share: a database used by its owner or through a socket, and all that is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import tidegate
from tidegate import DatabaseSettings, LogSettings, Timestamp
from tidegate.database.database import Database
from tidegate.database.engine import Engine
from tidegate.log.message import MessageType
from tidegate.topics.value import decode


def quick(**options: Any) -> DatabaseSettings:
    """Settings with which tests need not wait."""
    options.setdefault("log", LogSettings(tick_interval_ms=5))
    return DatabaseSettings(**options)


class Found(NamedTuple):
    """A message as it is in the log."""

    timestamp: Timestamp
    shard: int
    channel: str
    value: Any
    key: Any
    headers: dict[str, str]
    txn: bytes | None


class Desk:
    """A database, `db`, in the hands of its owner (`through` is "owner") or of a client (`through` is "client")."""

    def __init__(self, path: Path, through: str, **options: Any) -> None:
        self.path = path
        self.through = through
        self.opened: list[Database] = []
        self.options = options
        self.open()

    def open(self) -> None:
        self.owner = self.another()
        self.db = self.another() if self.through == "client" else self.owner
        assert self.owner.is_owner and self.db.is_owner == (self.through == "owner")

    def another(self, **options: Any) -> Database:
        """Another opening of the same database."""
        found = tidegate.open(self.path, settings=quick(**{**self.options, **options}))
        self.opened.append(found)
        return found

    @property
    def engine(self) -> Engine:
        return self.owner.engine

    def all(self, topic: str = "t") -> list[Found]:
        """Every visible message of a topic, by whoever reads the log from its beginning, in order of time."""
        engine = self.engine
        engine.wait_until_visible(engine.log.allocate(1))
        where = engine.topic(topic)
        log = tidegate.read_log(self.path)
        found = []
        for shard in range(where.shards):
            channel = engine.channel_of(where.id, shard)
            with log.transaction_reader(channel, vchannels=frozenset({where.vchannel(shard)})) as reader:
                while (delivery := reader.poll()) is not None:
                    for each in delivery.messages():
                        if each.type is not MessageType.INSERT:
                            continue
                        if each.row is not None:
                            found.append(Found(each.time_tick, shard, channel, each.row, None, {}, each.txn))
                        else:
                            body = decode(each.body or b"")
                            parts = (body.value, body.key, body.headers)
                            found.append(Found(each.time_tick, shard, channel, *parts, each.txn))
        return sorted(found, key=lambda each: each.timestamp)

    def values(self, topic: str = "t") -> list[Any]:
        return [each.value for each in self.all(topic)]

    def open_transactions(self) -> list[str]:
        """Those that could still be written to. The record that one has ended everywhere comes a little later."""
        found = self.db.transactions()
        assert {each["state"] for each in found} <= {"open", "committing", "committed", "aborting", "aborted"}
        return [each["id"] for each in found if each["state"] == "open"]

    def close(self) -> None:
        for each in reversed(self.opened):
            each.close()
        self.opened.clear()
