"""The auditor of subscriptions: what may be handed out, and that every input is consumed once.

once        an input is consumed by one committed transaction or acknowledged by itself, never twice; a transaction
            that consumes has its acknowledgement at its own Timestamp, with its outputs
again       what is known to be consumed is not handed out again by the owner
pending     what an open transaction was told to hold is neither handed out nor acknowledged by anybody else, also
            when the owner changes
lost        in the end every input is consumed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.catalog.entries import Subscription, Topic
from tidegate.log.message import Message, MessageType
from tidegate.sim.auditor import Violation
from tidegate.sim.txn_auditor import Deed, TxnAuditor
from tidegate.topics import sub_records as records
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_records import Kind
from tidegate.txn.txn_id import TxnId

_ALONE: Final = 0
"""Consumed by an acknowledgement in no transaction: in the place of a deed's number."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """What a deed consumes: these messages, and everything in their shards before them if it is cumulative."""

    ids: frozenset[MessageId]
    cumulative: bool


class SubAuditor(TxnAuditor):
    """Raises `Violation` the moment a promise is seen to be broken."""

    def __init__(self, channels: tuple[str, ...], topic: Topic, subscription: Subscription) -> None:
        super().__init__(channels)
        self._shards: Final = {(channels[at], name): at for at, name in enumerate(topic.vchannels)}
        self._journal: Final = subscription.vchannel
        self._inputs: dict[MessageId, str] = {}
        """Every input that a reader was given."""
        self._handed: dict[MessageId, str] = {}
        self._consumes: dict[int, Consumed] = {}
        self._consumer_of: dict[MessageId, int] = {}
        self._perhaps: set[MessageId] = set()
        """Somebody asked for their acknowledgement, and was not told what became of it."""
        self._holders: dict[MessageId, TxnId] = {}
        """Who was told last to hold it."""
        self._acked_at: dict[int, set[MessageId]] = {}
        """What the log says that transactions acknowledge, by their Timestamp."""
        self._upto_at: dict[int, set[MessageId]] = {}

    # What consumers want and learn

    def consumes(self, deed: Deed, ids: frozenset[MessageId], *, cumulative: bool) -> None:
        """If the deed happens, these are consumed by it."""
        self._consumes[deed.number] = Consumed(ids, cumulative)

    def acknowledging(self, ids: frozenset[MessageId]) -> None:
        """Somebody asks for an acknowledgement in no transaction."""
        self._perhaps |= ids

    def acknowledged_alone(self, ids: frozenset[MessageId]) -> None:
        """Somebody was told that these are acknowledged, and they were not when it began."""
        for id in ids:
            if self._consumer_of.setdefault(id, _ALONE) != _ALONE:
                raise Violation(f"once: {id} is consumed by {self._who(id)}, and was acknowledged by itself")

    def holds(self, txn: TxnId, ids: frozenset[MessageId]) -> None:
        """A transaction was told that it holds these."""
        for id in ids:
            if id in self._consumer_of:
                raise Violation(f"pending: {txn} was given {id}, which {self._who(id)} had consumed")
            self._holders[id] = txn

    def holder_of(self, id: MessageId) -> TxnId | None:
        return self._holders.get(id)

    def handed_out(self, who: str, id: MessageId, text: str, *, by_the_owner: bool) -> None:
        """A consumer is given a message. One who does not know yet that it owns nothing any more may know less."""
        if self._handed.setdefault(id, text) != text or self._inputs.get(id, text) != text:
            raise Violation(f"again: {who} was given {id} with another content")
        if by_the_owner and id in self._consumer_of:
            raise Violation(f"again: {who} was given {id}, which {self._who(id)} had consumed")

    def unconsumed(self) -> list[MessageId]:
        """Inputs that nobody has consumed yet, as far as anybody knows."""
        return sorted(id for id in self._inputs if id not in self._consumer_of and id not in self._perhaps)

    def _who(self, id: MessageId) -> str:
        number = self._consumer_of[id]
        return f"deed {number}" if number else "an acknowledgement"

    # What readers get

    def _know(self, deed: Deed, at: int) -> None:
        is_new = deed.at is None
        super()._know(deed, at)
        if is_new and deed.number in self._consumes:
            for id in self._consumes[deed.number].ids:
                other = self._consumer_of.setdefault(id, deed.number)
                if other != deed.number:
                    who = f"deed {other}" if other else "an acknowledgement"
                    raise Violation(f"once: {id} is consumed by {who} and by deed {deed.number}")

    def _is_record(self, channel: str, message: Message) -> bool:  # noqa: ARG002
        if message.type not in (MessageType.RECORD, MessageType.ACK):
            return False
        if message.type is MessageType.ACK and message.vchannel == self._journal:
            read = records.decode(message.body or b"")
            place = self._acked_at if read.kind is Kind.ACK else self._upto_at
            place.setdefault(int(message.time_tick), set()).update(read.ids)
        return True

    def _identify(self, channel: str, who: str, message: Message) -> tuple[int, int]:
        shard = self._shards.get((channel, message.vchannel))
        if shard is not None and message.type is MessageType.INSERT:
            text = message.body.decode() if message.body is not None else str((message.row or {}).get("text"))
            id = MessageId(shard, int(message.time_tick), int(message.position))
            if self._inputs.setdefault(id, text) != text or self._handed.get(id, text) != text:
                raise Violation(f"settled: {who} got {id} with another content")
        return super()._identify(channel, who, message)

    # At the end

    def check_end(self) -> None:
        super().check_end()
        if unknown := sorted(self._handed.keys() - self._inputs.keys()):
            raise Violation(f"once: {unknown} were handed out, and no reader has ever got them")
        for at in sorted({*self._acked_at, *self._upto_at}):
            if self._by_timestamp.get(at) not in self._consumes:
                raise Violation(f"once: something is acknowledged at {at}, and no deed that consumes is there")
        for number, consumed in self._consumes.items():
            when = self._deeds[number].at
            if when is None:
                continue
            there = set(self._acked_at.get(when, ()))
            for upto in self._upto_at.get(when, ()):
                there |= {id for id in consumed.ids if id.shard == upto.shard and id <= upto}
            if there != consumed.ids:
                raise Violation(
                    f"once: deed {number} at {when} consumes {sorted(consumed.ids)}, and acknowledges {sorted(there)}"
                )
        if left := self.unconsumed():
            raise Violation(f"lost: nobody has consumed {left}")
