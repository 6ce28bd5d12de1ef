"""`Taker`: one transaction of a source becomes one of the database, its position inside it.

What the source says of a table's shape is followed first, outside of the transaction, since a statement about a table
belongs to none: to the shape that the table has in the end, whatever happens to it in between. Where rows have been
written by then, `Reopened` says that the source is to be read again from the position, which has not moved.

A transaction commits while the next one is read (`relay.py`): what was taken is known to be in the log at the next
`Relay.settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidegate.capture.following import Into, check_fits, create, follow, target_name, unfillable
from tidegate.capture.kept_rows import KeptRows, by_key
from tidegate.capture.looking_ahead import SMALL, LookedUp, asked_for, groups, rows_by_key
from tidegate.capture.places import Place, Places, Target
from tidegate.capture.relay import Relay
from tidegate.capture.source import (
    Change,
    Column,
    Dropped,
    Patch,
    Reshaped,
    Rows,
    Snapshot,
    SourceTable,
    SourceTransaction,
    Truncated,
)
from tidegate.capture.taking_work import Work
from tidegate.errors import (
    InvalidArgument,
    InvalidTransactionState,
    InvariantBroken,
    SourceUnreadable,
)
from tidegate.ports.threads import Threads
from tidegate.tables.column_type import to_sql

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.transaction import Transaction


class Reopened(Exception):
    """A table was made to follow; read again from the position."""


class Taker:
    """Takes what a source gives."""

    def __init__(self, db: Database, name: str, places: Places, into: Into, ours: str | None, threads: Threads) -> None:
        """`ours` is what transactions are signed with that this database has applied to others."""
        self._db = db
        self._name: Final = name
        self._places: Final = places
        self._into: Final = into
        self._ours: Final = ours
        self.relay: Final = Relay(db, name, places, threads)
        self.place = Place("")
        """How far it has come, with what is under way to the log."""
        self._steps: tuple[str, dict[str, list[Reshaped]]] = ("", {})
        """Of the transaction at a position that had to be gone through to its end to know it."""
        self._reading = ""
        """The position of a transaction that was found to need what the tables have."""
        self._keeping = ""
        """The position of one that was found to need what it has written itself, and is larger than memory."""
        self._emptied: tuple[str, dict[str, int]] = ("", {})
        """In the transaction at a position: how often tables are emptied after rows of theirs have come."""
        self._looked_up: Final = LookedUp()
        self._fitting: dict[str, tuple[object, SourceTable]] = {}
        """Tables whose columns are those of the source's rows, in their order."""

    @property
    def told(self) -> Place:
        """How far the log has it, for other threads."""
        return self.relay.seen or self.place

    def resume(self, place: Place) -> None:
        """Go on from what the log has."""
        self._looked_up.clear()
        self.place = self.relay.logged = place

    # -- tables --------------------------------------------------------------------------------------------------

    def make_targets(self, tables: Sequence[SourceTable]) -> dict[str, Target]:
        """Tables for a capture that begins.

        Raises: `InvalidArgument` when one is there that does not fit, or that has rows.
        """
        found = {each.name: Target(target_name(each.name, self._into), each) for each in tables}
        names = [each.name for each in found.values()]
        twice = sorted({each for each in names if names.count(each) > 1})
        if twice:
            raise InvalidArgument(f"two tables of the source would be {twice[0]!r} here; name them with into={{...}}")
        self._check_own(found.values())
        for target in found.values():
            self._make(target, must_be_empty=True)
        return {name: self._in_order(each) for name, each in found.items()}

    def make_again(self, tables: Sequence[SourceTable]) -> dict[str, Target]:
        """Tables for a capture that reads everything anew: as they are at the source now.

        Ordering: the log says so first, since whoever is next cannot go on from the position any more.
        """
        self._check_own(map(self._target, tables))
        with self.relay.writing() as txn:
            self._places.write_tables(txn, [replace(each, is_anew=True) for each in self.place.targets.values()])
            self.relay.commit(txn, self.place)
        self.relay.settle()
        for shape in tables:
            target = self._target(shape)
            if self._db.find_table(target.name) is None:
                self._make(target, must_be_empty=False)
            else:
                columns, key = self._columns(target.name)
                known = SourceTable(shape.name, tuple(columns), key)
                self._run(follow(target.name, known, [Reshaped(shape)], [each.name for each in columns]))
        return {each.name: self._in_order(self._target(each)) for each in tables}

    def _run(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.relay.change(statement)

    def _make(self, target: Target, *, must_be_empty: bool) -> None:
        self.relay.change(create(target.name, target.shape))
        columns, key = self._columns(target.name)
        check_fits(target.name, target.shape, columns, key)
        if must_be_empty and self._db.query(f"SELECT 1 FROM `{target.name}` LIMIT 1", "strong").rows():
            raise InvalidArgument(
                f"table {target.name!r} has rows that do not come from this source; drop it, or choose another name"
                f" with into={{{target.shape.name!r}: ...}}"
            )

    def _check_own(self, targets: Iterable[Target]) -> None:
        """Raises: `InvalidArgument` for a table that another capture fills: rows of both would be mixed."""
        others = self._places.others()
        for target in targets:
            if target.name in others:
                raise InvalidArgument(
                    f"table {target.name!r} belongs to capture {others[target.name]!r} of this database; choose another"
                    f" name for this one with into={{{target.shape.name!r}: ...}}"
                )

    def _columns(self, name: str) -> tuple[list[Column], tuple[str, ...]]:
        schema = self._db.table(name, fresh=True).table.schema
        columns = [Column(each.name, to_sql(each.type)) for each in schema.columns]
        return columns, tuple(each.name for each in schema.key_columns)

    # -- the snapshot --------------------------------------------------------------------------------------------

    def take_snapshot(
        self,
        snapshot: Snapshot,
        targets: dict[str, Target],
        wanted: Sequence[str] | None,
        progress: Callable[[str, int], None],
        *,
        anew: bool,
    ) -> None:
        """All rows in one transaction, and the position from which the source goes on.

        `anew`: the tables' rows go in the same transaction, so that nobody sees them empty; of tables that it does not
        take any more the capture knows nothing from then on.
        """
        place = Place(snapshot.position, targets=targets, wanted=None if wanted is None else tuple(wanted))
        if anew:
            place.transactions, place.rows = self.place.transactions, self.place.rows
        with self.relay.writing(reads=True) as txn:
            if anew:
                for target in targets.values():
                    self._delete_all(txn, target)
            work = Work(snapshot.position, {name: each.shape for name, each in targets.items()})
            for batch in snapshot.batches():
                name = targets[batch.table].name
                place.rows += txn.upsert(name, self._as_here(name, work, batch.table, batch.rows))
                progress(batch.table, len(batch.rows))
            self._check_own(targets.values())  # Another one may have begun meanwhile.
            self._places.write(txn, place)
            self._places.write_tables(txn, targets.values())
            self._places.forget_tables(txn, self.place.targets.keys() - targets.keys())
            self.relay.commit(txn, place)
        self.relay.settle()
        self.place = place

    # -- transactions --------------------------------------------------------------------------------------------

    def looked_through(self, transactions: Iterable[SourceTransaction]) -> Iterator[SourceTransaction]:
        """The same transactions, each for `take` before the next one; what those at hand leave out is looked up before.

        Raises: what became of those before, and what `transactions` raises.
        """
        for group in groups(transactions):
            self._look_up(group)
            yield from group
            self._looked_up.clear()

    def _look_up(self, group: Sequence[SourceTransaction]) -> None:
        if len(group) == 1:
            return
        keys, columns = asked_for(group)
        self.relay.settle()
        ask = partial(self._db.query, consistency="strong")
        for table, wanted in keys.items():
            if (target := self.place.targets.get(table)) is not None:
                key = target.shape.key
                names = {each: each for each in (*key, *sorted(columns[table]))}
                found = rows_by_key(ask, target.name, key, names, [*wanted.values()])
                self._looked_up.learn(table, wanted, found.items())

    def take(self, source: SourceTransaction) -> int:
        """Write a transaction of the source; how many rows it had.

        Raises: `Reopened`; what became of the one before.
        """
        changes = iter(source.changes)
        is_ours = self._is_ours(source.origin)
        if is_ours:  # Its rows have been here; what it has done to tables others meet as well.
            changes = (each for each in changes if isinstance(each, Reshaped | Dropped))
        first = list(islice(changes, SMALL))
        place = replace(self.place, position=source.position)
        if not first:
            self.place = place
            return 0
        work = Work(source.position, {name: each.shape for name, each in place.targets.items()})
        if self._emptied[0] == source.position:
            work.skipped = dict(self._emptied[1])
        if self._steps[0] == source.position:
            work.steps = self._steps[1]
        elif steps := _steps(first):
            if more := list(islice(changes, 1)):
                self._go_through(source.position, steps, _steps(chain(more, changes)))
            work.steps = steps
        for name, each in work.steps.items():
            self._follow(name, each, is_ours=is_ours)
        count = 0
        reads = self._reading == source.position or any(self._must_read(each) for each in first)
        with ExitStack() as ends:
            if self._keeping == source.position:
                work.kept = ends.enter_context(closing(KeptRows()))
            txn = ends.enter_context(self.relay.writing(reads=reads))
            for part in (first, changes):
                for change in part:
                    if not reads and self._must_read(change):
                        self._reading = source.position
                        raise Reopened(change.table if isinstance(change, Patch | Truncated) else "")
                    if isinstance(change, Reshaped) and change.table.name not in work.steps:
                        self._go_through(source.position, _steps([change]), _steps(changes))
                    count += self._write(txn, change, work)
            place.transactions += 1
            place.rows += count
            place.targets = {**place.targets, **work.reshaped}
            self._places.write(txn, place, source, count)
            self._places.write_tables(txn, work.reshaped.values())
            self.relay.commit(txn, place)
        self.place = place
        return count

    def _go_through(self, position: str, steps: dict[str, list[Reshaped]], rest: dict[str, list[Reshaped]]) -> None:
        """Remember what happens to shapes in a transaction that was gone through, and ask for it once more."""
        for name, more in rest.items():
            steps.setdefault(name, []).extend(more)
        self._steps = (position, steps)
        raise Reopened(", ".join(steps))

    def _is_ours(self, origin: str | None) -> bool:
        """Whether this database has applied it there; behind a slash an origin may say by which name."""
        return origin is not None and origin.partition("/")[0] == self._ours

    def keep_position(self) -> None:
        """Put the position into the log when the last transactions of the source had nothing for us."""
        with self.relay.writing() as txn:
            self._places.write(txn, self.place)
            self.relay.commit(txn, self.place)
        self.relay.settle()

    def _must_read(self, change: Change) -> bool:
        """Whether it needs what the tables have, as of the transaction."""
        return not isinstance(change, Rows) and not (isinstance(change, Patch) and self._looked_up.has(change))

    def _keep(self, work: Work, table: str, rows: Any, *, is_delete: bool = False) -> None:
        """Tell those who must know what was written."""
        for kept in (work.kept, self._looked_up if self._looked_up.asks_for(table) else None):
            if kept is not None:
                kept.put(table, by_key(rows, work.shapes[table], work.names(table), is_delete=is_delete))

    def _write(self, txn: Transaction, change: Change, work: Work) -> int:
        match change:
            case Rows(table, rows, is_delete):
                if work.skipped.get(table):
                    return 0
                target = work.reshaped.get(table) or self.place.targets[table]
                work.written.add(table)
                self._keep(work, table, rows, is_delete=is_delete)
                if is_delete:
                    return txn.delete(target.name, _renamed(rows, work.names(table)))
                return txn.upsert(target.name, self._as_here(target.name, work, table, rows))
            case Patch(table):
                if work.skipped.get(table):
                    return 0
                target = work.reshaped.get(table) or self.place.targets[table]
                work.written.add(table)
                rows = self._patched(txn, target.name, change, work)
                self._keep(work, table, rows)
                return txn.upsert(target.name, self._as_here(target.name, work, table, rows))
            case Truncated(table):
                return self._empty(txn, table, work)
            case Reshaped(table):
                return self._reshape(txn, change, work)
            case Dropped(table):
                # It stays as it was in the end, for whoever still asks, until there is another one of that name.
                work.gone.add(table)
                if table in self.place.targets:
                    work.reshaped[table] = replace(self._in_order(self._target(work.shapes[table])), is_dropped=True)
        return 0

    def _reshape(self, txn: Transaction, change: Reshaped, work: Work) -> int:
        table = change.table
        known = self.place.targets.get(table.name)
        work.shapes[table.name] = table
        work.passed[table.name] = work.passed.get(table.name, 0) + 1
        work.reshaped[table.name] = self._in_order(self._target(table))
        count = 0
        if table.name in work.gone or (known is not None and known.is_dropped and table.name not in work.written):
            work.gone.discard(table.name)
            count = self._empty(txn, table.name, work)
        names = work.names(table.name)
        for column, value in change.filled.items():
            if (name := names.get(column, column)) is not None and not work.skipped.get(table.name):
                self._fill(txn, change, name, value, work)
        return count

    def _patched(self, txn: Transaction, name: str, patch: Patch, work: Work) -> list[tuple[Any, ...]]:
        """The rows of a patch, with what they left out."""
        shape = work.shapes[patch.table]
        goals = work.names(patch.table)
        here = {each: new or each for each, new in goals.items()}
        # What the transaction drops later on is not there any more, and nobody asks for it.
        left_out = sorted({each for absent in patch.absent for each in absent if goals.get(each, each) is not None})
        columns = {each: here.get(each, each) for each in (*shape.key, *left_out)}
        found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        if self._looked_up.has(patch):
            found = self._looked_up.find(patch)
        elif work.kept is not None and txn.read_at is not None:
            kept, before = work.kept.find(patch.table, patch.keys)
            found = {key: {each: row.get(here.get(each, each)) for each in left_out} for key, row in kept.items()}
            found |= rows_by_key(partial(self._db.query, consistency=txn.read_at), name, shape.key, columns, before)
        else:
            try:
                found = rows_by_key(txn.query, name, shape.key, columns, patch.keys)
            except InvalidTransactionState:
                self._keeping = work.position
                raise Reopened(patch.table) from None
        names = [each.name for each in shape.columns]
        whole = []
        for key, row, absent in zip(patch.keys, patch.rows, patch.absent, strict=True):
            there = found.get(tuple(key))
            if there is None:
                raise SourceUnreadable(
                    f"the source changes a row of table {shape.name!r} with the key {tuple(key)} that is not here;"
                    f" capture with restart=True"
                )
            whole.append(
                tuple(there.get(each) if each in absent else value for each, value in zip(names, row, strict=True))
            )
        return whole

    def _empty(self, txn: Transaction, table: str, work: Work) -> int:
        """All rows of a table go: those that were there before the transaction.

        What the transaction itself has written before must not come at all, so it is gone through once more, from its
        beginning, in the knowledge of that.
        """
        if table in work.written:
            self._emptied = (work.position, {**work.emptied, table: work.emptied.get(table, 0) + 1})
            raise Reopened(table)
        work.emptied[table] = work.emptied.get(table, 0) + 1
        if work.skipped.get(table):
            work.skipped[table] -= 1
        if work.kept is not None:
            work.kept.empty(table)
        return self._delete_all(txn, work.reshaped.get(table) or self.place.targets[table])

    def _delete_all(self, txn: Transaction, target: Target) -> int:
        """The rows that a table had before the transaction go."""
        if txn.read_at is None:
            raise InvariantBroken(f"a transaction of capture {self._name!r} reads as of no time")
        key = target.shape.key
        columns = ", ".join(f"`{each}`" for each in key)
        asked = f"SELECT {columns} FROM `{target.name}`" if key else f"SELECT 1 FROM `{target.name}` LIMIT 1"
        keys = self._db.query(asked, txn.read_at).to_arrow()
        if keys.num_rows and not key:
            raise SourceUnreadable(
                f"table {target.shape.name!r} of the source has no key, so that rows can be added to {target.name!r}"
                f" here and none deleted; drop {target.name!r}, and capture with restart=True; and give it a primary"
                f" key for the next time"
            )
        return txn.delete(target.name, keys) if keys.num_rows else 0

    def _target(self, shape: SourceTable) -> Target:
        known = self.place.targets.get(shape.name)
        return Target(target_name(shape.name, self._into) if known is None else known.name, shape)

    def _in_order(self, target: Target) -> Target:
        """With the order of its columns here, where that is another one: by it renames are followed."""
        found = self._db.find_table(target.name)
        here = None if found is None else tuple(each.name for each in found.table.schema.columns)
        is_same = here == tuple(each.name for each in target.shape.columns)
        return target if is_same else replace(target, order=here)

    def _follow(self, name: str, steps: list[Reshaped], *, is_ours: bool) -> None:
        """Make the table as the source's is in the end. One that we have made there has our rows."""
        target = self._target(steps[-1].table)
        known = self.place.targets.get(name)
        if known is None:
            self._check_own([target])
            self._make(target, must_be_empty=not is_ours)
            return
        columns, _ = self._columns(target.name)
        self._run(follow(target.name, known.shape, steps, [each.name for each in columns], known.order))

    def _as_here(self, name: str, work: Work, table: str, rows: Any) -> Any:
        """Rows as the table has them: those that were made before it got its columns of now, by their names."""
        taker, shape = self._db.table(name), work.shapes[table]
        if table not in work.steps and self._fitting.get(name) == (taker, shape):
            return rows
        here = [each.name for each in taker.table.schema.columns]
        goals = work.names(table)
        names = [goals.get(each.name, each.name) for each in shape.columns]
        if names == here:
            if table not in work.steps:
                self._fitting[name] = (taker, shape)
            return _renamed(rows, goals)
        if isinstance(rows, pa.RecordBatch | pa.Table):
            kept = [each for each in rows.schema.names if goals.get(each, each) in here]
            return _renamed(rows.select(kept), goals)
        places = [(at, each) for at, each in enumerate(names) if each in here]
        return [{each: row[at] for at, each in places} for row in rows]

    def _fill(self, txn: Transaction, change: Reshaped, column: str, value: Any, work: Work) -> None:
        """Give a new column's value to the rows that were there before."""
        table = change.table.name
        target, goals = work.reshaped[table], work.names(table)
        key = [goals.get(each) or each for each in target.shape.key]
        for rows in self._as_it_is(txn, target.name, table, key, work):
            if rows.num_rows and not key:
                raise unfillable(target.name, table, column)
            if rows.num_rows:
                at = rows.schema.get_field_index(column)
                kind = rows.schema.field(at).type
                filled = rows.set_column(at, column, pa.repeat(pa.scalar(value, kind), rows.num_rows))
                txn.upsert(target.name, filled)
                if work.kept is not None:
                    work.kept.put_all(table, filled, key)

    def _as_it_is(self, txn: Transaction, name: str, table: str, key: Sequence[str], work: Work) -> Iterable[pa.Table]:
        """All rows of a table at this point of the transaction."""
        query = f"SELECT * FROM `{name}`"
        if work.kept is not None and txn.read_at is not None:
            return work.kept.over(table, self._db.query(query, txn.read_at).to_arrow(), key)
        try:
            return [txn.query(query).to_arrow()]
        except InvalidTransactionState:
            self._keeping = work.position
            raise Reopened(table) from None


def _steps(changes: Iterable[Change]) -> dict[str, list[Reshaped]]:
    """What happens to the shape of each table, in order."""
    found: dict[str, list[Reshaped]] = {}
    for change in changes:
        if isinstance(change, Reshaped):
            found.setdefault(change.table.name, []).append(change)
    return found


def _renamed(rows: Any, names: Mapping[str, str | None]) -> Any:
    """Arrow by the names that columns have in the end; tuples have none."""
    if not names or not isinstance(rows, pa.RecordBatch | pa.Table):
        return rows
    return rows.rename_columns([names.get(each) or each for each in rows.schema.names])
