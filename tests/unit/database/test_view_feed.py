"""The change feed of a view: inserts, updates and deletes by epoch (issue 6, "A change feed for each view").

The law of all of it: applied in order to nothing, the changes give the view at every checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from view_feed_rig import VIEWS, Copy, Followed, told

from tidegate import Timestamp
from tidegate.errors import Truncated
from tidegate.pipeline import view_fill, view_stage
from tidegate.snapshots.damage import SnapshotDamaged


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Followed]:
    found = Followed(tmp_path / "shop.tide", monkeypatch)
    yield found
    found.close()


def check_law(shop: Followed, name: str) -> int:
    """How many changes there were."""
    copy, count = Copy(), 0
    with shop.feed(name) as feed:
        for place, step in shop.steps(name):
            if step is not None:
                changes = [row for batch in feed.changes(step) for row in batch.to_pylist()]
                assert {(row["_epoch"], row["_ts"]) for row in changes} <= {(place.epoch, int(place.timestamp))}
                copy.apply(changes)
                count += len(changes)
            assert copy.rows == shop.rows(name, place.timestamp), f"{name} at {place}"
    return count


def plan_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another version planned the views from now on: all of them are made anew."""
    signature = view_stage.signature
    monkeypatch.setattr(view_stage, "signature", lambda plan: "new " + signature(plan))


# -- the law -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(each, marks=pytest.mark.long) for each in range(2, 20))])
def test_the_changes_applied_in_order_give_the_view_at_every_checkpoint(
    shop: Followed, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 6. Across compaction, restarts of the database, workers that die, and views that are made anew."""
    rng = random.Random(seed)
    shop.create("sums", "twice", "distinct_of")
    compacted = 0
    crashed: list[int] = []

    def crash(where: str, epoch: int) -> bool:
        if where == "folded" and not crashed:
            crashed.append(epoch)
            return True
        return False

    for turn in range(14):
        if turn == 4:
            shop.create("kept", "all_of_it", "joined", "above")
        if turn == 8:
            shop.open(crash)
        if turn == 11:
            plan_anew(monkeypatch)
            shop.open()
        for _ in range(rng.randrange(1, 4)):
            shop.change(rng)
        shop.db.flush()
        if rng.random() < 0.4:
            compacted += shop.compact()
    assert compacted and crashed
    for name in VIEWS:
        assert check_law(shop, name) > 0, name


def test_what_is_the_same_in_a_view_made_anew_is_no_change(shop: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 6: all files are replaced, and the feed tells the difference, no more and no less."""
    shop.create("sums")
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 1}, {"id": 2, "g": "b", "n": 2}])
    at = int(shop.db.flush())
    plan_anew(monkeypatch)
    shop.open()
    shop.db.upsert("o", [{"id": 2, "g": "b", "n": 5}])
    shop.db.flush()
    [(_, step)] = [each for each in shop.steps("sums", at) if each[1] is not None]
    assert step is not None and step.layers is None, "it was made anew"
    found = shop.changes("sums", at)
    assert [(row["_change"], row["g"], row["s"]) for row in found] == [
        ("update_before", "b", 2),
        ("update_after", "b", 5),
    ]


# -- changes -----------------------------------------------------------------------------------------------------


def test_updates_have_the_row_before_and_after_and_deletes_the_row_that_was(shop: Followed) -> None:
    """Issue 6: "inserts, updates (before and after) and deletes by epoch"."""
    shop.create("kept")
    shop.db.upsert("o", [{"id": each, "g": "a", "n": 5} for each in (1, 2, 3)])
    first = int(shop.db.flush())
    with shop.db.transaction() as txn:
        txn.upsert("o", [{"id": 1, "g": "a", "n": 6}, {"id": 2, "g": None, "n": 1}, {"id": 4, "g": "d", "n": 9}])
        txn.upsert("o", [{"id": 3, "g": "a", "n": 5}])  # As it was.
    at = int(shop.db.flush())
    epoch = shop.store.pointer().epoch
    assert [row["_change"] for row in shop.changes("kept")][:3] == ["insert"] * 3
    assert shop.changes("kept", first) == [
        {"id": 1, "g": "a", "n": 5, "_change": "update_before", "_epoch": epoch, "_ts": at},
        {"id": 1, "g": "a", "n": 6, "_change": "update_after", "_epoch": epoch, "_ts": at},
        {"id": 2, "g": "a", "n": 5, "_change": "delete", "_epoch": epoch, "_ts": at},
        {"id": 4, "g": "d", "n": 9, "_change": "insert", "_epoch": epoch, "_ts": at},
    ]


def test_a_change_that_a_view_does_not_show_is_none(shop: Followed) -> None:
    """A row that is the same before and after is no change: here only what the view counts by is another."""
    shop.db.sql("CREATE MATERIALIZED VIEW groups AS SELECT DISTINCT g FROM o")
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 5}])
    at = int(shop.db.flush())
    shop.db.upsert("o", [{"id": 2, "g": "a", "n": 5}])
    shop.db.flush()
    assert shop.steps("groups", at), "there is a checkpoint behind it"
    assert shop.changes("groups", at) == []


def test_the_rows_at_a_checkpoint_are_inserts_of_its_epoch(shop: Followed) -> None:
    """A feed from the beginning is the view's rows, then its changes."""
    shop.create("sums")
    assert shop.history("sums").rows_at() is None, "it is not filled yet"
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 1}])
    at = shop.db.flush()
    step = shop.history("sums").rows_at(at)
    assert step is not None
    with shop.feed("sums") as feed:
        rows = [row for batch in feed.changes(step) for row in batch.to_pylist()]
    assert rows == [{"g": "a", "s": 1, "k": 1, "_change": "insert", "_epoch": step.epoch, "_ts": int(step.timestamp)}]


def test_a_step_gives_the_same_rows_in_the_same_order_after_compaction(shop: Followed) -> None:
    """A consumer's place within a checkpoint is a number: it must mean the same row for ever."""
    rng = random.Random(7)
    shop.create("joined")
    for _ in range(6):
        shop.change(rng)
        shop.db.flush()
    before = shop.changes("joined")
    assert shop.compact() and before
    assert shop.changes("joined") == before
    shop.open()
    assert shop.changes("joined") == before


# -- views that are not well ---------------------------------------------------------------------------------------


def test_a_failed_view_stands_still_and_goes_on_with_the_difference(shop: Followed) -> None:
    """Issue 6: stopped at its last good checkpoint; nothing is skipped when it is resumed."""
    shop.db.sql("CREATE MATERIALIZED VIEW shares AS SELECT id, 100 div n AS share FROM o")
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 1}, {"id": 2, "g": "a", "n": 2}])
    at = int(shop.db.flush())
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 0}, {"id": 2, "g": "a", "n": 4}])
    failed = int(shop.db.flush())
    state = shop.store.manifest().views[shop.view("shares").id]
    assert state.state == "failed", state
    assert shop.changes("shares", at) == []
    assert shop.steps("shares", at)[-1][0].timestamp == failed, "its rows are those before: that is a place"
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 1}])
    shop.db.flush()
    shop.db.sql("ALTER MATERIALIZED VIEW shares RESUME")
    shop.db.flush()
    for place in (at, failed):
        found = shop.changes("shares", place)
        assert [(row["_change"], row["id"], row["share"]) for row in found] == [
            ("update_before", 2, 50),
            ("update_after", 2, 25),
        ]
    check_law(shop, "shares")


def test_no_place_is_put_where_a_view_is_being_filled(shop: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored while a view is filled beside the pipeline is of another time than its checkpoint."""
    shop.create("sums")
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 1}, {"id": 2, "g": "b", "n": 2}])
    at = int(shop.db.flush())
    monkeypatch.setattr(view_fill, "FILL_ABOVE", -1)
    plan_anew(monkeypatch)
    shop.open()
    filling = 0
    for n in range(3, 200):
        shop.db.upsert("o", [{"id": 2, "g": "b", "n": n}])
        shop.db.flush()
        state = shop.store.manifest().views.get(shop.view("sums").id)
        if state is not None and state.state == "live":
            break
        filling += 1
        assert shop.steps("sums", at) == [], "nobody has seen what is stored there"
    assert filling, "it was filled beside the pipeline"
    found = [(row["_change"], row["g"], row["s"]) for row in shop.changes("sums", at)]
    # It may be filled with what the last turn but one wrote, between the two.
    values = [2, n] if len(found) == 2 else [2, n - 1, n]
    assert found == [
        each
        for before, after in pairwise(values)
        for each in (("update_before", "b", before), ("update_after", "b", after))
    ]


def test_the_feed_of_a_dropped_view_ends_with_its_last_change(shop: Followed) -> None:
    """That its rows are gone then is no delete of them. One created anew with the same name is another view."""
    shop.create("sums")
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 1}])
    at = shop.db.flush()
    history = shop.history("sums")
    shop.db.sql("DROP MATERIALIZED VIEW sums")
    shop.create("sums")
    shop.db.flush()
    assert list(history.after(at)) == []
    assert [row["_change"] for row in shop.changes("sums")] == ["insert"]


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_whoever_is_further_behind_than_the_retention_time_is_told_so(shop: Followed) -> None:
    """Nothing is skipped silently."""
    shop.create("sums")
    places = []
    for n in range(3):
        shop.db.upsert("o", [{"id": 1, "g": "a", "n": n}])
        places.append(shop.db.flush())
    [*_, (_, last)] = shop.steps("sums", places[1])
    shop.forget()
    for place in (Timestamp.ZERO, *places[:2]):
        with pytest.raises(Truncated, match=r"view 'sums': its changes since .* are older than the retention time"):
            shop.steps("sums", place)
    with pytest.raises(Truncated):
        shop.history("sums").rows_at(places[0])
    assert shop.steps("sums", places[2]) == []
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 9}])
    shop.db.flush()
    assert [row["s"] for row in shop.changes("sums", places[2])] == [2, 9], "who has kept up goes on"
    assert last is not None
    shop.compact()
    shop.forget()
    with shop.feed("sums") as feed, pytest.raises(Truncated, match="read the view anew"):
        list(feed.changes(last))


def test_a_damaged_file_is_named(shop: Followed) -> None:
    """Not taken for retention: that would send the reader somewhere else."""
    shop.create("sums")
    shop.db.upsert("o", [{"id": 1, "g": "a", "n": 1}])
    shop.db.flush()
    [(_, step)] = [each for each in shop.steps("sums") if each[1] is not None]
    assert step is not None
    (shop.store.root / step.after[0].path).unlink()
    with shop.feed("sums") as feed, pytest.raises(SnapshotDamaged, match="sums"):
        list(feed.changes(step))


def test_many_checkpoints_are_walked_without_a_gap(shop: Followed) -> None:
    """Also where the directory is listed, and what was listed before is used again."""
    shop.create("sums")
    for n in range(25):
        shop.db.upsert("o", [{"id": 1, "g": "a", "n": n}])
        shop.db.flush()
    history = shop.history("sums")
    everything = [step.epoch for _, step in history.after(Timestamp.ZERO) if step is not None]
    assert len(everything) == 25 and everything == sorted(everything)
    places = [place for place, step in history.after(Timestamp.ZERO) if step is not None]
    for number, place in enumerate(places):
        rest = [step.epoch for _, step in history.after(place.timestamp) if step is not None]
        assert rest == everything[number + 1 :]
    assert told(shop.changes("sums", places[-1].timestamp)) == told([])
