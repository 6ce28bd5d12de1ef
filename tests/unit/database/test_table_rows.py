"""Tables through the public API, in the hands of the owner and of a client in another process's place.

Design, "The public face"; issue 4, "Writing"; seed 004: visibility is decided by timestamps.
"""

import asyncio
import threading
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tidegate
from database_rig import Desk
from tidegate import LogSettings, errors
from tidegate.tables.changes import changes_of


@pytest.fixture
def open_desk(tmp_path):
    opened = []

    def open_(through="owner", **options):
        desk = Desk(tmp_path / f"{len(opened)}.tide", through, pipeline=False, **options)
        opened.append(desk)
        desk.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING, n BIGINT) SHARDS 3")
        return desk

    yield open_
    for each in opened:
        each.close()


@pytest.fixture(params=["owner", "client"])
def db(request, open_desk):
    return open_desk(request.param).db


@pytest.fixture
def owner(open_desk):
    return open_desk().db


def rows(db, sql="SELECT * FROM t", consistency="strong"):
    """The rows of a query as tuples, in order."""
    return sorted((tuple(row.values()) for row in db.query(sql, consistency).rows()), key=repr)


class TestTheExample:
    def test_the_designs_example_works(self, db):
        """Design, "The public face", but for the view."""
        db.sql("CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner STRING, balance BIGINT)")
        db.sql("CREATE TOPIC audit")
        db.sql("INSERT INTO accounts VALUES (1, 'ann', 100), (2, 'bo', 50)")
        sub = db.subscribe("audit", "billing")
        with db.transaction(timeout=60) as txn:
            txn.upsert("accounts", [{"id": 1, "owner": "ann", "balance": 90}])
            txn.insert("accounts", [{"id": 4, "owner": "di", "balance": 5}])
            txn.delete("accounts", [2])
            txn.sql("INSERT INTO accounts VALUES (3, 'cy', 60)")
            txn.send("audit", {"what": "moved"})
        result = db.query("SELECT owner, sum(balance) AS total FROM accounts GROUP BY owner", consistency="strong")
        assert sorted(tuple(each.values()) for each in result.rows()) == [("ann", 90), ("cy", 60), ("di", 5)]
        assert result.timestamp >= txn.commit_timestamp
        assert result.to_pandas()["total"].sum() == 155 and len(result) == 3
        assert result.to_arrow().schema.field("total").type == pa.int64()
        assert rows(db, "SELECT id FROM accounts", consistency=txn.commit_timestamp) == [(1,), (3,), (4,)]
        message = sub.receive(5.0)
        assert message.value == {"what": "moved"} and message.timestamp == txn.commit_timestamp

    def test_a_transaction_that_fails_leaves_no_row(self, db):
        """Promise 2."""
        with pytest.raises(ZeroDivisionError), db.transaction() as txn:
            txn.insert("t", [(1, "a", 1)])
            txn.sql("INSERT INTO t VALUES (2, 'b', 2)")
            raise ZeroDivisionError
        assert rows(db) == []

    def test_a_cut_at_the_commit_has_it_and_one_right_before_has_not(self, db):
        """Promise 4, and that a transaction's place is its commit Timestamp."""
        db.insert("t", [(1, "a", 1)])
        sent = db.upsert("t", [(1, "b", 2), (2, "c", 3)])
        assert rows(db, consistency=sent.timestamp) == [(1, "b", 2), (2, "c", 3)]
        assert rows(db, consistency=tidegate.Timestamp(int(sent.timestamp) - 1)) == [(1, "a", 1)]


WAYS = {
    "dicts": lambda: [{"id": 1, "name": "a", "n": 1}, {"N": 2, "ID": 2}],
    "one dict": lambda: {"id": 1, "name": "a", "n": 1},
    "tuples": lambda: [(1, "a", 1), (2, None, 2)],
    "a generator": lambda: ((id, name, id) for id, name in ((1, "a"), (2, None))),
    "pandas": lambda: pd.DataFrame({"id": [1, 2], "name": ["a", None], "n": [1, 2]}),
    "polars": lambda: pl.DataFrame({"id": [1, 2], "name": ["a", None], "n": [1, 2]}),
    "an Arrow table": lambda: pa.table({"n": [1, 2], "id": [1, 2], "name": ["a", None]}),
    "an Arrow batch": lambda: pa.record_batch({"id": [1, 2], "name": ["a", None], "n": [1, 2]}),
    "an Arrow reader": lambda: pa.table({"id": [1, 2], "name": ["a", None], "n": [1, 2]}).to_reader(),
}


class TestWaysIn:
    @pytest.mark.parametrize("way", WAYS)
    def test_rows_come_in_as(self, owner, way):
        given = 1 if way == "one dict" else 2
        assert owner.insert("t", WAYS[way]()).messages == given
        assert rows(owner) == [(1, "a", 1), (2, None, 2)][:given]
        owner.sql("DELETE FROM t")
        with owner.transaction() as txn:
            assert txn.upsert("t", WAYS[way]()) == given
        assert rows(owner) == [(1, "a", 1), (2, None, 2)][:given]

    def test_an_insert_of_an_existing_key_replaces_the_row(self, db):
        db.insert("t", [(1, "a", 1)])
        db.sql("INSERT INTO t (id, name) VALUES (1, 'b')")
        assert rows(db) == [(1, "b", None)]
        db.upsert("t", pa.table({"id": [1], "n": [3]}))
        assert rows(db) == [(1, None, 3)]

    def test_keys_to_delete_come_in_every_form_and_need_not_be_there(self, db):
        for keys in ([1], [(1,)], [{"id": 1}], pa.array([1]), pa.table({"id": [1]}), pd.DataFrame({"id": [1]}), 1):
            db.insert("t", [(1, "a", 1), (2, "b", 2)])
            assert db.delete("t", keys).messages == 1
            assert rows(db) == [(2, "b", 2)]
            assert db.delete("t", keys).messages == 1
            assert rows(db) == [(2, "b", 2)]

    def test_of_many_rows_with_one_key_the_last_remains(self, db):
        for count in (5, 500):  # As bytes and as columns.
            db.insert("t", [(1, f"row {number}", number) for number in range(count)])
            assert rows(db) == [(1, f"row {count - 1}", count - 1)]

    @pytest.mark.parametrize("count", [1, 40])
    def test_insert_delete_insert_of_one_key_in_one_transaction_ends_with_the_row(self, db, count):
        """Seed 004: visibility is decided by timestamps, and by the order within a transaction."""
        keys = list(range(count))
        with db.transaction() as txn:
            txn.insert("t", [(key, "first", 1) for key in keys])
            txn.delete("t", keys)
            txn.insert("t", [(key, "last", 2) for key in keys])
        assert rows(db) == sorted(((key, "last", 2) for key in keys), key=repr)
        with db.transaction() as txn:
            txn.insert("t", [(key, "again", 3) for key in keys])
            txn.delete("t", keys)
        assert rows(db) == []

    def test_so_it_does_when_the_transaction_is_written_ahead(self, open_desk):
        """Seed 004."""
        db = open_desk("client", transaction_buffer_bytes=100).db
        with db.transaction() as txn:
            for number in range(20):
                txn.insert("t", [(1, "x" * 50, number)])
                txn.delete("t", [1])
            txn.insert("t", [(1, "last", 9)])
        assert rows(db) == [(1, "last", 9)]

    def test_no_rows_are_no_write(self, db):
        before = db.insert("t", [(1, "a", 1)]).timestamp
        for nothing in ([], pa.table({"id": pa.array([], pa.int64())}), iter(())):
            assert db.insert("t", nothing).messages == 0
        assert db.delete("t", []).messages == 0
        assert db.last_seen == before and rows(db) == [(1, "a", 1)]

    def test_more_than_a_commit_carries_is_one_transaction_still(self, open_desk):
        """Promise 2 for bulk inserts: every cut has all of it or nothing."""
        db = open_desk(transaction_buffer_bytes=10_000, log=LogSettings(tick_interval_ms=5, batch_rows_max=1000)).db
        sent = db.insert("t", pa.table({"id": list(range(5000)), "n": [1] * 5000}))
        assert sent.messages == 5000
        assert rows(db, "SELECT count(*) AS c, sum(n) AS s FROM t", consistency=sent.timestamp) == [(5000, 5000)]
        before = tidegate.Timestamp(int(sent.timestamp) - 1)
        assert rows(db, "SELECT count(*) AS c FROM t", consistency=before) == [(0,)]


class TestStatements:
    def test_on_conflict_do_nothing_keeps_the_row(self, db):
        db.sql("INSERT INTO t VALUES (1, 'a', 1)")
        sql = "INSERT INTO t VALUES (1, 'x', 9), (2, 'b', 2), (2, 'y', 9) ON CONFLICT {} DO NOTHING"
        assert db.sql(sql.format("")) == [{"rows": 1}]
        assert db.sql(sql.format("(id)")) == [{"rows": 0}]
        assert rows(db) == [(1, "a", 1), (2, "b", 2)]
        with pytest.raises(errors.InvalidArgument, match=r"\(name\).*key is \(id\)"):
            db.sql(sql.format("(name)"))

    def test_on_conflict_do_nothing_sees_rows_of_its_own_transaction(self, db):
        with db.transaction() as txn:
            txn.insert("t", [(1, "mine", 1)])
            assert txn.sql("INSERT INTO t VALUES (1, 'x', 9) ON CONFLICT DO NOTHING") == [{"rows": 0}]
            txn.delete("t", [1])
            assert txn.sql("INSERT INTO t VALUES (1, 'new', 9) ON CONFLICT DO NOTHING") == [{"rows": 1}]
        assert rows(db) == [(1, "new", 9)]

    def test_insert_select_copies_computes_and_checks_the_columns(self, db):
        db.sql("CREATE TABLE u (k STRING PRIMARY KEY, total BIGINT)")
        db.insert("t", [(1, "a", 1), (2, "a", 2), (3, "b", 3), (4, None, 4)])
        sql = "INSERT INTO u SELECT name, sum(n) FROM t WHERE name IS NOT NULL GROUP BY name"
        assert db.sql(sql) == [{"rows": 2}]
        assert rows(db, "SELECT * FROM u") == [("a", 3), ("b", 3)]
        db.sql("WITH s AS (SELECT 'c' AS k) INSERT INTO u (k) SELECT k FROM s")
        assert rows(db, "SELECT * FROM u") == [("a", 3), ("b", 3), ("c", None)]
        with pytest.raises(errors.InvalidArgument, match="3 values are given for the 2 columns k, total"):
            db.sql("INSERT INTO u SELECT name, n, n FROM t")
        with pytest.raises(errors.InvalidArgument, match=r"'k'.*NULL"):
            db.sql("INSERT INTO u SELECT name, n FROM t")
        assert len(rows(db, "SELECT * FROM u")) == 3

    @pytest.mark.parametrize(
        ("where", "hit"),
        [
            ("TRUE", [1, 2, 3]),
            ("id = 2", [2]),
            ("n > 1", [2]),
            ("n IS NULL", [3]),
            ("NOT (n > 1)", [1]),
            ("n = NULL", []),
            ("n <=> NULL", [3]),
            ("name IN ('b', NULL)", [2]),
            ("name LIKE 'a%' OR n IS NULL", [1, 3]),
            ("n = (SELECT max(n) FROM t)", [2]),
            ("id IN (SELECT id FROM t WHERE n IS NOT NULL)", [1, 2]),
            ("EXISTS (SELECT 1 FROM t AS y WHERE y.id = x.id + 1)", [1, 2]),
            ("FALSE", []),
        ],
    )
    def test_update_and_delete_take_any_where(self, owner, where, hit):
        """Issue 4: UPDATE and DELETE with any WHERE; NULL is neither true nor false."""
        before = [(1, "a", 1), (2, "b", 2), (3, None, None)]
        owner.insert("t", before)
        assert owner.sql(f"UPDATE t AS x SET name = 'hit' WHERE {where}") == [{"rows": len(hit)}]
        assert [row[0] for row in rows(owner) if row[1] == "hit"] == hit
        owner.insert("t", before)
        assert owner.sql(f"DELETE FROM t AS x WHERE {where}") == [{"rows": len(hit)}]
        assert [row[0] for row in rows(owner)] == [id for id in (1, 2, 3) if id not in hit]

    def test_update_computes_from_the_old_row(self, db):
        db.insert("t", [(1, "a", 10), (2, "b", None)])
        assert db.sql("UPDATE t SET n = id, id = n, name = concat(name, '!') WHERE n IS NOT NULL") == [{"rows": 1}]
        assert rows(db) == [(10, "a!", 1), (2, "b", None)]
        db.sql("UPDATE t SET n = coalesce(n, 0) + (SELECT count(*) FROM t), name = NULL")
        assert rows(db) == [(10, None, 3), (2, None, 2)]

    def test_update_may_swap_and_shift_keys(self, db):
        db.insert("t", [(1, "a", 1), (2, "b", 2), (3, "c", 3)])
        assert db.sql("UPDATE t SET id = 3 - id WHERE id < 3") == [{"rows": 2}]
        assert rows(db) == [(1, "b", 2), (2, "a", 1), (3, "c", 3)]
        db.sql("UPDATE t SET id = id + 1")
        assert rows(db) == [(2, "b", 2), (3, "a", 1), (4, "c", 3)]
        with pytest.raises(errors.InvalidArgument, match="several rows would get the same key"):
            db.sql("UPDATE t SET id = 7")
        assert rows(db) == [(2, "b", 2), (3, "a", 1), (4, "c", 3)]

    def test_a_column_may_be_called_like_anything(self, owner):
        owner.sql("CREATE TABLE `odd-one.x` (`_old_k` INT, `k` INT PRIMARY KEY, `select` STRING, `a b` INT)")
        owner.insert("odd-one.x", [(1, 1, "s", 2)])
        owner.sql("UPDATE `odd-one.x` SET k = k + 1, `a b` = `_old_k` + 4, `select` = upper(`select`)")
        assert rows(owner, "SELECT * FROM `odd-one.x`") == [(1, 2, "S", 5)]

    def test_statements_in_a_transaction_see_its_own_rows_and_nobody_elses_later_ones(self, db):
        db.insert("t", [(1, "a", 1)])
        with db.transaction() as txn:
            txn.insert("t", [(2, "b", 2)])
            assert txn.sql("UPDATE t SET n = n + 10") == [{"rows": 2}]
            assert txn.sql("UPDATE t SET n = n * 2 WHERE id = 2") == [{"rows": 1}]
            db.insert("t", [(3, "later", 3)])
            assert txn.sql("DELETE FROM t WHERE id IN (1, 3)") == [{"rows": 1}]
            assert txn.sql("INSERT INTO t SELECT id + 10, name, n FROM t") == [{"rows": 1}]
            assert rows(db) == [(1, "a", 1), (3, "later", 3)]
        assert rows(db) == [(12, "b", 24), (2, "b", 24), (3, "later", 3)]

    def test_an_update_of_a_row_that_somebody_changed_meanwhile_is_refused(self, db):
        """Issue 4: the transactions' optimistic check."""
        db.insert("t", [(1, "a", 1), (2, "b", 2)])
        txn = db.transaction()
        txn.sql("UPDATE t SET n = n + 1 WHERE id = 1")
        db.sql("UPDATE t SET n = 100 WHERE id = 1")
        with pytest.raises(errors.Conflict):
            txn.commit()
        assert rows(db) == [(1, "a", 100), (2, "b", 2)]
        keeping = "INSERT INTO t VALUES (3, 'c', 3) ON CONFLICT DO NOTHING"
        for sql in ("INSERT INTO t SELECT id, name, n + 1 FROM t", keeping):
            txn = db.transaction()
            txn.sql(sql)
            db.insert("t", [(3, "z", 0), (1, "z", 0)])
            with pytest.raises(errors.Conflict):
                txn.commit()
            db.delete("t", [3])

    def test_a_transaction_runs_no_other_statements(self, db):
        with db.transaction() as txn:
            for sql in ("SELECT * FROM t", "CREATE TABLE u (a INT)", "DROP TABLE t"):
                with pytest.raises(errors.InvalidArgument, match=r"db\.sql"):
                    txn.sql(sql)

    def test_comments_and_brackets_before_a_statement_change_nothing(self, db):
        assert db.sql("-- rows\n/* two */ INSERT INTO t VALUES (1, 'a', 1)") == [{"rows": 1}]
        assert db.sql("-- rows\nSELECT id FROM t") == [{"id": 1}]
        assert db.sql("(SELECT id FROM t)") == [{"id": 1}]
        assert db.sql("/**/ SHOW TABLES")[0]["name"] == "t"

    @pytest.mark.slow
    def test_two_threads_that_count_lose_nothing(self, owner):
        """Issue 4: no update is lost."""
        owner.insert("t", [(1, "a", 0)])
        failed = []

        def count():
            try:
                for _ in range(50):
                    owner.sql("UPDATE t SET n = n + 1 WHERE id = 1")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=count) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not failed and rows(owner) == [(1, "a", 100)]


class TestSums:
    def test_the_sum_of_integers_is_a_bigint_as_in_spark(self, owner):
        owner.sql("CREATE TABLE s (k INT PRIMARY KEY, a TINYINT, b BIGINT, c DECIMAL(10, 2))")
        owner.insert("s", [(1, 1, 2**62, Decimal("1.50")), (2, 2, 5, None)])
        found = owner.query("SELECT sum(a) AS a, sum(b) AS b, sum(a) + 1 AS d, sum(c) AS c, count(*) AS n FROM s")
        assert found.rows() == [{"a": 3, "b": 2**62 + 5, "d": 4, "c": Decimal("1.50"), "n": 2}]
        assert found.to_arrow().schema.field("b").type == found.to_arrow().schema.field("d").type == pa.int64()
        assert owner.query("SELECT sum(b) AS b FROM s WHERE k > 5").rows() == [{"b": None}]

    def test_a_sum_beyond_bigint_is_an_error_that_names_the_column(self, owner):
        owner.insert("t", [(1, "a", 2**62), (2, "b", 2**62)])
        with pytest.raises(errors.InvalidArgument, match=r"AS total.*out of range.*sum\(n\)"):
            owner.query("SELECT sum(n) AS total FROM t")
        wide = owner.query("SELECT sum(CAST(n AS DECIMAL(38, 0))) AS total FROM t")
        assert wide.rows() == [{"total": Decimal(2**63)}]


class TestTablesThatOnlyGrow:
    def test_rows_are_added_and_never_replaced(self, db):
        db.sql("CREATE TABLE log (a INT, b STRING) SHARDS 2")
        db.insert("log", [(1, "x"), (1, "x")])
        db.sql("INSERT INTO log VALUES (1, 'x')")
        db.insert("log", pa.table({"a": [1] * 100, "b": ["y"] * 100}))
        db.sql("INSERT INTO log SELECT a, 'z' FROM log WHERE b = 'x'")
        counts = rows(db, "SELECT b, count(*) AS c FROM log GROUP BY b")
        assert counts == [("x", 3), ("y", 100), ("z", 3)]

    @pytest.mark.parametrize(
        "sql", ["UPDATE log SET a = 1", "DELETE FROM log", "INSERT INTO log VALUES (1) ON CONFLICT DO NOTHING"]
    )
    def test_what_needs_a_key_is_refused_with_the_name(self, owner, sql):
        owner.sql("CREATE TABLE log (a INT)")
        with pytest.raises(errors.InvalidArgument, match="'log' has no primary key"):
            owner.sql(sql)
        for call in (lambda: owner.delete("log", [1]), lambda: owner.transaction().read("log", [1])):
            with pytest.raises(errors.InvalidArgument, match="'log' has no primary key"):
                call()


class TestShards:
    def test_rows_are_spread_and_one_key_is_always_in_one_shard(self, open_desk):
        """Issue 4: rows are routed by a stable hash of the key, whichever way they come in."""
        desk = open_desk()
        keys = list(range(200))
        with desk.db.transaction() as txn:
            txn.insert("t", [(key, "many", 0) for key in keys])
        for key in keys:
            desk.db.insert("t", [(key, "one", 1)])
        with desk.db.transaction() as txn:
            txn.delete("t", pa.array(keys[:100]))
        shards = {}
        table = desk.engine.table("t")
        at = desk.db.engine.log.allocate(1)
        desk.db.wait_visible(at)
        for batch in desk.db.cut_reader.tails.batches(table, tidegate.Timestamp.ZERO, at):
            for at, vchannel in enumerate(batch.vchannels):
                for row in changes_of(table, [batch.where(batch.vchannel_ids == at)]).to_pylist():
                    shards.setdefault(row["id"], set()).add(vchannel)
        assert set(map(len, shards.values())) == {1} and len(shards) == 200
        used = [next(iter(each)) for each in shards.values()]
        assert set(used) == set(table.vchannels) and all(used.count(each) > 30 for each in table.vchannels)
        assert sorted(row[0] for row in rows(desk.db)) == keys[100:]

    @pytest.mark.slow
    def test_a_transaction_over_shards_is_seen_whole_at_every_cut(self, owner):
        """Promise 2: over many channels too. Money moves between rows of different shards; no cut has more or less."""
        owner.insert("t", [(key, "m", 100) for key in range(6)])
        stop, sums = threading.Event(), []

        def look():
            while not stop.is_set():
                found = owner.query("SELECT sum(n) AS s, count(*) AS c FROM t")
                sums.append(tuple(found.rows()[0].values()))

        thread = threading.Thread(target=look)
        thread.start()
        for number in range(20):
            with owner.transaction() as txn:
                txn.sql(f"UPDATE t SET n = n - 7 WHERE id = {number % 6}")
                txn.sql(f"UPDATE t SET n = n + 7 WHERE id = {(number + 1 + number % 4) % 6}")
        stop.set()
        thread.join()
        assert sums and set(sums) == {(600, 6)}


class TestAsync:
    def test_rows_go_with_a_transaction_in_an_event_loop(self, db):
        """`insert` keeps rows in memory; `commit_async` is what waits."""

        async def work():
            async with db.transaction() as txn:
                txn.insert("t", [(1, "a", 1)])
                txn.sql("INSERT INTO t VALUES (2, 'b', 2)")
            one = db.transaction()
            one.upsert("t", [(3, "c", 3)])
            await one.commit_async()
            assert one.commit_timestamp > txn.commit_timestamp
            many = [db.transaction() for _ in range(20)]
            for number, each in enumerate(many):
                each.insert("t", [(100 + number, "m", number), (200 + number, "m", number)])
            return await asyncio.gather(*(each.commit_async() for each in many))

        stamps = asyncio.run(work())
        assert len(set(stamps)) == 20 and len(rows(db)) == 43

    def test_a_conflict_of_rows_is_told_there_too(self, owner):
        owner.insert("t", [(1, "a", 1)])

        async def work():
            txn = owner.transaction()
            txn.sql("UPDATE t SET n = 2")
            owner.insert("t", [(1, "b", 7)])
            await txn.commit_async()

        with pytest.raises(errors.Conflict):
            asyncio.run(work())
        assert rows(owner) == [(1, "b", 7)]


class TestReopening:
    def test_rows_and_schemas_survive_closing(self, open_desk):
        """Promise 6."""
        desk = open_desk()
        desk.db.insert("t", [(key, "a", key) for key in range(100)])
        early = desk.db.delete("t", [5]).timestamp
        desk.db.sql("ALTER TABLE t ADD COLUMN extra DOUBLE")
        desk.db.sql("UPDATE t SET extra = 1.5 WHERE id = 6")
        desk.close()
        desk.open()
        assert rows(desk.db, "SELECT id, extra FROM t WHERE id BETWEEN 4 AND 6") == [(4, None), (6, 1.5)]
        assert rows(desk.db, "SELECT * FROM t WHERE id IN (5, 6)", consistency=early) == [(6, "a", 6)]
        desk.db.insert("t", [(5, "back", 1, 2.5)])
        assert rows(desk.db, "SELECT * FROM t WHERE id = 5") == [(5, "back", 1, 2.5)]
