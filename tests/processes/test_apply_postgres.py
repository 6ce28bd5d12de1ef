"""Applying to a real PostgreSQL server: the suite of all targets, and what is PostgreSQL's alone."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from apply_actions import *  # noqa: F403
from apply_actions import relatives
from apply_circles import *  # noqa: F403
from apply_places import *  # noqa: F403
from apply_rig import Rig
from apply_room import *  # noqa: F403
from apply_suite import *  # noqa: F403
from helpers import eventually
from pg_server import Server
from tidegate.capture.target import ApplyConflict, TargetBusy, identity_of, open_target
from tidegate.errors import InvalidArgument, Unavailable


@pytest.fixture
def rig(postgres: Server, pg_database: str, tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path / "here.tide", postgres.url(pg_database), postgres.connect(pg_database), "postgresql")
    yield found
    found.close()
    # A server has room for as many origins as for slots, and those of other tests' databases stay.
    with postgres.connect("postgres") as connection:
        drop = "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname LIKE 'tidegate:%'"
        eventually(lambda: _is_done(connection, drop))


def _is_done(connection: psycopg.Connection[Any], sql: str) -> bool:
    try:
        connection.execute(sql)  # type: ignore[arg-type,unused-ignore]
    except psycopg.errors.ObjectInUse:
        return False  # A session that is ending.
    return True


# -- values ----------------------------------------------------------------------------------------------------------

TYPES = (
    "CREATE TABLE all_types (id BIGINT PRIMARY KEY, flag BOOLEAN, tiny TINYINT, small SMALLINT, mid INT, f FLOAT,"
    " d DOUBLE, s STRING, b BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, n DECIMAL(38, 10),"
    " list ARRAY<STRING>, numbers ARRAY<BIGINT>, pair STRUCT<a: INT, b: DECIMAL(4, 2)>, named MAP<STRING, BIGINT>)"
)
FULL = {
    "id": -(2**63),
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "mid": -(2**31),
    "f": 0.5,
    "d": math.inf,
    "s": "ü'\"\n☃%s",
    "b": b"\x00\xff",
    "day": date(2024, 2, 29),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "local": datetime(1999, 12, 31, 23, 59, 59),
    "n": Decimal("12345678901234567890.0000000001"),
    "list": ["a", None, "ü"],
    "numbers": [1, 2**62],
    "pair": {"a": 1, "b": Decimal("0.10")},
    "named": {"x": 1, "y": None},
}


def test_values_of_every_type_arrive_and_are_compared(rig: Rig) -> None:
    """Values for all types both ways: as they are written, and as the rows before a change."""
    rig.db.sql(TYPES)
    empty = dict.fromkeys(FULL) | {"id": 1}
    rig.db.insert("all_types", [FULL, empty])
    rig.apply()
    (full,) = rig.there(f"SELECT * FROM all_types WHERE id = {FULL['id']}")
    assert dict(zip(FULL, full, strict=True)) == FULL | {"pair": {"a": 1, "b": "0.10"}}
    rig.db.upsert("all_types", [FULL | {"d": math.nan, "s": "changed"}, empty | {"numbers": []}])
    rig.apply()
    rig.db.upsert("all_types", [FULL, empty])
    rig.apply()
    rig.db.delete("all_types", [FULL["id"], 1])
    rig.apply()
    assert rig.there("all_types") == []


def test_a_time_that_python_does_not_know_is_left_to_the_server(rig: Rig) -> None:
    """Arrow's times go further than Python's years 1 to 9999; the server's do, too, though not as far."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, at TIMESTAMP, day DATE)")
    at, day = pa.array([2**58, 0, None], pa.timestamp("us", tz="UTC")), pa.array([0, 4_000_000, 2**25], pa.date32())
    rig.db.insert("t", pa.table({"id": [1, 2, 3], "at": at, "day": day}))
    assert [each.key for each in rig.apply(policy="skip").conflicts] == [{"id": 3}]
    assert rig.there("SELECT id, at::text, day::text FROM t") == [
        (1, "11103-08-29 17:22:31.711744+00", "1970-01-01"),
        (2, "1970-01-01 00:00:00+00", "12921-08-18"),
    ]


def test_an_identity_that_takes_no_other_value_is_refused_unless_it_is_the_key(rig: Rig) -> None:
    """A key does not change; any other column may."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
    rig.at_target("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint)")
    rig.db.insert("t", [(1, 5)])
    rig.apply()
    rig.db.upsert("t", [(1, 6)])
    rig.apply()
    assert rig.equal()
    rig.at_target("DROP TABLE t", "CREATE TABLE t (id bigint PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY)")
    with pytest.raises(InvalidArgument, match=r"column 'n' of table 't' is GENERATED ALWAYS AS IDENTITY.*BY DEFAULT"):
        rig.apply(restart=True)


def test_a_table_may_have_postgresqls_own_types(rig: Rig) -> None:
    """What is text or a number here fits what it is there; lengths are checked, never cut."""
    rig.db.sql(
        "CREATE TABLE own (id INT PRIMARY KEY, u STRING, c STRING, v STRING, mood STRING, j STRING, n DECIMAL(9, 4),"
        " t TIMESTAMP, e STRING)"
    )
    rig.at_target(
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        "CREATE TABLE own (id INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, u UUID, c CHAR(3), v VARCHAR(3), mood mood,"
        " j JSON, n NUMERIC(9, 2), t TIMESTAMP(3), e INET, twice INT GENERATED ALWAYS AS (id * 2) STORED)",
    )
    moment = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    row = (
        7,
        "00000000-0000-0000-0000-000000000007",
        "ab",
        "abc",
        "glad",
        '{"a": 1}',
        Decimal("1.2345"),
        moment,
        "10.0.0.1",
    )
    rig.db.insert("own", [row])
    rig.apply()
    rig.db.upsert("own", [(*row[:4], "sad", *row[5:])])
    rig.apply()
    found = "SELECT id, u::text, v, mood::text, n, twice FROM own"
    assert rig.there(found) == [(7, row[1], "abc", "sad", Decimal("1.23"), 14)]
    rig.db.upsert("own", [(8, None, None, "too long", None, None, None, None, None)])
    with pytest.raises(ApplyConflict, match=r"id = 8.*too long for type character varying"):
        rig.apply()
    assert rig.there("SELECT id FROM own") == [(7,)]


def test_what_has_a_schema_is_found_by_it(rig: Rig) -> None:
    """PostgreSQL looks for a plain name where its search path says."""
    rig.at_target("CREATE SCHEMA shop", "CREATE TABLE shop.t (id BIGINT PRIMARY KEY)")
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    rig.db.insert("t", [(1,)])
    rig.db.apply("t", rig.url + "&options=-csearch_path%3Dshop")
    assert rig.there("shop.t") == [(1,)]


def test_tables_that_are_named_with_their_schema_know_of_each_other(rig: Rig) -> None:
    """The server leaves out of a name the schema that it finds a table in by itself."""
    rig.db.sql("CREATE TABLE `public.parent` (id BIGINT PRIMARY KEY, child BIGINT)")
    rig.db.sql("CREATE TABLE `public.child` (id BIGINT PRIMARY KEY, parent BIGINT)")
    rig.at_target(
        "CREATE TABLE parent (id bigint PRIMARY KEY, child bigint)",
        "CREATE TABLE child (id bigint PRIMARY KEY, parent bigint NOT NULL REFERENCES parent ON DELETE CASCADE)",
        "ALTER TABLE parent ADD FOREIGN KEY (child) REFERENCES child",
    )
    for each in (1, 2):
        with rig.db.transaction() as txn:
            txn.insert("public.parent", [(each, each)])
            txn.insert("public.child", [(each, each)])
        rig.apply("public.child", "public.parent")
    rig.apply("public.child", "public.parent", restart=True)
    assert rig.there("parent") == rig.there("child") == [(1, 1), (2, 2)]


# -- constraints -----------------------------------------------------------------------------------------------------


def test_constraints_that_may_be_deferred_are(rig: Rig) -> None:
    """Two tables that refer to each other, and a unique column whose values are exchanged."""
    rig.db.sql("CREATE TABLE a (id BIGINT PRIMARY KEY, b BIGINT)")
    rig.db.sql("CREATE TABLE b (id BIGINT PRIMARY KEY, a BIGINT, mark BIGINT)")
    rig.at_target(
        "CREATE TABLE a (id BIGINT PRIMARY KEY, b BIGINT NOT NULL)",
        "CREATE TABLE b (id BIGINT PRIMARY KEY, a BIGINT NOT NULL REFERENCES a DEFERRABLE,"
        " mark BIGINT UNIQUE DEFERRABLE)",
        "ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b DEFERRABLE",
    )
    for policy in ("stop", "overwrite"):
        with rig.db.transaction() as txn:
            txn.upsert("a", [(1, 10), (2, 20)])
            txn.upsert("b", [(10, 1, 5), (20, 2, 6)])
        rig.apply(policy=policy)
        with rig.db.transaction() as txn:
            txn.upsert("b", [(10, 1, 6), (20, 2, 5)])
        rig.apply(policy=policy)
        assert rig.equal()
        with rig.db.transaction() as txn:
            txn.delete("a", [1, 2])
            txn.delete("b", [10, 20])
        rig.apply(policy=policy)
        assert rig.equal() and rig.there("a") == []


# -- what can be wrong -----------------------------------------------------------------------------------------------


def test_a_wrong_password_is_said_without_showing_it(postgres: Server, rig: Rig, pg_database: str) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    rig.at_target("DROP ROLE IF EXISTS secret_ann", "CREATE ROLE secret_ann LOGIN SUPERUSER PASSWORD 'right'")
    with pytest.raises(Unavailable, match="check user and password") as raised:
        rig.db.apply("t", postgres.url(pg_database, user="secret_ann", password="wrong-one"))
    assert "wrong-one" not in str(raised.value) and "secret_ann" in str(raised.value)
    rig.db.apply("t", postgres.url(pg_database, user="secret_ann", password="right"))
    assert rig.equal()


def test_a_role_that_may_not_write_is_told_so(postgres: Server, rig: Rig, pg_database: str) -> None:
    """It needs no right beyond writing: not that to use replication origins."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    rig.apply()
    rig.db.insert("t", [(1,)])
    rig.at_target("DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN", "GRANT ALL ON tidegate_applied TO plain")
    url = postgres.url(pg_database, user="plain")
    with pytest.raises(Unavailable, match=r"permission denied for table t.*give the role the right"):
        rig.db.apply("t", url)
    rig.at_target("GRANT INSERT, SELECT, UPDATE, DELETE ON t TO plain")
    assert rig.db.apply("t", url).transactions == 1
    assert rig.equal()
    rig.at_target("DROP OWNED BY plain", "DROP ROLE plain")


def test_a_database_that_is_not_there_is_named(postgres: Server, rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    with pytest.raises(Unavailable, match="none_such"):
        rig.db.apply("t", postgres.url("none_such"))
    with pytest.raises(Unavailable, match=r"cannot be reached.*check that it runs"):
        rig.db.apply("t", "postgresql://me:secret@127.0.0.1:1/shop")


def test_a_server_that_dies_and_comes_back_has_every_transaction_once(tmp_path: Path) -> None:
    """A dead target: who follows tries again, and goes on from what the target says; nothing is missing or twice."""
    server = Server()
    try:
        name = server.new_database()
        look = server.connect(name)
        rig = Rig(tmp_path / "here.tide", server.url(name), look, "postgresql")
        rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
        rig.db.sql("CREATE TABLE events (n BIGINT)")  # Without a key, what comes twice is there twice.
        with rig.apply(follow=True, chunk_rows=5) as following:
            for number in range(300):
                with rig.db.transaction() as txn:
                    txn.upsert("t", [(number % 7, number)])
                    txn.insert("events", [(number,)])
                if number in (60, 180):
                    server.stop_process(signal.SIGQUIT)
                    server.start()
            assert txn.commit_timestamp is not None
            following.wait_for(txn.commit_timestamp, 60)
        look.close()
        rig._look = server.connect(name)
        assert rig.equal()
        assert rig.there("events") == [(number,) for number in range(300)]
        rig.close()
    finally:
        server.stop()


# -- whose it is -----------------------------------------------------------------------------------------------------


def test_what_is_written_carries_its_origin_in_the_servers_log(rig: Rig) -> None:
    """A capture of the same database sees, by pgoutput's Origin message, who wrote a transaction."""
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    rig.apply()
    rig.at_target(
        "CREATE PUBLICATION everything FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('origins', 'pgoutput')",
    )
    rig.db.insert("t", [(1,)])
    rig.apply()
    rig.at_target("SET synchronous_commit = on", "INSERT INTO t VALUES (2)")  # Only what is flushed is decoded.
    messages = [
        bytes(each)
        for (each,) in rig._look.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes('origins', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'everything')"
        ).fetchall()
    ]
    kinds = "".join(chr(each[0]) for each in messages)
    assert kinds.count("B") == 2 and kinds.count("O") == 1
    assert kinds.index("O") < kinds.index("C") < kinds.rindex("B")
    origin = next(each for each in messages if each[:1] == b"O")
    assert origin[9:].rstrip(b"\0").decode() == f"tidegate:{rig.db.id.hex()}"


def test_several_that_begin_at_once_find_what_the_first_has_created(rig: Rig) -> None:
    """`CREATE TABLE IF NOT EXISTS` of two at once fails for one of them: it looks again."""
    rig.at_target("BEGIN", "CREATE TABLE tidegate_applied (name text)")
    with ThreadPoolExecutor(1) as pool:
        target = open_target(rig.url)
        prepared = pool.submit(target.prepare)
        eventually(lambda: rig.there("SELECT 1 FROM pg_locks WHERE NOT granted") != [])
        rig.at_target("COMMIT")
        assert prepared.result() is None
    target.close()


def test_who_creates_a_table_that_another_one_creates_may_repeat(rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    target = open_target(rig.url)
    target.prepare()
    rig.at_target("BEGIN", "CREATE TABLE t (id bigint PRIMARY KEY)")
    with ThreadPoolExecutor(1) as pool:
        applied = pool.submit(rig.apply)
        eventually(lambda: rig.there("SELECT 1 FROM pg_locks WHERE NOT granted") != [])
        rig.at_target("COMMIT")
        with pytest.raises(TargetBusy, match="has created the same table at the same time"):
            applied.result()
    target.close()
    rig.apply()
    assert rig.equal()


def test_a_database_is_known_whichever_way_it_is_reached(postgres: Server, rig: Rig, pg_database: str) -> None:
    found = identity_of(rig.url)
    assert found == identity_of(postgres.url(pg_database, application_name="other"))
    assert found.startswith("postgresql:") and found.endswith(f"/{pg_database}")
    assert found != identity_of(postgres.url("postgres"))


def test_two_databases_that_follow_each_other_do_not_go_round_in_a_circle(rig: Rig) -> None:
    """Capture and apply with one server: what came from it does not go back, and what we applied does not come back."""
    rig.at_target("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)", "INSERT INTO t VALUES (1, 1)")
    capture = rig.db.capture(rig.url, tables=["t"])
    assert rig.apply("t").done.copied == 0
    rig.at_target("UPDATE t SET n = 2 WHERE id = 1", "SET synchronous_commit = on", "INSERT INTO t VALUES (2, 2)")
    capture.catch_up(30)
    rig.db.upsert("t", [(3, 3)])
    done = rig.apply("t")
    assert (done.done.left_out, done.transactions, done.done.conflicts) == (2, 1, 0)
    assert rig.equal("t") and len(rig.here("t")) == 3
    taken = rig.here("capture_transactions")
    rig.at_target("INSERT INTO t VALUES (4, 4)")
    capture.catch_up(30)
    assert len(rig.here("capture_transactions")) == len(taken) + 1
    assert rig.apply("t").transactions == 0
    assert rig.equal("t")
    capture.stop()


# -- names and keys --------------------------------------------------------------------------------------------------


def test_names_may_look_like_marks_of_values(rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (`id%s` BIGINT PRIMARY KEY, `a%b` STRING, `100%` STRING)")
    rig.at_target('CREATE TABLE t ("id%s" bigint PRIMARY KEY, "a%b" text UNIQUE, "100%" text)')
    rig.db.insert("t", [(1, "a", "x"), (2, "b", "y")])
    for policy in ("stop", "overwrite", "skip"):
        rig.apply(policy=policy)
        rows = {row[0]: row for row in rig.here("t")}
        rig.db.upsert("t", [(1, *rows[2][1:]), (2, *rows[1][1:])])
        assert rig.apply(policy=policy).done.conflicts == 0
        assert rig.equal()
    rig.apply(restart=True)
    rig.db.delete("t", [1])
    rig.apply()
    assert rig.equal()


def test_a_name_there_may_differ_by_case_and_look_like_a_mark(rig: Rig) -> None:
    """Where rows are left out, too: they are asked for by the names that the target has."""
    rig.db.sql("CREATE TABLE t (`Id%s` BIGINT PRIMARY KEY, `Of` BIGINT)")
    rig.at_target('CREATE TABLE t ("id%s" bigint PRIMARY KEY, of bigint REFERENCES t DEFERRABLE)')
    rig.db.insert("t", [(1, None), (2, 1), (3, 99)])
    assert [each.key for each in rig.apply(policy="skip").conflicts] == [{"Id%s": 3}]
    rig.at_target("CREATE TABLE other (t bigint REFERENCES t DEFERRABLE)", "INSERT INTO other VALUES (2)")
    with rig.db.transaction() as txn:
        txn.delete("t", [2])
        txn.upsert("t", [(4, 77), (5, 1)])
    assert sorted(each.key["Id%s"] for each in rig.apply(policy="skip").conflicts) == [2, 4]
    assert rig.there("t") == [(1, None), (2, 1), (5, 1)]


def test_names_that_would_be_cut_off_are_refused(rig: Rig) -> None:
    """PostgreSQL cuts them off without a word, and then there is no such column."""
    name = "ü" * 32
    rig.db.sql(f"CREATE TABLE t (id BIGINT PRIMARY KEY, `{name}` STRING)")
    with pytest.raises(InvalidArgument, match=rf"column '{name}' of table 't' has 64 bytes.*at most 63; rename it"):
        rig.apply()
    assert rig.there("SELECT to_regclass('t')::text") == [(None,)]


def test_columns_that_a_key_only_includes_are_none_of_it(rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    rig.at_target("CREATE TABLE t (id bigint, v text, PRIMARY KEY (id) INCLUDE (v))")
    rig.db.insert("t", [(1, "a")])
    rig.apply()
    rig.db.upsert("t", [(1, "b")])
    rig.apply(policy="overwrite")
    assert rig.equal()


def test_a_key_that_is_checked_late_is_named(rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    rig.at_target("CREATE TABLE t (id bigint PRIMARY KEY DEFERRABLE, v text)")
    with pytest.raises(InvalidArgument, match=r"table 't' on \(id\) is DEFERRABLE.*make it NOT DEFERRABLE"):
        rig.apply()
    rig.at_target("CREATE UNIQUE INDEX beside ON t (id)")
    rig.db.insert("t", [(1, "a")])
    rig.apply()
    assert rig.equal()


def test_a_table_that_is_dropped_under_one_that_follows_says_what_to_do(rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    following = rig.apply(follow=True)
    following.wait_for(rig.db.insert("t", [(1, "a")]).timestamp)
    rig.at_target("DROP TABLE t")
    rig.db.insert("t", [(2, "b")])
    eventually(lambda: not following.is_running)
    with pytest.raises(InvalidArgument, match=r"put it back, or start anew with restart=True"):
        following.stop()
    rig.apply(restart=True)
    assert rig.equal()


@pytest.mark.parametrize("policy", ["stop", "overwrite", "skip"])
def test_a_child_with_columns_of_the_targets_own_is_not_made_anew(rig: Rig, policy: str) -> None:
    """The new parent can only come when the old one is gone, and that takes the child with it."""
    rig.db.sql("CREATE TABLE a_child (id BIGINT PRIMARY KEY, parent BIGINT, n BIGINT)")
    rig.db.sql("CREATE TABLE z_parent (id BIGINT PRIMARY KEY, day DATE)")
    rig.at_target(
        "CREATE TABLE z_parent (id bigint PRIMARY KEY, day date NOT NULL UNIQUE)",
        "CREATE TABLE a_child (id bigint PRIMARY KEY, parent bigint NOT NULL REFERENCES z_parent ON DELETE CASCADE,"
        " n bigint, note text)",
    )
    with rig.db.transaction() as txn:
        txn.insert("z_parent", [(1, date(2026, 1, 1)), (2, date(2026, 1, 2))])
        txn.insert("a_child", [(10, 1, 0)])
    rig.apply()
    rig.at_target("UPDATE a_child SET note = 'mine'")
    with rig.db.transaction() as txn:
        txn.delete("z_parent", [1])
        txn.insert("z_parent", [(3, date(2026, 1, 1))])
        txn.upsert("a_child", [(10, 3, 1)])
    if policy == "skip":
        done = rig.apply(policy=policy)
        assert sorted((each.table, each.key["id"]) for each in done.conflicts) == [
            ("a_child", 10),
            ("z_parent", 1),
            ("z_parent", 3),
        ]
        assert rig.there("SELECT * FROM a_child") == [(10, 1, 0, "mine")]
        assert rig.there("SELECT id FROM z_parent") == [(1,), (2,)]
        return
    with pytest.raises(ApplyConflict, match="'a_child', id = 10: a foreign key of the target deletes the row"):
        rig.apply(policy=policy)
    assert rig.there("a_child") == [(10, 1, 0, "mine")]


@pytest.mark.parametrize("policy", ["stop", "overwrite", "skip"])
def test_a_child_that_can_do_without_its_parent_for_a_moment_keeps_the_targets_own_columns(
    rig: Rig, policy: str
) -> None:
    """It lets go of the old parent before that one goes."""
    relatives(rig, "ON DELETE CASCADE", "text UNIQUE")
    rig.at_target("ALTER TABLE a_child ADD COLUMN note text")
    rig.apply()
    rig.at_target("UPDATE a_child SET note = 'mine'")
    with rig.db.transaction() as txn:
        txn.delete("z_parent", [1])
        txn.insert("z_parent", [(3, "x")])
        txn.upsert("a_child", [(10, 3, 1)])
    assert rig.apply(policy=policy).done.conflicts == 0
    assert rig.equal("z_parent") and rig.there("a_child") == [(10, 3, 1, "mine")]


def test_a_row_against_which_a_trigger_raises_is_a_conflict(rig: Rig) -> None:
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    rig.at_target(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text)",
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.v = 'bad' THEN RAISE EXCEPTION 'not here'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()",
    )
    rig.apply()
    rig.db.insert("t", [(2, "bad"), (3, "ok")])
    with pytest.raises(ApplyConflict, match=r"table 't', id = 2: .*not here"):
        rig.apply()
    assert rig.there("t") == []
    assert rig.apply(policy="skip").done.conflicts == 1
    assert rig.there("t") == [(3, "ok")]
