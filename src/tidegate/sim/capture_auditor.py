"""`CaptureAuditor`: whether what is captured is the source, commit by commit. It believes neither capture nor source.

At every version of the tables it folds nothing and remembers nothing of what captures say: it compares with what the
source had at the position that stands in the same version.
"""

from __future__ import annotations

from typing import Final

from tidegate.capture.places import POSITIONS, TABLES, TRANSACTIONS, target_of
from tidegate.sim.auditor import Violation
from tidegate.sim.capture_origin import Origin
from tidegate.sim.capture_store import CaptureStore, Writes

CAPTURE: Final = "shop"


class CaptureAuditor:
    """Told of every commit, and of everything that somebody is promised."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self.position = -1
        """What the log has, or -1."""
        self.violation: Violation | None = None
        """The first promise that was broken: who breaks it may not let it through."""
        self._listed: set[int] = set()
        self._since = 0
        """The position of the last snapshot."""
        self.commits = 0
        self.caught_up = 0
        self.begins_anew = False
        """Whether somebody was told to read everything anew: from then on it may happen, also again by the next one."""

    def committed(self, store: CaptureStore, writes: list[Writes]) -> None:
        """A version has become visible."""
        self.commits += 1
        found = [each for each in store.rows(POSITIONS) if each["capture"] == CAPTURE]
        if not found:
            return
        at = int(found[0]["position"])
        listed = _listed(writes)
        if at > len(self._origin.history):
            raise self._broken(f"order: position {at} is beyond the source's last transaction")
        if not listed and self.is_first_of(at, writes):
            self._listed, self._since = set(), at
        elif at < self.position:
            raise self._broken(f"order: position {at} comes after {self.position}")
        self._look_at_list(at, listed)
        self.position = at
        self._origin.is_captured = True
        self._compare(store, at)

    def is_first_of(self, at: int, writes: list[Writes]) -> bool:
        """Whether this is a snapshot: the first, or one that was asked for. It writes what tables look like."""
        names = {each.table.name for each in writes if not each.delete}
        return {POSITIONS, TABLES} <= names and (self.position < 0 or (self.begins_anew and at >= self.position))

    def _look_at_list(self, at: int, listed: list[int]) -> None:
        twice = [each for each in listed if each in self._listed]
        if twice:
            raise self._broken(f"once: transaction {twice[0]} is taken for the second time")
        self._listed.update(listed)
        whole = {n for n in range(self._since + 1, at + 1) if self._origin.history[n - 1].changes}
        if self._listed != whole:
            odd = sorted(self._listed ^ whole)
            raise self._broken(f"once: at position {at} the list of transactions is wrong about {odd}")

    def _compare(self, store: CaptureStore, at: int) -> None:
        state = self._origin.after(at)
        known = {
            each["source_table"]: target_of(each["target"], each["shape"])
            for each in store.rows(TABLES)
            if each["capture"] == CAPTURE
        }
        for name, shape in state.shapes.items():
            target = known.get(name)
            if target is None or target.is_dropped:
                raise self._broken(f"whole: at position {at} table {name} is not captured")
            here = store.rows(target.name)
            # Statements about tables run ahead of the transaction that they belong to.
            columns = store.catalog.table(target.name).schema.columns
            names = [each.name for each in shape.columns if each.name in {column.name for column in columns}]
            wanted = sorted([[row[each] for each in names] for row in state.rows[name].values()], key=str)
            found = sorted([[row[each] for each in names] for row in here], key=str)
            if wanted != found:
                raise self._broken(f"whole: at position {at} table {name} has {found} and not {wanted}")

    # -- promises ----------------------------------------------------------------------------------------------------

    def confirmed(self, position: int) -> None:
        """The source was told that it need not keep what is at or before it."""
        if position > self.position:
            raise self._broken(f"survival: {position} is confirmed, and the log has {self.position}")

    def has_caught_up(self, position: int) -> None:
        """Somebody was told that everything up to it is in the log."""
        self.caught_up += 1
        if self._with_changes(position) > self.position:
            raise self._broken(f"catching up: {position} is said to be in the log, which has {self.position}")

    def check_end(self) -> None:
        """The faults have stopped, and everything was taken."""
        if self.position < self._with_changes(len(self._origin.history)):
            raise self._broken(f"liveness: the log has {self.position} of {len(self._origin.history)} transactions")

    def _broken(self, what: str) -> Violation:
        self.violation = self.violation or Violation(what)
        return self.violation

    def _with_changes(self, position: int) -> int:
        """The last transaction at or before it that had any: of others the log need not know."""
        while position and not self._origin.history[position - 1].changes:
            position -= 1
        return position


def _listed(writes: list[Writes]) -> list[int]:
    found: list[int] = []
    for each in writes:
        if each.table.name == TRANSACTIONS:
            found += [int(key[1]) for key in each.keys]
    return found
