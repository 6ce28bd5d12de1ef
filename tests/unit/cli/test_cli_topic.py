"""`tidegate topic`: messages in and out of a topic, as people and scripts meet them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tidegate
from tidegate import Database
from tidegate.cli.main import tidegate as command

COMMAND = [sys.executable, "-m", "tidegate.cli.main"]


def run(*args: str | Path, stdin: str | None = None, columns: int = 80) -> Result:
    return CliRunner().invoke(command, [str(arg) for arg in args], input=stdin, env={"COLUMNS": str(columns)})


def rows_of(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def values_of(result: Result) -> list[Any]:
    return [row["value"] for row in rows_of(result)]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with tidegate.open(tmp_path / "shop.tide") as found:
        found.sql("CREATE TOPIC audit SHARDS 4")
        yield found


class TestSend:
    @pytest.mark.parametrize(
        ("text", "value"), [('{"id": 7}', {"id": 7}), ("7", 7), ("null", None), ("hello", "hello"), ('"x"', "x")]
    )
    def test_a_value_that_is_json_is_sent_as_what_it_says(self, db: Database, text: str, value: Any) -> None:
        consumer = db.subscribe("audit", "all")
        assert run("topic", "send", db.path, "audit", text, "--key", "ann", "--header", "a=b=c").exit_code == 0
        message = consumer.receive(10.0)
        assert message is not None
        assert (message.value, message.key, message.headers) == (value, "ann", {"a": "b=c"})

    def test_text_is_sent_as_it_is_on_request(self, db: Database) -> None:
        run("topic", "send", db.path, "audit", "7", "--text")
        assert values_of(run("topic", "read", db.path, "audit", "--json")) == ["7"]

    def test_every_line_of_stdin_is_a_message(self, db: Database) -> None:
        (row,) = rows_of(run("topic", "send", db.path, "audit", "--json", stdin="1\n2\n\n3"))
        assert row["messages"] == 3
        rows = rows_of(run("topic", "read", db.path, "audit", "--json"))
        assert [each["value"] for each in rows] == [1, 2, 3]
        assert rows[-1]["timestamp"] == row["timestamp"] and len({each["timestamp"] for each in rows}) == 3

    def test_all_lines_of_stdin_are_one_transaction_on_request(self, db: Database) -> None:
        """Promise 2: visible at one Timestamp, over all channels."""
        (row,) = rows_of(run("topic", "send", db.path, "audit", "--atomic", "--json", stdin="1\n2\n3\n4\n5\n"))
        rows = rows_of(run("topic", "read", db.path, "audit", "--json"))
        assert sorted(each["value"] for each in rows) == [1, 2, 3, 4, 5]
        assert {each["timestamp"] for each in rows} == {row["timestamp"]}
        assert len({each["transaction"] for each in rows}) == 1 and len({each["shard"] for each in rows}) == 4

    def test_an_unknown_topic_is_an_error_also_without_a_message(self, db: Database) -> None:
        for stdin in ("1\n", ""):
            result = run("topic", "send", db.path, "nothing", stdin=stdin)
            assert result.exit_code == 1 and "'nothing'" in result.stderr

    def test_a_header_without_a_text_is_wrong_usage(self, db: Database) -> None:
        assert run("topic", "send", db.path, "audit", "1", "--header", "a").exit_code == 2


class TestRead:
    def test_messages_come_in_time_order_over_all_shards(self, db: Database) -> None:
        for number in range(40):
            db.send("audit", number, key=str(number))
        assert values_of(run("topic", "read", db.path, "audit", "--json")) == list(range(40))

    def test_a_transaction_is_shown_when_it_is_committed_and_not_before(self, db: Database) -> None:
        txn = db.transaction()
        txn.send("audit", "mine")
        db.send("audit", "other")
        assert values_of(run("topic", "read", db.path, "audit", "--json")) == ["other"]
        txn.commit()
        rows = rows_of(run("topic", "read", db.path, "audit", "--json"))
        assert [(row["value"], row["transaction"]) for row in rows] == [("other", None), ("mine", str(txn.id))]

    def test_looking_acknowledges_nothing(self, db: Database) -> None:
        consumer = db.subscribe("audit", "billing")
        db.send("audit", 1)
        run("topic", "read", db.path, "audit")
        run("topic", "read", db.path, "audit")
        assert consumer.stats()["backlog"] == 1
        assert [each["name"] for each in db.sql("SHOW SUBSCRIPTIONS")] == ["billing"]

    def test_a_subscription_goes_on_where_it_was(self, db: Database) -> None:
        db.subscribe("audit", "billing", kind="shared").close()
        for number in range(5):
            db.send("audit", number, key="same")
        read = ("topic", "read", db.path, "audit", "--subscription", "billing", "--json")
        assert values_of(run(*read, "--limit", "2", "--keep")) == [0, 1]
        assert values_of(run(*read, "--limit", "2")) == [0, 1]
        assert values_of(run(*read)) == [2, 3, 4]
        assert values_of(run(*read)) == []

    def test_a_subscription_is_not_made_by_looking(self, db: Database) -> None:
        result = run("topic", "read", db.path, "audit", "--subscription", "typo")
        assert result.exit_code == 1 and "'typo'" in result.stderr and db.sql("SHOW SUBSCRIPTIONS") == []

    def test_starts_at_a_time_and_ends_after_some(self, db: Database) -> None:
        sent = [db.send("audit", number).timestamp for number in range(6)]
        read = ("topic", "read", db.path, "audit", "--json", "--since", str(int(sent[2])))
        assert values_of(run(*read)) == [2, 3, 4, 5]
        assert values_of(run(*read, "--limit", "2")) == [2, 3]

    def test_what_a_dropped_topic_of_the_same_name_held_is_not_shown(self, db: Database) -> None:
        db.send("audit", "old")
        db.sql("DROP TOPIC audit")
        db.sql("CREATE TOPIC audit SHARDS 4")
        db.send("audit", "new")
        assert values_of(run("topic", "read", db.path, "audit", "--json")) == ["new"]

    def test_a_line_fits_the_terminal_and_holds_no_control_codes(self, db: Database) -> None:
        db.send("audit", "x" * 200)
        db.send("audit", "\x1b[31mred\n")
        db.send("audit", b"\x00\xff")
        text = run("topic", "read", db.path, "audit").stdout
        assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
        assert "\\x1b[31mred\\n" in text and "00ff" in text and len(text.splitlines()) == 4

    @pytest.mark.parametrize("args", [["--keep"], ["--subscription", "s", "--since", "2026-01-01"]])
    def test_what_does_not_go_together_is_wrong_usage(self, db: Database, args: list[str]) -> None:
        assert run("topic", "read", db.path, "audit", *args).exit_code == 2

    def test_following_goes_on_until_interrupted(self, db: Database) -> None:
        process = subprocess.Popen(
            [*COMMAND, "topic", "read", str(db.path), "audit", "--follow", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            for number in range(3):
                db.send("audit", number)
                assert json.loads(process.stdout.readline())["value"] == number
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, err) == (130, "")
