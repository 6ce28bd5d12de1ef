"""Reads at their edges: what a hostile reader found, each with the case that shows it."""

import asyncio
import enum
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

import tidegate
from database_rig import Desk
from folding import folding
from tidegate import DatabaseSettings, LogSettings, errors
from tidegate.database import engine as engine_module
from tidegate.database.keeping import Keeper
from tidegate.database.tails import Tails
from tidegate.errors import LeaseLost
from tidegate.reads.params import bind, literal
from tidegate.snapshots.layer_cache import LayerCache
from tidegate.snapshots.manifest import FileEntry
from tidegate.snapshots.pins import live_pins


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path / "d.tide", "owner", pipeline=False)
    desk.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING) SHARDS 2")
    yield desk
    desk.close()


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    settings = DatabaseSettings(log=LogSettings(tick_interval_ms=1000), channels=2, barrier_interval_ms=3_600_000)
    with tidegate.open(tmp_path / "shop.tide", settings=settings) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
        yield db


class TestTails:
    def test_a_read_that_a_newer_schema_overtakes_does_not_meet_its_rows(self, desk):
        """Its follower may have read further than the cut, by a schema that the read does not know."""
        db, engine = desk.db, desk.engine
        db.insert("t", [(1, "a")])
        before = engine.log.allocate(1)
        table = engine.table("t")
        db.sql("ALTER TABLE t ADD COLUMN n BIGINT")
        db.insert("t", [(2, "b", 3)])
        db.wait_visible(engine.log.allocate(1))
        tails = Tails(engine.log, len(engine.channels))
        for _ in range(2):  # With nothing kept yet, and with all of it.
            found = tails.changes(table, table.at(before), tidegate.Timestamp.ZERO, before)
            assert found.column("id").to_pylist() == [1]
        newer = engine.table("t")
        after = engine.log.allocate(1)
        db.wait_visible(after)
        assert sorted(tails.changes(newer, newer.schema, tidegate.Timestamp.ZERO, after).column("id").to_pylist()) == [
            1,
            2,
        ]
        tails.close()

    def test_what_no_read_needs_any_more_is_let_go(self, desk):
        db, engine = desk.db, desk.engine
        tails = Tails(engine.log, len(engine.channels))
        start = engine.log.allocate(1)
        for number in range(5):
            db.sql(f"CREATE TABLE x{number} (id BIGINT PRIMARY KEY, v STRING) SHARDS 4")
            db.insert(f"x{number}", [(each, "x" * 1000) for each in range(100)])
        upto = engine.log.allocate(1)
        db.wait_visible(upto)
        for number in range(5):
            table = engine.table(f"x{number}")
            assert tails.changes(table, table.schema, start, upto).num_rows == 100
        assert tails._nbytes() > 500_000
        later = engine.log.allocate(1)
        db.wait_visible(later)
        table = engine.table("x0")
        assert tails.changes(table, table.schema, upto, later).num_rows == 0
        assert tails._nbytes() == 0
        tails.close()

    def test_waiting_for_others_counts_against_the_timeout(self, desk):
        db = desk.db
        db.insert("t", [(1, "a")])
        db.query("SELECT * FROM t")
        tails = db.cut_reader.tails
        with tails._lock:
            began = time.monotonic()
            with pytest.raises(errors.WaitTimeout):
                db.query("SELECT * FROM t", timeout=0.2)
            assert time.monotonic() - began < 3


class TestCommittedAlready:
    @pytest.mark.parametrize("change", ["ALTER TABLE t ADD COLUMN n BIGINT", "DROP TABLE t"])
    def test_a_repeated_commit_says_so_whatever_has_become_of_its_tables(self, desk, change):
        """Promise: commit may be repeated after a lost answer, and the answer is the same."""
        db = desk.db
        txn = db.transaction()
        txn.insert("t", [(1, "a")])
        first = db.backend.commit(txn.id, *txn._rest(), None)
        db.sql(change)
        assert txn.commit() == first
        assert asyncio.run(db.backend.commit_async(txn.id, {}, (), None)) == first


class TestGate:
    def test_nothing_is_written_ahead_or_sent_past_a_drop(self, desk):
        """A DROP that comes between looking up a place and writing there."""
        db, engine = desk.db, desk.engine
        db.sql("CREATE TOPIC a")
        inside, go = threading.Event(), threading.Event()
        check = engine.check_places

        def slowly(writes):
            check(writes)
            inside.set()
            go.wait(5)

        engine.check_places = slowly
        sent = []

        async def send():
            sent.append((await db.send_async("a", 1)).timestamp)

        thread = threading.Thread(target=lambda: asyncio.run(send()))
        thread.start()
        assert inside.wait(5)
        dropper = threading.Thread(target=lambda: db.sql("DROP TOPIC a"))
        dropper.start()
        dropper.join(0.3)
        assert dropper.is_alive()  # It waits for who is inside.
        go.set()
        thread.join()
        dropper.join()
        assert len(sent) == 1 and sent[0] < engine.catalog.changed


class TestBinding:
    def test_every_kind_of_number_is_itself(self, desk):
        class Colour(enum.IntEnum):
            RED = 3

        values = [Colour.RED, np.int64(5), np.float64(1.5), -(2**31), 2**31, True]
        found = desk.db.query("SELECT " + ", ".join(f"? AS c{at}" for at in range(len(values))), params=values)
        assert list(found.rows()[0].values()) == [3, 5, 1.5, -(2**31), 2**31, True]
        kinds = found.to_arrow().schema.types
        assert kinds[0] == kinds[3] == pa.int32() and kinds[4] == pa.int64()

    def test_a_colon_inside_something_else_stays(self):
        assert bind("SELECT a:id FROM t WHERE id = :id", {"id": 1}) == "SELECT a:id FROM t WHERE id =  1 "
        text = "SELECT CAST(x AS STRUCT<a:date>), ':date' FROM t WHERE d=:date"
        assert bind(text, {"date": 1}) == text[: -len(":date")] + " 1 "

    def test_what_cannot_be_written_is_named(self):
        import datetime

        zone = datetime.timezone(datetime.timedelta(hours=5))
        with pytest.raises(errors.InvalidArgument, match="UTC"):
            literal(datetime.datetime(1, 1, 1, tzinfo=zone))
        with pytest.raises(errors.InvalidArgument, match="not closed"):
            bind("SELECT 'x", [1])


class TestStreams:
    def test_closing_the_database_ends_an_open_stream_at_once(self, desk):
        db = desk.db
        db.insert("t", pa.table({"id": range(3000), "v": ["x"] * 3000}))
        stream = db.stream("SELECT a.id, b.id AS other FROM t a CROSS JOIN t b")
        batches = iter(stream)
        next(batches)
        began = time.monotonic()
        db.close()
        assert time.monotonic() - began < 5
        with pytest.raises(errors.Closed):
            for _ in batches:
                pass
        stream.close()

    def test_a_snapshots_time_is_checked(self, desk):
        for wrong in ("5", 0, float("nan"), 1e12):
            with pytest.raises(errors.InvalidArgument):
                desk.db.snapshot(timeout=wrong)
        desk.db.snapshot(timeout=300)
        desk.db.close()
        assert not any(isinstance(each, threading.Timer) for each in threading.enumerate())


class TestTimes:
    def test_as_of_is_found_however_it_is_spaced_and_refused_for_a_part_of_the_query(self, shop):
        shop.insert("t", [(1, "a")])
        shop.flush()
        number = shop.engine.pipeline.store.pointer().checkpoint
        assert len(shop.query(f"SELECT * FROM t VERSION\tAS\n OF\t{number}")) == 1
        with pytest.raises(errors.InvalidArgument, match="part of the query"):
            shop.query("WITH t AS (SELECT 5 AS id) SELECT * FROM t TIMESTAMP AS OF '2026-01-01'")
        with pytest.raises(errors.InvalidArgument, match="at one time"), shop.transaction() as txn:
            txn.query(f"SELECT * FROM t VERSION AS OF {number}")

    def test_a_time_a_little_ahead_is_waited_for(self, desk):
        """Ticks move towards it, so it is no standstill."""
        soon = desk.engine.log.allocate(1).add(milliseconds=3600)
        found = desk.db.query("SELECT * FROM t", soon)
        assert found.timestamp == soon and found.waited_ms > 2500

    def test_a_read_that_an_idle_checkpoint_overtakes_begins_where_it_was(self, shop):
        shop.insert("t", [(1, "a")])
        shop.flush()
        store = shop.engine.pipeline.store
        before = store.pointer()
        at = shop.engine.log.allocate(1)
        shop.flush()  # Nothing was written: only the pointer moves.
        assert store.pointer().timestamp > at >= before.timestamp
        assert store.at(at).timestamp == before.timestamp


class TestKeeping:
    def test_pins_that_were_lost_are_taken_again_and_nobody_elses_are_given_back(self, shop):
        """A process that slept longer than its lease."""
        shop.insert("t", [(1, "a")])
        shop.flush()
        store = shop.engine.pipeline.store
        number = store.pointer().checkpoint
        keeper = Keeper(store, pin_after_s=3600.0)
        first = keeper.reading(number, at_once=True)
        first.__enter__()
        store.metadata.release(keeper._pins._lease)
        with pytest.raises(LeaseLost):
            keeper._pins.renew()
        second = keeper.reading(number, at_once=True)
        second.__enter__()
        first.__exit__(None, None, None)
        assert live_pins(store) == {number}
        second.__exit__(None, None, None)
        assert live_pins(store) == set()
        with keeper.reading(number, at_once=True):
            store.metadata.release(keeper._pins._lease)
            with pytest.raises(LeaseLost):
                keeper._pins.renew()
            keeper._pin_long()
            assert live_pins(store) == {number}
        keeper.close()


class TestLayerCache:
    def test_it_stays_within_its_bounds(self, desk):
        table = desk.engine.table("t")
        schema = table.schema

        def entry(number, size):
            return FileEntry(table.id, 0, 0, number, number, 1, 100, size, 0, 0, 0, f"tables/1/e-{number}.parquet")

        def read(_, __, files):
            from tidegate.tables.changes import changes_schema

            count = 100 * len(files)
            number = files[0].first
            columns = {"id": range(number * 100, number * 100 + count), "v": ["x" * 1000] * count}
            columns |= {"_ts": [number] * count, "_seq": range(count), "_op": [1] * count}
            return pa.table(columns).cast(changes_schema(schema))

        cache = LayerCache(read, bytes_max=1_000_000)
        layers = [entry(number, 1_000) for number in range(1, 40)]
        for last in range(2, len(layers)):
            assert cache.changes(table, schema, layers[last - 2 : last]).num_rows == 200
        assert cache._nbytes <= 1_200_000 and cache._merged_bytes <= 1_200_000
        assert sum(each.nbytes for each in cache._merged.values()) == cache._merged_bytes
        assert cache.changes(table, schema, [entry(1, 200_000), entry(2, 200_000)]) is None
