"""`tidegate sql` for programs: -c, -f, pipes, JSON and CSV, errors with their place, exit codes (issue 5)."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tidegate
from tidegate import Database
from tidegate.cli.main import tidegate as command
from tidegate.cli.shell.history import history_path, prepare_history


def run(*args: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, ["sql", *(str(arg) for arg in args)], input=stdin)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with tidegate.open(tmp_path / "shop.tide") as found:
        found.sql("CREATE TABLE t (id INT PRIMARY KEY, name STRING)")
        yield found


def names(db: Database) -> list[str]:
    return [each["name"] for each in db.query("SELECT name FROM t ORDER BY id", "strong").rows()]


def test_commands_are_run_one_after_the_other_in_one_session(db: Database) -> None:
    result = run(db.path, "-c", "BEGIN; INSERT INTO t VALUES (1, 'a')", "--command", "COMMIT")
    assert result.exit_code == 0, result.output
    assert result.stdout == "transaction open\n1 row\ncommitted\n" and names(db) == ["a"]


def test_the_first_error_ends_it_with_its_file_and_line(db: Database, tmp_path: Path) -> None:
    script = tmp_path / "load.sql"
    script.write_text(
        "INSERT INTO t VALUES (1, 'a');\n\n-- then\nINSERT INTO u VALUES (1);\nINSERT INTO t VALUES (2, 'b');\n"
    )
    result = run(db.path, "-f", script)
    assert result.exit_code == 1 and result.stdout == "1 row\n"
    assert result.stderr.startswith(f"tidegate: {script}:4: there is no table 'u'") and names(db) == ["a"]


def test_an_error_in_a_pipe_has_its_line_too(db: Database) -> None:
    result = run(db.path, stdin="SELECT 1;\n\nSELECT nme FROM t;\n")
    assert result.exit_code == 1 and "<stdin>:3: " in result.stderr


def test_a_quote_that_is_not_closed_is_told_with_its_line(db: Database) -> None:
    result = run(db.path, stdin="INSERT INTO t VALUES (1, 'a');\nINSERT INTO t VALUES (2, 'b);\n\n")
    assert result.exit_code == 1 and "a quote ' opened in line 2 is not closed" in result.stderr
    assert names(db) == ["a"]


def test_an_error_inside_a_transaction_rolls_it_back(db: Database) -> None:
    result = run(db.path, "-c", "BEGIN; INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES ('x', 1); COMMIT")
    assert result.exit_code == 1 and "was rolled back" in result.stderr
    assert names(db) == [] and db.transactions(finished=0) == []


def test_a_script_that_forgets_its_commit_fails(db: Database) -> None:
    result = run(db.path, stdin="BEGIN;\nINSERT INTO t VALUES (1, 'a');\n")
    assert result.exit_code == 1 and "without COMMIT" in result.stderr and names(db) == []


def test_q_ends_a_script(db: Database) -> None:
    assert run(db.path, stdin="SELECT 1 AS n;\n\\q\nDROP TABLE t;\n").exit_code == 0
    assert names(db) == []


def test_json_is_a_document_for_each_statement(db: Database) -> None:
    text = "INSERT INTO t VALUES (1, NULL), (2, 'NULL');\nSELECT * FROM t ORDER BY id;\nSET timeout = 5;\nDROP TABLE t"
    result = run(db.path, "--json", stdin=text)
    assert result.exit_code == 0, result.output
    wrote, read, dropped = map(json.loads, result.stdout.splitlines())
    assert (wrote["statement"], wrote["line"], wrote["written"]) == ("INSERT", 1, 2)
    assert read["rows"] == [{"id": 1, "name": None}, {"id": 2, "name": "NULL"}] and read["columns"] == ["id", "name"]
    assert tidegate.Timestamp.parse(read["timestamp_text"]) == read["timestamp"]
    assert (dropped["statement"], dropped["line"]) == ("DROP TABLE", 4) and "rows" not in dropped


def test_csv_tells_null_from_nothing_and_quotes_what_needs_it(db: Database) -> None:
    db.sql("""INSERT INTO t VALUES (1, NULL), (2, ''), (3, 'a "b", c'), (4, 'x\ny'), (5, ' z')""")
    result = run(db.path, "--csv", "SELECT * FROM t ORDER BY id; SELECT CAST(1.5 AS DECIMAL(4, 2)) AS d")
    assert result.stdout == 'id,name\n1,\n2,""\n3,"a ""b"", c"\n4,"x\ny"\n5," z"\n\nd\n1.50\n'


def test_consistency_may_be_given(db: Database) -> None:
    db.sql("INSERT INTO t VALUES (1, 'a')")
    before = db.query("SELECT 1 FROM t", "strong").timestamp
    db.sql("DELETE FROM t")
    assert json.loads(run(db.path, "--json", "--consistency", str(before), "SELECT * FROM t").stdout)["count"] == 1
    assert json.loads(run(db.path, "--json", "--consistency", "strong", "SELECT * FROM t").stdout)["count"] == 0


def test_an_answer_is_given_in_full_where_nobody_looks(db: Database) -> None:
    rows = ", ".join(f"({n}, '{'x' * 300}')" for n in range(500))
    db.sql(f"INSERT INTO t VALUES {rows}")
    lines = run(db.path, "SELECT * FROM t").stdout.splitlines()
    assert len(lines) == 502 and lines[-1].endswith("x" * 300)


@pytest.mark.parametrize(
    "args",
    [
        ["SELECT 1", "-c", "SELECT 2"],
        ["-c", "SELECT 1", "-f", "x.sql"],
        ["SELECT 1", "--json", "--csv"],
        ["SELECT 1", "--consistency", "sometimes"],
        ["-c", ";"],
    ],
)
def test_a_wrong_command_line_is_wrong_usage(db: Database, args: list[str]) -> None:
    assert run(db.path, *args).exit_code == 2


@pytest.mark.parametrize(
    ("args", "says"),
    [(["-f", "none.sql"], "none.sql: No such file"), (["\\foo"], "no command \\foo"), (["SELECT 'a"], "a quote '")],
)
def test_what_is_wrong_is_told(db: Database, args: list[str], says: str) -> None:
    result = run(db.path, *args)
    assert result.exit_code == 1 and says in result.stderr


def test_a_directory_that_is_no_database_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    result = run(tmp_path, "SELECT 1")
    assert result.exit_code == 1 and "is not a database" in result.stderr and list(tmp_path.iterdir()) == []


class TestHistory:
    def test_it_is_the_users_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        path = history_path()
        prepare_history(path)
        assert path.is_relative_to(tmp_path) and stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        prepare_history(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_a_long_one_loses_its_oldest_entries(self, tmp_path: Path) -> None:
        path = tmp_path / "history"
        entries = [f"\n# 2026-01-01 00:00:00\n+SELECT {n}; -- {'x' * 1000}\n" for n in range(1_500)]
        path.write_text("".join(entries))
        prepare_history(path)
        kept = path.read_text()
        assert path.stat().st_size < 600_000 and kept.endswith(entries[-1]) and kept.startswith("\n# 2026")
