"""The example of a captured shop, with Spark: what SQLite commits is in the view's checkpoints a moment later."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_captured_shop_is_kept_up_to_date_in_a_view_on_spark() -> None:
    """Promises 2, 4 and 7: the view's stored rows are whole orders, at every checkpoint that is read."""
    done = subprocess.run(
        [sys.executable, "examples/shop.py"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *answers, counts, end = done.stdout.splitlines()
    eventual = [re.fullmatch(r"eventual +at \S+  .*'orders': (\d+).*  stored", each) for each in answers[2::3]]
    assert len(eventual) == 5 and all(eventual)
    seen = [int(each[1]) for each in eventual if each is not None]
    assert seen == sorted(seen) and seen[-1] > seen[0], "and it goes on"
    assert re.fullmatch(r"[1-9]\d* transactions were captured, 0 answers were torn", counts)
    assert end.endswith(": the same")
