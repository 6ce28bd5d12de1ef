"""The shell on a real terminal: what is typed, what is seen (issue 5)."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from terminal_rig import SOURCE, Terminal

PROMPT = "shop.tide> "
OPEN = "shop.tide*> "
FAILED = "shop.tide!> "
SLOW = "SELECT count(*) FROM t a, t b, t c, t d WHERE a.id + b.id + c.id + d.id = 7;"

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "shop.tide"
    with tidegate.open(found) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING, note STRING)")
        db.insert("t", [{"id": n, "name": f"name {n}", "note": None if n else "NULL"} for n in range(500)])
        db.sql("CREATE TOPIC audit")
    return found


@pytest.fixture
def shell(path: Path, tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(["sql", path], home=tmp_path / "state") as terminal:
        terminal.wait_prompt(PROMPT)
        yield terminal


def test_an_answer_has_rows_a_count_its_cut_and_its_time_and_ctrl_d_leaves(shell: Terminal) -> None:
    shown = shell.run("SELECT id, name, note FROM t WHERE id IN (0, 10) ORDER BY id;", PROMPT).splitlines()
    assert shown[:4] == ["id  name     note", "───────────────────", " 0  name 0   'NULL'", "10  name 10  NULL"]
    assert re.fullmatch(r"2 rows · at 20\d\d-\S+Z\+\d+ · [\d.]+ m?s", shown[4]), shown[4]
    shell.type("\x04")
    assert shell.wait_end() == 0


def test_a_statement_may_span_lines_and_the_prompt_says_what_is_missing(shell: Terminal) -> None:
    shell.type("SELECT 'a\r")
    shell.wait(lambda _: shell.screen.lines[-1].strip() == "'>")
    shell.type("b' AS x\r")
    shell.wait(lambda _: shell.screen.lines[-1].strip() == "->")
    assert "a\\nb" in shell.run(";", PROMPT)


def test_ctrl_c_drops_the_line_then_the_query_and_never_the_shell(shell: Terminal) -> None:
    shell.type("SELECT half a stat")
    shell.wait("half a stat")
    shell.type("\x03")
    shell.wait_prompt(PROMPT)
    shell.run("SELECT 1;", PROMPT)  # It is open now, and has nothing more to load.
    shell.type(SLOW + "\r")
    shell.wait_busy()
    began = time.monotonic()
    shell.type("\x03")
    shell.wait("cancelled")
    assert time.monotonic() - began < 5.0
    shell.wait_prompt(PROMPT)
    assert "42" in shell.run("SELECT 42 AS n;", PROMPT)
    shell.type("\x04")
    assert shell.wait_end() == 0  # Though the query may still be running.


def test_what_writes_is_left_behind_only_at_the_second_ctrl_c(shell: Terminal, path: Path) -> None:
    """docs/shell.md, Keys: INSERT is waited for, since its outcome matters; a second Ctrl-C leaves it."""
    shell.run("SELECT 1;", PROMPT)
    shell.type(f"INSERT INTO t SELECT 1000 + n, 'late', NULL FROM ({SLOW[:-1].replace('*)', '*) AS n')}) s;\r")
    shell.wait_busy()
    shell.type("\x03")
    shell.wait("it writes, and is waited for; Ctrl-C again leaves it behind")
    shell.wait_busy()  # The first has left nothing.
    assert "left behind\n" not in shell.screen.text
    shell.type("\x03")
    shell.wait("left behind\n")
    shell.wait_prompt(PROMPT)
    assert "42" in shell.run("SELECT 42 AS n;", PROMPT)
    shell.type("\x04")
    assert shell.wait_end() == 0
    with tidegate.open(path) as db:
        assert len(db.query("SELECT * FROM t", "strong")) == 500


def test_a_transaction_whose_statement_was_left_behind_can_only_be_rolled_back(shell: Terminal) -> None:
    """docs/shell.md, Keys and Transactions: `!` in the prompt says so."""
    shell.run("SELECT 1;", PROMPT)
    shell.run("BEGIN;", OPEN)
    shell.type(f"INSERT INTO t SELECT 1000 + n, 'late', NULL FROM ({SLOW[:-1].replace('*)', '*) AS n')}) s;\r")
    shell.wait_busy()
    shell.type("\x03")
    shell.wait("Ctrl-C again leaves it behind")
    shell.type("\x03")
    shell.wait_prompt(FAILED)
    assert "only ROLLBACK can end it" in shell.run("COMMIT;", FAILED).replace("\n", " ")
    shell.run("ROLLBACK;", PROMPT)
    assert "500" in shell.run("SELECT count(*) AS n FROM t;", PROMPT)


def test_a_transaction_shows_in_the_prompt_and_leaving_ends_it(shell: Terminal, path: Path) -> None:
    assert "transaction open" in shell.run("BEGIN;", OPEN)
    assert shell.run("DELETE FROM t WHERE id > 0;", OPEN).startswith("499 rows")
    shown = shell.run("SELECT count(*) AS n FROM nothing;", OPEN)
    assert "there is no table 'nothing'" in shown and "still open" in shown
    shell.type("\x04")
    assert shell.wait_end() == 0 and "was rolled back" in shell.screen.text
    with tidegate.open(path) as db:
        assert len(db.query("SELECT * FROM t", "strong")) == 500


def test_a_long_answer_is_limited_and_says_how_to_see_more(shell: Terminal) -> None:
    assert "500 rows, the first 200 shown (\\set limit all shows all)" in shell.run("SELECT id FROM t;", PROMPT)
    shell.run("\\set limit all", PROMPT)
    shown = shell.run("SELECT id FROM t ORDER BY id;", PROMPT).splitlines()
    assert "  499" in shown[-2].rjust(5) and shown[-1].startswith("500 rows ·")


def test_tab_completes_a_table_a_column_and_a_setting(shell: Terminal) -> None:
    shell.run("SELECT 1;", PROMPT)  # It is open now.
    shell.type("SELECT no\x1b[D\x1b[D")
    shell.type("\x03")
    shell.wait_prompt(PROMPT)
    shell.type("DESCRIBE TOPIC au\t")
    shell.wait("DESCRIBE TOPIC audit")
    shell.type("\x03")
    shell.wait_prompt(PROMPT)
    shell.type("SELECT * FROM t WHERE no\t")
    shell.wait(lambda text: "note" in text and "not" in text)
    shell.type("\x03")
    shell.wait_prompt(PROMPT)
    shell.type("SET eng\t")
    shell.wait("SET engine =")


def test_what_was_typed_is_kept_for_the_next_time_and_for_nobody_else(path: Path, tmp_path: Path) -> None:
    home = tmp_path / "state"
    for _ in range(2):
        with Terminal(["sql", path], home=home) as shell:
            shell.wait_prompt(PROMPT)
            shell.type("\x1b[A")  # Up.
            if _:
                shell.wait("SELECT 'before' AS x;")
                shell.type("\x03")
                shell.wait_prompt(PROMPT)
            else:
                shell.run("SELECT 'before' AS x;", PROMPT)
            shell.type("\x04")
            shell.wait_end()
    found = home / "tidegate" / "sql_history"
    assert stat.S_IMODE(found.stat().st_mode) == 0o600


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_every_line_fits_the_screen(path: Path, tmp_path: Path, columns: int) -> None:
    """A line that is too long would be broken by the terminal, and shift all below it."""
    with Terminal(["sql", path], columns=columns, rows=60, home=tmp_path / "state") as shell:
        shell.wait_prompt(PROMPT)
        wide = ", ".join(f"repeat('{letter}', 30) AS column_{letter}" for letter in "abcd")
        shell.type(f"SELECT id, {wide} FROM t\rWHERE id = 7;\r")
        shell.wait("1 row ·")
        text = shell.screen.text
    if columns == 200:
        assert f" 7  {'a' * 30}  {'b' * 30}" in text
    elif columns == 80:
        assert re.search(r"^ 7  a{16,17}…  b{16,17}…  c{16,17}…  d{15,17}…$", text, re.MULTILINE)
    else:
        assert "─ row 1 ─" in text and f"column_d  {'d' * 30}" in text


def test_a_database_that_another_process_has_open_is_reached_through_it(path: Path, tmp_path: Path) -> None:
    code = (
        f"import tidegate, sys\nwith tidegate.open({str(path)!r}) as db:\n print('open', flush=True)\n sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        assert owner.stdout is not None and owner.stdin is not None
        owner.stdout.readline()
        with Terminal(["sql", path], home=tmp_path / "state") as shell:
            shell.wait_prompt(PROMPT)
            assert f"process {owner.pid}" in shell.run("\\c", PROMPT).replace("\n", "")
            assert "500" in shell.run("SELECT count(*) AS n FROM t;", PROMPT)
            shell.type("\\q\r")
            assert shell.wait_end() == 0
    finally:
        owner.communicate(timeout=30)


def test_words_without_a_backslash_are_understood_too(shell: Terminal) -> None:
    assert "\\timing" in shell.run("help", PROMPT)
    shell.type("quit\r")
    assert shell.wait_end() == 0
