"""The programs in `examples/` run as they stand, say what they promise, and would notice if it were not so."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tidegate.capture.sqlite import connect

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    assert [each.name for each in sorted(EXAMPLES.glob("*.py"))] == ["shop.py"]


@pytest.mark.slow
def test_the_shop_is_captured_and_no_answer_is_torn() -> None:
    """Promises 2 and 7: asked strongly and within a bound, the view has whole orders only, and in the end all."""
    *answers, counts, end = run("examples/shop.py", "--without-spark").splitlines()
    assert [each.split()[0] for each in answers] == ["strong", "bounded"] * 5
    assert re.fullmatch(r"[1-9]\d* transactions were captured, 0 answers were torn", counts)
    assert re.fullmatch(r"([1-9]\d*) receipts here, \1 in SQLite: the same", end)


@pytest.mark.slow
def test_the_example_sees_an_order_without_its_payment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise 2: what an application commits halfway is seen halfway."""
    shop = load("shop")

    def careless(path: str, closing_time: threading.Event) -> None:
        with closing(connect(path, mode="full")) as db:
            with db:
                db.execute("INSERT INTO orders VALUES (1, 'Ann')")
                db.execute("INSERT INTO items VALUES (1, 1, 120)")
            closing_time.wait()

    monkeypatch.setattr(shop, "sell", careless)
    monkeypatch.setattr(shop, "time", SimpleNamespace(sleep=lambda _: time.sleep(0.1)))
    assert not shop.main(str(tmp_path), with_spark=False)
    assert ", 0 answers were torn" not in capsys.readouterr().out
