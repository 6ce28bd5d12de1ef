"""Applying to SQLite and Turso: the suite of all targets, and what is theirs alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import turso

from apply_actions import *  # noqa: F403
from apply_circles import *  # noqa: F403
from apply_places import *  # noqa: F403
from apply_rig import Rig
from apply_room import *  # noqa: F403
from apply_suite import *  # noqa: F403


@pytest.fixture(params=["sqlite", "turso"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    path = tmp_path / "target.db"
    if request.param == "sqlite":
        look: object = sqlite3.connect(path, isolation_level=None)
        look.execute("PRAGMA foreign_keys = ON")
    else:
        look = turso.connect(str(path), isolation_level=None)
        look.execute("PRAGMA foreign_keys = ON")
    found = Rig(tmp_path / "here.tide", f"{request.param}:///{path}", look, request.param)
    yield found
    found.close()
