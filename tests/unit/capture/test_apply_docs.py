"""The first example of the page on applying runs as it stands."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "apply.md"


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    expected = re.findall(r"It prints:\n\n```\n(.*?)```", text, re.DOTALL)[0]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    with sqlite3.connect(tmp_path / "copy.db") as copy:
        assert copy.execute("SELECT * FROM orders ORDER BY id").fetchall() == [(1, "ann"), (2, "bo")]
