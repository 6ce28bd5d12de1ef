"""Fixtures that several test modules share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from helpers import Calls, Rig
from tidegate.runtime.log import Log
from tidegate.runtime.settings import LogSettings

# How long an example takes says more about the machine, and about what is imported first, than about the law.
hypothesis_settings.register_profile("tidegate", deadline=None)
hypothesis_settings.load_profile("tidegate")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Run in the background, and processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Callable[..., Log]]:
    """Opens the log of this test; whatever is still open at its end is closed."""
    opened: list[Log] = []

    def open_(path: str | Path | None = None, *, takeover: bool = False, **settings: Any) -> Log:
        settings.setdefault("segment_bytes", 64 << 10)
        settings.setdefault("tick_interval_ms", 5)
        log = Log(path or tmp_path / "log", settings=LogSettings(**settings), takeover=takeover)
        opened.append(log)
        return log

    yield open_
    for log in reversed(opened):
        log.close()


@pytest.fixture
def calls() -> Calls:
    return Calls()
