"""Waiting for a cut, and giving up: seed 004, issue 5. Regular ticks come every second here, barriers every hour."""

import asyncio
import threading
import time

import pytest
from read_shop import ids

from helpers import eventually
from tidegate import errors

ALL = "SELECT id FROM t"


class TestWaiting:
    def test_a_read_that_is_there_already_does_not_wait_for_a_tick(self, shop, db):
        """Seed 004: service time >= guarantee goes on at once. Regular ticks come every second here."""
        db.insert("t", [(1, "a")])
        db.query(ALL, "eventual")  # The first query of a process loads what answers it.
        began = time.monotonic()
        for level in ("strong", "session", "eventual", "bounded"):
            db.query(ALL, level)
        assert time.monotonic() - began < 0.9

    def test_what_holds_a_channel_is_named_and_the_read_goes_well_when_it_is_gone(self, shop, db):
        """Issue 5: no progress for 3 s is an error that says which part holds the watermark, and what to do."""
        writer = shop.owner.engine.log.channel("data-0", create=False)
        held = writer.reserve(["table/1.t/0"], count=1, size=1, timeout_s=1.0)
        try:
            began = time.monotonic()
            with pytest.raises(errors.Stalled, match=r"channel 'data-0'.*append to table/1\.t/0.*eventual") as caught:
                db.query(ALL, "strong")
            assert 2.5 < time.monotonic() - began < 8 and caught.value.why == "stalled"
            assert "append" in caught.value.held_by
            assert ids(db.query(ALL, "eventual")) == []
            with pytest.raises(errors.WaitTimeout, match=r"time was up after 0\.\d+ s"):
                db.query(ALL, "strong", timeout=0.2)
        finally:
            held.release()
        assert ids(db.query(ALL, "strong")) == []

    def test_further_off_than_max_lag_is_an_error_at_once(self, shop, db):
        writer = shop.owner.engine.log.channel("data-0", create=False)
        held = writer.reserve(["table/1.t/0"], count=1, size=1, timeout_s=1.0)
        try:
            eventually(lambda: shop.owner.engine.log.allocate(1).ms_since(held.time_tick) > 100)
            began = time.monotonic()
            with pytest.raises(errors.Stalled, match="`max_lag`") as caught:
                db.query(ALL, "strong", max_lag=0.05)
            assert time.monotonic() - began < 1 and caught.value.why == "lag"
        finally:
            held.release()

    def test_when_the_log_behind_the_checkpoint_is_too_long_a_barrier_is_asked_for(self, shop, db, monkeypatch):
        """Issue 5: a read that has to wait asks for a barrier now. The next regular one comes in an hour."""
        monkeypatch.setattr(db.cut_reader.tails, "_bytes_max", 10_000)
        shop.owner.insert("t", [(number, "x" * 100) for number in range(1000)])
        found = db.query("SELECT count(*) AS n FROM t", "strong")
        assert found.rows() == [{"n": 1000}]
        assert shop.owner.engine.pipeline.service_time == found.timestamp

    def test_a_stopped_pipeline_is_named(self, shop, db, monkeypatch):
        monkeypatch.setattr(db.cut_reader.tails, "_bytes_max", 10_000)
        shop.owner.pause_pipeline()
        shop.owner.insert("t", [(number, "x" * 100) for number in range(1000)])
        with pytest.raises(errors.Stalled, match="the pipeline is paused"):
            db.query(ALL, "strong")
        shop.owner.resume_pipeline()
        assert len(db.query(ALL, "strong")) == 1000

    def test_a_read_waits_for_the_channels_of_its_tables_alone(self, shop, db):
        """Seed 004: service time is that of what is read. What holds another table's channel holds no one else."""
        shop.owner.sql("CREATE TABLE one (id BIGINT PRIMARY KEY) SHARDS 1")
        shop.owner.insert("one", [(1,)])
        engine = shop.owner.engine
        mine = engine.channel_of(engine.table("one").id, 0)
        (other,) = set(engine.channels) - {mine}
        writer = engine.log.channel(other, create=False)
        held = writer.reserve([f"table/1.t/{other.removeprefix('data-')}"], count=1, size=1, timeout_s=1.0)
        try:
            assert ids(db.query("SELECT id FROM one", "strong", timeout=2)) == [1]
            with pytest.raises(errors.WaitTimeout, match=other):
                db.query("SELECT one.id FROM one JOIN t ON one.id = t.id", "strong", timeout=0.2)
            with pytest.raises(errors.WaitTimeout, match=other):
                db.session(consistency="strong", timeout=0.2).snapshot()
        finally:
            held.release()

    def test_a_timeout_is_for_all_that_a_query_waits_for_together(self, shop, db):
        """The second time that a query names has what the first has left of it, not the whole of it again."""
        asked = []
        begin, shown = db.backend.begin_read, shop.owner.engine.log.allocate(1)

        def slow(ask):
            asked.append(ask.timeout_ms)
            time.sleep(0.3)
            return begin(ask)

        db.backend.begin_read = slow
        db.query(f"SELECT t.id FROM t JOIN t TIMESTAMP AS OF '{shown}' AS u ON t.id = u.id", "strong", timeout=20)
        assert asked[0] <= 20_000 and asked[1] <= 19_700


class TestCancelling:
    LONG = "SELECT count(*) AS n FROM range(1000000) a CROSS JOIN range(1000000) b WHERE a.id * b.id % 7 = 3"

    def test_a_query_ends_at_its_timeout(self, db):
        began = time.monotonic()
        with pytest.raises(errors.WaitTimeout, match=r"longer than its timeout of 0\.\d+ s"):
            db.query(self.LONG, timeout=0.3)
        assert time.monotonic() - began < 5
        assert db.query("SELECT 1 AS one").rows() == [{"one": 1}]

    def test_cancelling_the_task_ends_the_query(self, db):
        async def work():
            task = asyncio.create_task(db.query_async(self.LONG))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return (await db.query_async("SELECT 1 AS one")).rows()

        assert asyncio.run(work()) == [{"one": 1}]
        eventually(lambda: not any(each.name.startswith("asyncio") for each in threading.enumerate()))

    def test_cancelling_the_task_ends_the_wait_for_a_cut(self, shop):
        """A read that nobody waits for any more gives up before it would be stalled, after 3 s."""
        writer = shop.owner.engine.log.channel("data-0", create=False)
        held = writer.reserve(["table/1.t/0"], count=1, size=1, timeout_s=1.0)
        waiting = shop.owner.engine.reads._waiting

        async def work():
            task = asyncio.create_task(shop.owner.query_async(ALL, "strong"))
            while not any(waiting.values()):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        try:
            began = time.monotonic()
            asyncio.run(work())
            eventually(lambda: not any(waiting.values()))
            assert time.monotonic() - began < 2
        finally:
            held.release()
