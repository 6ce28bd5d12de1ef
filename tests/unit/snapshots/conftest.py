"""Fixtures of the snapshots' specifications."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from snapshot_rig import SnapshotRig


@pytest.fixture
def snapshots(tmp_path: Path) -> Iterator[SnapshotRig]:
    rig = SnapshotRig(tmp_path / "snapshots")
    yield rig
    rig.close()
