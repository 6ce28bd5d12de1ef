"""Random lives of a database: transactions, updates, deletes, DDL, workers that die anywhere, owners that come and go.
Columns are of any type there is, keys have one column or two.

At every checkpoint every table equals a model of what was acknowledged before it. Promises 2, 4, 6 and 7.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from random_rows import KEY_KINDS, any_kind, any_value, said

import tidegate
from folding import folding
from tidegate import Database, DatabaseSettings, Timestamp
from tidegate.database import engine as engine_module
from tidegate.pipeline.upkeep import Upkeep
from tidegate.runtime.settings import LogSettings
from tidegate.tables.column_type import to_sql

Row = dict[str, Any]
Rows = dict[str, Row]
"""By what is said of the key."""
STEPS = 40
NAMES = ("a", "b")
KEY = ("id", "part")


class Life:
    """One database and what it must hold."""

    def __init__(self, seed: int, path: Path) -> None:
        self.dice, self.fate = random.Random(seed), random.Random(-1 - seed)
        self.path = path
        self.columns: dict[str, dict[str, pa.DataType]] = {}
        """But those of the key."""
        self.parts: dict[str, list[Any]] = {}
        """The values of a key's second column, of tables that have one."""
        self.rows: dict[str, Rows] = {}
        self.column_names = iter(f"c{number}" for number in range(10_000))
        self.calm = 0
        self.known: list[tuple[Timestamp, dict[str, list[str]]]] = []
        self.db = self._open()

    def _open(self) -> Database:
        settings = DatabaseSettings(
            log=LogSettings(tick_interval_ms=20, segment_bytes=1 << 20),
            channels=3,
            barrier_interval_ms=self.dice.choice([50, 60_000]),
            checkpoint_every=self.dice.choice([1, 3]),
            transaction_buffer_bytes=self.dice.choice([200, 1 << 20]),
        )
        return tidegate.open(self.path, settings=settings)

    def crash(self, _point: str, _epoch: int) -> bool:
        """Not again before all that was handed out can be done: who waits is told of a worker that always fails."""
        self.calm -= 1
        if self.calm > 0 or self.fate.random() >= 0.2:
            return False
        self.calm = 6
        return True

    def step(self) -> None:
        table = self.dice.choice(NAMES)
        if table not in self.columns:
            self._create(table)
            return
        act = self.dice.choices(
            [self._write, self._update, self._remove, self._alter, self._drop, self._check, self._reopen],
            [50, 8, 3, 10, 3, 14, 4],
        )[0]
        act(table)

    def _create(self, table: str) -> None:
        self.columns[table] = {next(self.column_names): any_kind(self.dice) for _ in range(self.dice.randint(1, 5))}
        self.rows[table] = {}
        columns = ["id BIGINT", *(f"{name} {to_sql(kind)}" for name, kind in self.columns[table].items())]
        self.parts.pop(table, None)
        if self.dice.random() < 0.5:
            kind = self.dice.choice(KEY_KINDS)
            self.parts[table] = [any_value(self.dice, kind, nullable=False) for _ in range(2)]
            columns.append(f"part {to_sql(kind)}")
        key = ", ".join(self._key(table))
        self.db.sql(
            f"CREATE TABLE {table} ({', '.join(columns)}, PRIMARY KEY ({key})) SHARDS {self.dice.randint(1, 3)}"
        )

    def _key(self, table: str) -> tuple[str, ...]:
        return KEY if table in self.parts else KEY[:1]

    def _any_key(self, table: str) -> Row:
        part = {"part": self.dice.choice(self.parts[table])} if table in self.parts else {}
        return {"id": self.dice.randrange(20), **part}

    def _row(self, table: str) -> Row:
        values = {name: any_value(self.dice, kind) for name, kind in self.columns[table].items()}
        return {**self._any_key(table), **values}

    def _write(self, _: str) -> None:
        after = {name: dict(rows) for name, rows in self.rows.items()}
        fails = self.dice.random() < 0.15
        try:
            with self.db.transaction() as txn:
                for _ in range(self.dice.randint(1, 5)):
                    table = self.dice.choice(sorted(self.columns))
                    if self.dice.random() < 0.3:
                        key = self._any_key(table)
                        txn.delete(table, [key])
                        after[table].pop(said(key), None)
                    else:
                        row = self._row(table)
                        txn.upsert(table, [row] * self.dice.choice([1, 1, 20]))
                        after[table][said({name: row[name] for name in self._key(table)})] = row
                if fails:
                    raise KeyError("the transaction is given up")
        except KeyError:
            return
        self.rows = after

    def _update(self, table: str) -> None:
        """To NULL, to a number or text, or to another column of the same type."""
        columns = self.columns[table]
        name = self.dice.choice(sorted(columns))
        below = self.dice.randrange(20)
        same = [each for each, kind in columns.items() if kind == columns[name] and each != name]
        value: Any = None
        text = "NULL"
        if same and self.dice.random() < 0.5:
            text = same[0]
        elif pa.types.is_int64(columns[name]):
            value = self.dice.randrange(1000)
            text = str(value)
        elif pa.types.is_string(columns[name]):
            value = f"s{self.dice.randrange(1000)}"
            text = f"'{value}'"
        self.db.sql(f"UPDATE {table} SET {name} = {text} WHERE id < {below}")
        for key, row in self.rows[table].items():
            if row["id"] < below:
                self.rows[table][key] = {**row, name: row[text] if text in same else value}

    def _remove(self, table: str) -> None:
        at = self.dice.randrange(20)
        self.db.sql(f"DELETE FROM {table} WHERE id = {at}")
        self.rows[table] = {key: row for key, row in self.rows[table].items() if row["id"] != at}

    def _alter(self, table: str) -> None:
        columns = self.columns[table]
        what = self.dice.choice(["add", "rename", "drop"])
        if what == "drop" and len(columns) > 1:
            gone = self.dice.choice(sorted(columns))
            self.db.sql(f"ALTER TABLE {table} DROP COLUMN {gone}")
            del columns[gone]
            self.rows[table] = {
                id: {name: value for name, value in row.items() if name != gone} for id, row in self.rows[table].items()
            }
        elif what == "rename":
            old, new = self.dice.choice(sorted(columns)), next(self.column_names)
            self.db.sql(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
            self.columns[table] = {new if name == old else name: kind for name, kind in columns.items()}
            self.rows[table] = {
                id: {new if name == old else name: value for name, value in row.items()}
                for id, row in self.rows[table].items()
            }
        else:
            new = next(self.column_names)
            columns[new] = any_kind(self.dice)
            self.db.sql(f"ALTER TABLE {table} ADD COLUMN {new} {to_sql(columns[new])}")
            self.rows[table] = {id: {**row, new: None} for id, row in self.rows[table].items()}

    def _drop(self, table: str) -> None:
        self.db.sql(f"DROP TABLE {table}")
        del self.columns[table], self.rows[table]

    def _reopen(self, _: str) -> None:
        self.db.close()
        self.db = self._open()

    def _check(self, _: str) -> None:
        timestamp = self.db.flush(120)
        if self.dice.random() < 0.4:
            upkeep = Upkeep(self.db.path, self.db.engine.pipeline.store, 3600)
            while upkeep.compact_once():
                pass
            upkeep.collect()
        expected = self.expected()
        assert self._read("eventual") == expected
        assert self._read("strong") == expected
        self.known.append((timestamp, expected))

    def expected(self) -> dict[str, list[str]]:
        return {name: _shown(rows.values()) for name, rows in self.rows.items()}

    def _read(self, consistency: Any) -> dict[str, list[str]]:
        return {name: _shown(self.db.query(f"SELECT * FROM {name}", consistency).rows()) for name in self.columns}

    def finish(self) -> None:
        self._check("")
        present = {name: self.db.table(name).table for name in self.columns}
        for timestamp, expected in self.known:
            for name, table in present.items():
                if name in expected and table.created <= timestamp:
                    assert _shown(self.db.query(f"SELECT * FROM {name}", timestamp).rows()) == expected[name]
        self.db.close()


def _shown(rows: Iterable[Row]) -> list[str]:
    """Rows in an order of their own, columns by name."""
    return sorted(said(dict(sorted(row.items()))) for row in rows)


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Life] = []

    def life(seed: int) -> Life:
        monkeypatch.setattr(engine_module, "spark_worker", folding(lambda *where: made[-1].crash(*where)))
        made.append(Life.__new__(Life))
        made[-1].__init__(seed, tmp_path / f"{seed}.tide")  # type: ignore[misc]
        return made[-1]

    yield life
    for each in made:
        each.db.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_every_checkpoint_equals_the_model(lives: Any, seed: int) -> None:
    life = lives(seed)
    for _ in range(STEPS):
        life.step()
    life.finish()
