"""`tidegate capture`: another database's transactions, as people and scripts meet them."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys

import pytest
from click.testing import CliRunner

import tidegate
from helpers import eventually
from tidegate.capture import sqlite as recorded
from tidegate.cli.main import tidegate as command
from tidegate.database.settings import DatabaseSettings


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """An application's database with two orders, in the current directory."""
    monkeypatch.chdir(tmp_path)
    plain = sqlite3.connect("app.db")
    plain.execute("PRAGMA journal_mode = WAL")
    plain.close()
    with recorded.connect("app.db") as app:
        app.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, who TEXT)")
        app.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
        app.execute("INSERT INTO orders VALUES (1, 'ann'), (2, 'bo')")
        app.commit()
        yield app


def run(*args, code=0):
    """Beside an owner without a pipeline, so that no test waits for Spark."""
    with tidegate.open("shop.tide", settings=DatabaseSettings(pipeline=False)):
        found = CliRunner().invoke(command, ["capture", *args, "--into", "shop.tide"], env={"COLUMNS": "120"})
    assert found.exit_code == code, found.output
    return found


def test_once_takes_what_is_there_and_ends(shop):
    assert "stopped, 0 transactions, 2 rows" in run("sqlite:///app.db", "--once").stdout
    shop.execute("INSERT INTO orders VALUES (3, 'cy')")
    shop.commit()
    said = json.loads(run("sqlite:///app.db", "--once", "--json").stdout.splitlines()[-1])
    assert (said["state"], said["transactions"], said["rows"]) == ("stopped", 1, 3)
    assert said["tables"] == {"orders": "orders", "notes": "notes"} and said["behind"] == {"changes": 0}


def test_tables_can_be_chosen_and_named(shop):
    run("sqlite:///app.db", "--once", "--tables", "orders", "--as", "orders=bought")
    run("sqlite:///app.db", "--once", "--tables", "notes", "--prefix", "app_", "--name", "second")
    with tidegate.open("shop.tide", settings=DatabaseSettings(pipeline=False)) as db:
        assert {"bought", "app_notes"} <= {each["name"] for each in db.sql("SHOW TABLES")}
        assert len(db.query("SELECT * FROM bought", "strong").rows()) == 2
    listed = run("--list").stdout
    assert "sqlite-app.db" in listed and "second" in listed and "bought" in listed
    rows = [json.loads(line) for line in run("--list", "--json").stdout.splitlines()]
    assert [each["capture"] for each in rows] == ["second", "sqlite-app.db"]


def test_a_dropped_capture_begins_anew_and_its_rows_stay(shop):
    assert "captures nothing" in run("--list").stdout
    run("sqlite:///app.db", "--once")
    assert run("sqlite:///app.db", "--drop").stdout == "capture sqlite-app.db is dropped\n"
    assert "captures nothing" in run("--list").stdout
    assert "has no capture 'sqlite-app.db'" in run("sqlite:///app.db", "--drop", code=1).output
    assert "has rows that do not come from this source" in run("sqlite:///app.db", "--once", code=1).output


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["sqlite:///none.db"], 1, "there is no SQLite database none.db"),
        (["oracle://x"], 1, "'oracle://x' names no source"),
        (["app.db"], 1, "'app.db' names no source: a source is sqlite:///app.db"),
        (["sqlite://app.db"], 1, "names a host, 'app.db', where files have none: write sqlite:///app.db"),
        (["sqlite:///app.db", "--tables", "none"], 1, "has no table 'none'"),
        (["sqlite:///app.db", "--tables", " ,"], 1, "tables: name at least one, or leave them out to capture all"),
        (["sqlite:///app.db", "--option", "speed=9"], 1, "a source of sqlite has no option 'speed'"),
        (["sqlite:///app.db", "--option", "speed"], 2, "--option is NAME=VALUE, not 'speed'"),
        (["sqlite:///app.db", "--prefix", "a", "--as", "b=c"], 2, "cannot be combined"),
        (["sqlite:///app.db", "--type", "orders.who"], 2, "--type is TABLE.COLUMN=TYPE, not 'orders.who'"),
        (["sqlite:///app.db", "--type", "orders.none=STRING"], 1, "table 'orders' has no column 'none'"),
        (["sqlite:///app.db", "--type", "none.who=STRING"], 1, "has no table 'none'; there are: notes, orders"),
        (["sqlite:///app.db", "--option", "types=x"], 1, "the command has --type TABLE.COLUMN=TYPE"),
        (["sqlite:///app.db", "--option", "page=0"], 1, "page is a number of rows, at least 1, not '0'"),
        (["sqlite:///app.db", "--key", "orders=id"], 1, "a source of sqlite has no option 'keys'"),
        ([], 2, "which database?"),
        (["sqlite:///shop.tide"], 1, "there is no SQLite database shop.tide"),
    ],
)
def test_what_cannot_be_is_said(shop, args, code, said):
    assert said in run(*args, "--once", code=code).output


@pytest.mark.parametrize(
    "url", ["sqlite:///none.db", "oracle://x", "debezium:///none", "postgresql://127.0.0.1:1/x", "debezium+topic:t"]
)
@pytest.mark.parametrize("once", [["--once"], []])
def test_no_database_is_made_for_a_source_that_is_not_there(shop, tmp_path, url, once):
    found = CliRunner().invoke(command, ["capture", url, "--into", "new.tide", *once])
    assert found.exit_code == 1 and not (tmp_path / "new.tide").exists(), found.output


def test_types_and_keys_can_be_said(shop, tmp_path):
    """What the errors of sources advise can be given to the command, too."""
    shop.execute("CREATE TABLE sums (id INTEGER PRIMARY KEY, n INTEGER, m INTEGER)")
    shop.execute("INSERT INTO sums VALUES (1, 2, 3)")
    shop.commit()
    run("sqlite:///app.db", "--once", "--tables", "sums", "--type", "SUMS.n=DOUBLE", "--type", "sums.m=STRING")
    value = {"before": None, "after": {"k": 1, "s": 2}, "op": "c", "source": {"table": "events", "db": "d"}}
    (tmp_path / "events.jsonl").write_text(json.dumps({**value, "op": "r"}) + "\n")
    run("debezium:///events.jsonl", "--once", "--key", "events=k", "--type", "events.s=STRING")
    with tidegate.open("shop.tide", settings=DatabaseSettings(pipeline=False)) as db:
        assert db.query("SELECT n / 4 AS q, m FROM sums", "strong").rows() == [{"q": 0.5, "m": "3"}]
        assert db.query("SELECT * FROM events", "strong").rows() == [{"k": 1, "s": "2"}]


def test_a_database_that_records_nothing_is_refused_with_what_to_do(shop):
    sqlite3.connect("plain.db").execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").connection.close()
    assert "tidegate.capture.sqlite.connect" in run("sqlite:///plain.db", "--once", code=1).output


def test_it_follows_until_it_is_told_to_end(shop):
    """Ctrl-C and SIGTERM end it behind a whole transaction, and that is no failure."""
    with tidegate.open("shop.tide", settings=DatabaseSettings(pipeline=False)) as db:
        for number, end in enumerate((signal.SIGINT, signal.SIGTERM), 3):
            process = subprocess.Popen(
                [sys.executable, "-m", "tidegate.cli.main", "capture", "sqlite:///app.db", "--into", "shop.tide"],
                stdout=subprocess.PIPE,
            )
            try:
                shop.execute("INSERT INTO orders VALUES (?, 'cy')", (number,))
                shop.commit()

                def has_come(number=number):
                    found = db.find_table("orders")
                    return (
                        found is not None and db.query("SELECT * FROM orders", "strong").to_arrow().num_rows == number
                    )

                eventually(has_come, 60)
                process.send_signal(end)
                out, _ = process.communicate(timeout=60)
            finally:
                process.kill()
                process.wait()
            assert process.returncode == 0
            assert b"stopped" in out.splitlines()[-1]
