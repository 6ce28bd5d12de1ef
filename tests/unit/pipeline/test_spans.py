"""How much one batch of the pipeline takes: bounded in epochs and bytes, so that catching up stays within memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidegate
from folding import Share, folding
from tidegate import DatabaseSettings
from tidegate.barrier.collection import Epochs
from tidegate.barrier.cut import Cut, Epoch, Pointer, decode_cut, encode_cut
from tidegate.barrier.work import HandOut, Report
from tidegate.clock.timestamp import Timestamp
from tidegate.database import engine as engine_module
from tidegate.log.message import Term
from tidegate.pipeline import fold as fold_module

OWNER, WORKER = Term(10), Term(11)


def cut(epoch: int, nbytes: int, checkpoint: bool = True) -> Cut:
    return Cut(Epoch(epoch), Timestamp((epoch - 1) * 100), Timestamp(epoch * 100), {}, checkpoint, 0, nbytes)


def spans(sizes: list[int], span_bytes_max: int, checkpoints: frozenset[int] = frozenset(range(99))) -> list[int]:
    """Where the spans of one worker end that finds all these epochs waiting, and has each committed."""
    cuts = [cut(epoch, size, epoch in checkpoints) for epoch, size in enumerate(sizes, 1)]
    pointer = Pointer().claimed_by(OWNER)
    epochs = Epochs(OWNER, pointer, cuts, channels=["d0"], ahead_max=1, span_bytes_max=span_bytes_max)
    effects, found = epochs.register("a", WORKER, 0), list[int]()
    while outs := [each for each in effects if isinstance(each, HandOut)]:
        found.append(int(outs[0].span.last))
        effects = epochs.report(Report("a", WORKER, epochs.generation, outs[0].span, ()), 0).effects
        if epochs.committing is not None:
            effects = (*effects, *epochs.committed(epochs.committing.pointer.checkpoint, 0))
    return found


def test_epochs_that_wait_are_taken_in_spans_of_about_so_many_bytes_and_one_always_passes() -> None:
    assert spans([10] * 9, 1 << 20) == [9]
    assert spans([10] * 9, 30) == [3, 6, 9]
    assert spans([10, 500, 10, 10, 0, 600], 30) == [1, 2, 5, 6]
    assert spans([10] * 4, 1) == [1, 2, 3, 4]
    assert spans([10] * 6, 30, frozenset({2, 4, 6})) == [2, 4, 6]


def test_the_size_of_an_epoch_is_in_its_record_and_an_older_record_has_none() -> None:
    assert decode_cut(encode_cut(cut(1, 77))).nbytes == 77
    assert decode_cut(encode_cut(cut(1, 0))).nbytes == 0
    assert b"bytes" not in encode_cut(cut(1, 0))


def test_cuts_know_about_how_much_was_written_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    recorded: list[int] = []
    record = Epochs.record

    def noted(self: Epochs, cut: Cut, now_ms: int) -> Any:
        recorded.append(cut.nbytes)
        return record(self, cut, now_ms)

    monkeypatch.setattr(Epochs, "record", noted)
    sizes: list[int] = []
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(barrier_interval_ms=60_000)) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING) SHARDS 2")
        db.flush(30)
        for length in (10, 100_000):
            # The change of the catalog and each flush may have a barrier of its own, and one that is being taken while
            # rows are written may count them with the next.
            before = sum(recorded)
            db.insert("t", [{"id": id, "v": "x" * length} for id in range(20)])
            db.flush(30)
            db.flush(30)
            sizes.append(sum(recorded) - before)
    assert 0 < sizes[0] < 50_000
    assert 2_000_000 <= sizes[1] <= 3_000_000


@pytest.mark.parametrize("share_bytes", [20_000, 1 << 30])
def test_a_span_of_any_size_is_folded_within_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share_bytes: int
) -> None:
    """What gathers over all shards is bounded, not only in each; files then are several, and rows the same."""
    monkeypatch.setattr(fold_module, "SHARE_BYTES", share_bytes)
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    most = 0
    add = fold_module._Shard.add

    def watched(self: Any, batch: Any) -> Any:
        nonlocal most
        yield from add(self, batch)
        most = max(most, self.nbytes)

    monkeypatch.setattr(fold_module._Shard, "add", watched)
    settings = DatabaseSettings(channels=1, barrier_interval_ms=60_000)
    with tidegate.open(tmp_path / "x.tide", settings=settings) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING) SHARDS 8")
        db.flush(30)
        db.flush(30)  # After this one no barrier is under way: CREATE and the first may have had one each.
        before = db.engine.pipeline.pointer.epoch
        for turn in range(40):
            db.insert("t", [{"id": id, "v": f"{turn} " + "x" * 50} for id in range(100)])
        db.flush(30)
        assert db.engine.pipeline.pointer.epoch == before + 1
        rows = db.query("SELECT id, v FROM t ORDER BY id", "eventual").rows()
        assert rows == [{"id": id, "v": "39 " + "x" * 50} for id in range(100)]
        files = len(db.engine.pipeline.store.manifest().paths)
    if share_bytes == 20_000:
        assert files > 8 and most < 60_000
    else:
        assert files == 8 and most > 40_000


def test_the_rig_s_share_is_what_a_fold_takes() -> None:
    """`Share` of the tests has what `fold` asks for; a field less would only show on Spark."""
    from tidegate.spark.work import WorkItem

    assert Share.__annotations__.keys() == WorkItem.__annotations__.keys()
