"""A slot that somebody else has, or that is gone, while it is read: who goes on, and what the other one is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import tidegate
from helpers import eventually
from pg_mirror import begin, catch_up, opened
from pg_server import Server
from tidegate.capture import pg_slots, pg_source
from tidegate.capture.pg_connect import connect
from tidegate.capture.pg_stream import Stream
from tidegate.errors import InUse, SourceGone, Unavailable

Db = psycopg.Connection[Any]


@pytest.fixture
def db(postgres: Server, pg_database: str) -> Iterator[Db]:
    with postgres.connect(pg_database) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        yield connection


@pytest.fixture
def url(postgres: Server, pg_database: str) -> str:
    return postgres.url(pg_database)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pg_slots, "NOTICED_S", 0.1)


def test_a_reader_whose_connection_was_lost_does_not_keep_its_slot(db: Db, url: str) -> None:
    """Where the network lost it, the server goes on believing in it for minutes; the capture ended with `InUse`."""
    with opened(url, owner="here") as lost, opened(url, owner="here") as found:
        mirror = begin(lost)
        catch_up(lost, mirror)
        found.tables(None)
        found.resume(mirror.position, list(mirror.tables.values()))
        db.execute("INSERT INTO t VALUES (1, 'a')")
        catch_up(found, mirror)
        assert set(mirror.rows["t"]) == {(1,)}
        with pytest.raises(Unavailable):
            list(lost.transactions(1.0))


def test_a_snapshot_is_taken_anew_though_a_lost_reader_has_the_slot(db: Db, url: str) -> None:
    with opened(url, owner="here") as lost, opened(url, owner="here") as found:
        catch_up(lost, begin(lost))
        db.execute("INSERT INTO t VALUES (1, 'a')")
        assert set(begin(found).rows["t"]) == {(1,)}


def test_a_slot_that_the_user_has_named_may_be_somebody_elses_and_is_left_to_him(
    db: Db, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pg_source, "SLOT_WAIT_S", 0.2)
    with opened(url, owner="here", slot="ours") as one, opened(url, owner="here", slot="ours") as two:
        mirror = begin(one)
        catch_up(one, mirror)
        two.tables(None)
        two.resume(mirror.position, list(mirror.tables.values()))
        with pytest.raises(InUse):
            list(two.transactions(0.1))
        db.execute("INSERT INTO t VALUES (1, 'a')")
        catch_up(one, mirror)
        assert set(mirror.rows["t"]) == {(1,)}


def test_of_two_captures_of_one_name_the_later_one_goes_on_also_when_nothing_comes(tmp_path: Any, db: Db, url: str):
    with tidegate.open(tmp_path / "x.tide", settings=tidegate.DatabaseSettings(pipeline=False)) as found:
        earlier = found.capture(url, name="same")
        later = found.capture(url, name="same")
        db.execute("INSERT INTO t VALUES (1, 'a')")
        later.catch_up()
        assert len(found.query("SELECT * FROM t", "strong").rows()) == 1
        eventually(lambda: earlier.state == "failed", what="the end of the earlier one")
        assert isinstance(earlier.error, InUse) and "another capture named 'same'" in str(earlier.error)


def test_who_has_a_polled_slot_for_a_moment_is_waited_for(db: Db, url: str) -> None:
    """As somebody who looks at it has; it ended the capture."""
    with opened(url, mode="polling") as source:
        mirror = begin(source)
        db.execute("INSERT INTO t VALUES (1, 'a')")
        address = source.address
        other = Stream(connect(address, "other", replication=True), "there", address.slot, address.publication, 0)
        ending = threading.Timer(0.3, other.close)
        ending.start()
        catch_up(source, mirror)
        ending.join()
        assert set(mirror.rows["t"]) == {(1,)}


@pytest.mark.parametrize("confirms", [False, True])
def test_a_slot_that_is_dropped_while_it_is_polled(db: Db, url: str, confirms: bool) -> None:
    with opened(url, mode="polling") as source:
        mirror = begin(source)
        catch_up(source, mirror)
        db.execute("SELECT pg_drop_replication_slot(%s)", [source.address.slot])
        with pytest.raises(SourceGone, match=r"no slot .* any more.*take a new snapshot"):
            source.confirm(mirror.position) if confirms else list(source.transactions(0.2))


@pytest.mark.parametrize("mode", ["streaming", "polling"])
def test_a_publication_that_is_dropped_while_it_is_read(db: Db, url: str, mode: str) -> None:
    """Found out by what the server says of the next change, long before the next look at the catalog."""
    with opened(url, mode=mode, idle_s=600) as source:
        mirror = begin(source)
        catch_up(source, mirror)
        db.execute(f"DROP PUBLICATION {source.address.publication}")  # type: ignore[call-overload]
        db.execute("INSERT INTO t VALUES (1, 'a')")
        with pytest.raises(SourceGone, match=r"publication .* leaves table 't' out; take a new snapshot"):
            list(source.transactions(10))
