"""Known bugs of captures, planted one at a time, to prove that the simulator can fail. See `bugs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.capture import following, taking
from tidegate.capture.looking_ahead import LookedUp
from tidegate.capture.places import Place, Places
from tidegate.capture.relay import Relay
from tidegate.capture.source import Patch, Reshaped, Rows
from tidegate.capture.taking import Taker
from tidegate.errors import OutcomeUnknown, TidegateError
from tidegate.sim.bugs import Bug, replaced
from tidegate.sim.capture_store import SimDatabase

if TYPE_CHECKING:
    from tidegate.capture.source import SourceTransaction

CAPTURE_BUGS: dict[str, Callable[[], Any]] = {}


def _bug(plant: Bug) -> Bug:
    CAPTURE_BUGS[plant.__name__.replace("_", "-")] = contextmanager(plant)
    return plant


@_bug
def source_is_told_before_the_log_has_it() -> Iterator[None]:
    """What is under way counts as logged, and the source may forget it."""
    commit = Relay.commit

    def early(self: Relay, txn: Any, place: Place) -> None:
        commit(self, txn, place)
        self.logged = place

    with replaced(Relay, "commit", early):
        yield


@_bug
def position_in_a_transaction_of_its_own() -> Iterator[None]:
    """The rows commit, and behind them the position."""
    write = Places.write

    def apart(self: Places, txn: Any, place: Place, of: SourceTransaction | None = None, rows: int = 0) -> None:  # noqa: ARG001
        with self._db.transaction() as other:
            write(self, other, place, of, rows)

    with replaced(Places, "write", apart):
        yield


@_bug
def failure_of_a_run_is_passed_over() -> Iterator[None]:
    """What comes behind a transaction that failed is committed all the same."""
    settle = Relay.settle

    def deaf(self: Relay) -> None:
        try:
            settle(self)
        except TidegateError:
            return

    with replaced(Relay, "settle", deaf):
        yield


@_bug
def commits_are_not_waited_for() -> Iterator[None]:
    """Who asks whether everything is in the log hears it while the last commits are under way."""

    def hasty(self: Relay) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise self._told(failed) from failed

    with replaced(Relay, "settle", hasty):
        yield


@_bug
def captures_do_not_look_for_each_other() -> Iterator[None]:
    """Two captures of one name both go on."""

    def blind(self: Relay, txn: Any) -> None:  # noqa: ARG001
        return

    with replaced(Relay, "_claim", blind), replaced(Places, "claim", blind):
        yield


@_bug
def owner_is_asked_once_who_captures() -> Iterator[None]:
    """That nobody else has begun is looked up, and not part of what the commit checks."""

    def unread(self: Places, txn: Any) -> None:  # noqa: ARG001
        return

    with replaced(Places, "claim", unread):
        yield


@_bug
def one_that_was_overtaken_changes_tables() -> Iterator[None]:
    """A statement about a table belongs to no transaction, and nobody looks whether another capture has begun."""

    def unguarded(self: Relay, statement: str) -> None:
        self.settle()
        self._db.sql(statement)

    with replaced(Relay, "change", unguarded):
        yield


@_bug
def error_that_another_capture_has_caused_is_the_users() -> Iterator[None]:
    """A capture that was taken over says what it stumbles upon."""

    @contextmanager
    def plain(self: Relay) -> Iterator[None]:  # noqa: ARG001
        yield

    with replaced(Relay, "unless_taken_over", plain):
        yield


@_bug
def unknown_outcome_is_taken_for_a_success() -> Iterator[None]:
    """A run whose answer is lost is in the log."""
    commit_run = SimDatabase.commit_run

    def hopeful(self: SimDatabase, guard: Any, run: Sequence[Any]) -> list[int]:
        try:
            return commit_run(self, guard, run)
        except OutcomeUnknown:
            return []

    with replaced(SimDatabase, "commit_run", hopeful):
        yield


@_bug
def interrupted_restart_is_forgotten() -> Iterator[None]:
    """Who comes behind one that read everything anew and died goes on from the old position."""
    with replaced(Place, "is_anew", property(lambda self: False)):  # noqa: ARG005
        yield


@_bug
def restart_keeps_rows() -> Iterator[None]:
    """Rows that the source does not have any more stay when everything is read anew."""
    take_snapshot = Taker.take_snapshot

    def keeps(self: Taker, *given: Any, anew: bool) -> None:  # noqa: ARG001
        take_snapshot(self, *given, anew=False)

    with replaced(Taker, "take_snapshot", keeps):
        yield


@_bug
def value_left_alone_is_null() -> Iterator[None]:
    """What an update does not send is not looked up."""

    def as_sent(self: Taker, txn: Any, name: str, patch: Patch, work: Any) -> Any:  # noqa: ARG001
        return patch.rows

    with replaced(Taker, "_patched", as_sent):
        yield


@_bug
def what_was_looked_up_is_not_kept_up() -> Iterator[None]:
    """What a transaction writes does not count for those behind it that were looked through with it."""

    def deaf(self: LookedUp, table: str, rows: Any) -> None:  # noqa: ARG001
        return

    with replaced(LookedUp, "put", deaf):
        yield


@_bug
def what_is_under_way_is_not_waited_for_before_looking_up() -> Iterator[None]:
    """The tables are asked while commits are under way that change what they say."""
    look_up = Taker._look_up

    def hasty(self: Taker, group: Any) -> None:
        with replaced(Relay, "settle", lambda relay: None):  # noqa: ARG005
            look_up(self, group)

    with replaced(Taker, "_look_up", hasty):
        yield


@_bug
def truncate_spares_the_transactions_own_rows() -> Iterator[None]:
    """Only rows that were there before the transaction go."""
    empty = Taker._empty

    def spares(self: Taker, txn: Any, table: str, work: Any) -> int:
        work.written.discard(table)
        return empty(self, txn, table, work)

    with replaced(Taker, "_empty", spares):
        yield


@_bug
def rename_is_a_drop_and_an_add() -> Iterator[None]:
    """A renamed column begins without values."""
    follow = following.follow

    def unrelated(name: str, known: Any, steps: Sequence[Reshaped], *given: Any) -> list[str]:
        return follow(name, known, [replace(each, renamed={}) for each in steps], *given)

    with replaced(taking, "follow", unrelated):
        yield


@_bug
def new_column_is_null_in_old_rows() -> Iterator[None]:
    """The default of a new column is given to new rows only."""

    def never(self: Taker, *given: Any) -> None:  # noqa: ARG001
        return

    with replaced(Taker, "_fill", never):
        yield


@_bug
def deletes_are_passed_over() -> Iterator[None]:
    """Rows come and never go."""
    write = Taker._write

    def upserts(self: Taker, txn: Any, change: Any, work: Any) -> int:
        return 0 if isinstance(change, Rows) and change.is_delete else write(self, txn, change, work)

    with replaced(Taker, "_write", upserts):
        yield


@_bug
def table_made_anew_has_the_rows_of_the_old_one() -> Iterator[None]:
    """What a dropped table had is still there when one of its name is created."""
    reshape = Taker._reshape

    def inherits(self: Taker, txn: Any, change: Reshaped, work: Any) -> int:
        work.written.add(change.table.name)
        work.gone.discard(change.table.name)
        return reshape(self, txn, change, work)

    with replaced(Taker, "_reshape", inherits):
        yield
