"""`ViewChanges`: the changes of a view on their way into a subscription, checkpoint by checkpoint.

A change is a message whose id is (0, the checkpoint's Timestamp, its number in that checkpoint, from 1 on), and whose
value is a dict: the view's columns, `_change`, `_epoch` and `_ts`. A checkpoint's changes come in the same order
whenever they are read, so what is acknowledged is known after a restart as it is for a topic.

Up to where everything is acknowledged is also written into the metadata store, now and then. It keeps nothing: a
subscription that is further behind than the retention time is told so by `Truncated`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count, repeat
from typing import Final

from tidegate.catalog.entries import Subscription
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.database.sub_source import ArrowRows, Items
from tidegate.ports.metadata import MetadataStore
from tidegate.snapshots.reader import Duck
from tidegate.snapshots.store import SnapshotStore
from tidegate.snapshots.view_feed import ViewFeed
from tidegate.snapshots.view_history import Place, Step, ViewHistory
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.subscription import Subscription as Machine

PREFIX: Final = "view-subscriptions/"
LOOK_S: Final = 0.05
"""How often somebody who waits looks for a new checkpoint."""
_WRITE_MS: Final = 600_000
"""How much time goes by between places that are written down."""
_PLACES_MAX: Final = 64
"""So many checkpoints without a change are passed at once."""
_BATCH_ROWS: Final = 4096


def place_key(subscription: Subscription) -> str:
    """Where the place of a subscription on a view is written."""
    return f"{PREFIX}{subscription.vchannel}"


class ViewUnread:
    """What was not fed to the machine when it was made."""

    def __init__(self, history: ViewHistory, begin: Timestamp | None, after: Timestamp, left: list[MessageId]) -> None:
        self._history = history
        self._begin = begin
        self._after = after
        self._left = left
        self.newest: Final = max(history.newest().timestamp, after)

    def count(self, acks: Acknowledgements) -> tuple[int, int | None]:
        """About how many changes there are, as the files' sizes say, and the timestamp of the oldest."""
        left = [id.timestamp for id in self._left if not acks.is_acknowledged(id)]
        found, oldest = len(left), left
        steps = [step for _, step in self._history.after(self._after) if step is not None]
        if self._begin is not None and self.newest >= self._begin and (first := self._history.rows_at(self._begin)):
            steps.insert(0, first)
        for step in steps:
            if step.rows and (not left or int(step.timestamp) > left[-1]):
                found += step.rows
                oldest.append(int(step.timestamp))
        return found, min(oldest, default=None)


class ViewChanges:
    """The feed of one subscription on a view. The subscription's lock covers it."""

    wait_s: Final = LOOK_S

    def __init__(
        self,
        view: View,
        subscription: Subscription,
        machine: Machine,
        *,
        metadata: MetadataStore,
        store: Callable[[], SnapshotStore],
        duck: Callable[[], Duck],
        barrier: Callable[[], bool],
    ) -> None:
        """`store` and `duck` are asked for when something is read, not before. `barrier` asks for a checkpoint."""
        self._view = view
        self._subscription = subscription
        self._machine = machine
        self._metadata = metadata
        self._store = store
        self._duck = duck
        self._barrier = barrier
        self._asked = False
        self._history: ViewHistory | None = None
        self._feed: ViewFeed | None = None
        self._steps: Iterator[tuple[Place, Step | None]] | None = None
        self._rows: Iterator[Items] | None = None
        self._step: Step | None = None
        self._left: deque[tuple[MessageId, object]] = deque()
        self._last: MessageId | None = None
        """The last message that was read."""
        start = subscription.start
        self._begin = Timestamp(max(int(start) - 1, 0)) if isinstance(start, Timestamp) else subscription.created
        mark = machine.marks().get(0)
        written = self._written()
        reached = max(written, mark.timestamp if mark is not None else 0)
        self._wants_rows = start == "earliest" and reached <= self._begin and written < self._begin
        """Whether the view's rows, as they were when the subscription was created, come first."""
        # A checkpoint may be acknowledged in part: it is read again, and what is acknowledged left out.
        self._after = Timestamp(max(written, self._begin, mark.timestamp - 1 if mark is not None else 0))
        self._looked = self._after

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self) -> int | None:
        """Read on; how many messages that were, None when there is nothing to read now.

        Raises: `Truncated` when the subscription is further behind than the retention time; what reading raises.
        """
        room = self._machine.wants()
        if not room:
            return None
        for _ in range(_PLACES_MAX):
            if self._left:
                items = [self._left.popleft() for _ in range(min(room, len(self._left)))]
                self._machine.feed(0, items)
                return len(items)
            if not self._advance():
                return None
        return 0

    def _advance(self) -> bool:
        """Come one batch, or one checkpoint, further; whether that could be done."""
        if self._step is not None:
            self._read_rows(self._step)
            return True
        if self._wants_rows:
            history = self._the_history()
            if history.newest().timestamp < self._begin:
                return False
            self._step = history.rows_at(self._begin)
            if self._step is None:
                self._wants_rows = False
            return True
        if self._steps is None:
            self._steps = self._the_history().after(self._after)
        try:
            found = next(self._steps, None)
        except BaseException:
            self._steps = None
            raise
        if found is None:
            self._steps = None
            return False
        place, self._step = found
        if self._step is None:
            self._after = place.timestamp
        return True

    def _read_rows(self, step: Step) -> None:
        if self._rows is None:
            self._rows = self._items(step)
        try:
            items = next(self._rows, None)
        except BaseException:
            self._rows = None  # What was read of it is left out the next time.
            raise
        if items is not None:
            self._left.extend(items)
            return
        self._rows, self._step = None, None
        if self._wants_rows:
            self._wants_rows = False
        else:
            self._after = step.timestamp

    def _items(self, step: Step) -> Iterator[Items]:
        if self._feed is None:
            self._feed = ViewFeed(self._store(), self._view.table, self._view.columns, self._duck())
        number = 1
        for batch in self._feed.changes(step, _BATCH_ROWS):
            ids = map(MessageId, repeat(0), repeat(int(step.timestamp)), range(number, number + batch.num_rows))
            number += batch.num_rows
            last = self._last
            items = [
                each for each in zip(ids, zip(repeat(ArrowRows(batch)), count())) if last is None or each[0] > last
            ]
            if items:
                self._last = items[-1][0]
                yield items

    def _the_history(self) -> ViewHistory:
        if self._history is None:
            self._history = ViewHistory(self._store(), self._view.table)
        return self._history

    def ask(self) -> None:
        """Ask for a checkpoint, once, when there is none since it begins: else nothing may ever come, and it waits."""
        if not self._asked and self._the_history().newest().timestamp <= self._begin:
            self._asked = self._barrier()

    def unread(self) -> ViewUnread:
        """What is not in the machine."""
        history = ViewHistory(self._store(), self._view.table)
        begin = self._begin if self._wants_rows and self._last is None else None
        return ViewUnread(history, begin, self._after, [id for id, _ in self._left])

    # -- the place that is written down --------------------------------------------------------------------------

    @property
    def may_let_go(self) -> bool:
        """Whether it has come so far that its place is to be written."""
        return self._after.ms_since(self._looked) >= _WRITE_MS

    def needed(self) -> dict[str, Timestamp]:
        """Everything at or below it is acknowledged; ZERO while the view's first rows are not."""
        self._looked = self._after
        oldest = self._machine.status().oldest_unacked.get(0)
        if self._wants_rows or (oldest is not None and oldest.timestamp <= self._begin):
            return {"": Timestamp.ZERO}
        return {"": self._after if oldest is None else min(self._after, Timestamp(oldest.timestamp - 1))}

    def pin(self, needed: dict[str, Timestamp] | None = None) -> None:
        """Write down what is acknowledged. Ordering: a snapshot that says so is in the log before."""
        place = int(Timestamp.ZERO if needed is None else needed[""])
        key = place_key(self._subscription)
        while place > self._written():
            found = self._metadata.get(key)
            value = json.dumps({"acknowledged": place}).encode()
            if self._metadata.compare_and_set(key, value, expected=found.version if found else 0) is not None:
                return

    def _written(self) -> int:
        found = self._metadata.get(place_key(self._subscription))
        return 0 if found is None else int(json.loads(found.value)["acknowledged"])

    def close(self) -> None:
        """Let go of what is being read."""
        self._steps = self._rows = None
        self._left.clear()
