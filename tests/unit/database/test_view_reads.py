"""Views in queries: at every level, in snapshots and at times of their own, they are their query over the tables.

Promise 4 and issue 6, "Views queried ... at any consistency level, exactly as tables".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from folding import folding
from helpers import eventually
from tidegate import Database, DatabaseSettings
from tidegate.database import engine as engine_module
from tidegate.database import view_reads
from tidegate.errors import InvalidArgument, NotFound, Unavailable
from tidegate.runtime.settings import LogSettings

SUMS = "SELECT g, sum(n) AS s FROM o GROUP BY g"
A, B, C = {"g": "a", "s": 1}, {"g": "b", "s": 5}, {"g": "c", "s": 9}
ALL = "SELECT * FROM sums ORDER BY g"


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Two groups are in a checkpoint, in the table and in the view; a third one is behind it, in the log."""
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    settings = DatabaseSettings(log=LogSettings(tick_interval_ms=20), channels=2, barrier_interval_ms=3_600_000)
    with tidegate.open(tmp_path / "shop.tide", settings=settings) as db:
        db.sql("CREATE TABLE o (id BIGINT PRIMARY KEY, g STRING, n BIGINT) SHARDS 2")
        db.sql(f"CREATE MATERIALIZED VIEW sums AS {SUMS}")
        db.insert("o", [{"id": 1, "g": "a", "n": 1}, {"id": 2, "g": "b", "n": 2}, {"id": 3, "g": "b", "n": 3}])
        db.flush()
        eventually(lambda: rests(db), what="the pipeline rests")
        db.insert("o", [{"id": 4, "g": "c", "n": 9}])
        yield db


def rests(db: Database) -> bool:
    """Whether no checkpoint is on its way: one that was taken for the view may have done for the flush, which asked
    for another."""
    pipeline = db.engine.pipeline
    before = pipeline.service_time
    for _ in range(3):
        machines = pipeline._the_machines()
        is_asked = machines.clock.asked_ms is not None
        if is_asked or machines.epochs.uncommitted or pipeline.service_time != before:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def never_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing is taken for the faster way, however long a checkpoint takes here."""
    monkeypatch.setattr(view_reads, "START_MS", -1_000_000)


def made(db: Database, sql: str = ALL, *args: Any, **options: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    found = db.query(sql, *args, **options)
    return found.rows(), dict(found.views)


# -- levels --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("never_sooner")
@pytest.mark.parametrize("level", ["strong", "session"])
def test_what_was_written_before_the_read_is_in_it_though_no_checkpoint_is(db: Database, level: str) -> None:
    before = db.engine.pipeline.service_time
    assert made(db, ALL, level) == ([A, B, C], {"sums": "computed"})
    assert db.engine.pipeline.service_time == before, "it waited for none"


@pytest.mark.parametrize("level", ["eventual", "bounded"])
def test_a_read_that_need_not_be_fresh_is_of_stored_rows(db: Database, level: str) -> None:
    """Nothing was acknowledged so long before that is not in the checkpoint."""
    found = db.session().query(ALL, level, staleness=600 if level == "bounded" else None)
    assert (found.rows(), dict(found.views)) == ([A, B], {"sums": "stored"})
    assert found.timestamp == db.engine.pipeline.service_time


def test_a_strong_read_waits_for_a_checkpoint_where_that_is_sooner(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 6: "take whichever is estimated to be sooner, and say which was taken"."""
    monkeypatch.setattr(view_reads, "START_MS", 1_000_000)
    before = db.engine.pipeline.service_time
    found = db.query(ALL, "strong")
    assert (found.rows(), dict(found.views)) == ([A, B, C], {"sums": "stored"})
    assert db.engine.pipeline.service_time >= found.timestamp > before


def test_it_is_computed_while_nothing_makes_checkpoints(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes: nobody knows when the next one comes."""
    monkeypatch.setattr(view_reads, "START_MS", 1_000_000)
    db.engine.pipeline.pause()
    assert made(db, ALL, "strong") == ([A, B, C], {"sums": "computed"})


@pytest.mark.usefixtures("never_sooner")
def test_at_a_timestamp_it_is_what_it_was_then(db: Database) -> None:
    at = db.query(ALL, "strong").timestamp
    stored = db.engine.pipeline.service_time
    db.sql("DELETE FROM o")
    db.flush()
    assert made(db, ALL, "eventual") == ([], {"sums": "stored"})
    assert made(db, ALL, stored) == ([A, B], {"sums": "stored"})
    assert made(db, ALL, at) == ([A, B, C], {"sums": "computed"})
    assert made(db, f"SELECT * FROM sums FOR TIMESTAMP AS OF '{at}' ORDER BY g") == ([A, B, C], {"sums": "computed"})


@pytest.mark.usefixtures("never_sooner")
def test_of_a_checkpoint_by_its_number(db: Database) -> None:
    number = db.engine.pipeline.store.pointer().checkpoint
    db.sql("DELETE FROM o")
    db.flush()
    assert made(db, f"SELECT * FROM sums VERSION AS OF {number} ORDER BY g") == ([A, B], {"sums": "stored"})


@pytest.mark.usefixtures("never_sooner")
def test_two_times_and_its_table_in_one_query(db: Database) -> None:
    """Each at the time it is asked for."""
    then = db.engine.pipeline.service_time
    sql = f"""
        SELECT now.g, now.s, before.s AS was, (SELECT count(*) FROM o) AS k
        FROM sums AS now LEFT JOIN sums FOR TIMESTAMP AS OF '{then}' AS before ON now.g = before.g ORDER BY now.g
    """
    db.insert("o", {"id": 5, "g": "a", "n": 10})
    found = db.query(sql, "strong").rows()
    assert found == [
        {"g": "a", "s": 11, "was": 1, "k": 5},
        {"g": "b", "s": 5, "was": 5, "k": 5},
        {"g": "c", "s": 9, "was": None, "k": 5},
    ]


@pytest.mark.usefixtures("never_sooner")
def test_a_snapshot_holds_it_still(db: Database) -> None:
    with db.snapshot("strong") as snapshot:
        db.insert("o", {"id": 5, "g": "d", "n": 1})
        db.flush()
        for _ in range(2):
            found = snapshot.query(ALL)
            assert (found.rows(), dict(found.views)) == ([A, B, C], {"sums": "computed"})
        assert [row["s"] for batch in snapshot.stream(ALL) for row in batch.to_pylist()] == [1, 5, 9]
    with db.snapshot("eventual") as snapshot:
        db.insert("o", {"id": 6, "g": "d", "n": 1})
        assert dict(snapshot.query(ALL).views) == {"sums": "stored"}
        assert len(snapshot.query(ALL).rows()) == 4


@pytest.mark.usefixtures("never_sooner")
def test_a_session_never_goes_back_whichever_way_its_reads_are_made(db: Database) -> None:
    """Promise 5: computed at the newest time, then `eventual`: the checkpoint is older, so it is computed again."""
    session = db.session()
    first = session.query(ALL, "strong")
    again = session.query(ALL, "eventual")
    assert first.rows() == again.rows() == [A, B, C] and again.timestamp >= first.timestamp
    assert dict(again.views) == {"sums": "computed"}


def test_results_of_views_in_all_forms(db: Database) -> None:
    found = db.query(ALL, "eventual")
    assert found.to_arrow().to_pylist() == found.to_pandas().to_dict("records") == [A, B]
    assert found.to_polars().to_dicts() == [A, B]
    with db.stream(ALL, "eventual") as stream:
        assert [row for batch in stream for row in batch.to_pylist()] == [A, B]


@pytest.mark.usefixtures("never_sooner")
def test_another_process_gets_the_same_through_the_owner(db: Database) -> None:
    """Its rows are read from files and the log there; what the view is comes from the owner."""
    with tidegate.open(db.path) as other:
        assert type(other.backend).__name__ == "RemoteBackend"
        assert made(other, ALL, "eventual") == ([A, B], {"sums": "stored"})
        assert made(other, ALL, "strong") == ([A, B, C], {"sums": "computed"})
        other.sql("CREATE MATERIALIZED VIEW top AS SELECT max(s) AS m FROM sums")
        assert made(other, "SELECT m FROM top", "strong") == ([{"m": 9}], {"top": "computed"})


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("never_sooner")
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT x.g FROM sums AS x WHERE x.s > 4 ORDER BY g", ["b", "c"]),
        ("SELECT sums.g FROM sums JOIN o ON o.g = sums.g AND o.n = sums.s ORDER BY 1", ["a", "c"]),
        ("SELECT `sums`.`g` FROM `sums` ORDER BY g", ["a", "b", "c"]),
        ("WITH w AS (SELECT g FROM sums WHERE s < 9) SELECT g FROM w ORDER BY g", ["a", "b"]),
        ("SELECT g FROM o WHERE n IN (SELECT s FROM sums) ORDER BY g", ["a", "c"]),
        ("SELECT g FROM sums UNION ALL SELECT 'z' ORDER BY g", ["a", "b", "c", "z"]),
        ("SELECT (SELECT max(g) FROM sums) AS g", ["c"]),
        ("SELECT l.g FROM sums l, sums r WHERE l.s = r.s ORDER BY g", ["a", "b", "c"]),
        # A name of the query's own hides a view, and one that its query reads does not.
        ("WITH sums AS (SELECT 'mine' AS g) SELECT g FROM sums", ["mine"]),
        ("WITH o AS (SELECT 'mine' AS g, 3 AS n) SELECT sums.g FROM sums, o WHERE sums.s > o.n ORDER BY 1", ["b", "c"]),
        ("WITH sums AS (SELECT g FROM sums WHERE s = 5) SELECT g FROM sums", ["b"]),
        ("SELECT g FROM (WITH sums AS (SELECT 'in' AS g) SELECT g FROM sums) UNION SELECT g FROM sums ORDER BY g",
         ["a", "b", "c", "in"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("level", ["strong", "checkpoint"])
def test_it_stands_wherever_a_table_does(db: Database, sql: str, expected: list[str], level: str) -> None:
    """The same of stored rows and computed ones."""
    if level == "checkpoint":
        db.flush()
    found = db.query(sql, "strong" if level == "strong" else "eventual")
    assert [row["g"] for row in found.rows()] == expected


@pytest.mark.usefixtures("never_sooner")
def test_views_on_views_are_computed_all_the_way_down(db: Database) -> None:
    db.sql("CREATE MATERIALIZED VIEW large AS SELECT g, s FROM sums WHERE s > 4")
    db.sql(
        "CREATE MATERIALIZED VIEW both AS SELECT l.g, o.id FROM large l JOIN o ON o.g = l.g JOIN sums ON sums.g = l.g"
    )
    db.flush()
    db.sql("UPDATE o SET g = 'a', n = 4 WHERE id = 2")
    rows, how = made(db, "SELECT * FROM both ORDER BY id", "strong")
    assert rows == [{"g": "a", "id": 1}, {"g": "a", "id": 2}, {"g": "c", "id": 4}]
    assert how == {"both": "computed"}


@pytest.mark.usefixtures("never_sooner")
@pytest.mark.parametrize("level", ["strong", "eventual"])
def test_its_columns_stay_when_its_table_gets_more(db: Database, level: str) -> None:
    """A view of `*` has the columns that were there when it was created; a column named anew keeps its place."""
    db.sql("CREATE MATERIALIZED VIEW everything AS SELECT * FROM o WHERE id > 2")
    db.flush()
    db.sql("ALTER TABLE o ADD COLUMN more STRING")
    db.insert("o", {"id": 5, "g": "d", "n": 0, "more": "x"})
    if level == "eventual":
        db.flush()
    rows, how = made(db, "SELECT * FROM everything ORDER BY id", level)
    assert [list(row.values()) for row in rows] == [[3, "b", 3], [4, "c", 9], [5, "d", 0]]
    assert list(rows[0]) == ["id", "g", "n"]
    assert how == {"everything": "computed" if level == "strong" else "stored"}


def test_a_name_that_is_neither_table_nor_view_is_said(db: Database) -> None:
    with pytest.raises(NotFound, match="nosuch"):
        db.query("SELECT * FROM sums, nosuch")
    with pytest.raises(NotFound, match="nosuch"):
        db.query("SELECT nosuch FROM sums", "strong")
    db.sql("DROP MATERIALIZED VIEW sums")
    with pytest.raises(NotFound, match="sums"):
        db.query(ALL, "strong")


# -- views that are not well ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("never_sooner")
def test_one_that_has_failed_says_so_at_every_level_and_its_past_can_be_read(db: Database) -> None:
    db.sql("CREATE MATERIALIZED VIEW shares AS SELECT id, 12 div n AS x FROM o")
    good = db.flush()
    db.insert("o", {"id": 5, "g": "z", "n": 0})
    db.flush()
    for level in ("eventual", "strong", "session"):
        with pytest.raises(Unavailable, match=r"'shares' has failed at .*division by zero.* RESUME"):
            db.query("SELECT * FROM shares", level)
    then = db.query(f"SELECT x FROM shares FOR TIMESTAMP AS OF '{good}' ORDER BY id").rows()
    assert [row["x"] for row in then] == [12, 6, 4, 1]
    db.sql("DELETE FROM o WHERE id = 5")
    db.sql("ALTER MATERIALIZED VIEW shares RESUME")
    db.flush()
    assert len(db.query("SELECT * FROM shares", "eventual")) == 4


@pytest.mark.usefixtures("never_sooner")
def test_one_that_would_fail_now_says_what_of(db: Database) -> None:
    """Computed over rows that no checkpoint has yet."""
    db.sql("CREATE MATERIALIZED VIEW shares AS SELECT id, 12 div n AS x FROM o")
    db.flush()
    db.insert("o", {"id": 5, "g": "z", "n": 0})
    with pytest.raises(InvalidArgument, match=r"(?i)divi.*zero"):
        db.query("SELECT * FROM shares", "strong")


def test_one_that_is_new_is_computed_until_it_is_stored(db: Database) -> None:
    db.engine.pipeline.pause()
    db.sql("CREATE MATERIALIZED VIEW top AS SELECT max(s) AS m FROM sums")
    assert made(db, "SELECT m FROM top", "strong") == ([{"m": 9}], {"top": "computed"})
    assert made(db, "SELECT m FROM top", "eventual") == ([{"m": 9}], {"top": "computed"})
    db.engine.pipeline.resume()
    db.flush()
    assert made(db, "SELECT m FROM top", "eventual") == ([{"m": 9}], {"top": "stored"})


# -- transactions --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("never_sooner")
def test_dml_reads_views_as_of_all_that_is_committed(db: Database) -> None:
    db.sql("CREATE TABLE copy (g STRING PRIMARY KEY, s BIGINT)")
    db.sql("INSERT INTO copy SELECT g, s FROM sums")
    assert db.query("SELECT * FROM copy ORDER BY g", "strong").rows() == [A, B, C]
    db.sql("DELETE FROM copy WHERE s IN (SELECT max(s) FROM sums)")
    assert db.query("SELECT * FROM copy ORDER BY g", "strong").rows() == [A, B]


@pytest.mark.usefixtures("never_sooner")
def test_in_a_transaction_a_view_has_the_rows_that_it_has_written(db: Database) -> None:
    """Its own writes are in the tables that it reads, so they are in the view."""
    db.sql("CREATE TABLE copy (g STRING PRIMARY KEY, s BIGINT)")
    with db.transaction() as txn:
        txn.insert("o", {"id": 9, "g": "a", "n": 100})
        txn.sql("INSERT INTO copy SELECT g, s FROM sums WHERE g = 'a'")
    assert db.query("SELECT * FROM copy", "strong").rows() == [{"g": "a", "s": 101}]


@pytest.mark.parametrize(
    "write",
    [
        lambda db: db.insert("sums", [A]),
        lambda db: db.delete("sums", [{"g": "a"}]),
        lambda db: db.sql("INSERT INTO sums VALUES ('x', 1)"),
        lambda db: db.sql("UPDATE sums SET s = 1"),
        lambda db: db.sql("DELETE FROM sums"),
        lambda db: db.sql("ALTER TABLE sums ADD COLUMN x INT"),
        lambda db: db.sql("DROP TABLE sums"),
    ],
)
def test_a_view_is_written_by_its_query_alone(db: Database, write: Callable[[Database], Any]) -> None:
    with pytest.raises((InvalidArgument, NotFound), match=r"sums.*materialized view"):
        write(db)
    assert len(db.query(ALL, "strong")) == 3
