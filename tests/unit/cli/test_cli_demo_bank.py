"""`tidegate demo`, the bank: it ends, it is right, it leaves nothing behind, and it would notice if it were not right.

A thread takes the place of Spark; the writer is the real one, in a process of its own.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from time import monotonic

import pytest
from click.testing import CliRunner
from rich.console import Console

from folding import folding
from tidegate.cli import demo_bank, demo_bank_view, demo_tables
from tidegate.cli.demo_bank import Bank
from tidegate.cli.demo_bank_ledger import ACCOUNTS, EACH, TOTAL, Ledger, Read, Transfer, wrong_sum
from tidegate.cli.demo_bank_reader import LEVELS, Answer, Reader
from tidegate.cli.demo_bank_writer import CUSTOMERS, Teller
from tidegate.cli.main import tidegate
from tidegate.database import engine as engine_module

WITHOUT_SPARK = [
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); from folding import folding;"
    "from tidegate.cli import demo_tables; demo_tables.what_is_missing = lambda _: None;"
    "from tidegate.database import engine; engine.spark_worker = folding();"
    "from tidegate.cli.main import main; main()",
]
GOOD = f"The sum was {TOTAL:,} at every cut, and no transfer was lost or made twice."
BALANCES = dict.fromkeys(range(ACCOUNTS), EACH)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread folds in place of Spark."""
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    monkeypatch.setattr(demo_tables, "what_is_missing", lambda _: None)
    monkeypatch.setattr(demo_bank, "_BARRIER_MS", 100)


# -- what it checks ----------------------------------------------------------------------------------------------------


def test_a_sum_of_a_part_of_a_transfer_is_wrong() -> None:
    """Promise 2."""
    assert wrong_sum(Read(7, TOTAL, ACCOUNTS)) is None
    assert "999,995 at 7" in (wrong_sum(Read(7, TOTAL - 5, ACCOUNTS)) or "")
    assert "999 accounts" in (wrong_sum(Read(7, TOTAL, ACCOUNTS - 1)) or "")


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (Answer(Read(20, TOTAL - 1, ACCOUNTS), floor=0), "999,999 at 20"),
        (Answer(Read(20, TOTAL, ACCOUNTS), floor=21), "older than 21, which it must have reached"),
        (Answer(Read(9, TOTAL, ACCOUNTS), floor=0), "older than the one before, 10"),
        (Answer(Read(20, TOTAL, ACCOUNTS), floor=0, found=0), "is there 0 times"),
        (Answer(Read(20, TOTAL, ACCOUNTS), floor=0, found=2), "is there 2 times"),
        (Answer(Read(20, TOTAL, ACCOUNTS), floor=20, found=1), None),
    ],
)
def test_an_answer_is_right_if_it_is_whole_fresh_enough_and_not_before_the_last(
    answer: Answer, wrong: str | None
) -> None:
    """Promises 2 and 6: whole, as fresh as asked for, never back, and with what the session has written."""
    reader = Reader("session")
    reader.take(Answer(Read(10, TOTAL, ACCOUNTS), floor=10, found=1))
    assert reader.wrong is None
    reader.take(answer)
    assert reader.wrong is None if wrong is None else wrong in (reader.wrong or "")


def test_the_ledger_knows_what_was_acknowledged_and_what_was_under_way() -> None:
    ledger = Ledger()
    for line in ("try a a2 a3", "ack a 100", "busy a2", "token T a", "read 90 1000000 1000"):
        ledger.hear(line)
    assert (ledger.acknowledged, ledger.conflicts, ledger.newest) == ({"a": 100}, 1, 100)
    assert ledger.token == ("T", "a") and ledger.last_read == Read(90, TOTAL, ACCOUNTS) and ledger.reads == 1
    assert ledger.lose() == ["a3"] and ledger.lose() == [], "of a3 nobody will say what became of it"
    ledger.hear("Traceback (most recent call last):")
    assert list(ledger.words) == ["Traceback (most recent call last):"] and ledger.errors == []


def test_what_is_acknowledged_twice_is_an_error() -> None:
    """Promise 7."""
    ledger = Ledger()
    ledger.hear("ack a 100")
    ledger.hear("ack a 101")
    assert ledger.errors == ["transfer a was acknowledged twice, at 100 and 101"]


@pytest.mark.parametrize(
    ("transfers", "balances", "wrong"),
    [
        ([("a", 1, 2, 5)], {1: 995, 2: 1005}, []),
        ([("a", 1, 2, 5), ("lost", 3, 4, 1)], {1: 995, 2: 1005, 3: 999, 4: 1001}, []),
        ([], {}, ["1 acknowledged transfers are missing: a"]),
        ([("a", 1, 2, 5)] * 2, {1: 990, 2: 1010}, ["1 transfers are there more than once: a"]),
        ([("a", 1, 2, 0), ("x", 1, 2, 0)], {}, ["1 transfers are there that nobody made: x"]),
        ([("a", 1, 2, 5)], {1: 995}, ["1 balances are not what the transfers make of them: 2"]),
    ],
)
def test_the_audit_finds_what_is_missing_double_or_unknown(
    transfers: list[tuple[str, int, int, int]], balances: dict[int, int], wrong: list[str]
) -> None:
    """Promise 7: each acknowledged transfer once; of the others only what was under way when the writer died."""
    ledger = Ledger()
    ledger.hear("ack a 100")
    assert ledger.audit({**BALANCES, **balances}, [Transfer(*each) for each in transfers], ["lost"]) == wrong


def test_a_teller_serves_no_account_twice_at_a_time_and_first_whoever_met_a_conflict() -> None:
    teller = Teller("a0", 2 * CUSTOMERS, random.Random(1))
    first = teller.next_orders()
    teller.again = first[2:4]
    second = teller.next_orders()
    assert second[:2] == first[2:4]
    for orders in (first, second):
        assert len({each for order in orders for each in (order.sender, order.receiver)}) == 2 * CUSTOMERS
    assert len({order.id for order in (*first, *second)}) == 2 * CUSTOMERS - 2


# -- the picture -------------------------------------------------------------------------------------------------------


def _bank(path: Path) -> Bank:
    """As it might be in the middle, with large numbers."""
    bank = Bank(path, 60.0)
    bank.began = bank.started = monotonic() - 40.0
    bank.phase = "running"
    bank.samples.extend((bank.started + n / 2, n * n * 10) for n in range(80))
    bank.lives.extend([4_194_303, 4_194_304])
    bank.ledger.conflicts, bank.ledger.reads = 99_999, 999_999
    bank.ledger.last_read = Read(470498990590525482, TOTAL, ACCOUNTS)
    for reader in bank.readers:
        reader.take(Answer(Read(470498990590525482, TOTAL, ACCOUNTS), floor=0))
        reader.answers, reader.age_ms, reader.took_s = 999_999, 99_900, 12.34
    bank.cuts.update(range(99_999))
    bank.ticks.extend([True] * 200)
    bank.lost.extend(["a1"] * 32)
    bank.survived, bank.killed_at, bank.back_s = 12, monotonic() - 10.0, 12.3
    bank._tell("SIGKILL for the writer, process 4194303, with 32 transfers under way")
    bank._tell("another writer is started, process 4194304; reads go on")
    bank._tell(f"it commits 12.3 s later; of the 32: {bank.fate}")
    lags = ("append_to_tick_ms", "tick_to_barrier_ms", "barrier_to_report_ms", "report_to_checkpoint_ms")
    bank.status = {
        "checkpoint": 9_999, "lag_ms": 99_900, "worker": 4_194_304, "last_batch_s": 12.3, "uncommitted_epochs": 999,
        "lag": dict.fromkeys(lags, 59_999),
    }  # fmt: skip
    bank.visible_s.append(12.3)
    return bank


def _text(bank: Bank, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(demo_bank_view.frame(bank))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_picture_of_the_bank_fits_the_terminal(tmp_path: Path, width: int) -> None:
    text = _text(_bank(tmp_path), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and len(lines) <= 23, "80 columns and 24 lines, one of them for the cursor"
    assert "…" not in text and "█" in text and "✓✓✓" in text
    for part in ("checkpoint 9,999, 99.9 s old", "12 whole, 20 without a trace", "99,999 cuts, all 1,000,000", "+"):
        assert part in text


@pytest.mark.parametrize("missing", [None, "it needs Spark, and the package pyspark is not installed; run `pip ...`"])
def test_there_is_a_picture_before_anything_is_there(tmp_path: Path, missing: str | None) -> None:
    bank = Bank(tmp_path, 60.0)
    assert "opening" in _text(bank, 80) and "opening" in demo_bank_view.line(bank)
    bank.without_spark, bank.started, bank.phase = missing, monotonic(), "running"
    assert ("Spark starts" if missing is None else "no checkpoints") in _text(bank, 80)
    assert ("Spark starts" if missing is None else "no checkpoints") in demo_bank_view.line(bank)


def test_a_wrong_sum_is_seen_in_the_picture_and_in_the_line(tmp_path: Path) -> None:
    bank = _bank(tmp_path)
    bank._count(Read(1_000_001, TOTAL - 1, ACCOUNTS))
    assert "✗" in _text(bank, 80) and "NOT all right" in _text(bank, 80)
    assert "NOT all right" in demo_bank_view.line(bank)
    bank.phase, bank.audited["strong"] = "done", None  # type: ignore[assignment]
    assert not bank.is_right


def test_the_sparkline_ends_with_the_newest_half_second(tmp_path: Path) -> None:
    bank = Bank(tmp_path, 60.0)
    bank.samples.extend((0.0, count) for count in (0, 8, 8, 9))
    assert demo_bank_view.sparkline(bank, 6) == "   █ ▁"[-6:].rjust(6)


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
def test_a_killed_writer_loses_no_money_and_every_sum_is_the_same(tmp_path: Path) -> None:
    """Promises 2, 6 and 7. A directory that was used before is used again."""
    path = tmp_path / "bank.tide"
    for more in (["--seconds", "3"], ["--seconds", "0.5", "--no-kill"]):
        result = CliRunner().invoke(tidegate, ["demo", "--json", "--dir", str(path), *more])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert found["good"] and found["errors"] == [] and found["sum"] == TOTAL
        assert found["transfers"] > 0 and found["checkpoints"] > 0
        assert found["acknowledged_once"].keys() == {"strong", "eventual"} and not found["interrupted"]
        if "--no-kill" in more:
            assert found["kill"] is None
            continue
        assert all(found["reads"][level] for level in (*LEVELS, "writer")) and found["cuts"] > 10
        assert found["kill"]["there_whole"] <= found["kill"]["under_way"] and found["kill"]["committed_again_after_s"]
        assert not _is_alive(found["kill"]["process"])


@pytest.mark.slow
def test_without_spark_it_goes_on_without_checkpoints_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_tables, "find_spec", lambda _: None)
    result = CliRunner().invoke(tidegate, ["demo", "--plain", "--no-kill", "--seconds", "1"])
    assert result.exit_code == 0, result.output
    assert "pip install 'tidegate[spark]'" in result.stdout.replace("\n", " ") and GOOD in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
def test_money_from_nowhere_stops_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 2: here somebody writes an account without a transfer."""
    run = Bank._run

    def careless(self: Bank) -> None:
        assert self.db is not None
        self.db.upsert("accounts", {"id": 1, "owner": "thief", "balance": EACH + 1})
        run(self)

    monkeypatch.setattr(Bank, "_run", careless)
    began = monotonic()
    result = CliRunner().invoke(tidegate, ["demo", "--plain", "--no-kill", "--seconds", "300"])
    assert result.exit_code == 1 and monotonic() - began < 100
    assert "1,000,001" in result.stdout and "The bank does NOT add up" in result.stdout and GOOD not in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
def test_an_acknowledged_transfer_that_is_missing_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 7: every sum is right, and yet something that was acknowledged is not there."""
    settle = Bank._settle

    def forgetful(self: Bank, *arguments: object) -> None:
        self.ledger.hear("ack never-made 1")
        settle(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Bank, "_settle", forgetful)
    result = CliRunner().invoke(tidegate, ["demo", "--json", "--no-kill", "--seconds", "0.5"])
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and not found["good"] and found["sum"] == TOTAL
    assert "1 acknowledged transfers are missing: never-made" in found["errors"][0]


@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
def test_a_writer_that_ends_by_itself_is_the_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 8: it says so instead of waiting for ever."""
    start = Bank._start_writer

    def dies(self: Bank) -> None:
        start(self)
        os.kill(self.lives[-1], signal.SIGKILL)

    monkeypatch.setattr(Bank, "_start_writer", dies)
    result = CliRunner().invoke(tidegate, ["demo", "--json", "--seconds", "300"])
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and f"ended with {-signal.SIGKILL}" in found["errors"][0]


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_with_a_summary_and_leaves_nothing(tmp_path: Path, end: signal.Signals) -> None:
    process = _start(tmp_path)
    try:
        assert process.stdout is not None
        while " 0 commits" in (line := process.stdout.readline()) or "opening" in line:
            pass
        assert "commits" in line
        writers = _writers(tmp_path)
        process.send_signal(end)
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, ""), out + err
    assert GOOD in out
    assert writers and not any(map(_is_alive, writers)) and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_demo_that_is_killed_takes_its_writer_along(tmp_path: Path) -> None:
    """The writer must not become the owner of a database that nobody wants any more."""
    process = _start(tmp_path)
    try:
        assert process.stdout is not None
        while " 0 commits" in (line := process.stdout.readline()) or "opening" in line:
            pass
        writers = _writers(tmp_path)
    finally:
        process.kill()
        process.communicate()
    deadline = monotonic() + 30
    while any(map(_is_alive, writers)) and monotonic() < deadline:
        time.sleep(0.05)
    assert writers and not any(map(_is_alive, writers))


def _start(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*WITHOUT_SPARK, "demo", "--plain", "--seconds", "300", "--no-kill"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip


def _writers(tmp_path: Path) -> list[int]:
    """Processes that write to a database below this directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes()
        except OSError:
            continue
        if b"demo_bank_writer" in words and str(tmp_path).encode() in words:
            found.append(int(each.parent.name))
    return found


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
