"""PostgreSQL as a source, with a real server: capture.md section 4, and what a `Source` promises."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from helpers import eventually
from pg_mirror import Mirror, begin, catch_up, opened
from pg_server import Server
from tidegate.capture.pg_position import Position
from tidegate.capture.pg_source import PgSource
from tidegate.capture.source import Dropped, Patch, Reshaped, Rows, Truncated
from tidegate.errors import SourceUnreadable

MODES = ("streaming", "polling")
Db = psycopg.Connection[Any]


@pytest.fixture
def db(postgres: Server, pg_database: str) -> Iterator[Db]:
    with postgres.connect(pg_database) as connection:
        yield connection


@pytest.fixture(params=MODES)
def url(request: pytest.FixtureRequest, postgres: Server, pg_database: str) -> str:
    return postgres.url(pg_database, mode=request.param)


@pytest.fixture
def source(url: str) -> Iterator[PgSource]:
    with opened(url) as found:
        yield found


def table(db: Db, name: str, key: str = "id") -> dict[tuple[Any, ...], dict[str, Any]]:
    cursor = db.execute(f"SELECT * FROM {name}")  # type: ignore[call-overload]
    names = [each.name for each in cursor.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in cursor]
    return {tuple(row[each] for each in key.split()): row for row in rows}


def slot_at(db: Db, source: PgSource) -> int:
    row = db.execute(
        "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
        [source.address.slot],
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_transactions_come_whole_in_the_order_of_their_commits(postgres, pg_database, db, source):
    """capture.md section 4: of two interleaved transactions the one that commits first comes first."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, who text)")
    mirror = begin(source)
    with (
        postgres.connect(pg_database, autocommit=False) as one,
        postgres.connect(pg_database, autocommit=False) as two,
    ):
        one.execute("INSERT INTO t VALUES (1, 'one')")
        two.execute("INSERT INTO t VALUES (2, 'two')")
        one.execute("INSERT INTO t VALUES (3, 'one')")
        two.execute("INSERT INTO t VALUES (4, 'two')")
        two.commit()
        one.commit()
    taken = catch_up(source, mirror)
    assert [changes[0].rows for _, changes in taken] == [[(2, "two"), (4, "two")], [(1, "one"), (3, "one")]]
    lsns = [Position.of(transaction.position).lsn for transaction, _ in taken]
    assert lsns == sorted(lsns)
    assert int(taken[0][0].id) > int(taken[1][0].id), "a transaction's id says nothing of its place"


def test_what_was_rolled_back_never_comes(db, source):
    """capture.md section 4: rolled back, savepoint-rolled back and empty transactions are absent."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = begin(source)
    with db.transaction(force_rollback=True):
        db.execute("INSERT INTO t VALUES (1)")
    with db.transaction():
        db.execute("INSERT INTO t VALUES (2)")
        with db.transaction(force_rollback=True):
            db.execute("INSERT INTO t VALUES (3)")
        db.execute("INSERT INTO t VALUES (4)")
    with db.transaction():
        pass
    taken = catch_up(source, mirror)
    assert [changes for _, changes in taken] == [[Rows("t", [(2,), (4,)])]]


def test_a_transaction_over_many_tables_is_one(db, source):
    """design.md promise 2; its changes come table by table, as few as there can be."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, a int)")
    mirror = begin(source)
    with db.transaction():
        for number in range(3):
            db.execute("INSERT INTO a VALUES (%s)", [number])
            db.execute("INSERT INTO b VALUES (%s, %s)", [number, number])
    taken = catch_up(source, mirror)
    assert [changes for _, changes in taken] == [[Rows("a", [(0,), (1,), (2,)]), Rows("b", [(0, 0), (1, 1), (2, 2)])]]


def test_a_transaction_has_its_id_and_its_time(db, source):
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = begin(source)
    with db.transaction():
        xid = db.execute("SELECT pg_current_xact_id()::text").fetchone()
        db.execute("INSERT INTO t VALUES (1)")
    ((transaction, _),) = catch_up(source, mirror)
    assert xid is not None and transaction.id == xid[0]
    assert transaction.committed_at_us is not None
    assert abs(transaction.committed_at_us / 1e6 - time.time()) < 60
    assert transaction.origin is None


def test_a_transaction_that_came_from_elsewhere_names_its_origin(db, source):
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = begin(source)
    name = f"tidegate:{time.time_ns()}"
    db.execute("SELECT pg_replication_origin_create(%s)", [name])
    try:
        db.execute("SELECT pg_replication_origin_session_setup(%s)", [name])
        db.execute("INSERT INTO t VALUES (1)")
        db.execute("SELECT pg_replication_origin_session_reset()")
        db.execute("INSERT INTO t VALUES (2)")
        taken = catch_up(source, mirror)
    finally:
        db.execute("SELECT pg_replication_origin_drop(%s)", [name])
    assert [transaction.origin for transaction, _ in taken] == [name, None]


def test_inserts_updates_deletes_and_key_changes_within_a_transaction_come_to_what_is_left(db, source):
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'old' FROM generate_series(1, 9) i"
    )
    mirror = begin(source)
    with db.transaction():
        db.execute("UPDATE t SET v = 'new' WHERE id = 1")
        db.execute("DELETE FROM t WHERE id = 1")
        db.execute("INSERT INTO t VALUES (1, 'again')")
        db.execute("DELETE FROM t WHERE id = 2")
        db.execute("UPDATE t SET id = 20 WHERE id = 3")
        db.execute("INSERT INTO t VALUES (30, 'short-lived')")
        db.execute("DELETE FROM t WHERE id = 30")
    ((_, changes),) = catch_up(source, mirror)
    deletes, rows = changes
    assert isinstance(deletes, Rows) and deletes.is_delete and sorted(deletes.rows) == [(2,), (3,), (30,)]
    assert isinstance(rows, Rows) and sorted(rows.rows) == [(1, "again"), (20, "old")]
    assert mirror.rows["t"] == table(db, "t")


def test_two_rows_may_exchange_their_keys(db, source):
    """capture.md section 7 fact 24, for PostgreSQL."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    mirror = begin(source)
    with db.transaction():
        db.execute("UPDATE t SET id = 0 WHERE id = 1")
        db.execute("UPDATE t SET id = 1 WHERE id = 2")
        db.execute("UPDATE t SET id = 2 WHERE id = 0")
    catch_up(source, mirror)
    assert mirror.rows["t"] == {(1,): {"id": 1, "v": "b"}, (2,): {"id": 2, "v": "a"}} == table(db, "t")


def test_a_key_of_several_columns_is_named_in_their_order(db, source):
    db.execute("CREATE TABLE t (x text, b int, a text, PRIMARY KEY (a, b)); INSERT INTO t VALUES ('x', 1, 'k')")
    mirror = begin(source)
    assert mirror.tables["t"].key == ("b", "a")
    db.execute("DELETE FROM t")
    ((_, changes),) = catch_up(source, mirror)
    assert changes == [Rows("t", [(1, "k")], is_delete=True)]


def test_a_truncated_table_is_emptied_in_its_place(db, source):
    db.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    mirror = begin(source)
    with db.transaction():
        db.execute("INSERT INTO t VALUES (2); INSERT INTO u VALUES (1)")
        db.execute("TRUNCATE t, u")
        db.execute("INSERT INTO t VALUES (3)")
    ((_, changes),) = catch_up(source, mirror)
    assert changes == [Truncated("t"), Truncated("u"), Rows("t", [(3,)])]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_large_values_that_an_update_leaves_stay(db, source, identity):
    """Issue 7: TOASTed unchanged values. They are not sent; with the whole row before, they are taken from it."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text, other text)")
    db.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL")
    db.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")  # type: ignore[arg-type]
    db.execute("INSERT INTO t SELECT i, 0, repeat('x' || i, 5000), repeat('y', 5000) FROM generate_series(1, 9) i")
    mirror = begin(source)
    db.execute("UPDATE t SET n = 1 WHERE id = 1")
    db.execute("UPDATE t SET n = 1, big = NULL WHERE id = 2")
    db.execute("UPDATE t SET id = 33 WHERE id = 3")
    with db.transaction():  # Exchanged keys, each without its large values.
        db.execute("UPDATE t SET id = 0 WHERE id = 4")
        db.execute("UPDATE t SET id = 4 WHERE id = 5")
        db.execute("UPDATE t SET id = 5, n = 7 WHERE id = 0")
    with db.transaction():  # Known within the transaction.
        db.execute("INSERT INTO t VALUES (50, 0, repeat('z', 5000), '')")
        db.execute("UPDATE t SET n = 5 WHERE id = 50")
        db.execute("UPDATE t SET n = 6, other = repeat('w', 5000) WHERE id = 6")
        db.execute("UPDATE t SET n = 7 WHERE id = 6")
    with db.transaction():
        db.execute("UPDATE t SET n = 8 WHERE id = 7")
        db.execute("DELETE FROM t WHERE id = 7")
        db.execute("UPDATE t SET id = 7 WHERE id = 8")
        db.execute("INSERT INTO t VALUES (8, 1, 'new', 'new')")
    taken = catch_up(source, mirror)
    assert mirror.rows["t"] == table(db, "t")
    patches = [change for _, changes in taken for change in changes if isinstance(change, Patch)]
    if identity == "FULL":
        assert not patches
        return
    assert patches[0] == Patch("t", [(1,)], [(1, 1, None, None)], [("big", "other")])
    assert patches[1] == Patch("t", [(2,)], [(2, 1, None, None)], [("other",)])
    assert [(row.keys, [each[0] for each in row.rows]) for row in patches[2:4]] == [
        ([(3,)], [33]),
        ([(5,), (4,)], [4, 5]),
    ]
    assert patches[4].keys == [(6,)] and patches[4].absent == [("big",)]


def test_a_key_that_is_checked_at_the_end_of_a_transaction_is_none(db, source):
    """Within one, two rows may have it, and nothing tells which of them an update means."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text);"
        "ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (1, 'a'), (2, 'a')"
    )
    assert source.tables(None) == [] and "no primary key that is checked at once" in source.left_out["t"]
    mirror = begin(source, "t")
    db.execute("UPDATE t SET id = id + 1")
    with pytest.raises(SourceUnreadable, match=r"'t'.*REPLICA IDENTITY USING INDEX"):
        catch_up(source, mirror)


def test_a_table_without_a_key_has_rows_that_only_come(db, source):
    """And only when it is named: published without a key, the server refuses to update it."""
    db.execute("CREATE TABLE t (v int)")
    assert source.tables(None) == [] and list(source.left_out) == ["t"]
    mirror = begin(source, "t")
    assert mirror.tables["t"].key == ()
    db.execute("INSERT INTO t VALUES (1), (1)")
    catch_up(source, mirror)
    assert mirror.loose["t"] == [{"v": 1}, {"v": 1}]


def test_an_index_can_be_the_key(db, source):
    """Updates and deletes name rows by the index that was chosen, whatever the primary key is."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, v int); CREATE UNIQUE INDEX u ON t (code);"
        "ALTER TABLE t REPLICA IDENTITY USING INDEX u; INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)"
    )
    mirror = begin(source)
    assert mirror.tables["t"].key == ("code",)
    db.execute("UPDATE t SET id = 9 WHERE id = 1")
    db.execute("UPDATE t SET code = 'z' WHERE id = 2")
    db.execute("DELETE FROM t WHERE id = 3")
    catch_up(source, mirror)
    assert mirror.rows["t"] == table(db, "t", "code")


def test_a_schema_change_is_followed_where_it_happened(db, source):
    """Issue 7: columns added with what older rows have in them, dropped, renamed, of another type."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int); INSERT INTO t VALUES (1, 'a', 1)")
    mirror = begin(source)
    db.execute("INSERT INTO t VALUES (2, 'b', 2)")
    db.execute("ALTER TABLE t ADD c numeric(6, 2) DEFAULT 1.5, ADD d text")
    db.execute("INSERT INTO t VALUES (3, 'c', 3, 3, 'd')")
    db.execute("ALTER TABLE t RENAME a TO named")
    db.execute("INSERT INTO t VALUES (4, 'd', 4, 4, 'd')")
    db.execute("ALTER TABLE t DROP b")
    db.execute("UPDATE t SET d = 'e' WHERE id = 1")
    taken = catch_up(source, mirror)
    reshaped = [change for _, changes in taken for change in changes if isinstance(change, Reshaped)]
    assert [[column.name for column in each.table.columns] for each in reshaped] == [
        ["id", "a", "b", "c", "d"],
        ["id", "named", "b", "c", "d"],
        ["id", "named", "c", "d"],
    ]
    assert [each.filled for each in reshaped] == [{"c": Decimal("1.50")}, {}, {}]
    assert [each.renamed for each in reshaped] == [{}, {"a": "named"}, {}]
    assert mirror.rows["t"] == table(db, "t")


def test_a_column_of_another_type_is_a_change_of_shape(db, source):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    mirror = begin(source)
    db.execute("ALTER TABLE t ALTER v TYPE bigint")
    db.execute("INSERT INTO t VALUES (1, 5000000000)")
    ((_, changes),) = catch_up(source, mirror)
    assert isinstance(changes[0], Reshaped) and changes[0].table.columns[1].type == "BIGINT"
    assert mirror.rows["t"] == table(db, "t")


def test_columns_renamed_while_nobody_listens_are_known_again(db, url):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'a')")
    with opened(url) as first:
        mirror = begin(first)
    db.execute("ALTER TABLE t RENAME a TO b; ALTER TABLE t RENAME TO t2; INSERT INTO t2 VALUES (2, 'b')")
    with opened(url) as second:
        second.tables(None)
        second.resume(mirror.position, list(mirror.tables.values()))
        catch_up(second, mirror)
    assert mirror.rows == {"t": table(db, "t2")}, "the table is still the one that was captured"


def test_a_change_of_shape_that_was_rolled_back_is_none(db, source):
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = begin(source)
    with db.transaction():
        with db.transaction(force_rollback=True):
            db.execute("ALTER TABLE t ADD a int; INSERT INTO t VALUES (1, 1)")
        db.execute("INSERT INTO t VALUES (2)")
    assert [changes for _, changes in catch_up(source, mirror)] == [[Rows("t", [(2,)])]]


def test_a_new_primary_key_is_a_change_of_shape(db, source):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL)")
    mirror = begin(source)
    db.execute("INSERT INTO t VALUES (1, 'a')")
    db.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)")
    db.execute("INSERT INTO t VALUES (1, 'b')")
    catch_up(source, mirror)
    assert mirror.tables["t"].key == ("code",)
    assert mirror.rows["t"] == table(db, "t", "code")


def test_a_new_column_whose_default_came_later_has_no_values_in_old_rows(db, source):
    """And one whose default does not change has its value in them; both are known from the catalog."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    mirror = begin(source)
    db.execute("ALTER TABLE t ADD u uuid; ALTER TABLE t ALTER u SET DEFAULT gen_random_uuid()")
    db.execute("ALTER TABLE t ADD at timestamptz DEFAULT now(), ADD n int[] DEFAULT '{1,2}'")
    db.execute("INSERT INTO t VALUES (2, NULL)")
    catch_up(source, mirror)
    assert mirror.rows["t"] == table(db, "t")


def test_a_table_that_was_dropped_is_said_to_be_once_all_of_it_has_come(db, url):
    """The server's log has no word of it: the catalog is asked now and then."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE stays (id int PRIMARY KEY)")
    with opened(url, idle_s=0.1) as source:
        mirror = begin(source)
        db.execute("INSERT INTO t VALUES (1)")
        db.execute("DROP TABLE t")
        db.execute("INSERT INTO stays VALUES (1)")
        seen: list[Any] = []
        deadline = time.monotonic() + 30
        while Dropped("t") not in seen and time.monotonic() < deadline:
            for transaction in source.transactions(0.2):
                seen += mirror.take(transaction)
    assert seen == [Rows("t", [(1,)]), Rows("stays", [(1,)]), Dropped("t")]
    with opened(url, idle_s=0.1) as again:
        again.resume(mirror.position, [mirror.tables["stays"]])
        assert catch_up(again, mirror) == []


def test_partitions_are_their_table_and_children_are_their_own(db, source):
    db.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (more int) INHERITS (parent);"
        "INSERT INTO p VALUES (1, 'a'), (11, 'b'); INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2, 2)"
    )
    mirror = begin(source, "p", "parent")
    assert set(mirror.tables) == {"p", "parent"}
    db.execute("INSERT INTO p VALUES (2, 'c'), (12, 'd')")
    db.execute("UPDATE p SET id = 15 WHERE id = 1")
    db.execute("INSERT INTO parent VALUES (3); INSERT INTO child VALUES (4, 4)")
    catch_up(source, mirror)
    assert mirror.rows["p"] == table(db, "p")
    assert mirror.rows["parent"] == table(db, "ONLY parent")


def test_generated_columns_and_tables_of_other_schemas(db, source):
    db.execute(
        'CREATE SCHEMA "Shop"; CREATE TABLE "Shop"."Order Lines" (id int PRIMARY KEY, "a b" text,'
        " twice int GENERATED ALWAYS AS (id * 2) STORED); CREATE UNLOGGED TABLE gone (id int PRIMARY KEY);"
        'INSERT INTO "Shop"."Order Lines" VALUES (1, $$x"y$$)'
    )
    mirror = begin(source)
    assert list(mirror.tables) == ["Shop.Order Lines"]
    db.execute('INSERT INTO "Shop"."Order Lines" VALUES (2, NULL)')
    catch_up(source, mirror)
    assert mirror.rows["Shop.Order Lines"] == {(1,): {"id": 1, "a b": 'x"y'}, (2,): {"id": 2, "a b": None}}


def test_only_wanted_tables_come(db, source):
    db.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    mirror = begin(source, "b")
    db.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
    catch_up(source, mirror)
    assert mirror.rows == {"b": table(db, "b")}


def test_a_snapshot_and_what_follows_are_the_table_whoever_writes_meanwhile(postgres, pg_database, db, source):
    """Issue 7: a consistent initial snapshot, and on from exactly there."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, 0 FROM generate_series(0, 999) i")
    stop = threading.Event()

    def write(seed: int) -> None:
        with postgres.connect(pg_database) as mine:
            step = 0
            while not stop.is_set():
                step += 1
                with mine.transaction():
                    at = (step * 37 + seed * 13) % 1000
                    mine.execute("UPDATE t SET v = v + 1 WHERE id = %s", [at])
                    mine.execute("INSERT INTO t VALUES (%s, %s)", [1000 + step * 4 + seed, step])
                committed[seed] = step

    committed = [0, 0, 0]
    writers = [threading.Thread(target=write, args=[seed]) for seed in range(3)]
    for each in writers:
        each.start()
    try:
        eventually(lambda: min(committed) > 2, 60, "all of them write")
        mirror = begin(source)
        taken = catch_up(source, mirror)
        before = sum(committed)
        eventually(lambda: sum(committed) > before + 9, 60, "they go on")
    finally:
        stop.set()
        for each in writers:
            each.join()
    taken += catch_up(source, mirror)
    assert len(taken) > 5
    assert mirror.rows["t"] == table(db, "t")


def test_the_slot_moves_only_when_it_is_confirmed(db, source):
    """capture.md section 4: confirmed_flush_lsn did not move while nothing was acknowledged."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = begin(source)
    start = slot_at(db, source)
    for number in range(5):
        db.execute("INSERT INTO t VALUES (%s)", [number])
    taken = catch_up(source, mirror, confirm=False)
    assert len(taken) == 5 and slot_at(db, source) == start
    third = taken[2][0].position
    source.confirm(third)
    deadline = time.monotonic() + 20
    while slot_at(db, source) < Position.of(third).lsn and time.monotonic() < deadline:
        time.sleep(0.01)
    assert slot_at(db, source) == Position.of(third).lsn


def test_reading_again_from_an_old_position_repeats_exactly_what_follows(db, url):
    """Nothing is lost and nothing repeated, also by a reader that died without a word."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with opened(url) as first:
        mirror = begin(first)
        tables, start = list(mirror.tables.values()), mirror.position
        for number in range(20):
            db.execute("INSERT INTO t VALUES (%s)", [number])
        taken = catch_up(first, mirror, confirm=False)
        positions = [start, *(transaction.position for transaction, _ in taken)]
        assert len(positions) == 21
    for at in (0, 7, 19, 20):
        with opened(url) as again:
            again.resume(positions[at], tables)
            followed = catch_up(again, Mirror(tables), confirm=False)
            assert [changes for _, changes in followed] == [changes for _, changes in taken[at:]]
            assert [transaction.position for transaction, _ in followed] == positions[at + 1 :]


def test_a_reader_may_stop_anywhere_and_go_on(db, source):
    """What was read and not asked for is not lost when the iterator is left early."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = begin(source)
    for number in range(10):
        db.execute("INSERT INTO t VALUES (%s)", [number])
    found: list[Any] = []
    deadline = time.monotonic() + 30
    while len(found) < 10 and time.monotonic() < deadline:
        for transaction in source.transactions(0.5):
            found.append(transaction)
            if len(found) % 2:
                mirror.take(transaction)  # And of every other one nothing is read at all.
            break
    assert len(found) == len({each.position for each in found}) == 10
    assert sorted(mirror.rows["t"]) == [(number,) for number in range(0, 10, 2)]


def test_positions_move_without_changes_of_ours(db, url):
    """Else the server would keep its log for a quiet table for ever."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    with opened(url, idle_s=0.1) as source:
        mirror = begin(source, "t")
        start = Position.of(mirror.position).lsn
        db.execute("INSERT INTO other SELECT generate_series(1, 1000)")
        mark = source.mark()
        deadline = time.monotonic() + 20
        while Position.of(mirror.position).lsn < mark and time.monotonic() < deadline:
            for transaction in source.transactions(0.3):
                assert mirror.take(transaction) == []
        assert Position.of(mirror.position).lsn >= mark > start
        source.confirm(mirror.position)
        db.execute("INSERT INTO t VALUES (1)")
        catch_up(source, mirror)
        assert mirror.rows["t"] == table(db, "t")


def test_what_a_capture_made_is_dropped_with_it(db, source):
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mirror = begin(source)
    db.execute("INSERT INTO t VALUES (1)")
    catch_up(source, mirror)
    assert source.behind()["status"] == "reserved"
    source.drop()
    source.drop()
    assert db.execute("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()").fetchall() == []
    assert db.execute("SELECT pubname FROM pg_publication").fetchall() == []


def test_a_publication_of_others_says_what_is_captured_and_stays(db, postgres, pg_database):
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY, x int, hidden int); CREATE TABLE b (id int PRIMARY KEY);"
        "INSERT INTO a VALUES (1, 1, 1), (2, -1, 2);"
        "CREATE PUBLICATION theirs FOR TABLE a (id, x) WHERE (id < 100)"
    )
    with opened(postgres.url(pg_database, publication="theirs", slot="my_slot")) as source:
        mirror = begin(source)
        assert [column.name for column in mirror.tables["a"].columns] == ["id", "x"] and len(mirror.tables) == 1
        db.execute("INSERT INTO a VALUES (3, 3, 3), (300, 3, 3)")
        catch_up(source, mirror)
        assert sorted(mirror.rows["a"]) == [(1,), (2,), (3,)]
        source.drop()
    assert db.execute("SELECT pubname FROM pg_publication").fetchall() == [("theirs",)]


def test_a_snapshot_may_be_begun_again(db, source):
    """Source.snapshot: whatever an interrupted one left is cleared away."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    begin(source)
    db.execute("INSERT INTO t VALUES (2)")
    mirror = begin(source)
    db.execute("INSERT INTO t VALUES (3)")
    catch_up(source, mirror)
    assert sorted(mirror.rows["t"]) == [(1,), (2,), (3,)]
