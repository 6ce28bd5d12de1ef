"""A capture that begins while an application rolls back very many savepoints (issue 7: a consistent first snapshot)."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from helpers import eventually
from pg_mirror import opened

SAVEPOINTS = """
DO $$ BEGIN
  FOR n IN 1..3000 LOOP
    BEGIN INSERT INTO notes VALUES (-n); RAISE EXCEPTION 'not this one'; EXCEPTION WHEN raise_exception THEN NULL; END;
  END LOOP;
END $$
"""
"""More than PostgreSQL takes note of while a slot waits for older transactions."""


@pytest.mark.slow
def test_a_slot_that_the_server_cannot_begin_yet_is_tried_again(postgres, pg_database):
    """Refused once, with «initial slot snapshot too large»: no reason to give up."""
    found: list[object] = []

    def begin() -> None:
        try:
            with opened(postgres.url(pg_database)) as source:
                source.tables(None)
                with closing(source.snapshot()) as snapshot:
                    for batch in snapshot.batches():
                        found.extend(pa.table(batch.rows).to_pylist())
        except BaseException as error:
            found.append(error)

    with (
        postgres.connect(pg_database) as db,
        postgres.connect(pg_database) as first,
        postgres.connect(pg_database) as second,
        postgres.connect(pg_database) as third,
    ):

        def waits_for(other: psycopg.Connection[Any]) -> None:
            asked = "SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid::text = %s"
            xid = str(other.execute("SELECT txid_current()").fetchone()[0])
            eventually(lambda: found or db.execute(asked, [xid]).fetchall(), 30, "a slot that waits for a transaction")

        db.execute("CREATE TABLE notes (id int PRIMARY KEY)")
        first.execute("BEGIN")
        first.execute("INSERT INTO notes VALUES (1)")
        beginning = threading.Thread(target=begin)
        beginning.start()
        waits_for(first)
        second.execute("BEGIN")
        second.execute("INSERT INTO notes VALUES (2)")
        first.execute("COMMIT")
        waits_for(second)  # From where on the slot takes note of what is under way.
        third.execute("BEGIN")
        third.execute("INSERT INTO notes VALUES (3)")
        db.execute(SAVEPOINTS)
        db.execute("INSERT INTO notes VALUES (4)")  # Behind all of them.
        second.execute("COMMIT")
        waits_for(third)  # Refused, and tried again.
        third.execute("COMMIT")
        beginning.join(60)
    assert found == [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}]
