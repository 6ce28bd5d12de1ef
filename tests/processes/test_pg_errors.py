"""What can go wrong with a source in PostgreSQL: each error names the thing and says what to do (design.md)."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import tidegate
from pg_mirror import Mirror, begin, catch_up, opened
from pg_server import Server
from tidegate.capture import pg_objects, pg_slots, pg_source
from tidegate.capture.dropping import drop_capture
from tidegate.capture.pg_position import Position
from tidegate.capture.pg_source import PgSource
from tidegate.errors import (
    Closed,
    InUse,
    InvalidArgument,
    NotFound,
    SourceGone,
    SourceUnreadable,
    TidegateError,
    Unavailable,
    WaitTimeout,
)

Db = psycopg.Connection[Any]
ANEW = "take a new snapshot"


@pytest.fixture
def db(postgres: Server, pg_database: str) -> Iterator[Db]:
    with postgres.connect(pg_database) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        yield connection


@pytest.fixture
def url(postgres: Server, pg_database: str) -> str:
    return postgres.url(pg_database)


@pytest.fixture
def left(db: Db, url: str) -> Mirror:
    """A capture that has begun and is not being read."""
    with opened(url) as source:
        mirror = begin(source)
        db.execute("INSERT INTO t VALUES (1, 'a')")
        catch_up(source, mirror)
    return mirror


def resume(url: str, mirror: Mirror) -> None:
    with opened(url) as source:
        source.resume(mirror.position, list(mirror.tables.values()))


# What was to be read is not there any more: issue 7, "detected, with an error that says what to do".


def test_a_slot_that_was_dropped(db, url, left):
    with opened(url) as source:
        db.execute("SELECT pg_drop_replication_slot(%s)", [source.address.slot])
        with pytest.raises(SourceGone, match=rf"no slot '{source.address.slot}' any more.*{ANEW}"):
            source.resume(left.position, list(left.tables.values()))


def test_a_slot_that_was_made_anew(db, url, left):
    with opened(url) as source:
        slot = source.address.slot
        db.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        db.execute("INSERT INTO t VALUES (2, 'lost')")
        db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        with pytest.raises(SourceGone, match=rf"slot '{slot}' begins at .* made anew.*{ANEW}"):
            source.resume(left.position, list(left.tables.values()))


def test_a_slot_that_somebody_else_has_moved(db, url, left):
    db.execute("SET synchronous_commit = on")  # Else the log may not have it yet.
    with opened(url) as source:
        db.execute("INSERT INTO t VALUES (2, 'lost')")
        db.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [source.address.slot])
        with pytest.raises(SourceGone, match=r"moved by somebody else"):
            source.resume(left.position, list(left.tables.values()))


def test_a_slot_that_is_of_another_kind(db, url, left):
    with opened(url) as source:
        db.execute("SELECT pg_drop_replication_slot(%s)", [source.address.slot])
        db.execute("SELECT pg_create_physical_replication_slot(%s)", [source.address.slot])
        try:
            with pytest.raises(SourceGone, match="another one now, and not for pgoutput"):
                source.resume(left.position, list(left.tables.values()))
        finally:
            db.execute("SELECT pg_drop_replication_slot(%s)", [source.address.slot])
        with pytest.raises(SourceGone, match="no slot"):
            source.resume(left.position, list(left.tables.values()))


def test_another_server_and_another_life_of_it(db, url, left):
    """A restored backup goes on under another timeline, another server has another number."""
    here = Position.of(left.position)
    for there, said in (
        (Position(here.lsn, here.timeline, "123"), "is another server"),
        (Position(here.lsn, here.timeline + 1, here.system), r"was restored.*timeline 1, captured was 2"),
    ):
        left.position = str(there)
        with pytest.raises(SourceGone, match=f"{said}"):
            resume(url, left)


def test_a_publication_that_was_dropped_or_changed(db, url, left):
    with opened(url) as source:
        name = source.address.publication
        db.execute(f"ALTER PUBLICATION {name} DROP TABLE t")
        with pytest.raises(SourceGone, match=f"'{name}'.*leaves table 't' out.*{ANEW}"):
            source.resume(left.position, list(left.tables.values()))
        db.execute(f"DROP PUBLICATION {name}")
        with pytest.raises(SourceGone, match=f"no publication '{name}' any more.*{ANEW}"):
            source.resume(left.position, list(left.tables.values()))


def test_a_publication_that_is_changed_while_it_is_read(db, url):
    with opened(url, idle_s=0.1) as source:
        mirror = begin(source)
        catch_up(source, mirror)
        db.execute(f"ALTER PUBLICATION {source.address.publication} DROP TABLE t")
        with pytest.raises(SourceGone, match=f"leaves table 't' out.*{ANEW}"):
            for _ in range(50):
                list(source.transactions(0.2))


@pytest.mark.parametrize(
    "column",
    ["u uuid DEFAULT gen_random_uuid()", "s serial", "i int GENERATED ALWAYS AS IDENTITY", "r float8 DEFAULT random()"],
)
def test_a_new_column_in_which_old_rows_have_values_that_nobody_says(db, url, left, column):
    """The server writes all rows again, and not into what is replicated."""
    db.execute(f"ALTER TABLE t ADD {column}")
    db.execute("INSERT INTO t VALUES (2, 'b')")
    with opened(url) as source:
        source.resume(left.position, list(left.tables.values()))
        with pytest.raises(SourceGone, match=f"column '{column[0]}' of table 't' .*does not say which.*{ANEW}"):
            catch_up(source, left)


def test_a_table_that_was_made_anew_is_another_one(db, url):
    db.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    with opened(url, publication="everything") as source:
        mirror = begin(source)
        db.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'new')")
        with pytest.raises(SourceGone, match=f"table 't' .* is another one.*{ANEW}"):
            catch_up(source, mirror)


@pytest.mark.slow
def test_a_server_that_went_back_in_time_or_has_thrown_its_log_away():
    """A copy of its files from before is put back; a slot falls behind by more than the server keeps."""
    server = Server(max_slot_wal_keep_size="1MB", max_replication_slots="1")
    try:
        with server.connect("postgres") as db:
            db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        url = server.url("postgres")
        with opened(url) as source:
            mirror = begin(source)
        server.stop_process()
        shutil.copytree(server.folder / "data", server.folder / "backup")
        server.start()
        with server.connect("postgres") as db, opened(url) as source:
            source.resume(mirror.position, list(mirror.tables.values()))
            db.execute("INSERT INTO t SELECT generate_series(1, 1000)")
            catch_up(source, mirror)
        server.stop_process()
        shutil.rmtree(server.folder / "data")
        (server.folder / "backup").rename(server.folder / "data")
        for path in [server.folder / "data", *(server.folder / "data").rglob("*")]:
            shutil.chown(path, server._owner.pw_uid, server._owner.pw_gid)
        server.start()
        with pytest.raises(SourceGone, match=r"went back in time: its log ends at .*take a new snapshot"):
            resume(url, mirror)

        with opened(url) as source:
            mirror = begin(source)
        with (
            opened(url, name="second") as second,
            pytest.raises(InvalidArgument, match=r"all replication slots are in use.*max_replication_slots"),
        ):
            begin(second)
        with server.connect("postgres") as db:
            for number in range(6):
                db.execute("INSERT INTO t VALUES (%s)", [5000 + number])
                db.execute("SELECT pg_switch_wal()")
            db.execute("CHECKPOINT")
        with pytest.raises(SourceGone, match="max_slot_wal_keep_size"):
            resume(url, mirror)
    finally:
        server.stop()


@pytest.mark.slow
def test_a_server_that_dies_while_it_is_read_is_read_on_when_it_is_back():
    server = Server(fsync="on", synchronous_commit="on")
    try:
        for mode in ("streaming", "polling"):
            with server.database() as name:
                url = server.url(name, mode=mode)
                with server.connect(name) as db:
                    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
                with opened(url) as source:
                    mirror = begin(source)
                    with server.connect(name) as db:
                        db.execute("INSERT INTO t VALUES (1)")
                        catch_up(source, mirror)
                        db.execute("INSERT INTO t VALUES (2)")
                        source.confirm(mirror.position)
                    server.stop_process(signal.SIGQUIT)
                    with pytest.raises(Unavailable, match=str(server.folder)):
                        for _ in range(20):
                            for transaction in source.transactions(0.2):
                                mirror.take(transaction)
                with pytest.raises(Unavailable, match="cannot be reached"):
                    PgSource(url, name="test")
                server.start()
                with opened(url) as source:
                    source.resume(mirror.position, list(mirror.tables.values()))
                    catch_up(source, mirror)
                assert sorted(mirror.rows["t"]) == [(1,), (2,)]
    finally:
        server.stop()


# Who may do what, and what can be captured.


@pytest.mark.slow
def test_a_server_that_keeps_too_little_in_its_log():
    server = Server(wal_level="replica")
    try:
        with (
            opened(server.url("postgres")) as source,
            pytest.raises(InvalidArgument, match="wal_level=replica: run ALTER SYSTEM SET wal_level = logical"),
        ):
            source.tables(None)
    finally:
        server.stop()


def test_a_wrong_password(postgres, pg_database, db):
    db.execute("DROP ROLE IF EXISTS secret_agent; CREATE ROLE secret_agent LOGIN PASSWORD 'open sesame'")
    try:
        url = postgres.url(pg_database, user="secret_agent", password="hunter2")
        with pytest.raises(
            InvalidArgument, match=r"does not let secret_agent in: password.*right user and pass"
        ) as found:
            PgSource(url, name="test")
        assert "hunter2" not in str(found.value)
        with opened(postgres.url(pg_database, user="secret_agent", password="open sesame")) as source:
            assert "sesame" not in source.identity and "sesame" not in repr(source.address)
    finally:
        db.execute("DROP ROLE secret_agent")


def test_a_user_who_may_not_publish_or_replicate(postgres, pg_database, db):
    db.execute("DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN; ALTER TABLE t OWNER TO plain")
    try:
        with opened(postgres.url(pg_database, user="plain")) as source:
            source.tables(["t"])
            with pytest.raises(InvalidArgument, match=r"permission denied for database.*grant it"):
                source.snapshot()
            db.execute(f"GRANT CREATE ON DATABASE {pg_database} TO plain")
            with pytest.raises(InvalidArgument, match="plain may not replicate; run ALTER ROLE plain REPLICATION"):
                source.snapshot()
            db.execute("ALTER ROLE plain REPLICATION")
            source.snapshot().close()
            source.drop()
    finally:
        db.execute("REASSIGN OWNED BY plain TO postgres; DROP OWNED BY plain; DROP ROLE plain")


def test_a_place_that_is_none(postgres, url):
    with pytest.raises(NotFound, match=r'database "nowhere" does not exist'):
        PgSource(postgres.url("nowhere"), name="test")
    with pytest.raises(Unavailable, match=r"127.0.0.1:1/x cannot be reached"):
        PgSource("postgresql://me@127.0.0.1:1/x", name="test")
    for wrong, said in (
        ("mysql://x/y", "postgresql://user@host/database"),
        (url + "&mode=magic", "mode=magic: .* streaming or by polling"),
        (url + "&slot=Upper", "slot=Upper"),
        (url + "&no_such=1", "no address of PostgreSQL.*no_such"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            PgSource(wrong, name="test")


def test_tables_that_are_none_or_cannot_be_captured(db, url):
    db.execute(
        "CREATE TABLE f (id float8 PRIMARY KEY); CREATE TABLE nothing (); CREATE TABLE twice (id int, "
        '"ID" int); CREATE TABLE arr (id int[] PRIMARY KEY); CREATE TABLE own (id int PRIMARY KEY, "_Op" text)'
    )
    with opened(url) as source:
        with pytest.raises(NotFound, match="has no table 'tt' that can be captured; is it 't'"):
            source.tables(["tt"])
        for name, why in (
            ("f", "floats and arrays identify no rows"),
            ("arr", "floats and arrays identify no rows"),
            ("nothing", "it has no columns"),
            ("twice", "differ only by case"),
            ("own", "column '_Op', and columns of that name are Tidegate's own"),
        ):
            with pytest.raises(InvalidArgument, match=f"table '{name}' cannot be captured: .*{why}"):
                source.tables([name])
        assert [each.name for each in source.tables(None)] == ["t"]
        assert sorted(source.left_out) == ["arr", "f", "nothing", "own", "twice"]
        assert [each.name for each in source.tables(["public.t"])] == ["t"]


def test_of_two_tables_that_would_have_one_name_none_is_taken_in_silence(db, url):
    """`"a.b"` of the default schema, and b of schema a: one of them was left out, and nobody was told."""
    db.execute('CREATE SCHEMA a; CREATE TABLE a.b (id int PRIMARY KEY); CREATE TABLE "a.b" (id int PRIMARY KEY)')
    with opened(url) as source:
        assert [each.name for each in source.tables(None)] == ["t"]
        assert "'b' of schema 'a'" in source.left_out["a.b"] and "'a.b' of schema 'public'" in source.left_out["a.b"]
        with pytest.raises(InvalidArgument, match=r"table 'a\.b' cannot be captured: .*rename one"):
            source.tables(["a.b"])
        assert [each.name for each in source.tables(["t"])] == ["t"]


def test_a_table_that_can_have_no_name_here_is_left_out_and_the_others_are_captured(db, url, tmp_path):
    """From the beginning and later."""
    db.execute('CREATE TABLE "Ünï" (id int PRIMARY KEY)')
    with tidegate.open(tmp_path / "x.tide", settings=tidegate.DatabaseSettings(pipeline=False)) as found:
        with found.capture(url) as capture:
            db.execute("INSERT INTO t VALUES (1, 'a'); CREATE TABLE \"my table\" (id int PRIMARY KEY)")
            capture.catch_up()
            assert sorted(capture.status()["left_out"]) == ["my table", "Ünï"]
            assert capture.tables == {"t": "t"}
        assert len(found.query("SELECT * FROM t", "strong").rows()) == 1


def test_a_publication_of_others_that_leaves_changes_out(db, url):
    db.execute("CREATE PUBLICATION theirs FOR TABLE t WITH (publish = 'insert')")
    with opened(url, publication="theirs") as source:
        source.tables(None)
        with pytest.raises(InvalidArgument, match=r"publication 'theirs' .* leaves changes out"):
            source.snapshot()


def test_a_slot_that_another_capture_reads(db, url, monkeypatch):
    monkeypatch.setattr(pg_slots, "FREE_S", 0.2)
    monkeypatch.setattr(pg_source, "SLOT_WAIT_S", 0.2)
    with opened(url) as one, opened(url) as two:
        mirror = begin(one)
        db.execute("INSERT INTO t VALUES (1, 'a')")
        catch_up(one, mirror)
        two.tables(None)
        with pytest.raises(InUse, match=f"slot '{one.address.slot}'.*stop the capture"):
            two.snapshot()
        two.resume(mirror.position, list(mirror.tables.values()))
        with pytest.raises(InUse, match=r"is active for PID .*another name"):
            list(two.transactions(0.1))
        db.execute("INSERT INTO t VALUES (2, 'b')")
        catch_up(one, mirror)
        assert len(mirror.rows["t"]) == 2, "the one that reads is not disturbed"


def test_an_old_transaction_that_keeps_a_snapshot_waiting_is_named(postgres, pg_database, db, url, monkeypatch):
    monkeypatch.setattr(pg_slots, "SLOT_S", 0.5)
    with postgres.connect(pg_database, autocommit=False) as old, opened(url) as source:
        old.execute("INSERT INTO t VALUES (1, 'open')")
        source.tables(None)
        with pytest.raises(WaitTimeout, match=rf"waits for transactions .*process {old.info.backend_pid} of postgres"):
            source.snapshot()
        old.rollback()
        source.snapshot().close()


def test_a_table_that_changes_while_its_capture_begins(db, url):
    with opened(url) as source:
        source.tables(None)
        db.execute("ALTER TABLE t ADD w int")
        with pytest.raises(Exception, match=r"table 't' was changed .* begin again"):
            source.snapshot()


def test_a_source_is_used_in_order_and_not_after_its_end(db, url, monkeypatch):
    source = PgSource(url, name="test")
    with pytest.raises(InvalidArgument, match="after `snapshot` or `resume`"):
        next(source.transactions(0.1))
    with pytest.raises(InvalidArgument, match="'nonsense' is no position"):
        source.resume("nonsense", [])
    source.close()
    source.close()
    with pytest.raises(Closed, match="open it again"):
        source.tables(None)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'tidegate\[postgres\]'"):
        PgSource(url, name="test")


def test_nothing_of_a_closed_source_stays_at_the_server(postgres, pg_database, db, url):
    with opened(url) as source:
        mirror = begin(source)
        db.execute("INSERT INTO t VALUES (1, 'a')")
        catch_up(source, mirror)
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tidegate%%' AND datname = %s"
    deadline = time.monotonic() + 20
    while db.execute(query, [pg_database]).fetchone() != (0,):
        assert time.monotonic() < deadline
        time.sleep(0.02)


# What is made for a first snapshot that fails does not stay: a slot that nobody reads holds the server's log for ever.


def made(db: Db) -> list[Any]:
    return db.execute(
        "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
        " UNION ALL SELECT pubname::text FROM pg_publication"
    ).fetchall()


def test_a_first_snapshot_that_fails_leaves_nothing_at_the_server(db, url):
    """A value that has no place here; and whoever reads it gives up in its midst."""
    db.execute("CREATE TABLE bad (id int PRIMARY KEY, a numeric(5, 2)); INSERT INTO bad VALUES (1, 'NaN')")
    with opened(url) as source, pytest.raises(SourceUnreadable, match="table 'bad', column 'a'"):
        begin(source)
    assert made(db) == []
    with opened(url) as source:
        source.tables(["t"])
        source.snapshot().close()
        assert len(made(db)) == 2
    assert made(db) == []
    with opened(url) as source:
        begin(source, "t")
    assert len(made(db)) == 2, "what was confirmed stays"


def test_a_snapshot_that_cannot_begin_leaves_the_publication_of_others_and_takes_its_own(db, url, monkeypatch):
    def refuse(*_: object) -> None:
        raise Unavailable("no slot today")

    db.execute("CREATE PUBLICATION theirs FOR TABLE t")
    monkeypatch.setattr(pg_objects.Objects, "new_slot", refuse)
    for publication in (None, "theirs"):
        with opened(url, publication=publication) as source:
            source.tables(None)
            with pytest.raises(Unavailable):
                source.snapshot()
        assert made(db) == [("theirs",)]


def test_what_an_interrupted_capture_left_can_be_dropped_though_the_database_knows_nothing_of_it(db, url, tmp_path):
    with tidegate.open(tmp_path / "here.tide") as here:
        with opened(url, name="leak", owner=here.id.hex()) as source:
            begin(source)
        assert drop_capture(here, url, "leak") == "leak"
        assert made(db) == []
        with pytest.raises(NotFound, match=r"this database has no capture 'leak', and .* has nothing of one"):
            drop_capture(here, url, "leak")


def test_a_capture_whose_progress_fails_leaves_nothing_at_the_server(db, url, tmp_path):
    def stumble(*_: object) -> None:
        raise KeyError("x")

    db.execute("INSERT INTO t VALUES (1, 'a')")
    with tidegate.open(tmp_path / "here.tide") as here:
        with pytest.raises(TidegateError, match="KeyError"):
            here.capture(url, ["t"], name="stumbles", progress=stumble)
        assert made(db) == []


@pytest.mark.parametrize("given", ["abc", "-1", "nan", "inf", "", True])
def test_a_number_of_seconds_that_is_none(url, given):
    for wrong, options in ((url, {"idle_s": given}), (f"{url}&idle_s={given}", {})):
        with pytest.raises(InvalidArgument, match=f"idle_s={given}: .*number of seconds"):
            PgSource(wrong, name="test", **options)
    with opened(f"{url}&idle_s=2.5") as one, opened(url, idle_s="2.5") as two:
        assert one.address.idle_s == two.address.idle_s == 2.5
