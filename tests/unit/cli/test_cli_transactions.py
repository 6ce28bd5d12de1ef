"""`tidegate transactions`: what is open, whose it is, what waits for it, and the way to end it (issue: for people)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tidegate
from tidegate import Database, Log
from tidegate.cli.main import tidegate as command
from tidegate.cli.output import duration
from tidegate.errors import TransactionAborted

COMMAND = [sys.executable, "-m", "tidegate.cli.main"]


def run(*args: str | Path, columns: int = 200) -> Result:
    return CliRunner().invoke(command, [str(arg) for arg in args], env={"COLUMNS": str(columns)})


def rows_of(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """A database that this process has open, so that commands reach it through this process."""
    with tidegate.open(tmp_path / "shop.tide") as found:
        found.sql("CREATE TOPIC audit SHARDS 4")
        yield found


class TestListing:
    def test_an_open_transaction_is_listed_with_age_client_and_time_left(self, db: Database) -> None:
        txn = db.transaction(timeout=30)
        (row,) = rows_of(run("transactions", db.path, "--json"))
        assert (row["id"], row["state"]) == (str(txn.id), "open")
        assert row["client_name"] == f"owner, process {os.getpid()}"
        assert 0 <= row["age_ms"] < 20_000 and 0 < row["timeout_in_ms"] <= 30_000
        assert row["hanging"] is None

    def test_a_client_in_another_process_is_called_by_its_name(self, db: Database) -> None:
        with tidegate.open(db.path, name="till 3") as other:
            assert not other.is_owner
            txn = other.transaction()
            (row,) = rows_of(run("transactions", db.path, "--json"))
            assert (row["id"], row["client_name"]) == (str(txn.id), "till 3")
            txn.abort()

    def test_what_it_wrote_ahead_is_listed_and_that_the_log_is_kept_for_it(self, db: Database) -> None:
        """LastConfirmed and retention stay where the first open transaction begins (time-log, 4.4)."""
        first = _write_ahead(db)
        second = _write_ahead(db)
        rows = {row["id"]: row for row in rows_of(run("transactions", db.path, "--json"))}
        ahead = {each["channel"]: each for each in rows[str(first)]["waits"]["written_ahead"]}
        assert sorted(ahead) == rows[str(first)]["channels"] == ["data-0", "data-1", "data-2", "data-3"]
        assert sum(each["messages"] for each in ahead.values()) == 8
        assert all(each["keeps_log"] and each["position"] > 0 for each in ahead.values())
        assert not any(each["keeps_log"] for each in rows[str(second)]["waits"]["written_ahead"])
        text = run("transactions", db.path, columns=80).stdout
        assert "keeps log of data-0 from" in text and text.count("keeps log") == 1

    def test_pending_acknowledgements_are_counted(self, db: Database) -> None:
        """Seed 002: what a transaction acknowledges is pending until it ends, and nobody else gets it."""
        consumer = db.subscribe("audit", "billing")
        for number in range(5):
            db.send("audit", number, key=str(number))
        txn = db.transaction()
        txn.ack([_receive(consumer) for _ in range(3)])
        (row,) = rows_of(run("transactions", db.path, "--json"))
        assert row["subscriptions"] == ["audit/billing"]
        assert row["waits"]["pending_acks"] == {"audit/billing": {"messages": 3, "shards_up_to_one": 0}}
        assert "acknowledges audit/billing (3 pending)" in run("transactions", db.path).stdout
        txn.abort()

    def test_a_commit_that_cannot_be_written_holds_ticks_and_hangs(self, db: Database) -> None:
        """Design, cross-channel commit: a decided commit holds its channels' ticks until it is in; promise 8."""
        with _unwritable(db, "data-1"):
            txn = db.transaction()
            for number in range(8):
                txn.send("audit", number, key=str(number))
            timestamp = txn.commit()
            time.sleep(1.2)
            (row,) = rows_of(run("transactions", db.path, "--json"))
            text = run("transactions", db.path, columns=80).stdout
        assert row["state"] == "committing" and row["commit_timestamp"] == int(timestamp)
        assert [each["channel"] for each in row["waits"]["places"]] == ["data-1"]
        assert "carried on in the background" in row["hanging"]
        assert "holds ticks of data-1" in text and "HANGS: committing" in text and "to be committed at" in text

    def test_one_open_for_more_than_half_of_its_timeout_is_marked(self, db: Database) -> None:
        db.transaction(timeout=60)
        txn = db.transaction(timeout=1.0)
        time.sleep(0.6)
        rows = {row["id"]: row["hanging"] for row in rows_of(run("transactions", db.path, "--json"))}
        assert rows.pop(str(txn.id)) == "open for more than half of its timeout"
        assert list(rows.values()) == [None]

    def test_those_that_ended_are_listed_on_request_with_outcome_and_reason(self, db: Database) -> None:
        committed = db.transaction()
        committed.send("audit", 1)
        committed.commit()
        aborted = db.transaction()
        db.abort(aborted.id, "because")
        assert rows_of(run("transactions", db.path, "--json")) == []
        rows = {row["id"]: row for row in rows_of(run("transactions", db.path, "--all", "--json"))}
        assert rows[str(committed.id)]["state"] == "committed"
        assert rows[str(committed.id)]["commit_timestamp"] == int(committed.commit_timestamp or 0)
        assert (rows[str(aborted.id)]["state"], rows[str(aborted.id)]["reason"]) == ("aborted", "because")
        (newest,) = rows_of(run("transactions", db.path, "--all", "--limit", "1", "--json"))
        assert newest["id"] in rows

    def test_the_limit_bounds_those_that_ended_and_keeps_the_newest(self, db: Database) -> None:
        ids = []
        for _ in range(6):
            txn = db.transaction()
            txn.abort()
            ids.append(str(txn.id))
            time.sleep(0.06)  # The oracle's physical time moves every 50 ms; ids of different coordinators do not sort.
        opened = db.transaction()
        rows = rows_of(run("transactions", db.path, "--all", "--limit", "2", "--json"))
        assert [row["id"] for row in rows] == [str(opened.id), ids[5], ids[4]]

    def test_only_old_ones_on_request(self, db: Database) -> None:
        old = db.transaction()
        time.sleep(0.5)
        db.transaction()
        (row,) = rows_of(run("transactions", db.path, "--older-than", "300ms", "--json"))
        assert row["id"] == str(old.id)
        assert "is older than 10.0 s" in run("transactions", db.path, "--older-than", "10s").stdout

    @pytest.mark.parametrize("span", ["ten", "", "10 days", "-1s", "1e3"])
    def test_a_span_that_is_none_is_wrong_usage(self, db: Database, span: str) -> None:
        result = run("transactions", db.path, "--older-than", span)
        assert result.exit_code == 2 and "500ms, 10s, 2m or 1h" in result.stderr

    def test_nothing_open_says_so_and_is_fine(self, db: Database) -> None:
        result = run("transactions", db.path)
        assert result.exit_code == 0 and "No transaction" in result.stdout and "--all" in result.stdout

    def test_every_line_fits_a_narrow_terminal_and_a_pipe_gets_no_control_codes(self, db: Database) -> None:
        _write_ahead(db)
        text = run("transactions", db.path, columns=80).stdout
        assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text

    def test_list_is_what_is_done_without_a_word(self, db: Database) -> None:
        db.transaction()
        assert rows_of(run("transactions", "list", db.path, "--json"))[0]["state"] == "open"
        assert rows_of(run("transactions", "--json", db.path))[0]["state"] == "open"

    def test_watching_goes_on_until_interrupted(self, db: Database) -> None:
        db.transaction()
        process = subprocess.Popen(
            [*COMMAND, "transactions", str(db.path), "--watch", "--every", "0.1", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            first, second = (json.loads(process.stdout.readline()) for _ in range(2))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert first[0]["id"] == second[0]["id"] and second[0]["age_ms"] >= first[0]["age_ms"]
        assert (process.returncode, err) == (130, "")


class TestAbort:
    def test_ends_it_and_its_client_learns_why(self, db: Database) -> None:
        txn = db.transaction()
        txn.send("audit", 1)
        result = run("transactions", "abort", db.path, str(txn.id), "--reason", "its client is stuck")
        assert result.exit_code == 0 and str(txn.id) in result.stdout
        with pytest.raises(TransactionAborted, match="its client is stuck"):
            txn.commit()

    def test_may_be_repeated_and_tells_the_first_reason(self, db: Database) -> None:
        txn = db.transaction()
        run("transactions", "abort", db.path, str(txn.id), "--reason", "first")
        result = run("transactions", "abort", db.path, str(txn.id), "--reason", "second")
        assert result.exit_code == 0 and "aborted before: first" in result.stdout
        (row,) = rows_of(run("transactions", "abort", db.path, str(txn.id), "--json"))
        assert (row["state"], row["reason"]) == ("aborted", "first")

    def test_an_unknown_one_is_an_error_that_names_it(self, db: Database) -> None:
        result = run("transactions", "abort", db.path, "0-1")
        assert result.exit_code == 1 and "transaction 0-1 " in result.stderr and "--all" in result.stderr

    def test_a_committed_one_stays(self, db: Database) -> None:
        with db.transaction() as txn:
            txn.send("audit", 1)
        result = run("transactions", "abort", db.path, str(txn.id))
        assert result.exit_code == 1
        assert f"transaction {txn.id} is committed and cannot be aborted" in result.stderr

    def test_what_is_no_id_is_wrong_usage(self, db: Database) -> None:
        result = run("transactions", "abort", db.path, "latest")
        assert result.exit_code == 2 and "'latest' is not a transaction id" in result.stderr


class TestWhichDatabase:
    def test_one_that_nobody_has_open_is_opened_and_that_is_said(self, tmp_path: Path) -> None:
        """What was logged survives a restart (transactions.md); it belongs to an owner before, who is gone."""
        with tidegate.open(tmp_path / "shop.tide") as db:
            db.sql("CREATE TOPIC audit SHARDS 4")
            id = _write_ahead(db)
        result = run("transactions", tmp_path / "shop.tide", "--json")
        (row,) = rows_of(result)
        assert (row["id"], row["client_name"]) == (str(id), "an owner before")
        assert result.stderr.strip() == f"nobody had {tmp_path / 'shop.tide'} open, so this command opened it"

    @pytest.mark.parametrize("args", [["transactions"], ["status"], ["sql", "{}", "SHOW TOPICS"]])
    def test_looking_never_makes_one(self, tmp_path: Path, args: list[str]) -> None:
        path = str(tmp_path / "typo.tide")
        args = [each.replace("{}", path) for each in args] if "{}" in args else [*args, path]
        result = run(*args)
        assert result.exit_code == 1 and "there is no database at" in result.stderr and path in result.stderr
        assert list(tmp_path.iterdir()) == []

    def test_a_log_without_a_database_stays_one(self, tmp_path: Path) -> None:
        with Log(tmp_path / "plain.tide") as log:
            log.channel("orders")
        result = run("transactions", tmp_path / "plain.tide")
        assert result.exit_code == 1 and "tidegate log show" in result.stderr
        assert [each.name for each in (tmp_path / "plain.tide" / "log").iterdir() if each.is_dir()] == ["orders"]

    def test_a_directory_of_something_else_is_refused(self, tmp_path: Path) -> None:
        result = run("transactions", tmp_path)
        assert result.exit_code == 1 and f"{tmp_path} is not a database" in result.stderr


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (99_900, "99.9 s"), (99_990, "1 min 40 s"),
     (725_000, "12 min 5 s"), (3_600_000, "1 h 0 m"), (90_000_000, "1 d 1 h")],
)  # fmt: skip
def test_a_span_of_time_is_readable(ms: int, text: str) -> None:
    assert duration(ms) == text


def _write_ahead(db: Database) -> Any:
    """A transaction with messages in the log of every channel; its id."""
    txn = db.transaction()
    txn.send("audit", 0)
    db.backend.write_ahead(txn.id, _pieces(db))
    return txn.id


def _pieces(db: Database) -> Any:
    from tidegate.database.outgoing import Outgoing

    outgoing = Outgoing(db.channels)
    for number in range(8):
        outgoing.add(db.topic("audit"), number, key=None, headers=None, turn=number)
    return outgoing.writes()


def _receive(consumer: Any) -> Any:
    message = consumer.receive(10.0)
    assert message is not None
    return message


class _unwritable:
    """A channel whose decided commits cannot be written for a while, as on a full disk."""

    def __init__(self, db: Database, channel: str) -> None:
        self._writer = db.engine.log.channel(channel, create=False)

    def __enter__(self) -> None:
        segments = self._writer.segments
        self._write = segments.write

        def refuse(*_: Any, **__: Any) -> Any:
            raise OSError(28, "No space left on device")

        segments.write = refuse  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._writer.segments.write = self._write  # type: ignore[method-assign]
