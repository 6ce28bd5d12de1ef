"""What is loaded before the first answer (issue 5: within 1.5 s).

What takes the time is what is loaded; the clock itself is for benchmarks: `tidegate bench reads --only first_answer`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
from tidegate import DatabaseSettings

SOURCE = Path(tidegate.__file__).parents[1]
NOT_NEEDED = {
    "pandas",
    "polars",
    "prompt_toolkit",
    "py4j",
    "pyarrow.dataset",
    "pygments",
    "pyspark",
    "rich.console",
    "sqlglot.dialects.snowflake",
    "sqlglot.optimizer.optimizer",
    "tidegate.bench",
    "tidegate.cli.demo",
    "tidegate.cli.shell.terminal",
    "tidegate.cli.status",
    "tidegate.sim",
    "tidegate.spark.query",
    "tidegate.spark.session",
    "tidegate.spark.worker",
    "unittest",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with rows that are in no checkpoint yet."""
    found = tmp_path / "shop.tide"
    with tidegate.open(found, settings=DatabaseSettings(pipeline=False)) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING)")
        db.insert("t", [{"id": n, "name": f"name {n}"} for n in range(10)])
    return found


def loaded_by(code: str) -> tuple[str, set[str]]:
    """What a process prints that runs some code, and the modules it has then."""
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('loaded', *sys.modules)"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=True,
    ).stdout
    answer, _, modules = found.rpartition("loaded ")
    return answer, set(modules.split())


@pytest.mark.parametrize("option", ["", "--json", "--csv"])
def test_the_first_answer_waits_for_no_module_it_does_not_need(path: Path, option: str) -> None:
    answer, modules = loaded_by(
        "from tidegate.cli.main import tidegate\n"
        f"args = ['sql', {str(path)!r}, 'SELECT name FROM t WHERE id = 7', *{option.split()!r}]\n"
        "tidegate(args, standalone_mode=False)"
    )
    assert "name 7" in answer
    assert modules & NOT_NEEDED == set()


def test_the_prompt_waits_for_nothing_that_the_database_needs(path: Path) -> None:
    """It is opened once the prompt is there."""
    _, modules = loaded_by("import tidegate.cli.sql, tidegate.cli.shell.terminal")
    assert modules & {"duckdb", "numpy", "pyarrow", "sqlglot", "tidegate.database.database"} == set()


def test_no_worker_is_started_for_a_first_answer(path: Path) -> None:
    """It would take a core for seconds, and is to be ended when the process does."""
    loaded_by(
        "from tidegate.cli.main import tidegate\n"
        f"tidegate(['sql', {str(path)!r}, 'SELECT count(*) FROM t'], standalone_mode=False)"
    )
    assert not (path / "pipeline" / "worker.log").exists()
