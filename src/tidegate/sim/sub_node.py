"""`SubNode`: a simulated process that owns a database with a subscription: the real one, opened as `Engine` does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.catalog.entries import Kind, Subscription, Topic
from tidegate.clock.timestamp import Timestamp
from tidegate.database.sub_host import SubscriptionHost
from tidegate.errors import (
    Closed,
    InUse,
    InvalidArgument,
    InvalidTransactionState,
    LeaseLost,
    NotFound,
    TidegateError,
    TransactionNotFound,
)
from tidegate.runtime.steps import Steps
from tidegate.sim.auditor import Violation
from tidegate.sim.network import Answer, Ask
from tidegate.sim.procedures import Procedure
from tidegate.sim.sub_auditor import SubAuditor
from tidegate.sim.sub_log import SubEngine, SubLog
from tidegate.sim.txn_node import DATA, TxnNode, TxnSettings
from tidegate.topics.message_id import MessageId
from tidegate.txn.coordinator_records import TxnState
from tidegate.txn.txn_id import TxnId

TOPIC = Topic(1, "in", 2, Timestamp.ZERO)
LEASE_S = 0.6
"""A consumer that is silent for so long is given up."""


@dataclass(frozen=True, slots=True)
class SubSettings(TxnSettings):
    """What a run draws for all of its processes."""

    kind: Kind
    buffer: int
    """How many messages the subscription keeps in memory."""


def subscription_of(kind: Kind) -> Subscription:
    return Subscription(TOPIC.id, TOPIC.name, "s", kind, Timestamp(1), "earliest")


class SubNode(TxnNode):
    """One process."""

    _settings: SubSettings
    _auditor: SubAuditor

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.host: SubscriptionHost | None = None
        self._heard: dict[str, float] = {}
        """When something was last heard of each consumer."""

    # Opening

    def _resumed(self, _: object, error: TidegateError | None) -> None:
        self.failed = error
        if error is None:
            self._opening = self._open_subscription()

    def _open_subscription(self) -> Iterator[str]:
        yield "has taken up its transactions"
        log = SubLog(self.channels, self._files, self._store, self._tails)
        log.allocating = self._allocate
        engine = SubEngine(log, self._owner(), DATA, self._settings.buffer)
        host = SubscriptionHost(
            engine,  # type: ignore[arg-type]
            TOPIC,
            subscription_of(self._settings.kind),
            monotonic=self._clock.monotonic,
        )
        if pending := host.machine.pending_txns():
            self._note(f"{self.name} finds {len(pending)} pending acknowledgements")
        self.host = host
        self.is_serving = True
        yield "opens its subscription"

    def _subscription(self) -> SubscriptionHost:
        if self.host is None:
            raise Violation(f"defect: {self.name} serves before it has opened")
        return self.host

    @property
    def owns(self) -> bool:
        """Whether nobody has taken over. It may not know."""
        return not self.is_fenced and all(
            self._tails[name].current_term() == each.writer.term for name, each in self.channels.items()
        )

    # Steps

    def _other_work(self) -> str:
        draw = self._rng.random()
        if self._inbox and draw < 0.5:
            return self._take(self._inbox.pop(0))
        draw = self._rng.random()
        if draw < 0.06:
            return self._maintain()
        if draw < 0.1:
            return self._drop_silent()
        return super()._other_work()

    def _maintain(self) -> str:
        host = self._subscription()
        if host.journal._under_way:
            return "subscription: something is on its way"  # The real one waits for a moment, and then gives up.
        before = host.journal._since
        try:
            host.maintain()
        except TidegateError as error:
            self._check_defect(error)
            return f"subscription: snapshot {type(error).__name__}"
        return "subscription: snapshot" if host.journal._since < before else "subscription: no snapshot"

    def _drop_silent(self) -> str:
        now = self._clock.monotonic()
        silent = [id for id, at in self._heard.items() if now - at > LEASE_S]
        for id in silent:
            self._leave(id)
        return "gives up silent consumers" if silent else "hears all consumers"

    def _leave(self, consumer: str) -> None:
        self._heard.pop(consumer, None)
        self._subscription().disconnect(consumer)

    def _fail_client(self) -> str:
        client = f"k{self._rng.randrange(5)}"
        steps = self._owner().fail_client(client)

        def done(_: object, error: TidegateError | None) -> None:
            self._check_defect(error)
            for consumer in self._subscription().consumers_of(client):
                self._leave(consumer)

        self.procedures.append(Procedure("fail client", steps, done))
        return "fails a client"

    # Requests

    def _take(self, ask: Ask) -> str:
        told = ask.arguments
        consumer = str(told.get("consumer"))
        if consumer in self._heard:
            self._heard[consumer] = self._clock.monotonic()
        host = self._subscription()
        match ask.what:
            case "subscribe" | "receive":
                return self._take_once(ask)
            case "nack":
                return self._at_once(ask, lambda: host.nack(consumer, told["ids"], told["delay_ms"]))
            case "redeliver":
                return self._at_once(ask, lambda: host.redeliver(consumer))
            case "leave":
                return self._at_once(ask, lambda: self._leave(consumer))
            case "ack" | "ack_txn":
                return self._acknowledge(ask)
        return super()._take(ask)

    def _take_once(self, ask: Ask) -> str:
        """Asked again, the answer is the same."""
        key = (ask.client, ask.number)
        known = self._written.get(key)
        if known is not None:
            self._send(self.name, ask.client, known)
            return f"takes {ask.what} again"
        value: Any = None
        failed: TidegateError | None = None
        try:
            value = self._subscribe(ask) if ask.what == "subscribe" else self._receive(ask)
        except TidegateError as error:
            failed = error
        self._written[key] = self._answer(ask, "ok", value, failed)
        return f"takes {ask.what}"

    def _subscribe(self, ask: Ask) -> str:
        id = self._subscription().connect(ask.client)
        self._heard[id] = self._clock.monotonic()
        return id

    def _receive(self, ask: Ask) -> list[MessageId]:
        found = self._subscription().receive(ask.arguments["consumer"], ask.arguments["max"])
        is_owner = self.owns
        for each in found:
            text = each.body.decode() if each.body is not None else str((each.row or {}).get("text"))
            self._auditor.handed_out(ask.client, each.id, text, by_the_owner=is_owner)
            if is_owner:
                self._check_not_held(each.id, None, "handed out")
            if each.redelivery_count:
                self._note("a message is delivered again")
        return [each.id for each in found]

    def _check_not_held(self, id: MessageId, by: TxnId | None, what: str) -> None:
        """An acknowledgement that was answered is pending until its transaction has ended."""
        holder = self._auditor.holder_of(id)
        if holder is None or holder == by:
            return
        try:
            state = self.coordinators[holder.coordinator][0].get(holder).state
        except TransactionNotFound:
            return
        if state not in (TxnState.ABORTING, TxnState.ABORTED):
            raise Violation(f"pending: {id} is {what} at {self.name}, and {holder}, which is {state}, holds it")

    def _acknowledge(self, ask: Ask) -> str:
        host, told = self._subscription(), ask.arguments
        consumer, ids, covers = told["consumer"], told["ids"], frozenset(told["covers"])
        txn: TxnId | None = told.get("id")
        steps: Steps[None]
        if txn is None:
            steps = host.ack_cumulative(consumer, ids[0]) if told["cumulative"] else host.ack(consumer, ids)
        elif told["cumulative"]:
            steps = host.ack_cumulative_in_txn(txn, consumer, ids[0])
        else:
            steps = host.ack_in_txn(txn, consumer, ids)

        fresh: set[MessageId] = set()

        def work() -> Steps[None]:
            # What is acknowledged already is acknowledged once more without effect.
            acks = host.machine.acknowledgements
            fresh.update(id for id in covers if not acks.is_acknowledged(id))
            yield from steps

        def done(value: Any, error: TidegateError | None) -> None:
            if error is None:
                for id in fresh if txn is None else covers:
                    self._check_not_held(id, txn, "acknowledged")
                if txn is None:
                    self._auditor.acknowledged_alone(frozenset(fresh))
                else:
                    self._auditor.holds(txn, covers)
            self._answer(ask, "ok", value, error)

        self.procedures.append(Procedure(ask.what, work(), done))
        return f"takes {ask.what}"

    def _answer(self, ask: Ask, good: str, value: Any, error: TidegateError | None) -> Answer:
        refused = isinstance(error, LeaseLost | InUse | Closed) or (
            isinstance(error, InvalidArgument) and not isinstance(error, InvalidTransactionState | NotFound)
        )
        if error is not None and refused and ask.what not in ("commit", "abort", "write", "begin", "plain", "read"):
            self._note(f"{ask.what} refused: {type(error).__name__}")
            answer = Answer(ask.number, "refused", None, self.name)
            self._send(self.name, ask.client, answer)
            return answer
        return super()._answer(ask, good, value, error)
