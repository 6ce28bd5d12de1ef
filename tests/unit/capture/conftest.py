"""A database, and a source whose history a test writes."""

from __future__ import annotations

import pytest
from fake_source import History

import tidegate
from tidegate.capture import capturing
from tidegate.database.settings import DatabaseSettings


@pytest.fixture
def db(tmp_path):
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as found:
        yield found


@pytest.fixture
def history(monkeypatch):
    found = History()
    monkeypatch.setattr(capturing, "open_source", found.open)
    monkeypatch.setattr(capturing, "PAUSE_MIN_S", 0.001)
    return found
