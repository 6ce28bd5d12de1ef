"""Changes of tables in the timeline: schemas by Timestamp, writers with old ones, names that come again.

Issue 4, "Catalog and DDL"; seed 004: a writer with an old schema is told the Timestamp, looks again and tries once per
new version, never in a storm.
"""

import threading

import pyarrow as pa
import pytest

import tidegate
from database_rig import Desk
from tidegate import errors


@pytest.fixture
def open_desk(tmp_path):
    opened = []

    def open_(through="owner", **options):
        desk = Desk(tmp_path / f"{len(opened)}.tide", through, pipeline=False, **options)
        opened.append(desk)
        desk.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING, n BIGINT) SHARDS 2")
        return desk

    yield open_
    for each in opened:
        each.close()


@pytest.fixture(params=["owner", "client"])
def desk(request, open_desk):
    return open_desk(request.param)


@pytest.fixture
def db(desk):
    return desk.db


def rows(db, sql="SELECT * FROM t", consistency="strong"):
    return sorted((tuple(row.values()) for row in db.query(sql, consistency).rows()), key=repr)


def columns(db, consistency="strong"):
    return db.query("SELECT * FROM t", consistency).to_arrow().schema.names


class Counted:
    """A backend whose calls are counted."""

    def __init__(self, inner):
        self._inner = inner
        self.calls = []

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments, **options):
            self.calls.append(name)
            return found(*arguments, **options)

        return call


@pytest.fixture
def counted(open_desk):
    """A client that has looked `t` up, and a count of what it asks from then on."""
    desk = open_desk("client")
    desk.db.insert("t", [(1, "a", 1)])
    desk.db._backend = Counted(desk.db._backend)
    return desk


class TestSchemasByTimestamp:
    def test_a_cut_before_and_after_a_change_is_read_by_the_schema_of_its_time(self, db):
        """Issue 4: any read is interpreted by the schema of its time."""
        cuts = [(db.insert("t", [(1, "a", 10), (2, "b", 20)]).timestamp, ["id", "name", "n"])]
        for sql, names in [
            ("ADD COLUMN extra DOUBLE", ["id", "name", "n", "extra"]),
            ("RENAME COLUMN name TO title", ["id", "title", "n", "extra"]),
            ("DROP COLUMN n", ["id", "title", "extra"]),
            ("ADD COLUMN n STRING", ["id", "title", "extra", "n"]),
            ("RENAME COLUMN id TO key", ["key", "title", "extra", "n"]),
        ]:
            db.sql(f"ALTER TABLE t {sql}")
            key = names[0]
            cuts.append((db.insert("t", [{key: 3, names[1]: sql}]).timestamp, names))
        for at, names in cuts:
            assert columns(db, consistency=at) == names
        assert columns(db) == cuts[-1][1]
        assert rows(db, consistency=cuts[0][0]) == [(1, "a", 10), (2, "b", 20)]
        assert rows(db, consistency=cuts[1][0]) == [
            (1, "a", 10, None),
            (2, "b", 20, None),
            (3, "ADD COLUMN extra DOUBLE", None, None),
        ]
        # A column that was dropped and added again under its name is another one.
        assert rows(db, "SELECT key, title, n FROM t WHERE key < 3") == [(1, "a", None), (2, "b", None)]
        with pytest.raises(errors.InvalidArgument, match="key"):
            db.query("SELECT key FROM t", cuts[1][0])
        with pytest.raises(errors.NotFound, match="'t' was created at"):
            db.query("SELECT * FROM t", tidegate.Timestamp(1))

    def test_a_client_that_knows_an_older_schema_reads_rows_of_a_newer_one(self, open_desk):
        """Seed 004: what a client remembers must never make it misread what others wrote."""
        desk = open_desk("client")
        client = desk.db
        client.insert("t", [(1, "a", 1)])
        assert columns(client) == ["id", "name", "n"]
        desk.owner.sql("ALTER TABLE t ADD COLUMN extra INT")
        desk.owner.insert("t", [(2, "b", 2, 7)])
        assert rows(client) == [(1, "a", 1, None), (2, "b", 2, 7)]
        desk.owner.sql("ALTER TABLE t DROP COLUMN name")
        desk.owner.insert("t", [(3, 3, 8)])
        assert client.sql("UPDATE t SET extra = extra + 1 WHERE extra IS NOT NULL") == [{"rows": 2}]
        desk.owner.sql("ALTER TABLE t RENAME COLUMN n TO m")
        desk.owner.insert("t", [(4, 4, 9)])
        assert client.sql("DELETE FROM t WHERE m = 1") == [{"rows": 1}]
        assert client.sql("INSERT INTO t SELECT id + 10, m, extra FROM t WHERE m = 4") == [{"rows": 1}]
        assert rows(client) == [(14, 4, 9), (2, 2, 8), (3, 3, 9), (4, 4, 9)]

    def test_queries_that_run_while_a_table_changes_are_of_one_schema_each(self, open_desk):
        """Promise 4, with DDL: never a column of one time and a row of another."""
        desk = open_desk("client")
        stop, wrong = threading.Event(), []

        def look(db):
            while not stop.is_set():
                try:
                    found = db.query("SELECT * FROM t WHERE id = 1", "strong").to_arrow()
                    again = db.query("SELECT * FROM t WHERE id = 1", db.last_seen).to_arrow()
                    if len(found.schema.names) == 3 and found.to_pylist() != [{"id": 1, "name": "a", "n": 1}]:
                        wrong.append(found.to_pylist())
                    if found.num_rows != 1 or again.num_rows != 1:
                        wrong.append((found, again))
                except BaseException as error:
                    wrong.append(error)
                    return

        desk.owner.insert("t", [(1, "a", 1)])
        threads = [threading.Thread(target=look, args=(each,)) for each in (desk.owner, desk.db)]
        for each in threads:
            each.start()
        for number in range(10):
            desk.owner.sql(f"ALTER TABLE t ADD COLUMN c{number} INT")
            desk.owner.insert("t", [{"id": 2, f"c{number}": 1}])
            desk.owner.sql(f"ALTER TABLE t DROP COLUMN c{number}")
            desk.owner.insert("t", [{"id": 2}])
        stop.set()
        for each in threads:
            each.join()
        assert not wrong


class TestWritersWithAnOldSchema:
    def test_a_commit_is_refused_with_the_timestamp_and_goes_well_when_run_again(self, desk):
        """Seed 004: the error carries the Timestamp of the schema in effect."""
        db = desk.db
        txn = db.transaction()
        txn.insert("t", [(1, "a", 1)])
        desk.owner.sql("ALTER TABLE t ADD COLUMN extra INT")
        with pytest.raises(errors.SchemaMismatch, match=r"'t'.*version 2") as info:
            txn.commit()
        assert info.value.table == "t"
        assert info.value.timestamp == int(desk.engine.table("t").schema.since)
        assert txn.state == "ABORTED" and rows(db) == []
        with db.transaction() as txn:  # The client has looked again by itself.
            txn.insert("t", [(1, "a", 1, 5)])
        assert rows(db) == [(1, "a", 1, 5)]

    @pytest.mark.parametrize("count", [1, 500])
    def test_insert_looks_again_and_tries_once_for_a_new_version(self, counted, count):
        """Seed 004: never in a storm. Two writes and one look, whatever the size of the batch."""
        client = counted.db
        given = [{"id": number, "n": number} for number in range(count)]
        counted.owner.sql("ALTER TABLE t ADD COLUMN extra INT")
        calls = client._backend.calls
        calls.clear()
        assert client.insert("t", (each for each in given)).messages == count  # Also what can be read only once.
        assert calls.count("commit") == 2 and calls.count("table") == 1
        calls.clear()
        client.insert("t", given)
        assert calls.count("commit") == 1 and "table" not in calls
        assert rows(client, "SELECT count(*) AS c FROM t WHERE n = id AND extra IS NULL") == [(max(count, 2),)]

    def test_a_writer_that_is_told_the_same_again_gives_up(self, counted, monkeypatch):
        """Seed 004: once per new version. Whoever has looked and is refused still is not helped by trying."""
        client = counted.db

        def refuse(*_):
            raise errors.SchemaMismatch("never", table="t", timestamp=1)

        monkeypatch.setattr(counted.engine, "check_places", refuse)
        client._backend.calls.clear()
        with pytest.raises(errors.SchemaMismatch, match="never"):
            client.insert("t", [(1, "a", 1)])
        assert client._backend.calls.count("commit") == 1 and client._backend.calls.count("table") == 1

    def test_a_row_that_no_longer_fits_says_so(self, counted):
        counted.owner.sql("ALTER TABLE t DROP COLUMN n")
        with pytest.raises(errors.InvalidArgument, match="'n'"):
            counted.db.insert("t", [{"id": 1, "n": 1}])
        with pytest.raises(errors.InvalidArgument, match="3 values for 2 columns"):
            counted.db.insert("t", [(2, "b", 2)])
        assert counted.db.delete("t", [1]).messages == 1
        assert rows(counted.db) == []

    def test_run_goes_well_without_its_user_noticing(self, desk):
        tries = []

        def work(txn):
            txn.insert("t", [{"id": 1, "name": "a"}])
            if not tries:
                desk.owner.sql("ALTER TABLE t ADD COLUMN extra INT")
            tries.append(1)

        desk.db.run(work)
        assert len(tries) == 2 and rows(desk.db) == [(1, "a", None, None)]

    def test_an_update_reads_by_one_schema_and_is_refused_when_the_table_changed_since(self, desk):
        db = desk.db
        db.insert("t", [(1, "a", 1)])
        txn = db.transaction()
        txn.read("t", [1])
        desk.owner.sql("ALTER TABLE t RENAME COLUMN name TO title")
        with pytest.raises(errors.SchemaMismatch, match="'t' was altered"):
            txn.sql("UPDATE t SET title = 'b'")
        txn.abort()
        assert db.sql("UPDATE t SET title = 'b'") == [{"rows": 1}]
        assert rows(db) == [(1, "b", 1)]

    def test_a_table_that_changes_more_often_than_there_are_attempts_takes_none_of_them(self, open_desk):
        """Statement behind statement would else end a writer that is in nobody's way."""
        desk = open_desk("client")
        changes = iter(range(5))

        def step(txn):
            txn.insert("t", [{"id": 1, "n": 1}])
            if (number := next(changes, None)) is not None:
                desk.owner.sql(f"ALTER TABLE t ADD COLUMN c{number} INT")

        desk.db.run(step, attempts=2)
        assert rows(desk.db, "SELECT id, n FROM t") == [(1, 1)]

    def test_writers_go_on_while_their_table_changes_and_lose_nothing(self, open_desk):
        """Seed 004: many writers, many changes. Every row that was acknowledged is there, by the newest schema."""
        desk = open_desk("client")
        stop, told, wrong = threading.Event(), [], []

        def write(db, base):
            number = base
            while not stop.is_set():
                number += 1
                try:
                    if number % 2:
                        db.insert("t", [{"id": number, "n": number}])
                    else:
                        db.run(lambda txn, number=number: txn.insert("t", pa.table({"id": [number], "n": [number]})))
                    told.append(number)
                except BaseException as error:
                    wrong.append(error)
                    return

        threads = [
            threading.Thread(target=write, args=(each, 10_000 * at)) for at, each in enumerate((desk.owner, desk.db))
        ]
        for each in threads:
            each.start()
        for number in range(15):
            desk.owner.sql(f"ALTER TABLE t ADD COLUMN c{number} INT")
            if number % 2:
                desk.owner.sql(f"ALTER TABLE t DROP COLUMN c{number - 1}")
        stop.set()
        for each in threads:
            each.join()
        assert not wrong and told
        assert rows(desk.db, "SELECT id, n FROM t") == sorted(((each, each) for each in told), key=repr)


class TestTransactionsThatWroteAhead:
    @pytest.mark.parametrize("sql", ["ALTER TABLE t ADD COLUMN extra INT", "DROP TABLE t"])
    def test_are_failed_by_a_change_of_their_table_and_told_why(self, open_desk, sql):
        """Issue 4: open transactions there are force-failed and told why."""
        desk = open_desk("client", transaction_buffer_bytes=100)
        desk.owner.sql("CREATE TABLE other (id INT PRIMARY KEY)")
        hit, free = desk.db.transaction(), desk.db.transaction()
        for number in range(10):
            hit.insert("t", [(number, "x" * 50, number)])
            free.insert("other", [(number,)])
        desk.owner.sql(sql)
        with pytest.raises(errors.TransactionAborted) as info:
            hit.commit()
        assert info.value.reason.startswith("DDL in") and ".t/" in info.value.reason
        free.commit()
        assert rows(desk.db, "SELECT count(*) AS c FROM other") == [(10,)]
        if "DROP" not in sql:
            assert rows(desk.db) == []

    def test_a_bulk_insert_goes_on_by_itself(self, open_desk, monkeypatch):
        """An insert alone does not show whether it was written ahead: it is run again for the new version."""
        desk = open_desk(transaction_buffer_bytes=10_000)
        db, engine = desk.db, desk.engine
        write_ahead, once = engine.write_ahead, []

        def alter_after(id, writes):
            write_ahead(id, writes)
            if not once:
                once.append(1)
                db.sql("ALTER TABLE t ADD COLUMN extra INT")

        monkeypatch.setattr(engine, "write_ahead", alter_after)
        db.insert("t", pa.table({"id": list(range(5000)), "n": [1] * 5000}))
        assert once and rows(db, "SELECT count(*) AS c, count(extra) AS e FROM t") == [(5000, 0)]


class TestDroppingAndCreatingAgain:
    def test_no_row_is_acknowledged_at_a_time_when_its_table_was_gone(self, desk):
        """Issue 4: DDL is in the timeline. Writers and a DROP at the same moment, many times."""
        for turn in range(15):
            desk.owner.sql(f"CREATE TABLE r{turn} (id BIGINT PRIMARY KEY) SHARDS 2")
            sent, ends = [], []

            def write(name=f"r{turn}", sent=sent, ends=ends):
                try:
                    for number in range(10_000):
                        sent.append(desk.db.insert(name, [(number,), (number + 20_000,)]).timestamp)
                except errors.NotFound as error:
                    ends.append(error)

            writers = [threading.Thread(target=write) for _ in range(3)]
            for each in writers:
                each.start()
            while len(sent) < 3 * turn:
                pass
            desk.owner.sql(f"DROP TABLE r{turn}")
            for each in writers:
                each.join()
            dropped = desk.engine.tables_changed([f"r{turn}"])
            assert len(ends) == 3 and all(each < dropped for each in sent)

    def test_old_rows_never_come_back(self, desk):
        db = desk.db
        before = db.insert("t", [(1, "old", 1), (2, "old", 2)]).timestamp
        db.sql("DROP TABLE t")
        with pytest.raises(errors.NotFound, match="'t'"):
            db.query("SELECT * FROM t")
        between = db.query("SELECT 1 AS one").timestamp
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, other DOUBLE) SHARDS 3")
        assert rows(db) == []
        db.insert("t", [(1, 0.5)])
        assert rows(db) == [(1, 0.5)]
        # A cut before still shows the table that there was.
        assert rows(db, consistency=before) == [(1, "old", 1), (2, "old", 2)]
        with pytest.raises(errors.NotFound, match="'t'"):
            db.query("SELECT * FROM t", between)
        desk.close()
        desk.open()
        assert rows(desk.db) == [(1, 0.5)]
        assert rows(desk.db, consistency=before) == [(1, "old", 1), (2, "old", 2)]

    def test_a_client_that_knows_the_one_before_writes_to_the_new_one(self, counted):
        counted.owner.sql("DROP TABLE t")
        counted.owner.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING, n BIGINT)")
        counted.db._backend.calls.clear()
        counted.db.insert("t", [(5, "new", 5)])
        assert counted.db._backend.calls.count("table") == 1
        assert rows(counted.db) == [(5, "new", 5)]
        counted.owner.sql("DROP TABLE t")
        with pytest.raises(errors.NotFound, match="no table 't'"):
            counted.db.insert("t", [(6, "nowhere", 6)])

    def test_a_transaction_that_is_open_while_its_table_is_dropped_writes_nothing(self, desk):
        db = desk.db
        db.sql("CREATE TABLE kept (id INT PRIMARY KEY)")
        txn = db.transaction()
        txn.insert("t", [(1, "a", 1)])
        txn.insert("kept", [(1,)])
        desk.owner.sql("DROP TABLE t")
        with pytest.raises(errors.NotFound, match=r"t.*dropped"):
            txn.commit()
        assert rows(db, "SELECT * FROM kept") == []
        txn = db.transaction()
        with pytest.raises(errors.NotFound):
            txn.insert("t", [(1, "a", 1)])
        txn.abort()

    def test_nor_does_one_that_straddles_a_drop_and_a_create(self, desk):
        db = desk.db
        db.insert("t", [(1, "old", 1)])
        txn = db.transaction()
        txn.sql("UPDATE t SET n = n + 1")
        desk.owner.sql("DROP TABLE t")
        desk.owner.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING, n BIGINT) SHARDS 2")
        with pytest.raises(errors.SchemaMismatch, match="'t' was dropped and created again"):
            txn.commit()
        assert rows(db) == []

    def test_if_exists_and_if_not_exists(self, db):
        db.sql("CREATE TABLE IF NOT EXISTS t (x INT)")
        assert columns(db) == ["id", "name", "n"]
        db.sql("DROP TABLE IF EXISTS nothing")
        db.sql("ALTER TABLE IF EXISTS nothing ADD COLUMN a INT")
        for sql in ("DROP TABLE nothing", "ALTER TABLE nothing ADD COLUMN a INT", "DESCRIBE nothing"):
            with pytest.raises(errors.NotFound, match="'nothing'"):
                db.sql(sql)
        with pytest.raises(errors.InvalidArgument, match="'t' exists"):
            db.sql("CREATE TABLE t (x INT)")


class TestNames:
    def test_topics_and_tables_share_their_names(self, db):
        db.sql("CREATE TOPIC top")
        with pytest.raises(errors.InvalidArgument, match="topic 'top' exists"):
            db.sql("CREATE TABLE top (a INT)")
        with pytest.raises(errors.InvalidArgument, match="table 't' exists"):
            db.sql("CREATE TOPIC t")
        for call in (lambda: db.insert("top", [(1,)]), lambda: db.query("SELECT * FROM top")):
            with pytest.raises(errors.NotFound, match="'top' is a topic"):
                call()
        with pytest.raises(errors.NotFound, match="'t'"):
            db.send("t", 1)

    def test_unknown_names_come_with_near_ones(self, db):
        db.sql("CREATE TABLE accounts (id INT PRIMARY KEY)")
        for call in (
            lambda: db.insert("acounts", [(1,)]),
            lambda: db.delete("acounts", [1]),
            lambda: db.query("SELECT * FROM acounts"),
            lambda: db.sql("DROP TABLE acounts"),
            lambda: db.sql("UPDATE acounts SET id = 1"),
        ):
            with pytest.raises(errors.NotFound, match="'acounts'; did you mean 'accounts'"):
                call()

    def test_tables_are_shown_and_described(self, db):
        shown = db.sql("SHOW TABLES")
        assert [
            (each["name"], each["columns"], each["key"], each["shards"], each["schema_version"]) for each in shown
        ] == [("t", 3, "id", 2, 1)]
        assert [(each["column"], each["type"], each["key"]) for each in db.sql("DESCRIBE t")] == [
            ("id", "BIGINT", 1),
            ("name", "STRING", None),
            ("n", "BIGINT", None),
        ]
        statement = db.sql("SHOW CREATE TABLE t")[0]["statement"]
        db.sql("DROP TABLE t")
        db.sql(statement)
        assert db.sql("SHOW CREATE TABLE t")[0]["statement"] == statement
