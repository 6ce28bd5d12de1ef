"""`make bench-peers`: every side gets the same rows, and none is left out silently (views issue, "Speed").

The peers are not needed here: DuckDB's side runs, and the others fail as they would on a machine without them.
"""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import eventually
from tidegate.bench import peer_inputs, peer_sides, peers
from tidegate.bench.peer_ours import Ours
from tidegate.bench.peer_sides import SideFailed
from tidegate.bench.report import Report
from tidegate.bench.work import Work


def folded(directory, table):
    """The rows of a table by its number after all files: a plain twin of what the sides do."""
    rows = {}
    for path in peer_inputs.files(directory, table):
        for row in peer_inputs.read(path).to_pylist():
            weight, number = row.pop("w"), row["number"]
            if weight == -1:
                assert rows.pop(number) == row  # What goes is what was there, to the last column.
            else:
                assert number not in rows
                rows[number] = row
    return rows


def sums(groups_and_amounts):
    found = {}
    for group, amount in groups_and_amounts:
        total, count = found.get(group, (0, 0))
        found[group] = (total + amount, count + 1)
    return found


@pytest.fixture
def shop(tmp_path):
    return peer_inputs.joined(tmp_path / "in", 4_000, 200, 500)


def test_duckdb_recomputes_the_sums_that_the_rows_lead_to(tmp_path):
    given = peer_inputs.keyed(tmp_path / "in", 5_000, 50, 500)
    peers.Sides(tmp_path).run("duckdb", "keyed", given, tmp_path / "out")
    expected = sums((row["key"], row["amount"]) for row in folded(given.directory, "events").values())
    assert peer_inputs.read_answer(tmp_path / "out" / "result.csv") == expected


def test_duckdb_recomputes_the_join_that_the_rows_lead_to(tmp_path, shop):
    peers.Sides(tmp_path).run("duckdb", "joined", shop, tmp_path / "out")
    orders, customers = folded(shop.directory, "orders"), folded(shop.directory, "customers")
    expected = sums((customers[row["customer"]]["region"], row["amount"]) for row in orders.values())
    assert peer_inputs.read_answer(tmp_path / "out" / "result.csv") == expected


def test_a_fifth_of_the_keyed_rows_and_a_tenth_of_the_orders_take_back(tmp_path, shop):
    given = peer_inputs.keyed(tmp_path / "keyed", 50_000, 50, 500)
    weights = [
        w for path in peer_inputs.files(given.directory, "events") for w in peer_inputs.read(path)["w"].to_pylist()
    ]
    assert given.changes == len(weights)
    assert weights.count(-1) / len(weights) == pytest.approx(0.2, abs=0.01)
    weights = [
        w for path in peer_inputs.files(shop.directory, "orders") for w in peer_inputs.read(path)["w"].to_pylist()
    ]
    assert weights.count(-1) / weights.count(1) == pytest.approx(0.1, abs=0.02)


def test_the_bank_adds_up_after_every_transfer_and_only_then(tmp_path):
    """Promise of the workload: a total that differs was torn."""
    given = peer_inputs.bank(tmp_path, 50)
    balances, totals = {}, []
    for rows in peer_inputs.transfers(tmp_path / "bank" / "00000.csv"):
        for _, account, balance in rows:
            balances[account] = balance
            totals.append(sum(balances.values()))
        assert totals[-1] == peer_inputs.TOTAL
    assert len(totals) == peer_inputs.ACCOUNTS + 2 * given.changes
    torn = totals[peer_inputs.ACCOUNTS :: 2]
    assert all(total != peer_inputs.TOTAL for total in torn)


def measured(tmp_path, monkeypatch, found, sides):
    """The report of the join, with a side of ours that found `found` in one second."""
    given = peer_inputs.joined(tmp_path / "in", 4_000, 200, 500)
    out = io.StringIO()
    work = Work(tmp_path, True)
    peers._workload("joined", Report(as_json=True, out=out), work, sides, given, lambda *_: Ours(1.0, found, 1, 0.5))
    return {each["name"]: each for each in map(json.loads, out.getvalue().splitlines())}


def right_answer(tmp_path):
    given = peer_inputs.joined(tmp_path / "again", 4_000, 200, 500)
    peers.Sides(tmp_path).run("duckdb", "joined", given, tmp_path / "again-out")
    return peer_inputs.read_answer(tmp_path / "again-out" / "result.csv")


def test_a_side_that_cannot_be_installed_is_reported_and_misses_its_goal(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "environment", lambda name, parent: (_ for _ in ()).throw(SideFailed(f"no {name} here")))
    found = measured(tmp_path, monkeypatch, right_answer(tmp_path), peers.Sides(tmp_path))
    for name in ("peers.joined.pathway.steps", "peers.joined.flink.batched"):
        assert "NOT MEASURED: no " in found[name]["against"]
        assert not found[name]["met"]
    assert found["peers.joined.duckdb"]["ratio"] > 0


def test_a_result_of_ours_that_differs_ends_the_run(tmp_path, monkeypatch):
    wrong = {**right_answer(tmp_path), 7: (1, 1)}
    with pytest.raises(Exception, match="1 of 50 groups, such as 7: \\(1, 1\\) for"):
        measured(tmp_path, monkeypatch, wrong, peers.Sides(tmp_path, names=()))


def test_a_side_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_sides, "SCRIPTS", tmp_path)
    (tmp_path / "slow_side.py").write_text("import time; time.sleep(60)")
    with pytest.raises(SideFailed, match=r"slow \(keyed\) was ended after 1 s"):
        peer_sides.run_side("slow", sys.executable, ["keyed"], tmp_path / "out", timeout_s=1.0)


def test_a_side_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_sides, "SCRIPTS", tmp_path)
    (tmp_path / "bad_side.py").write_text("raise SystemExit('no licence')")
    with pytest.raises(SideFailed, match="ended with 1: no licence"):
        peer_sides.run_side("bad", sys.executable, ["keyed"], tmp_path / "out")


def test_when_the_run_is_ended_the_side_that_runs_ends_with_it(tmp_path):
    """By its process id: nothing that a benchmark starts outlives it."""
    (tmp_path / "duckdb_side.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'new')!r}).write_text(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pid')!r})\n"
        "time.sleep(60)"
    )
    run = (
        "import pathlib, sys\n"
        "from tidegate.bench import peer_sides, peers\n"
        f"peer_sides.SCRIPTS = pathlib.Path({str(tmp_path)!r})\n"
        f"sys.argv = ['peers', '--quick', '--only', 'keyed', '--environments', {str(tmp_path / 'none')!r}]\n"
        "peers.main()"
    )
    process = subprocess.Popen([sys.executable, "-c", run], stderr=subprocess.DEVNULL)
    try:
        side = int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60, "a side"))
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        eventually(lambda: not Path(f"/proc/{side}").exists(), 10, "the end of the side")
    finally:
        process.kill()
        process.wait()
