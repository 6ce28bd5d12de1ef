"""Dead letters: messages given back too often are moved to their topic, each exactly once.

Sending it there and acknowledging it here is one transaction. Headers say where it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tidegate.catalog.entries import Topic
from tidegate.database.clients import OWNER
from tidegate.database.received import Received
from tidegate.database.sub_host import SubscriptionHost
from tidegate.errors import InvalidArgument, TidegateError
from tidegate.runtime.pieces import Piece
from tidegate.runtime.steps import Steps
from tidegate.topics.routing import key_hash, shard_of
from tidegate.topics.value import encode

if TYPE_CHECKING:
    from tidegate.database.engine import Engine

TOPIC: Final = "tidegate-topic"
SUBSCRIPTION: Final = "tidegate-subscription"
MESSAGE_ID: Final = "tidegate-id"
REDELIVERIES: Final = "tidegate-redeliveries"
_AT_ONCE: Final = 500


def move_dead_letters(engine: Engine, host: SubscriptionHost) -> Steps[int]:
    """Move what is dead in a subscription; how many that were.

    Raises: what a transaction raises. Nothing is lost by it: they are moved the next time.
    """
    found = host.take_dead_letters()
    if not found:
        return 0
    name = host.subscription.dead_letter_topic
    if name is None:
        raise InvalidArgument(f"{host} has no dead-letter topic")
    left = list(found)
    try:
        topic = engine.topic(name)
        while left:
            some = left[:_AT_ONCE]
            yield from _move(engine, host, topic, some)
            host.dead_letters_moved(len(some))
            del left[:_AT_ONCE]
    finally:
        # Those of an aborted transaction come again by themselves.
        host.return_dead_letters([each.id for each in left])
    return len(found)


def _move(engine: Engine, host: SubscriptionHost, topic: Topic, letters: Sequence[Received]) -> Steps[None]:
    writes: dict[str, list[Piece]] = {}
    keys = [key_hash(topic.name, each.key) for each in letters if each.key is not None]
    for turn, each in enumerate(letters):
        headers = {
            **each.headers,
            TOPIC: each.topic,
            SUBSCRIPTION: host.subscription.name,
            MESSAGE_ID: str(each.id),
            REDELIVERIES: str(each.redelivery_count),
        }
        shard = shard_of(each.key, topic.shards, turn=turn)
        piece = Piece(topic.vchannel(shard), encode(_value(each), each.key, headers))
        writes.setdefault(engine.channel_of(topic.id, shard), []).append(piece)
    txn = engine.begin(OWNER)
    try:
        yield from host.ack_in_txn(txn, None, [each.id for each in letters], later=True)
        yield from engine.transactions.commit(txn, writes, keys)
    except TidegateError:
        yield from engine.transactions.abort(txn)
        raise


def _value(letter: Received) -> Any:
    """The value as it was sent; of an Arrow row, what JSON has no word for becomes text."""
    if letter.row is None:
        return letter.value
    plain = (str, int, float, bool, type(None))
    return {name: each if isinstance(each, plain) and each == each else str(each) for name, each in letter.row.items()}
