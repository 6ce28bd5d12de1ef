"""Real files that cannot grow: a limit on file size stands in for a disk that has no more room. Promise 6."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
from helpers import drain
from tidegate.errors import DiskFull
from tidegate.stores.shared_tail import SharedTail

LIMITED = """
import resource, sys
from tidegate import LogSettings, TidegateError, open_log

limit = int(sys.argv[2])
log = open_log(sys.argv[1], settings=LogSettings(segment_bytes=64 << 10, tick_interval_ms=5))
writer = log.channel("c")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for n in range(60):
    if n == 20:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    if n == 40:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    body = b"%d:" % n + b"x" * 9000
    try:
        writer.append("a", body, timeout_s=20)
        print("ok", n, flush=True)
    except TidegateError as error:
        print(type(error).__name__, n, flush=True)
log.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize("limit", [100, 30_000])
def test_appends_fail_while_files_cannot_grow_and_resume_by_themselves(tmp_path: Path, limit: int) -> None:
    """What was acknowledged is there, what was refused is not, and whoever was refused could simply try again."""
    path = tmp_path / "limited.tide"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(limit)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines.pop() == ["closed"]
    told = {int(number): word for word, number in lines}
    assert [told[n] for n in [*range(20), *range(40, 60)]] == ["ok"] * 40, "and it goes on once they can grow again"
    refused = {word for word in told.values() if word != "ok"}
    assert refused
    assert refused <= {"StorageFailed", "DiskFull", "OutcomeUnknown"}
    with tidegate.read_log(path).reader("c") as reader:
        found = [int((message.body or b"").split(b":")[0]) for message in drain(reader)]
    assert found == sorted(set(found))
    acknowledged = [n for n, word in told.items() if word == "ok"]
    uncertain = [n for n, word in told.items() if word == "OutcomeUnknown"]
    assert [n for n in found if n not in uncertain] == acknowledged


OPENING = """
import resource, sys
from tidegate import LogSettings, TidegateError, open_log

log = open_log(sys.argv[1], settings=LogSettings(segment_bytes=64 << 10))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for limit in (0, 10, 70, 5000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        log.channel("c")
        print("opened", flush=True)
    except TidegateError as error:
        print(type(error).__name__, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
print(log.channel("c").append("a", b"x").messages, flush=True)
log.close()
"""


def test_a_channel_that_finds_no_room_to_open_says_so_and_opens_later(tmp_path: Path) -> None:
    path = tmp_path / "limited.tide"
    done = subprocess.run(
        [sys.executable, "-c", OPENING, str(path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode != -signal.SIGBUS
    assert done.returncode == 0, done.stderr
    *refused, last = done.stdout.split()
    assert len(refused) == 4
    assert set(refused) <= {"StorageFailed", "DiskFull", "StoreUnavailable", "ClockStalled", "OutcomeUnknown"}
    assert last == "1"


def test_the_tail_shared_with_readers_reserves_its_room_or_says_that_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store into a mapped hole of a full disk would end the process, and no error could be told."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "posix_fallocate", full)
    tail = SharedTail(tmp_path)
    with pytest.raises(OSError, match="no room"):
        tail.fence(1)
    tail.close()
    with pytest.raises(DiskFull, match="could not be opened"), tidegate.open_log(tmp_path / "full.tide") as log:
        log.channel("c")
