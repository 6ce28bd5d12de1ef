"""`tidegate sql` and `tidegate status` on tables, and what `status` says of the pipeline (promise 8)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import tidegate
from tidegate import Database, DatabaseSettings
from tidegate.cli.main import tidegate as command
from tidegate.cli.status import draw
from tidegate.database import engine as engine_module


def run(*args: str | Path, columns: int = 80, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, [str(arg) for arg in args], input=stdin, env={"COLUMNS": str(columns)})


def drawn(found: dict[str, Any], columns: int = 80) -> str:
    console = Console(width=columns, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(draw({**found, "opened_by_this_command": False}))
    return capture.get()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Without a worker: nothing here needs Spark."""
    with tidegate.open(tmp_path / "shop.tide", settings=DatabaseSettings(pipeline=False)) as found:
        found.sql("CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner STRING, balance DECIMAL(10, 2))")
        yield found


class Silent:
    """A worker that never reports."""

    pid = 4711

    def send(self, _message: object) -> bool:
        return True

    def stop(self, _timeout_s: float = 0.0) -> None:
        pass

    def kill(self) -> None:
        pass


@pytest.fixture
def held_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A pipeline whose worker never reports."""
    monkeypatch.setattr(engine_module, "spark_worker", lambda *_: Silent())
    settings = DatabaseSettings(barrier_interval_ms=50)
    with tidegate.open(tmp_path / "held.tide", settings=settings) as found:
        found.sql("CREATE TABLE accounts (id BIGINT PRIMARY KEY)")
        yield found


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


class TestSql:
    def test_statements_that_write_print_how_many_rows(self, db: Database) -> None:
        insert = run("sql", db.path, "INSERT INTO accounts VALUES (1, 'ann', 10.5), (2, 'bo', 3)")
        kept = run("sql", db.path, "INSERT INTO accounts VALUES (1, 'x', 0), (3, 'cy', 1) ON CONFLICT DO NOTHING")
        update = run("sql", db.path, "UPDATE accounts SET balance = balance + 1 WHERE owner = 'bo'")
        delete = run("sql", db.path, "DELETE FROM accounts WHERE id > 90")
        said = [each.stdout for each in (insert, kept, update, delete)]
        assert said == ["2 rows\n", "1 row\n", "1 row\n", "0 rows\n"]
        found = json.loads(run("sql", db.path, "DELETE FROM accounts", "--json").stdout)
        assert (found["statement"], found["written"]) == ("DELETE", 3)

    def test_a_query_prints_its_rows_with_numbers_to_the_right_and_nulls_named(self, db: Database) -> None:
        db.sql("INSERT INTO accounts VALUES (1, 'ann', 10.5), (20, 'bo', NULL)")
        lines = run("sql", db.path, "SELECT id, owner, balance FROM accounts ORDER BY id").stdout.splitlines()
        assert [line.rstrip() for line in lines] == [
            "id  owner  balance",
            "──────────────────",
            " 1  ann      10.50",
            "20  bo        NULL",
        ]
        assert run("sql", db.path, "WITH a AS (SELECT 1 AS n) SELECT n FROM a WHERE n = 2").stdout == "no rows\n"

    def test_show_create_table_can_be_run_again(self, db: Database) -> None:
        text = run("sql", db.path, "SHOW CREATE TABLE accounts").stdout
        assert run("sql", db.path, "DROP TABLE accounts").stdout == "done\n"
        assert run("sql", db.path, text).stdout == "done\n"
        assert run("sql", db.path, "SHOW CREATE TABLE accounts").stdout == text

    def test_a_wrong_value_is_an_error_and_nothing_is_written(self, db: Database) -> None:
        result = run("sql", db.path, "INSERT INTO accounts VALUES (1, 'ann', 1), (2, 7, 1)")
        assert result.exit_code == 1 and "column 'owner'" in result.stderr
        assert db.query("SELECT * FROM accounts").rows() == []

    def test_the_help_fits_a_narrow_terminal_and_lists_the_statements(self) -> None:
        text = run("sql", "--help").stdout
        assert max(map(len, text.splitlines())) <= 80
        for statement in ("CREATE TABLE", "ALTER TABLE", "UPDATE name", "DELETE FROM", "ON CONFLICT DO NOTHING"):
            assert statement in text


class TestStatus:
    def test_lists_tables_with_their_keys_shards_and_files(self, db: Database) -> None:
        db.sql("CREATE TABLE events (region STRING, nr INT, PRIMARY KEY (region, nr)) SHARDS 4")
        result = run("status", db.path, "--json")
        events = {each["name"]: each for each in json.loads(result.stdout)["tables"]}["events"]
        assert (events["key"], events["shards"], events["columns"]) == (["region", "nr"], 4, 2)
        assert events["channels"] == ["data-0", "data-1", "data-2", "data-3"]
        assert (events["files"], events["bytes"], events["schema_version"]) == (0, 0, 1)
        assert "region, nr" in run("status", db.path).stdout

    def test_a_database_without_tables_says_nothing_of_the_pipeline(self, tmp_path: Path) -> None:
        with tidegate.open(tmp_path / "shop.tide") as db:
            text = run("status", db.path).stdout
        assert "pipeline" not in text and "checkpoint" not in text

    def test_says_how_many_epochs_wait_and_for_whom(self, held_up: Database) -> None:
        """Promise 8: what was written and is in no checkpoint waits, and it is told on what."""
        wait_until(lambda: held_up.status()["pipeline"]["worker"] is not None)
        said = f"the worker, process {Silent.pid}, has not finished epoch 1"
        wait_until(lambda: held_up.status()["pipeline"]["waits_for"] == said)  # For a moment it may be the next cut.
        found = held_up.status()["pipeline"]
        assert (found["checkpoint"], found["service_time_text"], found["worker"]) == (0, None, Silent.pid)
        text = run("status", held_up.path, columns=120).stdout
        assert "no checkpoint yet" in text and "has not finished epoch 1" in text

    def test_without_a_pipeline_it_says_that_no_worker_runs(self, db: Database) -> None:
        assert "no worker runs" in run("status", db.path).stdout

    def test_says_how_long_the_oldest_append_has_waited_for_its_tick(self, db: Database) -> None:
        """Issue 4: lag per stage."""
        writer = db.engine.log.channel("data-2", create=False)
        with writer.reserve("audit/held"):
            time.sleep(0.6)
            found = db.status()["pipeline"]["lag"]
        assert found["append_to_tick_ms"] >= 600 and found["slowest_channel"] == "data-2"

    def test_says_how_long_an_epoch_has_waited_for_its_checkpoint(self, held_up: Database) -> None:
        """Issue 4: lag per stage. Nobody folds here, so the oldest epoch only grows older."""
        db = held_up
        wait_until(lambda: (db.status()["pipeline"].get("lag", {}).get("barrier_to_checkpoint_ms") or 0) > 300)
        found = db.status()["pipeline"]["lag"]
        assert found["barrier_to_checkpoint_ms"] == found["barrier_to_report_ms"] > 300
        assert found["tick_to_barrier_ms"] < found["barrier_to_checkpoint_ms"]
        assert ", to barrier " in run("status", db.path).stdout

    def test_shows_the_last_checkpoint_its_age_and_each_stage(self, db: Database) -> None:
        found = _with_pipeline(db, lag_ms=1_300, align_ms=20, work_ms=900)
        text = drawn(found)
        assert "checkpoint 41 at epoch 44, 1.3 s old" in text and "service time 2026-11-16T03:34:47.645Z+0" in text
        assert "worker is process 4711, the last batch took 219 ms" in text
        assert "append to tick 100 ms, to barrier 20 ms, to checkpoint 900 ms" in text
        assert "nothing was written since" not in text

    def test_an_old_checkpoint_is_no_lag_where_nothing_was_written(self, db: Database) -> None:
        found = _with_pipeline(db, lag_ms=60_000, uncommitted_epochs=0)
        found["owner"]["open_for_ms"] = 1_000  # There was no barrier yet that would have found it.
        assert "nothing was written since" not in drawn(found)
        found["owner"]["open_for_ms"] = 10_000
        assert "60.0 s old; nothing was written since" in drawn(found)

    def test_a_failure_is_trouble_and_is_told_once(self, db: Database) -> None:
        why = "the worker: it ended with exit code -9: killed"
        text = drawn(_with_pipeline(db, failure=why, waits_for=why, uncommitted_epochs=3), columns=120)
        assert text.count(why) == 1 and f"TROUBLE  pipeline: {why}" in text and "3 epochs wait" in text

    def test_a_paused_pipeline_says_so(self, db: Database) -> None:
        assert "it is paused" in drawn(_with_pipeline(db, paused=True, waits_for="the pipeline is paused"))

    @pytest.mark.parametrize("columns", [80, 120])
    def test_long_reasons_go_on_below_and_stay_within_the_terminal(self, db: Database, columns: int) -> None:
        why = "data-0, data-1, data-2, data-3 did not tick past 2026-11-16T03:34:47.645Z+0, " * 3
        lines = drawn(_with_pipeline(db, waits_for=why), columns=columns).splitlines()
        assert max(map(len, lines)) <= columns
        at = next(number for number, line in enumerate(lines) if "epoch waits: data-0" in line)
        assert lines[at + 1].startswith(" " * 14)

    def test_it_can_be_asked_for_while_rows_are_written(self, db: Database) -> None:
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                for _ in range(10):
                    db.status()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        for number in range(50):
            db.insert("accounts", {"id": number})
        thread.join(30)
        assert not errors and not thread.is_alive()


def _with_pipeline(
    db: Database, *, align_ms: int | None = None, work_ms: int | None = None, **changes: Any
) -> dict[str, Any]:
    """A status as it would be with these facts about the pipeline."""
    found = db.status()
    found["pipeline"] = {
        "running": True,
        "checkpoint": 41,
        "epoch": 44,
        "service_time": 470496074175610880,
        "service_time_text": "2026-11-16T03:34:47.645Z+0",
        "lag_ms": 700,
        "worker": 4711,
        "failure": None,
        "last_batch_s": 0.219,
        "waits_for": None,
        "uncommitted_epochs": 1,
        "interval_ms": 1000,
        "paused": False,
        "lag": {
            "append_to_tick_ms": 100,
            "slowest_channel": "data-1",
            "tick_to_barrier_ms": align_ms,
            "barrier_to_checkpoint_ms": work_ms,
        },
        **changes,
    }
    return found
