"""Messages that a channel writes by itself: time ticks, and the end of transactions that nobody will commit."""

from __future__ import annotations

from threading import Lock

from tidegate.log import block
from tidegate.log.channel import TickPlan
from tidegate.log.message import ALL_VCHANNELS, MessageType
from tidegate.runtime.commit import ROW_OVERHEAD
from tidegate.runtime.pending import PendingAppend


def tick_item(plan: TickPlan) -> PendingAppend:
    """A time tick."""
    body = block.tick_body(plan.resume, plan.last_confirmed)
    item = PendingAppend(Lock(), ALL_VCHANNELS, MessageType.TIME_TICK, ROW_OVERHEAD, body)
    item.plan = plan
    item.first_tick = int(plan.time_tick)
    item.last_confirmed = plan.resume
    return item


def rollback_item(mutex: Lock, txn: bytes) -> PendingAppend:
    """The message that ends a transaction without effect. Nobody waits for it: without it, it has none either."""
    item = PendingAppend(mutex, ALL_VCHANNELS, MessageType.ROLLBACK, ROW_OVERHEAD)
    item.txn = txn
    return item
