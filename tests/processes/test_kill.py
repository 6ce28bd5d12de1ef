"""Real processes, killed with SIGKILL at random moments (promise 6: what was acknowledged survives).

A child writes from several threads and prints each acknowledgement to a pipe after it got it. Whatever it printed must
be in the log afterwards, once, in TimeTick order, for every reader; what it did not print is whole or absent.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import tidegate
from helpers import eventually
from tidegate.runtime.verify import verify

WRITER = r"""
import sys, threading
import tidegate
from tidegate import LogSettings

path, life = sys.argv[1], sys.argv[2]
log = tidegate.open_log(path, settings=LogSettings(segment_bytes=1 << 18, tick_interval_ms=20))
channel = log.channel("c")
out = threading.Lock()

def say(text):
    with out:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

def singles(worker):
    number = 0
    while True:
        number += 1
        name = f"{life}.{worker}.{number}"
        done = channel.append(f"v/{worker}", name.encode() + b"." + b"x" * (number % 200))
        say(f"1 {name} {int(done.time_tick)}")

def batches(worker):
    number = 0
    while True:
        number += 1
        name = f"{life}.{worker}.{number}"
        count = 2 + number % 90
        done = channel.append_batch(f"v/{worker}", [f"{name}.{each}".encode() for each in range(count)])
        say(f"{count} {name} {int(done.time_tick)}")

def run(target, worker):
    try:
        target(worker)
    except tidegate.TidegateError as error:
        say(f"# {type(error).__name__}")

say("ready")
for worker, target in enumerate((singles, singles, singles, batches)):
    threading.Thread(target=run, args=(target, worker), daemon=True).start()
threading.Event().wait()
"""

FOLLOWER = r"""
import sys
import tidegate

reader = tidegate.read_log(sys.argv[1]).reader("c")
print("ready", flush=True)
while True:
    delivery = reader.read(1.0)
    if delivery is not None and len(delivery):
        print("\n".join(str(int(message.time_tick)) for message in delivery.messages()), flush=True)
"""


class Child:
    """A process that this test started, and its lines."""

    def __init__(self, code, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines = []
        self.ends = []
        """Why its threads stopped."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self):
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # Cut by the kill: the parent was never told.
            if line == "ready\n":
                self._ready.set()
            elif line.startswith("#"):
                self.ends.append(line.strip("# \n"))
            else:
                self.lines.append(line.strip())

    def wait_ready(self):
        if not self._ready.wait(60):
            self.kill()
            pytest.fail(f"the child did not start: {self.process.stderr.read()}")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        self._thread.join(30)
        self.process.stdout.close()
        self.process.stderr.close()


def read_everything(path):
    """All messages by a fresh reader, until a tick after the last writer's end."""
    with tidegate.open_log(path) as log:
        log.channel("c")
        target = log.channel("c").latest_tick.time_tick
        found = []
        with tidegate.read_log(path).reader("c") as reader:
            while reader.tick is None or reader.tick.time_tick < target:
                delivery = reader.read(10)
                assert delivery is not None, "the reader got no tick"
                found.extend(delivery.messages())
        return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_was_acknowledged_survives_sigkill(tmp_path, seed):
    path = str(tmp_path / "killed.tide")
    rng = random.Random(seed)
    told = {}
    follower = None
    try:
        for life in range(3):
            writer = Child(WRITER, path, f"s{seed}-{life}")
            writer.wait_ready()
            if follower is None:
                follower = Child(FOLLOWER, path)
                follower.wait_ready()
            wanted = rng.randrange(40, 400)
            eventually(lambda writer=writer, wanted=wanted: len(writer.lines) >= wanted, 60, "acknowledgements")
            writer.kill()
            for line in writer.lines:
                count, name, tick = line.split()
                told[name] = (int(count), int(tick))
    finally:
        if follower is not None:
            follower.kill()
    found = read_everything(path)
    ticks = [int(message.time_tick) for message in found]
    assert ticks == sorted(set(ticks)), "every reader gets strictly ascending TimeTicks"
    by_name = {}
    for message in found:
        name = b".".join(message.body.split(b".")[:3]).decode()
        by_name.setdefault(name, []).append(int(message.time_tick))
    for name, (count, tick) in told.items():
        assert by_name.get(name) == list(range(tick, tick + count)), f"{name} was acknowledged at {tick}"
    for name, got in by_name.items():
        if name not in told:
            assert got == list(range(got[0], got[0] + len(got))), f"{name} was not acknowledged, and is torn"
    followed = [int(line) for line in follower.lines]
    assert followed == ticks[: len(followed)], "a reader that followed saw a prefix of the same sequence"
    assert not verify(tidegate.read_log(path).channel("c"), "c").problems


def test_a_killed_writer_leaves_its_lock_and_its_lease_behind_for_nobody(tmp_path):
    """The next process opens at once: it does not wait for a lease to run out."""
    path = str(tmp_path / "killed.tide")
    writer = Child(WRITER, path, "first")
    writer.wait_ready()
    with pytest.raises(tidegate.errors.InUse, match=str(writer.process.pid)):
        tidegate.open_log(path)
    writer.kill()
    started = time.monotonic()
    with tidegate.open_log(path) as log:
        log.channel("c").append("v/0", b"next")
    assert time.monotonic() - started < 2.0


@pytest.mark.slow
def test_a_stopped_writer_can_be_fenced_and_wakes_up_to_find_out(tmp_path):
    """An older writer can never append again, also one that was stopped in the middle of an append."""
    path = str(tmp_path / "stopped.tide")
    writer = Child(WRITER, path, "old")
    writer.wait_ready()
    eventually(lambda: len(writer.lines) >= 50, 30, "50 acknowledgements")
    os.kill(writer.process.pid, signal.SIGSTOP)
    try:
        with tidegate.open_log(path, takeover=True) as log:
            channel = log.channel("c")
            taken = channel.append("v/9", b"new.0.0")
            os.kill(writer.process.pid, signal.SIGCONT)
            # Its threads fail one after the other; none is told that anything later was written.
            eventually(lambda: len(writer.ends) == 4, 30, "the end of the old writer's threads")
            assert set(writer.ends) <= {"Fenced", "NotLeader"}
            last = channel.append("v/9", b"new.0.1")
            with pytest.raises(tidegate.errors.TidegateError):
                tidegate.open_log(path)
    finally:
        writer.kill()
    told = {name: (int(count), int(tick)) for count, name, tick in (line.split() for line in writer.lines)}
    assert max(tick for _, tick in told.values()) < int(taken.time_tick)
    found = {int(message.time_tick): message.body for message in read_everything(path)}
    for name, (_, tick) in told.items():
        assert found[tick].startswith(name.encode()), f"{name} was acknowledged by the old writer"
    after = [body for tick, body in sorted(found.items()) if tick >= int(taken.time_tick)]
    assert after == [b"new.0.0", b"new.0.1"]
    assert int(last.time_tick) in found
