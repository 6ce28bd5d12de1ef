"""`ViewFeed`: the changes of a view as rows: its visible columns, `_change`, `_epoch` and `_ts`.

`_change` is insert, update_before, update_after or delete; rows before and after are paired by the view's key. A row
that looks the same before and after is no change. A delete has the values that the row had.

Invariants: applied to the view's rows at a step's beginning, a step's changes give its rows at the end; the same step
gives the same rows in the same order, whoever reads it and whenever, so a row's number names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import duckdb
import pyarrow as pa

from tidegate.errors import StorageFailed, TidegateError, Truncated
from tidegate.snapshots.damage import SnapshotDamaged, find_damage
from tidegate.snapshots.merge_sql import merge_sql, quoted
from tidegate.snapshots.reader import BATCH_ROWS, Duck, conformed
from tidegate.snapshots.store import SnapshotStore
from tidegate.snapshots.view_history import Step
from tidegate.tables.schema import TS, Table

CHANGE: Final = "_change"
EPOCH: Final = "_epoch"
INSERT: Final = "insert"
UPDATE_BEFORE: Final = "update_before"
UPDATE_AFTER: Final = "update_after"
DELETE: Final = "delete"


def feed_schema(view: Table, columns: Sequence[str]) -> pa.Schema:
    """The columns of a view's changes; `columns` are the visible ones."""
    schema = view.schema
    fields = [pa.field(name, schema.column(name).type) for name in columns]
    return pa.schema([*fields, (CHANGE, pa.string()), (EPOCH, pa.int64()), (TS, pa.int64())])


class ViewFeed:
    """Reads steps of one view with DuckDB."""

    def __init__(self, store: SnapshotStore, view: Table, columns: Sequence[str], duck: Duck) -> None:
        self._store = store
        self._view = view
        self._columns = tuple(columns)
        self._duck = duck
        self.schema: Final = feed_schema(view, columns)

    def changes(self, step: Step, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """The changes of a step, ordered by the view's key.

        Raises: `Truncated`, `SnapshotDamaged`, `StorageFailed`, also while batches are taken.
        """
        cursor = self._duck.cursor()
        try:
            cursor.execute("SET TimeZone = 'UTC'")
            sql = changes_sql(self._view, self._columns, step, str(self._store.root))
            for batch in cursor.sql(sql).to_arrow_reader(batch_rows):
                if batch.num_rows:
                    yield conformed(batch, self.schema)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise self._explained(error, step) from error
        finally:
            cursor.close()

    def _explained(self, error: Exception, step: Step) -> TidegateError:
        name = self._view.name
        root = self._store.root
        damage = find_damage(root, step.files, whole=False) or find_damage(root, step.files, whole=True)
        if damage is None:
            return StorageFailed(
                f"reading the changes of view {name!r} in epoch {step.epoch} failed: {error}; read less at once, or"
                f" give it more memory or disk"
            )
        entry, why = damage
        floor = self._store.floor().of(self._view.id)
        if step.since < floor and not (root / entry.path).exists():
            return Truncated(
                f"view {name!r}: its changes in epoch {step.epoch} are older than the retention time, the oldest"
                f" checkpoint that is kept is {floor}; read the view anew, or raise the retention time"
            )
        return SnapshotDamaged(str(root / entry.path), why, checkpoint=step.since, table=self._view.id, name=name)


def changes_sql(view: Table, columns: Sequence[str], step: Step, root: str) -> str:
    """The changes of a step as one query, in their order."""
    schema = view.schema
    key = [each.name for each in schema.key_columns]
    names = list(dict.fromkeys([*columns, *key]))
    numbers = {name: number for number, name in enumerate(names)}

    def side(name: str, letter: str, sql: str) -> str:
        chosen = ", ".join(f"{quoted(each)} AS {letter}{number}" for each, number in numbers.items())
        return f"{name} AS (SELECT {chosen}, true AS {letter} FROM ({sql}))"

    parts = []
    keys = None
    if step.layers is not None:
        keys = "feed_keys"
        written = merge_sql(view, schema, step.layers, root, columns=key, deletes=True)
        parts.append(f"{keys} AS MATERIALIZED (SELECT DISTINCT {', '.join(map(quoted, key))} FROM ({written}))")
    after = step.after if step.layers is None else step.layers
    parts.append(side("feed_old", "o", merge_sql(view, schema, step.before, root, columns=names, keys=keys)))
    parts.append(side("feed_new", "n", merge_sql(view, schema, after, root, columns=names)))
    same_key = " AND ".join(
        f"o{numbers[each.name]} {'IS NOT DISTINCT FROM' if each.nullable else '='} n{numbers[each.name]}"
        for each in schema.key_columns
    )
    differs = " OR ".join(f"o{numbers[each]} IS DISTINCT FROM n{numbers[each]}" for each in columns)
    parts.append(
        f"feed_both AS MATERIALIZED (SELECT * FROM feed_old FULL JOIN feed_new ON {same_key}"
        f" WHERE o IS NULL OR n IS NULL OR {differs})"
    )

    def rows(letter: str, other: str, alone: str, paired: str) -> str:
        chosen = ", ".join(f"{letter}{numbers[each]} AS c{number}" for number, each in enumerate(columns))
        order = ", ".join(f"{letter}{numbers[each]} AS k{number}" for number, each in enumerate(key))
        named = f"CASE WHEN {other} IS NULL THEN '{alone}' ELSE '{paired}' END AS change"
        return f"SELECT {chosen}, {named}, {order} FROM feed_both WHERE {letter} IS NOT NULL"

    gone, come = rows("o", "n", DELETE, UPDATE_BEFORE), rows("n", "o", INSERT, UPDATE_AFTER)
    shown = ", ".join(f"c{number} AS {quoted(each)}" for number, each in enumerate(columns))
    system = f"change AS {CHANGE}, {step.epoch}::BIGINT AS {EPOCH}, {int(step.timestamp)}::BIGINT AS {quoted(TS)}"
    order = ", ".join(f"k{number}" for number in range(len(key)))
    # By name, the row before comes after the one that replaces it.
    return (
        f"WITH {', '.join(parts)} SELECT {shown}, {system} FROM ({gone} UNION ALL {come}) ORDER BY {order}, change DESC"
    )
