"""`AppendQueue`: what waits to be written, and which of it may be written now."""

from __future__ import annotations

from collections import deque

from tidegate.log.append_locks import AppendLocks
from tidegate.log.message import ALL_VCHANNELS
from tidegate.runtime.pending import PendingAppend
from tidegate.runtime.settings import LogSettings


class AppendQueue:
    """A queue with the order and the limits of a commit. Not thread-safe: the writer's mutex covers it.

    Invariants: items of one virtual channel leave in the order in which they came; none leaves before the one it is
    behind.
    """

    def __init__(self, settings: LogSettings) -> None:
        self.items: deque[PendingAppend] = deque()
        self.locks = AppendLocks()
        self.in_flight_bytes = 0
        """Of what was pushed and not settled."""
        self._bytes_max = settings.commit_bytes_max
        self._rows_max = settings.batch_rows_max
        self._special = 0
        """Exclusive, held and tick items; without any, the whole queue may be taken as it is."""

    def __len__(self) -> int:
        return len(self.items)

    def push(self, item: PendingAppend) -> None:
        if item.exclusive or item.held is not None or item.plan is not None:
            self._special += 1
        self.items.append(item)
        self.in_flight_bytes += item.size

    def wanted_alone(self, vchannel: str) -> bool:
        """Whether an exclusive append waits for the virtual channel or for all of them."""
        return bool(self._special) and any(
            each.exclusive and each.vchannel in (vchannel, ALL_VCHANNELS) for each in self.items
        )

    def first_waiting(self) -> PendingAppend | None:
        """The first item whose thread waits for it and could write for everybody."""
        return next((each for each in self.items if each.waits), None)

    def admit(self) -> list[PendingAppend]:
        """Take off what one commit may hold; an exclusive item has its place to itself from here on."""
        if not self._special and self.locks.is_idle:
            return self._admit_plain()
        items: list[PendingAppend] = []
        rest: deque[PendingAppend] = deque()
        blocked: set[str] = set()
        inside: set[str] = set()
        size = rows = 0
        for each in self.items:
            if items and (size + each.size > self._bytes_max or rows + each.count > self._rows_max):
                blocked.add(ALL_VCHANNELS)
            names = each.names
            must_wait = each.behind is not None and any(each.behind is other for other in rest)
            if must_wait or not self._may_enter(each, names, blocked, inside):
                blocked.update(names)
                rest.append(each)
                continue
            inside.update(names)
            size += each.size
            rows += each.count
            items.append(each)
            if each.exclusive or each.held is not None or each.plan is not None:
                self._special -= 1
            if each.exclusive:
                blocked.add(each.vchannel)
        self.items = rest
        return items

    def _admit_plain(self) -> list[PendingAppend]:
        queue = self.items
        items: list[PendingAppend] = []
        size = rows = 0
        while queue:
            each = queue[0]
            size += each.size
            rows += each.count
            if items and (size > self._bytes_max or rows > self._rows_max):
                break
            items.append(queue.popleft())
        return items

    def _may_enter(self, each: PendingAppend, names: tuple[str, ...], blocked: set[str], inside: set[str]) -> bool:
        if each.held is not None:
            return True  # It has its place already, and whoever waits to be alone waits for it.
        if ALL_VCHANNELS in blocked:
            return False
        if each.plan is not None:
            return True
        if not blocked.isdisjoint(names):
            return False
        if each.exclusive:
            alone = not inside if each.vchannel == ALL_VCHANNELS else each.vchannel not in inside
            return alone and self.locks.try_exclusive(each.vchannel)
        return all([self.locks.may_share(name) for name in names])

    def settled(self, items: list[PendingAppend]) -> None:
        """Their outcome is known."""
        self.in_flight_bytes -= sum([each.size for each in items])

    def drop(self) -> list[PendingAppend]:
        """Take everything off."""
        dropped = list(self.items)
        self.items.clear()
        self._special = 0
        return dropped


def behind_failed(items: list[PendingAppend]) -> list[tuple[PendingAppend, BaseException]]:
    """Those that are behind one that has failed, or that fails with these, and why; see `PendingAppend.behind`."""
    found: dict[int, tuple[PendingAppend, BaseException]] = {}
    for each in [each for each in items if each.behind is not None]:
        ahead = each.behind
        why = None if ahead is None else ahead.error or found.get(id(ahead), (None, None))[1]
        if why is not None:
            found[id(each)] = each, why
    return list(found.values())
