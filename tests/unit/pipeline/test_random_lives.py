"""Random lives of a database: transactions, updates, deletes, DDL, workers that die anywhere, owners that come and go.

At every checkpoint every table equals a model of what was acknowledged before it. Promises 2, 4, 6 and 7.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from folding import folding
from tidegate import Database, DatabaseSettings, Timestamp
from tidegate.database import engine as engine_module
from tidegate.pipeline.upkeep import Upkeep
from tidegate.runtime.settings import LogSettings

Rows = dict[int, dict[str, Any]]
STEPS = 45
NAMES = ("a", "b")
TYPES = {"BIGINT": lambda dice: dice.randrange(1000), "STRING": lambda dice: f"s{dice.randrange(1000)}"}


class Life:
    """One database and what it must hold."""

    def __init__(self, seed: int, path: Path) -> None:
        self.dice, self.fate = random.Random(seed), random.Random(-1 - seed)
        self.path = path
        self.columns: dict[str, dict[str, str]] = {}
        self.rows: dict[str, Rows] = {}
        self.column_names = iter(f"c{number}" for number in range(10_000))
        self.died = False
        self.known: list[tuple[Timestamp, dict[str, list[dict[str, Any]]]]] = []
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
        """Never twice in a row: who waits is told of a worker that always fails, and stops waiting."""
        self.died = not self.died and self.fate.random() < 0.15
        return self.died

    def step(self) -> None:
        table = self.dice.choice(NAMES)
        if table not in self.columns:
            self._create(table)
            return
        act = self.dice.choices(
            [self._write, self._update, self._alter, self._drop, self._check, self._reopen], [50, 10, 8, 3, 14, 4]
        )[0]
        act(table)

    def _create(self, table: str) -> None:
        self.columns[table] = {next(self.column_names): kind for kind in self.dice.choices(list(TYPES), k=2)}
        self.rows[table] = {}
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns[table].items())
        self.db.sql(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, {columns}) SHARDS {self.dice.randint(1, 3)}")

    def _row(self, table: str) -> dict[str, Any]:
        values = {name: TYPES[kind](self.dice) for name, kind in self.columns[table].items()}
        return {"id": self.dice.randrange(30), **values}

    def _write(self, _: str) -> None:
        after = {name: dict(rows) for name, rows in self.rows.items()}
        fails = self.dice.random() < 0.15
        try:
            with self.db.transaction() as txn:
                for _ in range(self.dice.randint(1, 5)):
                    table = self.dice.choice(sorted(self.columns))
                    if self.dice.random() < 0.3:
                        id = self.dice.randrange(30)
                        txn.delete(table, [id])
                        after[table].pop(id, None)
                    else:
                        row = self._row(table)
                        txn.upsert(table, [row] * self.dice.choice([1, 1, 20]))
                        after[table][row["id"]] = row
                if fails:
                    raise KeyError("the transaction is given up")
        except KeyError:
            return
        self.rows = after

    def _update(self, table: str) -> None:
        name = self.dice.choice(sorted(self.columns[table]))
        value = TYPES[self.columns[table][name]](self.dice)
        below = self.dice.randrange(30)
        self.db.sql(f"UPDATE {table} SET {name} = {value!r} WHERE id < {below}")
        for id, row in self.rows[table].items():
            if id < below:
                self.rows[table][id] = {**row, name: value}

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
            columns[new] = self.dice.choice(list(TYPES))
            self.db.sql(f"ALTER TABLE {table} ADD COLUMN {new} {columns[new]}")
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

    def expected(self) -> dict[str, list[dict[str, Any]]]:
        return {name: [rows[id] for id in sorted(rows)] for name, rows in self.rows.items()}

    def _read(self, consistency: Any) -> dict[str, list[dict[str, Any]]]:
        return {name: self.db.query(f"SELECT * FROM {name} ORDER BY id", consistency).rows() for name in self.columns}

    def finish(self) -> None:
        self._check("")
        present = {name: self.db.table(name).table for name in self.columns}
        for timestamp, expected in self.known:
            for name, table in present.items():
                if name in expected and table.created <= timestamp:
                    assert self.db.query(f"SELECT * FROM {name} ORDER BY id", timestamp).rows() == expected[name]
        self.db.close()


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
