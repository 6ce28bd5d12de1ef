"""Reads: one cut, as fresh as asked for. Promises 4, 5 and 8, seed 004; the pipeline's worker is a thread.

Checkpoints are made by `flush` alone here, so that a test decides what the last one holds.
"""

import datetime
import decimal
import threading

import pyarrow as pa
import pytest
from read_shop import ids

import tidegate
from helpers import eventually
from tidegate import DatabaseSettings, Timestamp, errors
from tidegate.database.tails import Tails

ALL = "SELECT id FROM t"
ORDER = [("_ts", "ascending"), ("_seq", "ascending")]


class TestLevels:
    def test_each_level_has_what_it_promises_and_no_less(self, shop, db):
        """Seed 004, the levels: a checkpoint with row 1, then row 2 of another client, then row 3 of this one."""
        other = shop.open()
        other.insert("t", [(1, "a")])
        other.flush()
        second = other.insert("t", [(2, "b")]).timestamp
        eventual = db.query(ALL, "eventual")
        assert ids(eventual) == [1] and eventual.timestamp < second
        third = db.insert("t", [(3, "c")]).timestamp
        found = db.query(ALL)  # session
        assert ids(found) == [1, 2, 3] and found.timestamp >= third
        assert ids(db.query(ALL, "strong")) == [1, 2, 3]
        assert ids(db.query(ALL, second)) == [1, 2]
        assert db.query(ALL, second).timestamp == second

    def test_strong_sees_what_another_acknowledged_though_no_checkpoint_has_it(self, shop, db):
        """Promise 8; issue 5: from the snapshot merged with the confirmed tail of the log."""
        other = shop.open()
        for number in range(5):
            sent = other.insert("t", [(number, "x")]).timestamp
            found = db.query(ALL, "strong")
            assert ids(found) == list(range(number + 1)) and found.timestamp > sent

    def test_session_need_not_see_what_others_wrote_later(self, shop, db):
        session = db.session()
        shop.open().insert("t", [(1, "a")])
        assert ids(session.query(ALL)) == []
        assert ids(db.session().query(ALL)) == [1]  # A new one begins with all that was acknowledged before.

    def test_bounded_is_no_older_than_its_bound_by_the_owners_clock(self, shop, db):
        """Issue 5: bounded, 5 s by default, settable."""
        shop.owner.insert("t", [(1, "a")])
        now = shop.owner.engine.log.allocate(1)
        found = db.query(ALL, "bounded")
        assert now.ms_since(found.timestamp) <= 5_000
        eventually(lambda: ids(db.query(ALL, "bounded", staleness=0.05)) == [1])
        now = shop.owner.engine.log.allocate(1)
        found = db.query(ALL, "bounded", staleness=0)
        assert found.timestamp > now and ids(found) == [1]

    def test_bounded_takes_the_checkpoint_when_that_is_fresh_enough(self, shop, db):
        # A bound from before the owner was there has at least all of the millisecond in which it opened.
        log, opened = shop.owner.engine.log, shop.owner.engine.reads._time._upto
        eventually(lambda: log.allocate(1) > opened)
        shop.owner.insert("t", [(1, "a")])
        flushed = shop.owner.flush()
        second = shop.owner.insert("t", [(2, "b")]).timestamp
        pipeline = shop.owner.engine.pipeline
        before = pipeline.service_time
        found = db.query(ALL, "bounded", staleness=3600.0)
        # That of CREATE TABLE's own barrier may come late, and hold the second row too.
        assert found.timestamp in (before, pipeline.service_time) and found.timestamp >= flushed
        assert ids(found) == ([1] if found.timestamp < second else [1, 2])

    def test_no_level_is_older_than_the_last_change_of_its_tables(self, shop, db):
        """Issue 5; time-log section 10: guarantee = max(guarantee, the collection's update timestamp)."""
        shop.owner.insert("t", [(1, "a")])
        shop.owner.flush()
        shop.owner.sql("ALTER TABLE t ADD COLUMN n BIGINT")
        changed = shop.owner.engine.table("t").schema.since
        found = db.query("SELECT * FROM t", "eventual")
        assert found.columns == ["id", "v", "n"] and found.timestamp >= changed
        shop.owner.sql("DROP TABLE t")
        with pytest.raises(errors.NotFound, match="'t'"):
            db.query(ALL, "eventual")

    def test_a_level_that_does_not_exist_is_named_with_those_that_do(self, db):
        with pytest.raises(errors.InvalidArgument, match=r"'strong', 'session', 'bounded', 'eventual'.*not 'fresh'"):
            db.query(ALL, "fresh")
        with pytest.raises(errors.InvalidArgument, match=r"staleness.*-1"):
            db.query(ALL, "bounded", staleness=-1)

    def test_the_level_is_set_for_a_database_a_session_or_a_query(self, shop):
        """Issue 5: set per database, per session, per query."""
        shop.owner.insert("t", [(1, "a")])
        shop.owner.flush()
        shop.owner.insert("t", [(2, "b")])
        db = shop.open(consistency="eventual")
        assert ids(db.query(ALL)) == [1]
        assert ids(db.session(consistency="strong").query(ALL)) == [1, 2]
        db = shop.open(consistency="eventual")
        session = db.session()
        assert ids(session.query(ALL)) == [1]
        session.sql("SET consistency = strong")
        assert ids(session.query(ALL)) == [1, 2] and ids(db.query(ALL)) == [1]
        db.sql("SET consistency = 'bounded 0s'")
        assert ids(db.query(ALL)) == [1, 2]
        with pytest.raises(errors.InvalidArgument, match=r"no setting 'colour'.*consistency"):
            db.sql("SET colour = red")


class TestSessions:
    def test_a_session_never_goes_back_whatever_level_it_reads_with(self, shop, db):
        """Promise 5."""
        shop.owner.insert("t", [(1, "a")])
        shop.owner.flush()
        session = db.session()
        shop.owner.insert("t", [(2, "b")])
        first = session.query(ALL, "strong")
        for level in ("eventual", "bounded", "session"):
            found = session.query(ALL, level, staleness=3600)
            assert ids(found) == [1, 2] and found.timestamp >= first.timestamp, level
        assert ids(db.session(consistency="eventual").query(ALL)) == [1]

    def test_it_goes_on_elsewhere_with_its_token(self, shop):
        """Issue 5: also when it reconnects or continues in another process with its token."""
        one, two = shop.open(), shop.open()
        session = one.session()
        written = session.insert("t", [(1, "a")]).timestamp
        found = two.session(token=session.token).query(ALL)
        assert ids(found) == [1] and found.timestamp >= written
        read = session.query(ALL, "strong").timestamp
        assert two.session(token=session.token, consistency="eventual").query(ALL).timestamp >= read

    def test_what_is_no_token_of_this_database_is_refused(self, shop, tmp_path):
        token = shop.owner.session().token
        for wrong in ("", "tg1-xyz", token[:-2], token[:-1] + ("A" if token[-1] != "A" else "B")):
            with pytest.raises(errors.InvalidArgument, match="token"):
                shop.owner.session(token=wrong)
        other = tidegate.open(tmp_path / "other.tide", settings=DatabaseSettings(pipeline=False))
        with other, pytest.raises(errors.InvalidArgument, match="another database"):
            other.session(token=token)

    def test_it_sees_what_its_transactions_commit_and_what_its_statements_write(self, shop, db):
        session = db.session()
        with session.transaction() as txn:
            txn.insert("t", [(1, "a")])
        assert ids(session.query(ALL)) == [1]
        session.sql("INSERT INTO t VALUES (2, 'b')")
        session.sql("UPDATE t SET v = 'c' WHERE id = 1")
        assert session.sql("SELECT v FROM t WHERE id = 1") == [{"v": "c"}]
        session.delete("t", [2])
        assert ids(session.query(ALL)) == [1]

    def test_a_database_restored_from_an_older_copy_is_noticed(self, shop):
        """A token from the future of this database: its answers would go back in time."""
        from tidegate.reads import token as tokens
        from tidegate.reads.consistency import Seen

        ahead = shop.owner.engine.log.allocate(1).add(seconds=3600)
        session = shop.owner.session(token=tokens.encode(shop.owner.id, Seen(read=ahead)))
        with pytest.raises(errors.InvalidArgument, match="older copy"):
            session.query(ALL)


class TestSnapshots:
    def test_every_query_on_it_sees_the_same_cut(self, shop, db):
        """Issue 5: read-only, repeatable."""
        shop.owner.insert("t", [(1, "a")])
        shop.owner.flush()
        shop.owner.insert("t", [(2, "b")])
        with db.snapshot("strong") as snapshot:
            for change in ("INSERT INTO t VALUES (3, 'c')", "DELETE FROM t WHERE id = 1", "DROP TABLE t"):
                found = snapshot.query(ALL)
                assert ids(found) == [1, 2] and found.timestamp == snapshot.timestamp
                shop.owner.sql(change)
                shop.owner.flush()
            assert ids(snapshot.query(ALL)) == [1, 2]
            assert sum(len(each) for each in snapshot.stream(ALL)) == 2
        with pytest.raises(errors.Closed, match="take another"):
            snapshot.query(ALL)

    def test_its_checkpoint_is_kept_until_it_is_closed(self, shop, db):
        from tidegate.snapshots.pins import live_pins

        shop.owner.insert("t", [(1, "a")])
        shop.owner.flush()
        store = shop.owner.engine.pipeline.store
        number = store.pointer().checkpoint
        with db.snapshot("eventual"):
            assert live_pins(store) == {number}
        assert live_pins(store) == set()

    def test_it_is_let_go_after_its_time(self, shop):
        from tidegate.snapshots.pins import live_pins

        shop.owner.insert("t", [(1, "a")])
        shop.owner.flush()
        snapshot = shop.owner.snapshot(timeout=0.05)
        eventually(lambda: live_pins(shop.owner.engine.pipeline.store) == set())
        with pytest.raises(errors.Closed, match=r"0\.05 s.*longer `timeout`"):
            snapshot.query(ALL)


class TestTimeTravel:
    def test_a_table_as_of_a_time_or_a_checkpoint(self, shop, db):
        """Issue 5: FOR TIMESTAMP AS OF, VERSION AS OF, for every checkpoint kept."""
        versions, store = [], shop.owner.engine.pipeline.store
        for number in range(4):
            shop.owner.insert("t", [(number, "x")])
            flushed = shop.owner.flush()
            versions.append((shop.owner.engine.pipeline.store.pointer().checkpoint, flushed, number + 1))
        for version, at, count in versions:
            for text in (
                f"VERSION AS OF {version}",
                f"FOR VERSION AS OF {version}",
                f"TIMESTAMP AS OF '{at}'",
                f"FOR TIMESTAMP AS OF {int(at)}",
                f"FOR SYSTEM_TIME AS OF '{at}'",
            ):
                found = db.query(f"SELECT count(*) AS n FROM t {text}")
                # A checkpoint of nothing new moves the time and not the number.
                exact = at if "VERSION" not in text else store.checkpoint(version).timestamp
                assert found.rows() == [{"n": count}] and found.timestamp == exact <= at, text
        (first, _, _), (last, _, _) = versions[0], versions[-1]
        joined = f"SELECT count(*) AS n FROM t JOIN t VERSION AS OF {first} AS old ON t.id = old.id"
        assert db.query(joined, "strong").rows() == [{"n": 1}]
        both = f"SELECT id FROM t VERSION AS OF {last} EXCEPT SELECT id FROM t VERSION AS OF {first}"
        assert ids(db.query(both)) == [1, 2, 3]

    def test_a_wall_clock_time_shows_what_was_visible_by_then(self, shop, db):
        at = db.insert("t", [(1, "a")]).timestamp
        eventually(lambda: shop.owner.engine.log.allocate(1).physical_ms > at.physical_ms + 1)
        db.insert("t", [(2, "b")])
        when = at.to_datetime() + datetime.timedelta(milliseconds=1)
        assert ids(db.query(f"SELECT id FROM t TIMESTAMP AS OF '{when:%Y-%m-%d %H:%M:%S.%f}'")) == [1]
        with pytest.raises(errors.NotFound, match="'t'"):
            db.query("SELECT id FROM t TIMESTAMP AS OF '2020-01-01'")

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("VERSION AS OF 999", "no checkpoint 999; the newest is"),
            ("VERSION AS OF 'x'", "number of a checkpoint"),
            ("TIMESTAMP AS OF now()", "takes a constant"),
            ("TIMESTAMP AS OF 'yesterday'", "'yesterday' is no time"),
        ],
    )
    def test_what_is_no_time_is_named(self, db, text, why):
        with pytest.raises(errors.InvalidArgument, match=why):
            db.query(f"SELECT * FROM t {text}")


class TestAnswers:
    def test_values_are_given_apart_from_the_text(self, db):
        db.insert("t", [(1, "it's; DROP TABLE t --"), (2, "\\ \n ü")])
        assert ids(db.query("SELECT id FROM t WHERE v = ?", params=["it's; DROP TABLE t --"])) == [1]
        assert ids(db.query("SELECT id FROM t WHERE v = :v AND id < :n", params={"v": "\\ \n ü", "n": 3})) == [2]
        values = [None, True, -5, 2**40, -(2**63), 1.5, decimal.Decimal("12.30"), "x", b"\0\xff"]
        values += [datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, 2, 3, 4000, datetime.UTC), [1, 2]]
        found = db.query("SELECT " + ", ".join(f"? AS c{at}" for at in range(len(values))), params=values)
        assert list(found.rows()[0].values()) == values

    @pytest.mark.parametrize(
        ("sql", "params", "why"),
        [
            ("SELECT ?", [], "more `\\?`"),
            ("SELECT ?", [1, 2], "2 values are given for 1"),
            ("SELECT :a", {"b": 1}, "no value is given for :a"),
            ("SELECT 1", {"b": 1}, "no :b"),
            ("SELECT ?", [object()], "value 1 is a object"),
            ("SELECT ?", "x", "list of values"),
        ],
    )
    def test_values_that_do_not_fit_are_refused(self, db, sql, params, why):
        with pytest.raises(errors.InvalidArgument, match=why):
            db.query(sql, params=params)

    def test_they_come_as_rows_arrow_pandas_and_polars(self, db):
        db.insert("t", [(1, "a"), (2, None)])
        found = db.query("SELECT * FROM t ORDER BY id")
        assert found.rows() == list(found) == [{"id": 1, "v": "a"}, {"id": 2, "v": None}]
        assert found.to_arrow().schema.types == [pa.int64(), pa.string()] and found.columns == ["id", "v"]
        assert found.to_pandas()["id"].tolist() == [1, 2] and found.to_polars().shape == (2, 2)
        assert found.engine == "duckdb" and "2 rows" in repr(found)

    def test_a_stream_has_no_more_in_memory_than_a_batch(self, shop, db):
        """Issue 5: streaming of results larger than memory; nothing is computed that is not taken."""
        db.insert("t", pa.table({"id": range(10_000), "v": ["x"] * 10_000}))
        sql = "SELECT a.id, b.id AS other FROM t a CROSS JOIN t b"  # 100 million rows
        with db.stream(sql) as found:
            assert found.schema.names == ["id", "other"] and found.timestamp > Timestamp.ZERO
            first = next(iter(found))
            assert 0 < first.num_rows <= 200_000
        assert len(db.query(ALL)) == 10_000
        with pytest.raises(errors.Closed, match="run the query again"):
            next(iter(found))
        assert sum(each.num_rows for each in db.stream("SELECT * FROM t WHERE id < 5000").to_reader()) == 5000

    def test_what_duckdb_would_answer_differently_is_not_answered_by_it(self, db):
        with pytest.raises(errors.InvalidArgument, match=r"as Spark would: .*; use engine='spark'"):
            db.query("SELECT hash(id) FROM t", engine="duckdb")
        with pytest.raises(errors.InvalidArgument, match="'auto', 'duckdb', 'spark', not 'trino'"):
            db.query(ALL, engine="trino")

    def test_a_transaction_reads_its_own_rows_at_one_cut(self, shop, db):
        db.insert("t", [(1, "a")])
        with db.transaction() as txn:
            txn.insert("t", [(2, "b")])
            assert ids(txn.query(ALL)) == [1, 2]
            shop.owner.insert("t", [(3, "c")])
            assert ids(txn.query("SELECT id FROM t WHERE id <> ?", params=[9])) == [1, 2]
        assert ids(db.query(ALL, "strong")) == [1, 2, 3]

    def test_nan_is_found_in_the_log_and_in_a_checkpoint(self, shop, db):
        """Spark takes NaN for greater than every number; statistics of files must not hide it."""
        shop.owner.sql("CREATE TABLE f (id BIGINT PRIMARY KEY, d DOUBLE, s STRUCT<x: FLOAT>, a ARRAY<DOUBLE>)")
        nan = float("nan")
        shop.owner.insert("f", [(1, nan, {"x": nan}, [nan]), (2, 1.0, {"x": 1.0}, [1.0]), (3, 9.0, {"x": 9.0}, [9.0])])
        for _ in range(2):
            for condition in ("d > 5", "s.x > 5", "a[0] > 5", "d > 5 AND NOT d < 100"):
                found = ids(db.query(f"SELECT id FROM f WHERE {condition}", "strong"))
                assert found == ([1] if "NOT" in condition else [1, 3]), condition
            assert ids(db.query("SELECT id FROM f WHERE isnan(d)", "strong")) == [1]
            shop.owner.flush()


class TestWhileOthersWork:
    def test_reads_go_on_through_compaction_collection_and_ddl(self, shop, db):
        """Issue 5: a query never fails because a file was collected under it."""
        from tidegate.pipeline.upkeep import Upkeep

        stop, wrong = threading.Event(), []

        def look():
            last = Timestamp.ZERO
            session = db.session()
            while not stop.is_set():
                for level in ("eventual", "strong", "session"):
                    try:
                        found = session.query("SELECT count(*) AS n, sum(id) AS s FROM t", level)
                        (row,) = found.rows()
                        if found.timestamp < last or (row["n"] and row["s"] != row["n"] * (row["n"] - 1) // 2):
                            wrong.append((level, found.timestamp, row))
                        last = found.timestamp
                    except BaseException as error:
                        wrong.append(error)
                        return

        thread = threading.Thread(target=look)
        thread.start()
        upkeep = Upkeep(shop.path, shop.owner.engine.pipeline.store, 60)
        try:
            for number in range(40):
                shop.owner.insert("t", [{"id": number, "v": "x"}])
                if number % 2:
                    shop.owner.flush()
                    upkeep.compact_once()
                    upkeep.collect()
                if number % 10 == 9:
                    shop.owner.sql(f"ALTER TABLE t ADD COLUMN c{number} INT")
        finally:
            stop.set()
            thread.join()
        assert not wrong, wrong[:3]

    def test_a_stream_outlives_the_files_it_reads_being_replaced(self, shop, db):
        db.insert("t", pa.table({"id": range(300_000), "v": ["x" * 20] * 300_000}))
        shop.owner.flush()
        with db.stream("SELECT * FROM t", "eventual") as found:
            batches = iter(found)
            rows = next(batches).num_rows
            for number in range(3):
                shop.owner.delete("t", list(range(number * 100, number * 100 + 100)))
                shop.owner.flush()
            assert rows + sum(each.num_rows for each in batches) == 300_000


class TestTails:
    def test_what_is_kept_and_what_is_read_anew_say_the_same(self, shop):
        """The cache of the log's tail against the log itself, over random moves of checkpoint and cut."""
        import random

        rng = random.Random(5)
        db = shop.owner
        engine = db.engine
        table = engine.table("t")
        marks = [engine.log.allocate(1)]
        kept = Tails(engine.log, 2)
        checkpoint = marks[0]
        for _ in range(120):
            db.insert("t", [(rng.randrange(20), str(rng.random()))])
            if rng.random() < 0.3:
                db.delete("t", [rng.randrange(20)])
            marks.append(engine.log.allocate(1))
            if rng.random() < 0.2:
                checkpoint = rng.choice([each for each in marks if each >= checkpoint])
            after = checkpoint if rng.random() < 0.8 else rng.choice(marks)
            upto = max(after, rng.choice(marks[-5:]))
            db.wait_visible(upto)
            fresh = Tails(engine.log, 2)
            expected = fresh.changes(table, table.schema, after, upto).sort_by(ORDER).to_pylist()
            found = kept.changes(table, table.schema, after, upto).sort_by(ORDER).to_pylist()
            assert found == expected
            fresh.close()
        kept.close()
