"""`Server`: lets other processes use the database that this one owns, over Arrow Flight on a Unix socket.

A request is one Flight action: its type is the call's name, its body a frame. The answer is a frame.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import pyarrow.flight as flight

from tidegate.catalog.table_fold import table_facts
from tidegate.clock.timestamp import Timestamp
from tidegate.database.engine import Engine
from tidegate.database.local import LocalBackend
from tidegate.database.read_gate import pack_place, unpack_ask
from tidegate.database.remote import frames
from tidegate.database.remote.address import Address
from tidegate.database.transaction_runs import Member
from tidegate.errors import InvalidArgument, InvariantBroken, TidegateError
from tidegate.topics.message_id import MessageId
from tidegate.txn.txn_id import TxnId

_logger = logging.getLogger("tidegate.database")
_RECEIVE_MAX_S: Final = 2.0
_umask = Lock()


class Answer(NamedTuple):
    """An answer that comes with byte strings."""

    value: Any
    blobs: list[frames.Bytes]


class _Head(dict[str, Any]):
    """The head of a request: what it lacks is the client's mistake."""

    def __missing__(self, name: str) -> Any:
        raise InvalidArgument(f"the request does not say {name!r}; the client may be another version of Tidegate")


class Asked(NamedTuple):
    """A request, and who answers it."""

    backend: LocalBackend
    head: frames.Head
    blobs: list[memoryview]

    def hashes(self) -> list[int]:
        """The first byte string."""
        if not self.blobs:
            raise InvalidArgument("the request lacks its hashes; the client may be another version of Tidegate")
        return frames.unpack_hashes(self.blobs[0])

    def of(self, *names: str) -> list[Any]:
        return [self.head[name] for name in names]

    @property
    def txn(self) -> TxnId:
        return TxnId.parse(self.head["txn"])

    @property
    def ids(self) -> list[MessageId]:
        return [MessageId(*each) for each in self.head["ids"]]


class Server:
    """Listens as long as the database is owned by this process."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._address = Address(directory)
        with _umask:
            # The socket is made by the library: nobody else may use it, not even for a moment.
            before = os.umask(0o177)
            try:
                self._server = _Flight(self._address.location, engine)
            finally:
                os.umask(before)
        # It listens since it was made. `serve` would only wait, and end it at Ctrl-C though the process lives on.
        self._address.publish()

    def close(self) -> None:
        """Take no more requests, and finish those under way."""
        self._server.shutdown()
        self._address.remove()


class _Flight(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, location: str, engine: Engine) -> None:
        self._engine = engine  # Calls come as soon as it listens, which is inside of this:
        super().__init__(location)

    def do_action(self, _: Any, action: flight.Action) -> Iterator[flight.Result]:
        try:
            answer = self._answer(action.type, memoryview(action.body))
            body = frames.pack({"ok": answer.value}, answer.blobs)
        except TidegateError as error:
            body = frames.pack({"error": frames.pack_error(error)})
        except Exception as error:
            _logger.exception("a request met a defect: %s", action.type)
            body = frames.pack({"error": frames.pack_error(InvariantBroken(f"{action.type}: {error!r}"))})
        yield flight.Result(body)

    def _answer(self, name: str, body: memoryview) -> Answer:
        head, blobs = frames.unpack(body)
        call = CALLS.get(name)
        if call is None:
            raise InvalidArgument(f"the owner of the database knows no call {name!r}; it may be an older version")
        client = str(head.get("client", ""))
        if name == "hello":
            if self._engine.clients.add(client, str(head.get("name", "")), self._engine.settings.lease_ms):
                # It has missed an answer and begins anew: its consumers, too, will come again under new names.
                for told in self._engine.on_client_gone:
                    told(client)
        else:
            self._engine.clients.check(client)
        found = call(Asked(LocalBackend(self._engine, client), _Head(head), blobs))
        return found if isinstance(found, Answer) else Answer(found, [])


def _hello(asked: Asked) -> Any:
    settings = asked.backend.engine.settings
    return {
        "channels": asked.backend.channels,
        "database": asked.backend.database_id.hex(),
        "lease_ms": settings.lease_ms,
        "version": frames.VERSION,
        "limits": asked.backend.limits._asdict(),
        "pid": os.getpid(),
    }


def _bye(asked: Asked) -> Any:
    asked.backend.engine.client_gone(str(asked.head["client"]), lost=False)


def _topic(asked: Asked) -> Any:
    topic = asked.backend.topic(asked.head["name"])
    return {"id": topic.id, "name": topic.name, "shards": topic.shards, "created": int(topic.created)}


def _table(asked: Asked) -> Any:
    at = asked.head.get("at")
    return table_facts(asked.backend.table(asked.head["name"], None if at is None else Timestamp(at)))


def _begin_read(asked: Asked) -> Any:
    return pack_place(asked.backend.begin_read(unpack_ask(asked.head)), table_facts)


def _commit(asked: Asked) -> Any:
    hashes = asked.hashes()
    writes = frames.unpack_writes(asked.head["channels"], asked.blobs[1:])
    read_at = asked.head["read_at"]
    return int(asked.backend.commit(asked.txn, writes, hashes, None if read_at is None else Timestamp(read_at)))


def _change_behind(asked: Asked) -> Any:
    read_at = asked.head["read_at"]
    asked.backend.change_behind(asked.txn, asked.head["sql"], None if read_at is None else Timestamp(read_at))


def _commit_run(asked: Asked) -> Any:
    members, at = [], 0
    for id, channels in asked.head["run"]:
        hashes = frames.unpack_hashes(asked.blobs[at])
        end = at + 1 + len(channels)
        members.append(Member(TxnId.parse(id), frames.unpack_writes(channels, asked.blobs[at + 1 : end]), hashes))
        at = end
    read_at = asked.head["read_at"]
    found = asked.backend.commit_run(asked.txn, members, None if read_at is None else Timestamp(read_at))
    return [int(each) for each in found]


def _write_ahead(asked: Asked) -> Any:
    asked.backend.write_ahead(asked.txn, frames.unpack_writes(asked.head["channels"], asked.blobs))


def _note_read(asked: Asked) -> Any:
    return int(asked.backend.note_read(asked.txn, asked.hashes(), asked.head["table"]))


def _produce(asked: Asked) -> Any:
    hashes = asked.hashes()
    writes = frames.unpack_writes(asked.head["channels"], asked.blobs[1:])
    timestamp, duplicate = asked.backend.produce(
        asked.head["topic"],
        asked.head["producer"],
        asked.head["epoch"],
        asked.head["first"],
        asked.head["count"],
        writes,
        hashes,
    )
    return [None if timestamp is None else int(timestamp), duplicate]


def _receive(asked: Asked) -> Any:
    found = asked.backend.receive(
        asked.head["consumer"], asked.head["max"], min(asked.head["timeout_s"], _RECEIVE_MAX_S)
    )
    blobs: list[frames.Bytes] = []
    return Answer(frames.pack_received(found, blobs), blobs)


def _ack(asked: Asked) -> Any:
    txn = None if asked.head["txn"] is None else TxnId.parse(asked.head["txn"])
    asked.backend.ack(asked.head["consumer"], asked.ids, cumulative=asked.head["cumulative"], txn=txn)


CALLS: Final[dict[str, Callable[[Asked], Any]]] = {
    "hello": _hello,
    "bye": _bye,
    "alive": lambda _: None,
    "execute": lambda asked: asked.backend.execute(asked.head["sql"]),
    "change_behind": _change_behind,
    "topic": _topic,
    "table": _table,
    "flush": lambda asked: int(asked.backend.flush(asked.head["timeout_s"])),
    "pause_pipeline": lambda asked: asked.backend.pause_pipeline(bool(asked.head["paused"])),
    "set_barriers": lambda asked: asked.backend.set_barriers(*asked.of("interval_ms", "checkpoint_every")),
    "now": lambda asked: int(asked.backend.now()),
    "begin_read": _begin_read,
    "begin": lambda asked: str(asked.backend.begin(asked.head["timeout_ms"])),
    "commit": _commit,
    "commit_run": _commit_run,
    "write_ahead": _write_ahead,
    "note_read": _note_read,
    "abort": lambda asked: asked.backend.abort(asked.txn, asked.head["reason"]),
    "find_commit": lambda asked: asked.backend.find_commit(asked.txn),
    "transactions": lambda asked: asked.backend.transactions(asked.head.get("finished")),
    "open_producer": lambda asked: asked.backend.open_producer(*asked.of("topic", "name")),
    "produce": _produce,
    "subscribe": lambda asked: asked.backend.subscribe(*asked.of("topic", "name", "options")),
    "unsubscribe": lambda asked: asked.backend.unsubscribe(*asked.of("topic", "name")),
    "receive": _receive,
    "ack": _ack,
    "nack": lambda asked: asked.backend.nack(asked.head["consumer"], asked.ids, asked.head["delay_ms"]),
    "redeliver": lambda asked: asked.backend.redeliver(asked.head["consumer"]),
    "disconnect": lambda asked: asked.backend.disconnect(asked.head["consumer"]),
    "subscription_stats": lambda asked: asked.backend.subscription_stats(*asked.of("topic", "name")),
    "status": lambda asked: asked.backend.status(),
}
