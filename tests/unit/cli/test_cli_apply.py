"""`tidegate apply`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tidegate
from database_rig import quick
from tidegate.cli.main import tidegate as command
from tidegate.database.database import Database


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with tidegate.open(tmp_path / "shop.tide", settings=quick(pipeline=False)) as found:
        found.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, who STRING)")
        found.insert("orders", [(1, "ann"), (2, "bo")])
        yield found


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


def run(db: Database, target: Path, *options: str) -> Result:
    arguments = ["apply", "orders", "--from", str(db.path), "--to", f"sqlite:///{target}", *options]
    return CliRunner().invoke(command, arguments)


def rows(target: Path) -> list[tuple[int, str]]:
    connection = sqlite3.connect(target)
    try:
        return connection.execute("SELECT * FROM orders ORDER BY id").fetchall()
    finally:
        connection.close()


def test_once_applies_what_is_there_and_says_how_much(db: Database, target: Path) -> None:
    result = run(db, target, "--once")
    assert result.exit_code == 0, result.output
    assert "2 rows copied at the start" in result.stdout
    assert rows(target) == [(1, "ann"), (2, "bo")]
    db.upsert("orders", [(1, "zoe")])
    assert "1 transactions with 1 rows" in run(db, target, "--once").stdout
    assert rows(target) == [(1, "zoe"), (2, "bo")]


def test_programs_get_json(db: Database, target: Path) -> None:
    result = run(db, target, "--once", "--json")
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert (found["copied"], found["conflicts"], found["error"]) == (2, 0, None)


def conflicting(db: Database, target: Path) -> None:
    run(db, target, "--once")
    connection = sqlite3.connect(target)
    with connection:
        connection.execute("UPDATE orders SET who = 'theirs' WHERE id = 2")
    connection.close()
    db.upsert("orders", [(2, "ours")])


@pytest.mark.parametrize("options", [("--once",), ()])
def test_a_conflict_has_an_exit_code_of_its_own(db: Database, target: Path, options: tuple[str, ...]) -> None:
    """Also while it follows: it does not go away by itself."""
    conflicting(db, target)
    result = run(db, target, *options)
    assert result.exit_code == 5
    assert "table 'orders', id = 2" in result.stderr and "theirs" in result.stderr
    assert "trying again" not in result.stderr
    assert rows(target) == [(1, "ann"), (2, "theirs")]


def test_a_conflict_is_data_for_programs(db: Database, target: Path) -> None:
    conflicting(db, target)
    result = run(db, target, "--once", "--json")
    assert result.exit_code == 5
    first = json.loads(result.stdout.splitlines()[0])
    assert first["conflict"]["key"] == {"id": 2}
    assert first["conflict"]["there"] == {"id": 2, "who": "theirs"}
    assert first["conflict"]["coming"] == {"id": 2, "who": "ours"}


def test_what_was_skipped_is_listed(db: Database, target: Path) -> None:
    conflicting(db, target)
    result = run(db, target, "--once", "--policy", "skip")
    assert result.exit_code == 0
    assert "1 conflicts skipped" in result.stdout and "skipped: table 'orders', id = 2" in result.stdout
    assert rows(target) == [(1, "ann"), (2, "theirs")]
    assert run(db, target, "--once", "--restart").exit_code == 0
    assert rows(target) == [(1, "ann"), (2, "ours")]


def test_what_cannot_be_is_said_in_a_line(db: Database, target: Path, tmp_path: Path) -> None:
    def says(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(command, ["apply", *arguments])
        return result.exit_code, result.stderr

    here = ("--from", str(db.path))
    code, text = says("nothing", *here, "--to", f"sqlite:///{target}", "--once")
    assert code == 1 and "nothing" in text
    code, text = says("orders", *here, "--to", "oracle://x", "--once")
    assert code == 1 and "sqlite:///app.db" in text
    code, text = says("orders", *here, "--to", f"sqlite:///{tmp_path}/missing/x.db", "--once")
    assert code == 1 and "missing" in text
    code, text = says("orders", "--from", str(tmp_path / "none.tide"), "--to", f"sqlite:///{target}")
    assert code == 1 and "none.tide" in text
    assert says("orders", *here)[0] == 2
    code, text = says("orders", *here, "--to", f"sqlite:///{target}", "--start", "yesterday")
    assert code == 2 and "yesterday" in text
    assert says(*here, "--to", f"sqlite:///{target}")[0] == 2


def test_help_has_examples() -> None:
    text = CliRunner().invoke(command, ["apply", "--help"]).stdout
    assert "tidegate apply orders items --from shop.tide --to sqlite:///copy.db --once" in text
    assert "apply" in CliRunner().invoke(command, ["--help"]).stdout
