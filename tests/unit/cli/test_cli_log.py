"""`tidegate log` as users and programs meet it: on real logs, often in real processes."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tidegate import Log, LogFiles, LogSettings, Timestamp
from tidegate.cli.main import tidegate
from tidegate.cli.output import body_preview, printable, shorten, to_json

DEADLINE_S = 20.0
COMMAND = [sys.executable, "-m", "tidegate.cli.main"]


def run(*args: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(tidegate, [str(arg) for arg in args], input=stdin, env={"COLUMNS": "200"})


def spawn(*args: str | Path) -> subprocess.Popen[str]:
    command = [*COMMAND, *[str(arg) for arg in args]]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines_of(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line, or a failure when none comes in time."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
    assert ready, "the process printed nothing"
    return process.stdout.readline()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


def segment_file(log: Path, channel: str, number: int = 0) -> Path:
    return sorted((log / "log" / channel).glob("*.seg"))[number]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log: `orders` in two terms, the first of them sealed, and `audit` in one."""
    path = tmp_path_factory.mktemp("template") / "small.tide"
    settings = LogSettings(segment_bytes=64 << 10, tick_interval_ms=60_000)
    with Log(path, settings=settings) as log:
        orders = log.channel("orders")
        for number in range(10):
            orders.append(f"orders/{number % 2}", f'{{"id": {number}}}'.encode())
        orders.append("orders/0", b"\x00\xff\x1b[31m")
        rows = pa.RecordBatch.from_pydict({"id": [1, 2], "price": [float("nan"), 1.5], "raw": [b"\x00", None]})
        orders.append_batch("orders/1", rows)
        log.channel("audit").append_batch("audit/0", [b"entry %d" % number for number in range(50)])
    with Log(path, settings=settings) as log:
        log.channel("orders").append("orders/0", b"second term")
        log.seal()
    return path


@pytest.fixture
def small(template: Path, tmp_path: Path) -> Path:
    """A copy of the template, to be damaged at will."""
    return Path(shutil.copytree(template, tmp_path / "small.tide"))


class TestShow:
    def test_lists_every_channel(self, small: Path) -> None:
        result = run("log", "show", small, "--json")
        found = {each["channel"]: each for each in lines_of(result)}
        assert result.exit_code == 0
        assert list(found) == ["audit", "orders"]
        assert (found["orders"]["term"], found["orders"]["segments"], found["orders"]["sealed"]) == (2, 2, 1)
        assert found["audit"]["messages"] == 52, "50 entries, the tick that opened the term and the one that closed it"
        assert found["audit"]["writer"] is None and not found["audit"]["live"]

    def test_prints_a_table_without_control_codes_in_a_pipe(self, small: Path) -> None:
        result = run("log", "show", small)
        assert result.exit_code == 0
        assert "orders" in result.stdout and "last tick" in result.stdout and "writer: none" in result.stdout
        assert "\x1b" not in result.stdout

    def test_names_the_process_that_writes(self, small: Path) -> None:
        with Log(small) as log:
            log.channel("orders").append("orders/0", b"live")
            result = run("log", "show", small, "orders", "--json")
        (found,) = lines_of(result)
        assert found["live"] and found["writer"] == f"process {os.getpid()}"

    def test_agrees_with_the_writer_about_position_and_tick(self, small: Path) -> None:
        with Log(small) as log:
            channel = log.channel("orders")
            done = channel.append("orders/0", b"live")
            before = channel.status()
            (found,) = lines_of(run("log", "show", small, "orders", "--json"))
            after = channel.status()
        assert before.position <= int(str(found["position"])) <= after.position
        assert before.channel.synced <= int(str(found["last_tick"])) <= after.channel.synced
        assert done.position <= int(str(found["position"]))

    def test_says_that_a_log_has_no_channels(self, tmp_path: Path) -> None:
        Log(tmp_path / "empty").close()
        result = run("log", "show", tmp_path / "empty")
        assert result.exit_code == 0 and "no channels yet" in result.stdout

    def test_points_to_verify_when_the_end_is_damaged(self, small: Path) -> None:
        flip(segment_file(small, "audit"), 700)
        result = run("log", "show", small)
        assert f"tidegate log verify {small} audit" in result.stdout.replace("\n", "")
        assert [each["damaged"] for each in lines_of(run("log", "show", small, "--json"))] == [True, False]


class TestSegments:
    def test_has_one_line_a_segment(self, small: Path) -> None:
        first, second = lines_of(run("log", "segments", small, "orders", "--json"))
        assert (first["state"], second["state"]) == ("sealed", "last")
        assert isinstance(first["last_position"], int)
        assert second["first_position"] == first["last_position"] + 1
        assert "sealed" in run("log", "segments", small, "orders").stdout

    def test_calls_the_last_one_open_while_a_process_writes(self, small: Path) -> None:
        with Log(small) as log:
            log.channel("orders")
            states = [each["state"] for each in lines_of(run("log", "segments", small, "orders", "--json"))]
        assert states[-1] == "open"


class TestPrint:
    def test_shows_messages_in_time_tick_order(self, small: Path) -> None:
        found = lines_of(run("log", "print", small, "orders", "--json"))
        ticks = [each["time_tick"] for each in found]
        assert len(found) == 14 and ticks == sorted(ticks)  # type: ignore[type-var]
        assert found[0] == {
            **found[0], "type": "insert", "vchannel": "orders/0", "body": '{"id": 0}', "encoding": "utf-8", "term": 1
        }  # fmt: skip
        assert found[-1]["body"] == "second term"

    def test_marks_bodies_that_are_not_text(self, small: Path) -> None:
        (binary,) = [
            each for each in lines_of(run("log", "print", small, "orders", "--json")) if each["position"] == 12
        ]
        assert binary["encoding"] == "base64" and binary["body"] == "AP8bWzMxbQ=="
        text = run("log", "print", small, "orders").stdout
        assert "00ff1b5b33316d" in text and "\x1b" not in text

    def test_shows_rows_as_json(self, small: Path) -> None:
        rows = [each["row"] for each in lines_of(run("log", "print", small, "orders", "--json")) if "row" in each]
        assert rows == [{"id": 1, "price": "nan", "raw": {"base64": "AA=="}}, {"id": 2, "price": 1.5, "raw": None}]
        assert '"price": 1.5' in run("log", "print", small, "orders").stdout

    def test_starts_at_a_position(self, small: Path) -> None:
        found = lines_of(run("log", "print", small, "orders", "--from", "12", "--json"))
        every = lines_of(run("log", "print", small, "orders", "--json"))
        # A tick may have taken a place of its own in between.
        assert found == [each for each in every if each["position"] >= 12] and found[0]["position"] in (12, 13)

    def test_starts_at_a_time_and_includes_it(self, small: Path) -> None:
        every = lines_of(run("log", "print", small, "orders", "--json"))
        since = str(Timestamp(int(str(every[5]["time_tick"]))))
        assert lines_of(run("log", "print", small, "orders", "--since", since, "--json")) == every[5:]

    def test_starts_at_midnight_utc_of_a_day(self, small: Path) -> None:
        every = lines_of(run("log", "print", small, "orders", "--json"))
        today = Timestamp(int(str(every[0]["time_tick"]))).to_datetime().date()
        for since, found in ((today, every), (today + timedelta(days=2), [])):
            result = run("log", "print", small, "orders", "--since", str(since), "--json")
            assert (result.exit_code, lines_of(result)) == (0, found)

    def test_filters_by_virtual_channel_and_stops_at_the_limit(self, small: Path) -> None:
        found = lines_of(run("log", "print", small, "orders", "--vchannel", "orders/1", "--limit", "3", "--json"))
        assert [each["vchannel"] for each in found] == ["orders/1"] * 3

    def test_shows_ticks_when_asked(self, small: Path) -> None:
        found = lines_of(run("log", "print", small, "orders", "--ticks", "--json"))
        assert found[-1]["type"] == "time_tick"
        assert "everything at or below this has arrived" in run("log", "print", small, "orders", "--ticks").stdout

    def test_works_while_a_process_writes_and_ends(self, small: Path) -> None:
        with Log(small) as log:
            channel = log.channel("orders")
            done = channel.append("orders/0", b"live")
            channel.tick()
            channel.wait_for_tick(done.time_tick - 1, DEADLINE_S)
            found = lines_of(run("log", "print", small, "orders", "--json"))
        assert found[-1]["body"] == "live"

    def test_says_what_a_killed_writer_left_behind_its_last_tick(self, tmp_path: Path) -> None:
        path = tmp_path / "killed.tide"
        program = (
            "import os, sys, tidegate\n"
            "log = tidegate.open_log(sys.argv[1], settings=tidegate.LogSettings(tick_interval_ms=60_000))\n"
            "log.channel('c').append('v', b'acknowledged')\n"
            "os.kill(os.getpid(), 9)\n"
        )
        subprocess.run([sys.executable, "-c", program, path], check=False)
        result = run("log", "print", path, "c")
        assert result.exit_code == 0 and result.stdout == ""
        assert "1 more entries lie behind the last tick" in result.stderr
        with Log(path) as log:
            log.channel("c")
        assert "acknowledged" in run("log", "print", path, "c").stdout

    def test_follows_another_process_until_interrupted(self, tmp_path: Path) -> None:
        path = tmp_path / "followed.tide"
        with Log(path) as log:
            channel = log.channel("orders")
            channel.append("orders/0", b"before")
            process = spawn("log", "print", path, "orders", "--follow", "--json")
            try:
                assert json.loads(read_line(process))["body"] == "before"
                for number in range(3):
                    channel.append("orders/0", b"during %d" % number)
                    assert json.loads(read_line(process))["body"] == f"during {number}"
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=DEADLINE_S)
            finally:
                process.kill()
                process.wait()
        assert (process.returncode, out, err) == (130, "", "")

    def test_is_quiet_when_nobody_reads_on(self, small: Path) -> None:
        command = " ".join([*COMMAND, "log", "print", str(small), "audit"])
        found = subprocess.run(
            ["bash", "-c", f"{command} | head -n 1"], capture_output=True, text=True, timeout=DEADLINE_S, check=True
        )
        assert found.stdout.startswith("time") and found.stderr == ""


class TestVerify:
    def test_finds_nothing_wrong_with_a_good_log(self, small: Path) -> None:
        result = run("log", "verify", small, "--json")
        assert result.exit_code == 0
        assert [(each["channel"], each["problems"], each["damaged"]) for each in lines_of(result)] == [
            ("audit", [], False),
            ("orders", [], False),
        ]

    @pytest.mark.parametrize("number", [0, 1])
    def test_names_segment_and_offset_of_a_flipped_byte(self, small: Path, number: int) -> None:
        damaged = segment_file(small, "orders", number)
        flip(damaged, 650)
        result = run("log", "verify", small, "orders")
        assert result.exit_code == 3
        assert str(damaged) in result.stdout and "at offset" in result.stdout and "repair" in result.stdout
        (found,) = lines_of(run("log", "verify", small, "orders", "--json"))
        assert [each["segment"] for each in found["problems"]] == [str(damaged)]  # type: ignore[attr-defined]

    def test_takes_a_damaged_last_block_for_damage_when_it_had_been_published(self, small: Path) -> None:
        last = segment_file(small, "audit")
        used = int(str(lines_of(run("log", "segments", small, "audit", "--json"))[-1]["bytes"]))
        flip(last, used - 20)
        assert run("log", "verify", small, "audit").exit_code == 3

    def test_works_while_a_process_writes(self, tmp_path: Path) -> None:
        path = tmp_path / "busy.tide"
        with Log(path, settings=LogSettings(segment_bytes=64 << 10)) as log:
            channel = log.channel("orders")
            for _ in range(5):
                pending = [channel.append_async("orders/0", bytes(200)) for _ in range(300)]
                result = run("log", "verify", path, "--json")
                assert result.exit_code == 0, result.output
                for each in pending:
                    each.result()

    def test_ignores_a_segment_that_a_live_writer_is_just_creating(self, tmp_path: Path) -> None:
        path = tmp_path / "busy.tide"
        with Log(path) as log:
            log.channel("orders").append("orders/0", b"one")
            segment_file(path, "orders").with_name("0000000002-000001.seg").write_bytes(bytes(4096))
            assert run("log", "verify", path).exit_code == 0
            assert run("log", "show", path).exit_code == 0

    def test_names_the_channel_that_is_missing(self, small: Path) -> None:
        result = run("log", "verify", small, "nope")
        assert result.exit_code == 1 and "audit, orders" in result.stderr


class TestRepair:
    def test_shows_what_would_be_lost_and_changes_nothing_unless_told(self, small: Path) -> None:
        damaged = segment_file(small, "orders", 1)
        flip(damaged, 650)
        before = damaged.read_bytes()
        result = run("log", "repair", small, "orders", stdin="n\n")
        assert result.exit_code == 1
        assert "lost: positions" in result.stdout and "nothing was changed" in result.stderr
        assert damaged.read_bytes() == before
        assert run("log", "verify", small).exit_code == 3

    def test_keeps_what_can_be_read_and_the_damaged_file(self, small: Path) -> None:
        damaged = segment_file(small, "orders", 1)
        flip(damaged, 650)
        result = run("log", "repair", small, "orders", "--yes", "--json")
        (found,) = lines_of(result)
        assert result.exit_code == 0 and found["damaged"] and Path(str(found["set_aside"])).exists()
        assert run("log", "verify", small).exit_code == 0
        bodies = [each.get("body") for each in lines_of(run("log", "print", small, "orders", "--json"))]
        assert '{"id": 9}' in bodies
        with Log(small) as log:
            log.channel("orders").append("orders/0", b"after the repair")
        assert lines_of(run("log", "print", small, "orders", "--json"))[-1]["body"] == "after the repair"

    def test_has_nothing_to_do_for_a_good_log(self, small: Path) -> None:
        result = run("log", "repair", small, "orders")
        assert result.exit_code == 0 and "nothing is damaged" in result.stdout

    def test_refuses_while_a_writer_has_it_open(self, small: Path) -> None:
        with Log(small):
            result = run("log", "repair", small, "orders", "--yes")
        assert result.exit_code == 1 and f"process {os.getpid()}" in result.stderr


@pytest.fixture
def in_both_ways(tmp_path: Path) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a command in this process and in one of its own; both must agree."""

    def both(*args: str | Path) -> tuple[int, str]:
        here = run(*args)
        process = spawn(*args)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, err) == (here.exit_code, here.stderr)
        return here.exit_code, here.stderr

    yield both


class TestErrors:
    def test_an_unknown_path_is_named_without_a_traceback(self, tmp_path: Path, in_both_ways) -> None:  # type: ignore[no-untyped-def]
        code, err = in_both_ways("log", "show", tmp_path / "nowhere")
        assert code == 1 and str(tmp_path / "nowhere") in err and "open_log" in err and "Traceback" not in err

    def test_an_unknown_channel_is_answered_with_those_there_are(self, small: Path) -> None:
        for command in ("print", "segments", "show", "repair"):
            result = run("log", command, small, "nope")
            assert result.exit_code == 1
            assert "'nope'" in result.stderr and "audit, orders" in result.stderr and "Traceback" not in result.stderr

    def test_a_bad_timestamp_is_answered_with_a_good_one(self, small: Path) -> None:
        result = run("log", "print", small, "orders", "--since", "yesterday")
        assert result.exit_code == 2 and "'yesterday'" in result.stderr and "2026-01-31T12:00:00" in result.stderr

    @pytest.mark.parametrize("since", ["9999-12-31T23:59:59Z", "1969-12-31", "4199-11-25"])
    def test_a_time_outside_the_timeline_is_a_wrong_usage_and_the_timeline_is_named(
        self, small: Path, since: str
    ) -> None:
        result = run("log", "print", small, "orders", "--since", since)
        assert result.exit_code == 2 and "from 1970-01-01 to 4199-11-24" in result.stderr

    @pytest.mark.parametrize("option", ["--from", "--since"])
    def test_a_place_to_start_has_at_most_64_bits(self, small: Path, option: str) -> None:
        assert run("log", "print", small, "orders", option, str((1 << 64) - 1)).exit_code == 0
        result = run("log", "print", small, "orders", option, str(1 << 64))
        assert result.exit_code == 2 and option in result.stderr and result.stdout == ""

    def test_two_places_to_start_are_a_wrong_usage(self, small: Path) -> None:
        assert run("log", "print", small, "orders", "--from", "1", "--since", "1").exit_code == 2
        assert run("log", "print", small, "orders", "--limit", "0").exit_code == 2

    def test_damage_met_while_printing_is_named(self, small: Path) -> None:
        flip(segment_file(small, "orders"), 650)
        result = run("log", "print", small, "orders")
        assert result.exit_code == 1 and "tidegate log verify" in result.stderr

    @pytest.mark.parametrize("is_written", [False, True])
    def test_a_channel_whose_only_segment_is_junk_is_called_damaged_and_not_busy(
        self, tmp_path: Path, is_written: bool
    ) -> None:
        """Also while a process writes other channels of the log."""
        path = tmp_path / "junk.tide"
        with Log(path) as log:
            log.channel("c").append("v", b"x")
        junk = segment_file(path, "c")
        junk.write_bytes(b"junk" * 2000)
        fences = [*junk.parent.glob("fence"), *junk.parent.glob("tail.*")]
        assert len(fences) == 2
        for each in fences:
            each.unlink()  # As after a restart of the machine: only the file can say where the log ends.
        with Log(path) if is_written else nullcontext():
            result = run("log", "print", path, "c")
            assert result.exit_code == 1 and str(junk) in result.stderr and "header cannot be read" in result.stderr
            assert run("log", "verify", path, "c").exit_code == 3
            assert lines_of(run("log", "show", path, "c", "--json"))[0]["damaged"]

    @pytest.mark.parametrize(("target", "code"), [("/dev/full", 1), ("&-", 0)])
    def test_an_output_that_takes_nothing_gives_no_traceback(self, small: Path, target: str, code: int) -> None:
        command = " ".join([*COMMAND, "log", "print", str(small), "orders", f">{target}"])
        found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert found.returncode == code and "Traceback" not in found.stderr

    def test_an_unreadable_file_is_named(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: LogFiles) -> list[str]:
            raise PermissionError(13, "Permission denied", "/secret")

        monkeypatch.setattr(LogFiles, "channels", refuse)
        result = run("log", "show", small)
        assert result.exit_code == 1 and "/secret: Permission denied" in result.stderr


class TestHelp:
    @pytest.mark.parametrize(
        "command",
        ["", "log", "log show", "log segments", "log print", "log verify", "log repair", "demo", "bench"],
    )
    def test_every_command_has_examples(self, command: str) -> None:
        result = run(*command.split(), "--help")
        assert result.exit_code == 0 and "Examples:" in result.stdout

    def test_every_exit_code_is_explained(self) -> None:
        text = " ".join(run("--help").stdout.split())
        for code in ("0 fine", "1 input", "2 usage", "3 damage", "4 goal", "130 interrupted", "141 output closed"):
            assert code in text

    def test_printing_ticks_says_that_merged_segments_keep_only_some(self) -> None:
        assert "merged keep only some" in " ".join(run("log", "print", "--help").stdout.split())

    def test_help_does_not_import_arrow(self) -> None:
        program = "import sys, tidegate.cli.main as m; m.tidegate(['--help'], standalone_mode=False)\n"
        program += "sys.exit('pyarrow' in sys.modules or 'rich' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0

    def test_version_is_printed(self) -> None:
        assert run("--version").stdout.startswith("tidegate ")


class TestText:
    def test_nothing_printed_can_command_a_terminal(self) -> None:
        assert printable("a\x1b[2J\x9bx\n") == "a\\x1b[2J\\x9bx\\n"
        assert body_preview(b"line 1\nline 2") == "line 1\\nline 2"
        assert body_preview(b"\x1b[2J") == "1b5b324a"

    def test_text_is_shortened_by_columns_not_characters(self) -> None:
        assert shorten("short", 10) == "short"
        assert shorten("x" * 11, 10) == "x" * 9 + "…"
        assert shorten("日本語日本語", 7) == "日本語…"

    def test_json_is_always_valid(self) -> None:
        value = {
            "inf": float("inf"),
            "bytes": b"\xff",
            "nested": [(1, None)],
            "time": pa.scalar(0, pa.date32()).as_py(),
        }
        assert json.loads(to_json(value)) == {
            "inf": "inf", "bytes": {"base64": "/w=="}, "nested": [[1, None]], "time": "1970-01-01"
        }  # fmt: skip
