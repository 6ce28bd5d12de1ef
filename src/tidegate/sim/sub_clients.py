"""Simulated producers and consumers of a topic. A consumer consumes, processes and produces in one transaction.

Whoever gets no answer to what he asked as a consumer gives that consumer up and connects anew, as a client does whose
connection broke: he cannot know what was handed to it.
"""

from __future__ import annotations

from typing import Any

from tidegate.clock.timestamp import Timestamp
from tidegate.sim.sub_auditor import SubAuditor
from tidegate.sim.sub_node import TOPIC
from tidegate.sim.txn_clients import Script, TxnClient
from tidegate.topics.message_id import MessageId
from tidegate.txn.txn_id import TxnId


class InputClient(TxnClient):
    """Writes to the topic, also in transactions that write elsewhere too."""

    def _place(self, channel: str) -> str:
        shard = self._channels.index(channel)
        return TOPIC.vchannel(shard) if shard < TOPIC.shards and self._rng.random() < 0.8 else super()._place(channel)


class ConsumerClient(TxnClient):
    """Receives, and acknowledges with or without a transaction."""

    _auditor: SubAuditor

    def __init__(self, name: str, *, cumulative: bool, **ports: Any) -> None:
        """`cumulative` says that everything up to a message is acknowledged, not each by itself."""
        self._cumulative = cumulative
        self.is_calm = False
        """It neither dies nor leaves a transaction open."""
        self._consumer = ""
        self._at = ""
        """The process that it is connected to."""
        self._hand: list[MessageId] = []
        """What it was given and has not acknowledged, in order."""
        super().__init__(name, **ports)

    def _live(self) -> Script:
        while True:
            self.is_idle = True
            while self.is_finishing or self._rng.random() < 0.5:
                yield
            self.is_idle = False
            yield from self._go_on()

    def _go_on(self) -> Script:
        rng = self._rng
        if not self._consumer:
            owner = self._owner()
            if owner is not None:
                yield from self._ask("subscribe", to=owner)
                if self.answer is not None and self.answer.how == "ok":
                    self._consumer, self._at, self._hand = self.answer.value, owner, []
            return
        if not self._hand or rng.random() < 0.3:
            yield from self._tell("receive", max=rng.choice((1, 2, 5)))
            if self.answer is None or self.answer.how != "ok":
                return
            self._hand += self.answer.value
        if not self._hand:
            if rng.random() < 0.1:
                yield from self._start_over()
            return
        draw = rng.random()
        if draw < 0.08:
            yield from self._give_back()
        elif draw < 0.12 and not self.is_calm:
            self._abandon("a consumer dies")
        elif draw < 0.25:
            yield from self._acknowledge_alone()
        else:
            yield from self._consume()

    # As a consumer

    def _tell(self, what: str, **arguments: Any) -> Script:
        """Ask as the consumer. Without a clear answer it is one no more."""
        yield from self._ask(what, to=self._at, tries=self._rng.choice((1, 2)), consumer=self._consumer, **arguments)
        if self.answer is None or self.answer.how in ("refused", "unknown"):
            self._abandon("a consumer connects anew")

    def _abandon(self, why: str) -> None:
        self._note(why)
        if self._rng.random() < 0.5:
            self._leave()
        self._consumer, self._hand = "", []

    def _leave(self) -> None:
        """Say goodbye, and do not wait for an answer."""
        asking = self._ask("leave", to=self._at, tries=1, consumer=self._consumer)
        next(asking)

    def _start_over(self) -> Script:
        """Have everything delivered again."""
        self._hand = []
        yield from self._tell("redeliver")
        if self.answer is not None and self.answer.how != "ok":
            self._abandon("a consumer connects anew")

    def _give_back(self) -> Script:
        rng = self._rng
        if self._cumulative or rng.random() < 0.5:
            yield from self._start_over()
            return
        ids = rng.sample(self._hand, rng.randrange(1, len(self._hand) + 1))
        self._hand = [each for each in self._hand if each not in ids]
        yield from self._tell("nack", ids=ids, delay_ms=rng.choice((0, 0, 50)))

    def _choose(self) -> tuple[list[MessageId], list[list[MessageId]]]:
        """What to acknowledge, and in which portions."""
        rng = self._rng
        if not self._cumulative:
            ids = rng.sample(self._hand, rng.randrange(1, len(self._hand) + 1))
            cut = rng.randrange(len(ids)) if rng.random() < 0.3 else 0
            return ids, [part for part in (ids[:cut], ids[cut:]) if part]
        shard = rng.choice(self._hand).shard
        mine = sorted(each for each in self._hand if each.shard == shard)
        mine = mine[: rng.randrange(1, len(mine) + 1)]
        if len(mine) > 1 and rng.random() < 0.3:
            cut = rng.randrange(1, len(mine))
            return mine, [mine[:cut], mine[cut:]]
        return mine, [mine]

    def _acknowledge(self, part: list[MessageId], txn: TxnId | None) -> Script:
        ids = [part[-1]] if self._cumulative else part
        what = "ack" if txn is None else "ack_txn"
        more = {} if txn is None else {"id": txn}
        yield from self._tell(what, ids=ids, covers=part, cumulative=self._cumulative, **more)

    def _acknowledge_alone(self) -> Script:
        ids, parts = self._choose()
        for part in parts:
            self._auditor.acknowledging(frozenset(part))
            yield from self._acknowledge(part, None)
            if self.answer is None or self.answer.how != "ok":
                yield from self._start_over_if_connected()
                return
        self._hand = [each for each in self._hand if each not in ids]

    def _consume(self) -> Script:
        """Consume, process and produce."""
        rng = self._rng
        timeout_ms = rng.choice((200, 600, 3_000, 60_000))
        yield from self._ask("begin", timeout_ms=timeout_ms)
        if self.answer is None or self.answer.how != "ok":
            return
        id: TxnId = self.answer.value
        ids, parts = self._choose()
        places = rng.sample(self._channels, rng.choice((1, 1, 2)))
        deed = self._auditor.wanted(dict.fromkeys(places, len(ids)))
        self._auditor.consumes(deed, frozenset(ids), cumulative=self._cumulative)
        ahead, rest = self._lines(deed, rng.choice((0.0, 0.0, 0.4)))
        for part in parts:
            yield from self._acknowledge(part, id)
            if self.answer is None or self.answer.how != "ok":
                is_conflict = self.answer is not None and self.answer.how == "absent"
                yield from self._give_up(id, deed)
                if is_conflict and not self.is_calm and rng.random() < 0.6:
                    self._note("a consumer tries once more with what it has")
                else:
                    yield from self._start_over_if_connected()
                return
            if rng.random() < 0.1:
                for _ in range(60):
                    yield
        for name, lines in ahead:
            yield from self._ask("write", to=self._at, id=id, writes={name: lines})
            if self.answer is None or self.answer.how != "ok":
                yield from self._give_up(id, deed)
                yield from self._start_over_if_connected()
                return
        ending = rng.random()
        if ending < 0.1 and not self.is_calm:
            self._auditor.was_refused(deed)  # It stays open: nobody will ever ask for its commit.
            self._note("a consuming transaction is left open")
            if rng.random() < 0.5:
                self._abandon("a consumer dies")  # Otherwise it tries the same in another transaction.
        elif ending < 0.18:
            yield from self._give_up(id, deed)
            yield from self._start_over_if_connected()
        else:
            deadline_ms = Timestamp(id.counter).physical_ms + timeout_ms
            yield from self._commit(id, deed, rest, [], None, deadline_ms)
            if deed.at is not None:
                self._note("a consuming transaction is committed")
                self._hand = [each for each in self._hand if each not in ids]
            else:
                yield from self._start_over_if_connected()

    def _start_over_if_connected(self) -> Script:
        if self._consumer:
            yield from self._start_over()
