"""Recording on plain SQLite and Turso's own: the same scripts, the same rows, byte for byte.

Seed 003 and capture.md, sections 1 to 3. What Turso does otherwise is listed in docs/capture-sqlite.md, and
`change_scripts` rewrites that and nothing else.
"""

import random

import pytest
import turso
from change_scripts import CAUSES, Script, caused, made_equal, rows_of, transactions

from tidegate.capture.sqlite import connect

MODES = ("id", "before", "after", "full", "full")


class Both:
    """A database in SQLite and one in Turso that are given the same statements."""

    def __init__(self, mode):
        self.ours = connect(":memory:", mode, isolation_level=None)
        self.theirs = turso.connect(":memory:", isolation_level=None)
        self.cursors = (self.theirs.cursor(), self.ours.cursor())
        self.cursors[0].execute(f"PRAGMA capture_data_changes_conn('{mode}')")
        self.upserted = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ours.close()
        self.theirs.close()

    def execute(self, sql):
        last = self.last_id()
        outcomes = [self.outcome(cursor, sql) for cursor in self.cursors]
        assert outcomes[0] == outcomes[1], f"Turso: {outcomes[0]}, here: {outcomes[1]}, of {sql}"
        self.upserted = {at for at in self.upserted if at <= last}
        if "DO UPDATE" in sql:
            self.upserted.update(range(last + 1, self.last_id() + 1))

    def last_id(self):
        return self.ours.execute("SELECT max(change_id) FROM turso_cdc").fetchone()[0] or 0

    @staticmethod
    def outcome(cursor, sql):
        try:
            cursor.execute(sql)
            return "done" if cursor.description is None else [tuple(row) for row in cursor.fetchall()]
        except Exception:
            return "failed"  # Each has its own words for why.

    def rows(self):
        return [rows_of(cursor) for cursor in self.cursors]


@pytest.mark.parametrize("tens", range(40))
def test_the_change_tables_of_random_scripts_are_the_same(tens):
    """All modes; transactions, savepoints, failures, conflicts, keys, all kinds of values, changes of the schema."""
    for seed in range(tens * 10, tens * 10 + 10):
        source = random.Random(seed)
        script = list(Script(source).statements(source.randint(4, 25)))
        with Both(MODES[seed % len(MODES)]) as both:
            for sql in script:
                both.execute(sql)
            theirs, ours = made_equal(*both.rows(), both.upserted)
            assert ours == theirs, f"seed {seed}: {'; '.join(script)}"


@pytest.mark.parametrize("tens", range(10))
def test_transactions_with_triggers_and_cascades_have_the_same_changes(tens):
    for seed in range(tens * 10, tens * 10 + 10):
        source = random.Random(seed)
        script = list(caused(source, source.randint(4, 25)))
        with Both(MODES[seed % len(MODES)]) as both:
            for sql in script:
                both.execute(sql)
            theirs, ours = (transactions(rows) for rows in made_equal(*both.rows(), both.upserted))
            assert ours == theirs, f"seed {seed}: {'; '.join(script[len(CAUSES) :])}"


def test_the_scripts_reach_what_they_are_to_prove():
    """A comparison of nothing would pass as well."""
    seen = set()
    for seed in range(100):
        source = random.Random(seed)
        with connect(":memory:", isolation_level=None) as ours:
            for sql in Script(source).statements(source.randint(4, 25)):
                try:
                    ours.execute(sql)
                except Exception:
                    seen.add("failure")
            rows = rows_of(ours.cursor())
            seen.update((row[2], row[3] == "sqlite_schema") for row in rows)
            seen.update("empty" for row in rows if row[1] == -1)
            ids = {row[1] for row in rows if row[2] != 2}
            seen.update("alone" for row in rows if row[2] == 2 and row[1] not in ids | {-1})
    changes = {(kind, schema) for kind in (1, 0, -1) for schema in (False, True)}
    assert seen == changes | {(2, False), "failure", "empty", "alone"}
