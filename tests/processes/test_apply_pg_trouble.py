"""What a PostgreSQL server may do to one who applies: each has an error that names it and says what to do, nothing is
lost, and a repeat goes on. "The way back" is that of issue 7 (seed 003)."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from apply_rig import Rig
from helpers import eventually
from pg_server import Server
from tidegate.capture.applying import Applying
from tidegate.capture.target import ApplyConflict, TargetBusy, open_target
from tidegate.errors import DiskFull, InvalidArgument, Unavailable


@pytest.fixture
def rig(pg_rig: Rig) -> Rig:
    pg_rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, s STRING)")
    return pg_rig


# -- a server that ends things ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_many", [False, True])
def test_a_session_that_the_server_has_ended_is_asked_for_anew(rig: Rig, is_many: bool) -> None:
    """The way back: who follows goes on; one statement (25P03) says as many rows at once do that it was ended."""
    rig.apply()
    target = open_target(rig.url)
    ((pid,),) = target.run("SELECT pg_backend_pid()")
    target.run("SET idle_in_transaction_session_timeout = 20")
    target.begin()
    eventually(lambda: rig.there(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}") == [])
    with pytest.raises(Unavailable, match=r"connection was lost .*idle_in_transaction_session_timeout.*goes on"):
        if is_many:
            target.many("INSERT INTO t (id) VALUES (%s)", [(1,), (2,)])
        else:
            target.run("SELECT 1")
    target.close()


def test_a_session_that_was_ended_is_no_reason_to_warn(rig: Rig) -> None:
    """That nobody can say where a change comes from is said of a server, and not of a connection that is lost."""
    target = open_target(rig.url)
    try:
        ((pid,),) = target.run("SELECT pg_backend_pid()")
        rig.there(f"SELECT pg_terminate_backend({pid})")
        eventually(lambda: rig.there(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}") == [])
        with pytest.raises(Unavailable):
            target.mark_origin("tidegate:1", "n")
        assert not target.unsaid
    finally:
        target.close()


def test_who_follows_gets_over_a_server_that_ends_idle_transactions(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way back: what was asked for within a chunk took too long, once; the chunk comes whole after all."""
    from tidegate.capture import apply_rows

    rig.apply()
    name = rig.there("SELECT current_database()::text")[0][0]
    rig.at_target(f'ALTER DATABASE "{name}" SET idle_in_transaction_session_timeout = 50')
    asked = apply_rows.rows_before
    slow = Event()

    def rows_before(*arguments: Any, **options: Any) -> Any:
        if not slow.is_set():
            slow.set()
            idle = "SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
            eventually(lambda: rig.there(f"{idle} AND datname = current_database()") == [])
        return asked(*arguments, **options)

    monkeypatch.setattr(apply_rows, "rows_before", rows_before)
    with rig.apply(follow=True) as following:
        following.wait_for(rig.db.upsert("t", [(1, "new")]).timestamp)
        assert slow.is_set() and following.error is None
    assert rig.equal()


def test_a_statement_that_takes_too_long_is_no_server_that_cannot_be_reached(rig: Rig) -> None:
    target = open_target(rig.url)
    target.run("SET statement_timeout = 20")
    with pytest.raises(TargetBusy, match=r"statement timeout; give the role more time"):
        target.run("SELECT pg_sleep(10)")
    target.close()


def test_a_conflict_says_nothing_but_its_error(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """What psycopg has to say of rows behind the one that failed stays out of the log, and else speaks on."""
    rig.apply()
    rig.at_target("ALTER TABLE t ADD CHECK (s <> 'bad')")
    with rig.db.transaction() as txn:
        txn.insert("t", [(number, "bad" if number == 500 else "good") for number in range(1000)])
    with pytest.raises(ApplyConflict, match="id = 500"):
        rig.apply()
    assert "error ignored" not in caplog.text
    logging.getLogger("psycopg").warning("error ignored terminating %r: %s", "what is of others", "x")
    assert "what is of others" in caplog.text


# -- a server that dies ----------------------------------------------------------------------------------------------


def test_a_server_that_dies_again_and_again_under_load_has_every_transaction_once(tmp_path: Path) -> None:
    """The way back: large and small transactions, foreign keys put off or not: whole, in order, each once."""
    server = Server()
    try:
        name = server.new_database()
        with server.connect(name) as first:
            first.execute("CREATE TABLE p (id BIGINT PRIMARY KEY, n BIGINT)")
            first.execute("CREATE TABLE c (id BIGINT PRIMARY KEY, p BIGINT REFERENCES p, n BIGINT)")
        rig = Rig(tmp_path / "here.tide", server.url(name), server.connect(name), "postgresql")
        rig.db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, n BIGINT)")
        rig.db.sql("CREATE TABLE c (id BIGINT PRIMARY KEY, p BIGINT, n BIGINT)")
        rig.db.sql("CREATE TABLE events (n BIGINT)")
        stopped = Event()

        def write() -> None:
            number = 0
            while not stopped.is_set():
                size = 2000 if number % 10 == 5 else 3
                with rig.db.transaction() as txn:
                    txn.upsert("p", [(number % 40, number)])
                    txn.upsert("c", [(each, number % 40, number) for each in range(size)])
                    txn.insert("events", [(number,)])
                number += 1
                eventually(lambda now=number: following.transactions > now - 100 or stopped.is_set(), 100)

        writer = Thread(target=write)
        with rig.apply(follow=True, chunk_rows=20) as following:
            writer.start()
            for _ in range(3):
                before = following.transactions
                eventually(lambda before=before: following.transactions > before + 5, 60)
                server.stop_process(signal.SIGQUIT)
                eventually(lambda: following.trouble is not None, 30)
                server.start()
            stopped.set()
            writer.join()
            following.wait_for(rig.db.insert("events", [(-1,)]).timestamp, 100)
            assert following.error is None
        rig._look.close()
        rig._look = server.connect(name)
        assert rig.equal()
        rig.close()
    finally:
        server.stop()


def test_a_server_whose_files_cannot_grow_is_full(tmp_path: Path) -> None:
    """The way back, no room: the chunk is absent as a whole; who follows goes on when files can grow."""
    server = Server()
    try:
        server.stop_process()
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, most))  # What a segment of its log has.
        try:
            server.start()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        name = server.new_database()
        rig = Rig(tmp_path / "here.tide", server.url(name), server.connect(name), "postgresql")
        rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, s STRING)")
        rig.db.sql("CREATE TABLE events (n BIGINT)")
        rig.apply()
        for number in range(20):
            with rig.db.transaction() as txn:
                txn.insert("t", [(number * 500 + each, os.urandom(950).hex()) for each in range(500)])
                txn.insert("events", [(number,)])
        assert txn.commit_timestamp is not None
        with pytest.raises(DiskFull, match=r"could not extend file.*make room"):
            rig.apply()
        ((count,),) = rig.there("SELECT count(*) FROM events")
        assert 0 < count < 20
        assert rig.there("SELECT count(*) FROM t") == [(500 * count,)]
        with rig.apply(follow=True) as following:
            eventually(lambda: following.state == "waiting" and isinstance(following.trouble, DiskFull))
            server.stop_process()
            server.start()
            following.wait_for(txn.commit_timestamp)
        rig._look.close()
        rig._look = server.connect(name)
        assert rig.equal()
        rig.close()
    finally:
        server.stop()


# -- who may not -----------------------------------------------------------------------------------------------------


def test_a_role_that_may_create_nothing_is_told_what_it_needs(postgres: Server, rig: Rig, pg_database: str) -> None:
    rig.db.insert("t", [(1, "a")])
    rig.at_target("DROP ROLE IF EXISTS nothing", "CREATE ROLE nothing LOGIN")
    with pytest.raises(Unavailable, match=r"permission denied for schema public.*CREATE on the schema"):
        rig.db.apply("t", postgres.url(pg_database, user="nothing"))
    rig.at_target("GRANT CREATE ON SCHEMA public TO nothing")
    reading = postgres.url(pg_database, user="nothing", options="-c default_transaction_read_only=on")
    with pytest.raises(Unavailable, match=r"read-only transaction; apply to the primary, or set default_transaction"):
        rig.db.apply("t", reading)
    rig.db.apply("t", postgres.url(pg_database, user="nothing"))
    assert rig.equal()
    rig.at_target("ALTER ROLE nothing NOLOGIN")
    with pytest.raises(Unavailable, match=r"does not take the connection.*not permitted to log in; check user"):
        rig.db.apply("t", postgres.url(pg_database, user="nothing"))
    rig.at_target("DROP OWNED BY nothing", "DROP ROLE nothing")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:se/cret@host/db",
        "postgresql://me:se%zzcret@host/db",
        "postgresql://me:se@cret@host/db",
        "postgresql://me@host:1x/db?password=cret",
    ],
)
def test_a_url_that_is_none_does_not_show_the_password(rig: Rig, url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"%40, %3A, %2F and %25") as raised:
        rig.db.apply("t", url)
    assert "se/" not in str(raised.value) and "cret" not in str(raised.value)


def test_a_database_of_another_encoding_takes_what_it_has_letters_for(postgres: Server, tmp_path: Path) -> None:
    """A text that it cannot hold is a conflict that names the row."""
    with postgres.connect("postgres") as connection:
        connection.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    rig = Rig(tmp_path / "here.tide", postgres.url("latin"), postgres.connect("latin"), "postgresql")
    rig.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, s STRING)")
    rig.db.insert("t", [(1, "ü")])
    rig.apply()
    assert rig.equal()
    rig.db.insert("t", [(2, "☃")])
    with pytest.raises(ApplyConflict, match=r"table 't', id = 2: .*no equivalent in encoding"):
        rig.apply()
    assert rig.apply(policy="skip").done.conflicts == 1
    rig.close()
    postgres.drop_database("latin")


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_says_in_a_line_what_cannot_be(postgres: Server, rig: Rig, pg_database: str) -> None:
    """One line that names it, exit code 1, and no traceback."""

    def says(url: str) -> str:
        given = ["apply", "t", "--from", str(rig.path), "--to", url, "--once"]
        done = subprocess.run(
            [sys.executable, "-m", "tidegate.cli.main", *given],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1 and done.stdout == ""
        return line

    rig.at_target("DROP ROLE IF EXISTS secret_bo", "CREATE ROLE secret_bo LOGIN PASSWORD 'right'")
    line = says(postgres.url(pg_database, user="secret_bo", password="wrong-one"))
    assert "check user and password" in line and "wrong-one" not in line
    assert "CREATE on the schema" in says(postgres.url(pg_database, user="secret_bo", password="right"))
    assert "cannot be reached" in says("postgresql://me@127.0.0.1:1/x")
    rig.at_target("DROP ROLE secret_bo")


def test_what_is_shown_of_a_url_has_no_password(rig: Rig) -> None:
    """The status and the command show where it goes."""
    found: Applying = rig.apply(follow=True)
    found.stop()
    assert rig.db.apply("t", rig.url + "&password=secret").to == found.to
