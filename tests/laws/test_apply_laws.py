"""Laws of applying: whatever is committed, however it is cut, wherever it breaks off, the target is one of our states.

"the way back" is that of issue 7: chunks cut only at transaction boundaries, the position in the same transaction,
idempotent and resumable, key swaps and constraints right.
"""

from __future__ import annotations

import random
import sqlite3
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate
from database_rig import quick
from tidegate.capture import applier as applier_module
from tidegate.capture import apply_rows
from tidegate.capture.target import Target
from tidegate.capture.target_sqlite import SqliteTarget
from tidegate.capture.target_turso import TursoTarget
from tidegate.cdc.apply_plan import Row, cut, parents_first, plan
from tidegate.database.database import Database

State = tuple[tuple[Row, ...], tuple[Row, ...]]
"""The rows of `people` and of `pets`."""


class Crash(Exception):
    """The process is gone."""


class World:
    """A database with two tables, all states that it was ever in, and a target with constraints."""

    def __init__(self, folder: Path, seed: int, kind: str) -> None:
        self.random = random.Random(seed)
        self.db: Database = tidegate.open(folder / "here.tide", settings=quick(pipeline=False, channels=3))
        self.db.sql("CREATE TABLE pets (id BIGINT PRIMARY KEY, owner BIGINT, name STRING)")
        self.db.sql("CREATE TABLE people (id BIGINT PRIMARY KEY, name STRING, age BIGINT)")
        self.file = folder / "target.db"
        self.url = f"{kind}:///{self.file}"
        connection = sqlite3.connect(self.file)
        connection.executescript(
            "CREATE TABLE people (id BIGINT PRIMARY KEY, name TEXT UNIQUE, age BIGINT);"
            "CREATE TABLE pets (id BIGINT PRIMARY KEY, owner BIGINT REFERENCES people (id), name TEXT);"
        )
        connection.close()
        self.people: dict[int, Row] = {}
        self.pets: dict[int, Row] = {}
        self.times = [0]
        self.states: list[State] = [((), ())]
        self.commits = 0

    def work(self) -> None:
        """One transaction that leaves the constraints in order, in whatever order its rows come."""
        pick = self.random
        people, pets = dict(self.people), dict(self.pets)
        for _ in range(pick.randint(1, 4)):
            match pick.randrange(6):
                case 0 | 1:
                    id = pick.randrange(6)
                    people[id] = (id, f"n{pick.randrange(40)}", pick.choice([None, 1, 2]))
                case 2 if people:
                    people.pop(pick.choice(sorted(people)))
                case 3 if len(people) > 1:
                    # A swap of keys: each has the other's values.
                    one, other = pick.sample(sorted(people), 2)
                    people[one], people[other] = (one, *people[other][1:]), (other, *people[one][1:])
                case 4:
                    id = pick.randrange(8)
                    pets[id] = (id, pick.choice([None, *sorted(people)]), pick.choice("xyz"))
                case _ if pets:
                    pets.pop(pick.choice(sorted(pets)))
        if len({each[1] for each in people.values()}) < len(people):
            return
        pets = {id: (id, owner if owner in people else None, name) for id, (_, owner, name) in pets.items()}
        with self.db.transaction() as txn:
            steps = [("people", self.people, people), ("pets", self.pets, pets)]
            pick.shuffle(steps)
            for table, old, new in steps:
                rows = [row for id, row in new.items() if old.get(id) != row or pick.random() < 0.1]
                gone = [(id,) for id in old if id not in new]
                pick.shuffle(rows)
                if rows and pick.random() < 0.3:
                    txn.upsert(table, [(*row[:-1], None) for row in rows])  # Not their last values.
                if pick.random() < 0.5:
                    txn.delete(table, gone)
                    txn.upsert(table, rows)
                else:
                    txn.upsert(table, rows)
                    txn.delete(table, gone)
        if txn.commit_timestamp:
            self.people, self.pets = people, pets
            self.times.append(int(txn.commit_timestamp))
            self.states.append((_rows(people), _rows(pets)))

    def look(self) -> None:
        """Law: the target is the state that we were in at the Timestamp which it says itself."""
        connection = sqlite3.connect(self.file)
        try:
            found = (
                tuple(connection.execute("SELECT * FROM people ORDER BY id").fetchall()),
                tuple(connection.execute("SELECT * FROM pets ORDER BY id").fetchall()),
            )
            try:
                position = connection.execute("SELECT position FROM tidegate_applied").fetchone()
            except sqlite3.OperationalError:
                position = None
        finally:
            connection.close()
        if position is None:
            assert found == ((), ())
        else:
            assert found == self.states[bisect_right(self.times, position[0]) - 1]

    def close(self) -> None:
        self.db.close()


def _rows(table: dict[int, Row]) -> tuple[Row, ...]:
    return tuple(table[id] for id in sorted(table))


def breaking(base: type[SqliteTarget], world: World, left: list[int]) -> type[Target]:
    """A target whose process dies before, or right after, one of its statements; it is looked at after each commit."""

    class Breaking(base):  # type: ignore[misc,valid-type]
        def _count(self) -> bool:
            left[0] -= 1
            return left[0] == 0

        def _die(self) -> None:
            self._connection.close()
            raise Crash

        def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
            dies = self._count()
            if dies and world.random.random() < 0.5:
                self._die()
            found: list[Row] = super().run(sql, values)
            if sql == "COMMIT":
                world.commits += 1
                world.look()
            if dies:
                self._die()
            return found

        def many(self, sql: str, rows: Sequence[Row]) -> int:
            if self._count():
                self._die()
            return int(super().many(sql, rows))

    return Breaking


@pytest.mark.parametrize(("kind", "base"), [("sqlite", SqliteTarget), ("turso", TursoTarget)])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_target_is_always_one_of_our_states_and_in_the_end_the_last(
    kind: str, base: type[SqliteTarget], seed: int
) -> None:
    """Law: at every commit of the target it is the tables as of its position; a crash anywhere loses and repeats
    nothing; and when all is applied both are equal."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        world = World(Path(folder), seed, kind)
        left = [0]
        made = breaking(base, world, left)
        patch.setattr(applier_module, "open_target", lambda url: made(url.partition("://")[2]))
        patch.setattr(applier_module, "WINDOW_ROWS", world.random.choice([1, 5, 20_000]))
        patch.setattr(apply_rows, "PART_ROWS", world.random.choice([1, 3, 10_000]))
        try:
            for _ in range(world.random.randint(2, 5)):
                for _ in range(world.random.randint(0, 12)):
                    world.work()
                for _ in range(world.random.randint(0, 3)):
                    left[0] = world.random.randint(1, 60)
                    options = {
                        "chunk_rows": world.random.choice([1, 3, 1000]),
                        "policy": world.random.choice(["stop", "overwrite"]),
                    }
                    try:
                        world.db.apply(["pets", "people"], world.url, **options)
                    except Crash:
                        world.look()
            left[0] = 0
            done = world.db.apply(["pets", "people"], world.url)
            assert done.done.conflicts == 0
            world.look()
            connection = sqlite3.connect(world.file)
            assert tuple(connection.execute("SELECT * FROM people ORDER BY id").fetchall()) == _rows(world.people)
            assert tuple(connection.execute("SELECT * FROM pets ORDER BY id").fetchall()) == _rows(world.pets)
            connection.close()
            assert world.commits > 0
        finally:
            world.close()


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30), st.integers(1, 12))
def test_chunks_are_all_transactions_in_order_and_as_few_as_reach_the_threshold(
    transactions: list[tuple[int, bool]], chunk_rows: int
) -> None:
    """Fact 26, for all runs of transactions."""
    rows, out = [size for size, _ in transactions], [each for _, each in transactions]
    chunks = cut(rows, out, chunk_rows)
    assert [at for each in chunks for at in range(each.first, each.end)] == list(range(len(rows)))
    for number, each in enumerate(chunks):
        mine = range(each.first, each.end)
        assert all(out[at] == each.is_left_out for at in mine)
        if each.is_left_out:
            assert number + 1 == len(chunks) or not chunks[number + 1].is_left_out
            continue
        assert sum(rows[at] for at in mine[:-1]) < chunk_rows
        is_followed = number + 1 < len(chunks) and not chunks[number + 1].is_left_out
        assert not is_followed or sum(rows[at] for at in mine) >= chunk_rows


_ROWS = st.dictionaries(st.integers(0, 5), st.integers(0, 2), max_size=6)


@given(_ROWS, _ROWS, st.booleans())
def test_what_is_planned_makes_the_rows_before_into_those_after(
    before: dict[int, int], after: dict[int, int], known: bool
) -> None:
    """Law: deletes, then updates, then inserts, bring every state to every other, and say what was there before."""
    keys = sorted({*before, *after})
    changes = [((key,), (key, after[key]) if key in after else None) for key in keys]
    work = plan(changes, {(key,): (key, value) for key, value in before.items()} if known else None)
    state = dict(before)
    for key, there in work.deletes:
        assert not known or there == (key[0], state[key[0]])
        state.pop(key[0], None)
    for key, there, row in work.updates:
        assert there == (key[0], state[key[0]]) != row
        state[key[0]] = row[1]
    for row in work.inserts:
        assert row[0] not in state
        state[row[0]] = row[1]
    for row in work.upserts:
        state[row[0]] = row[1]
    assert state == after


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))), st.permutations([str(each) for each in range(10)]))
def test_parents_stand_before_children_wherever_there_is_no_circle(
    edges: list[tuple[int, int]], order: list[str]
) -> None:
    """Law: each table once, and behind all that it refers to."""
    references: dict[str, list[str]] = {}
    for one, other in edges:
        if one > other:  # Without circles.
            references.setdefault(str(one), []).append(str(other))
    found = parents_first(order, references)
    assert sorted(found) == sorted(order)
    assert all(found.index(parent) < found.index(child) for child, parents in references.items() for parent in parents)
