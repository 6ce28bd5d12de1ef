"""`tidegate status` and `tidegate sql`: one command tells what goes on, what waits, and on what (promise 8)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tidegate
from helpers import eventually
from tidegate import Database
from tidegate.cli.main import tidegate as command
from tidegate.database.report import Rates


def run(*args: str | Path, columns: int = 80, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, [str(arg) for arg in args], input=stdin, env={"COLUMNS": str(columns)})


def status_of(db: Database) -> dict[str, Any]:
    result = run("status", db.path, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with tidegate.open(tmp_path / "shop.tide") as found:
        found.sql("CREATE TOPIC audit SHARDS 4")
        yield found


class TestStatus:
    def test_names_the_owner_and_the_clients_but_not_itself(self, db: Database) -> None:
        with tidegate.open(db.path, name="till 3") as other:
            txn = other.transaction()
            found = status_of(db)
            txn.abort()
        assert found["owner"]["pid"] == os.getpid() and not found["opened_by_this_command"]
        clients = {each["name"]: each for each in found["clients"]}
        assert sorted(clients) == [f"owner, process {os.getpid()}", "till 3"]
        assert clients["till 3"]["transactions"] == 1 and clients["till 3"]["lease_ms"] == 10_000

    def test_counts_transactions_by_state_and_names_the_oldest_open(self, db: Database) -> None:
        oldest = db.transaction(timeout=50)
        time.sleep(0.1)
        db.transaction()
        with db.transaction() as txn:
            txn.send("audit", 1)
        db.abort(db.transaction().id)
        found = status_of(db)["transactions"]
        assert (found["states"]["open"], found["committed"], found["aborted"]) == (2, 1, 1)
        assert found["oldest_open"]["id"] == str(oldest.id)
        assert found["oldest_open"]["age_ms"] > 0 and found["oldest_open"]["timeout_in_ms"] < 50_000
        assert found["oldest_open"]["client_name"] == f"owner, process {os.getpid()}"

    def test_commits_show_up_as_a_rate(self, db: Database) -> None:
        for number in range(20):
            with db.transaction() as txn:
                txn.send("audit", number)
        found = status_of(db)["transactions"]
        assert found["commits_per_s"] > 0 and found["aborts_per_s"] == 0

    def test_says_what_holds_a_channel_back_and_since_when(self, db: Database) -> None:
        """Promise 8: which channel, which append, since when."""
        writer = db.engine.log.channel("data-2", create=False)
        with writer.reserve("audit/held"):
            time.sleep(1.3)
            found = status_of(db)
            text = run("status", db.path).stdout
        channels = {each["name"]: each for each in found["channels"]}
        assert list(channels) == ["system", "data-0", "data-1", "data-2", "data-3"]
        held = channels["data-2"]["held_by"]
        assert held["places"] == ["audit/held"] and held["transaction"] is None and held["for_ms"] > 1_000
        assert channels["data-2"]["tick_behind_ms"] > 1_000 > channels["data-1"]["tick_behind_ms"]
        assert found["watermark"]["held_by"] == "data-2"
        assert "an append in audit/held" in text and "held by data-2" in text

    def test_says_which_transaction_holds_a_channel_back(self, db: Database) -> None:
        """Design, cross-channel commit: places are held from before the decision until each part is written."""
        writer = db.engine.log.channel("data-2", create=False)
        txn = db.transaction()
        entry = db.engine.transactions._entries[txn.id]
        with writer.reserve("topic/1.audit/1") as place:
            entry.places = {"data-2": place}
            held = {each["name"]: each for each in status_of(db)["channels"]}["data-2"]["held_by"]
        assert held["transaction"] == str(txn.id)

    def test_says_for_which_transaction_the_log_is_kept(self, db: Database) -> None:
        txn = db.transaction()
        for number in range(1_100):
            txn.send("audit", "x" * 1_000, key=str(number))
        found = {each["name"]: each["kept_for"] for each in status_of(db)["channels"]}
        assert {each["transaction"] for name, each in found.items() if name != "system"} == {str(txn.id)}
        assert found["system"] is None
        txn.abort()
        deadline = time.monotonic() + 10.0  # It is kept until a tick has passed the end.
        while any(each["kept_for"] for each in db.status()["channels"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [each["kept_for"] for each in status_of(db)["channels"]] == [None] * 5

    def test_counts_what_a_subscription_has_before_it(self, db: Database) -> None:
        consumer = db.subscribe("audit", "billing", kind="shared")
        for number in range(7):
            db.send("audit", number)
        txn = db.transaction()
        message = consumer.receive(10.0)
        assert message is not None
        txn.ack(message)
        # Counted as of the newest ticks: those of the other shards may still be to come.
        eventually(lambda: status_of(db)["subscriptions"][0]["backlog"] >= 7, 20, "a tick above all of them")
        (found,) = status_of(db)["subscriptions"]
        assert (found["topic"], found["name"], found["backlog"], found["pending"]) == ("audit", "billing", 7, 1)
        assert len(found["consumers"]) == 1 and found["lag_ms"] >= 0
        txn.commit()
        assert status_of(db)["subscriptions"][0]["backlog"] == 6

    def test_a_subscription_that_nobody_uses_is_counted_after_a_restart(self, tmp_path: Path) -> None:
        with tidegate.open(tmp_path / "shop.tide") as db:
            db.sql("CREATE TOPIC audit")
            db.subscribe("audit", "billing").close()
            for number in range(3):
                db.send("audit", number)
        result = run("status", tmp_path / "shop.tide", "--json")
        found = json.loads(result.stdout)
        assert found["opened_by_this_command"] and found["subscriptions"][0]["backlog"] == 3
        assert "this command opened it" in run("status", tmp_path / "shop.tide").stdout

    def test_troubles_are_told(self, db: Database) -> None:
        db.engine.log._trouble("seal data-1", "the disk is on fire")
        assert "TROUBLE  seal data-1: the disk is on fire" in run("status", db.path).stdout

    def test_all_of_it_is_plain_data(self, db: Database) -> None:
        """Every Timestamp is a number, with the same as text beside it: what comes through a socket is no different."""
        db.transaction().read("audit", ["k"])
        found = db.status()
        assert json.loads(json.dumps(found)) == found
        assert found["transactions"]["conflict_window"]["readers"] == 1
        assert all(type(each) in (dict, list, str, int, float, bool, type(None)) for each in _leaves(found))

    def test_the_tables_fit_a_narrow_terminal(self, db: Database) -> None:
        db.sql("CREATE TOPIC a_topic_with_quite_a_long_name_that_needs_room SHARDS 4")
        db.subscribe("a_topic_with_quite_a_long_name_that_needs_room", "and_a_long_subscription")
        result = run("status", db.path, columns=80)
        assert max(map(len, result.stdout.splitlines())) <= 80 and "\x1b" not in result.stdout
        assert "channel" in result.stdout and "data-3" in result.stdout

    def test_many_topics_do_not_flood_the_screen(self, db: Database) -> None:
        for number in range(40):
            db.sql(f"CREATE TOPIC t{number}")
        assert "and 11 more; --json has all of them" in run("status", db.path).stdout
        assert len(status_of(db)["topics"]) == 41


def _leaves(found: Any) -> Iterator[Any]:
    inside = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    if inside:
        for each in inside:
            yield from _leaves(each)
    else:
        yield found


class TestRates:
    def test_a_rate_is_over_the_last_seconds(self) -> None:
        now, totals = [0.0], [0, 0]
        rates = Rates(lambda: (totals[0], totals[1]), lambda: now[0])
        for second in range(1, 21):
            now[0], totals[0] = float(second), totals[0] + 100
            rates.sample()
        assert rates.now()["commits_per_s"] == 100.0
        for second in range(21, 41):
            now[0], totals[1] = float(second), totals[1] + 3
            rates.sample()
        found = rates.now()
        assert (found["commits_per_s"], found["aborts_per_s"]) == (0.0, 3.0)
        assert 5.0 <= found["rates_over_s"] <= 6.0

    def test_samples_are_bounded(self) -> None:
        now = [0.0]
        rates = Rates(lambda: (0, 0), lambda: now[0])
        for _ in range(10_000):
            now[0] += 0.05
            rates.sample()
        assert len(rates._samples) <= 25


class TestSql:
    def test_rows_are_a_table_or_json(self, db: Database) -> None:
        text = run("sql", db.path, "SHOW TOPICS").stdout
        assert "audit" in text and "shards" in text
        (row,) = json.loads(run("sql", db.path, "SHOW TOPICS", "--json").stdout)["rows"]
        assert (row["name"], row["shards"]) == ("audit", 4)

    def test_a_database_is_made_only_on_request(self, tmp_path: Path) -> None:
        path = tmp_path / "new.tide"
        assert run("sql", path, "CREATE TOPIC audit").exit_code == 1 and not path.exists()
        assert run("sql", path, "CREATE TOPIC audit", "--create").exit_code == 0
        assert "audit" in run("sql", path, "SHOW TOPICS").stdout

    def test_statements_come_from_stdin(self, db: Database) -> None:
        text = "CREATE TOPIC one; -- not; here\nCREATE TOPIC\n two;\n\nSHOW TOPICS"
        result = run("sql", db.path, "--json", stdin=text)
        assert result.exit_code == 0, result.output
        last = json.loads(result.stdout.splitlines()[-1])
        assert (last["statement"], last["line"]) == ("SHOW TOPICS", 5)
        assert [each["name"] for each in last["rows"]] == ["audit", "one", "two"]

    def test_the_first_that_fails_ends_it(self, db: Database) -> None:
        result = run("sql", db.path, stdin="CREATE TOPIC one; DROP TOPIC nothing; CREATE TOPIC two;")
        assert result.exit_code == 1 and "'nothing'" in result.stderr
        assert [each["name"] for each in db.sql("SHOW TOPICS")] == ["audit", "one"]

    def test_a_statement_that_is_not_known_says_what_is(self, db: Database) -> None:
        result = run("sql", db.path, "GRANT everything")
        assert result.exit_code == 1 and "GRANT" in result.stderr and "CREATE TABLE" in result.stderr

    @pytest.mark.parametrize("text", ["", "  ", ";"])
    def test_an_empty_statement_is_wrong_usage(self, db: Database, text: str) -> None:
        assert run("sql", db.path, text).exit_code == 2

    def test_transactions_can_be_shown(self, db: Database) -> None:
        txn = db.transaction()
        assert str(txn.id) in run("sql", db.path, "SHOW TRANSACTIONS", columns=160).stdout
        assert "no rows" in run("sql", db.path, "SHOW SUBSCRIPTIONS").stdout
