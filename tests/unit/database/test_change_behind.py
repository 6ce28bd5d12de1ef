"""A statement about a table behind a guard: who was overtaken changes no table any more. Promise 7.

A capture that stood still would else drop and add columns under the one that goes on, and their values would be gone.
"""

from __future__ import annotations

import pytest

import tidegate
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import Conflict, InvalidArgument, NotFound


def names(db):
    return [each["column"] for each in db.sql("DESCRIBE TABLE goods")]


@pytest.fixture(params=["the owner", "another process"])
def client(request, tmp_path):
    """Both ways to the owner: at home, and over its socket."""
    settings = DatabaseSettings(pipeline=False)
    with tidegate.open(tmp_path / "x.tide", settings=settings) as owner:
        owner.sql("CREATE TABLE goods (id BIGINT PRIMARY KEY, what STRING)")
        owner.sql("CREATE TABLE keepers (name STRING PRIMARY KEY, who STRING)")
        if request.param == "the owner":
            yield owner
        else:
            with tidegate.open(tmp_path / "x.tide", settings=settings) as other:
                assert not other.is_owner
                yield other


def test_statements_go_through_while_nobody_has_written_what_the_guard_read(client):
    with client.transaction() as guard:
        guard.read("keepers", ["x"])
        client.change_behind(guard, "ALTER TABLE goods ADD COLUMN price BIGINT")
        client.sql("INSERT INTO keepers VALUES ('y', 'somebody')")
        client.change_behind(guard, "ALTER TABLE goods RENAME COLUMN price TO cost")
        assert names(client) == ["id", "what", "cost"]
        client.insert("goods", {"id": 1, "what": "a", "cost": 2})
        assert client.query("SELECT * FROM goods").rows() == [{"id": 1, "what": "a", "cost": 2}]


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE goods DROP COLUMN what", "CREATE TABLE more (id BIGINT PRIMARY KEY)", "DROP TABLE goods"]
)
def test_once_it_is_written_nothing_is_changed(client, statement):
    guard = client.transaction()
    guard.read("keepers", ["x"])
    client.sql("INSERT INTO keepers VALUES ('x', 'another one')")
    for _ in range(2):  # Nor when it is tried again.
        with pytest.raises(Conflict):
            client.change_behind(guard, statement)
    assert names(client) == ["id", "what"]
    assert sorted(each["name"] for each in client.sql("SHOW TABLES")) == ["goods", "keepers"]


def test_a_run_and_a_statement_share_a_guard(client):
    """Both count as read again, so what comes between two of them is noticed by the next."""
    guard = client.transaction()
    guard.read("keepers", ["x"])
    for number in range(3):
        client.change_behind(guard, f"ALTER TABLE goods ADD COLUMN c{number} BIGINT")
        txn = client.transaction()
        txn.upsert("goods", {"id": number, "what": "a"})
        client.commit_run(guard, [txn])
    client.sql("INSERT INTO keepers VALUES ('x', 'another one')")
    late = client.transaction()
    late.upsert("goods", {"id": 9, "what": "late"})
    with pytest.raises(Conflict):
        client.commit_run(guard, [late])
    assert [each["id"] for each in client.query("SELECT id FROM goods ORDER BY id", "strong").rows()] == [0, 1, 2]


def test_what_cannot_be_is_said_and_the_guard_is_as_before(client):
    with client.transaction() as guard:
        guard.read("keepers", ["x"])
        with pytest.raises(NotFound, match="nothing"):
            client.change_behind(guard, "ALTER TABLE nothing ADD COLUMN a BIGINT")
        with pytest.raises(InvalidArgument, match="changes no table"):
            client.change_behind(guard, "CREATE TOPIC t")
        client.change_behind(guard, "ALTER TABLE goods ADD COLUMN a BIGINT")


def test_at_a_new_owner_the_guard_counts_for_nothing(tmp_path):
    """Nobody there knows what was written meanwhile."""
    settings = DatabaseSettings(pipeline=False)
    owner = tidegate.open(tmp_path / "x.tide", settings=settings)
    owner.sql("CREATE TABLE goods (id BIGINT PRIMARY KEY, what STRING)")
    with tidegate.open(tmp_path / "x.tide", settings=settings) as other:
        guard = other.transaction()
        guard.read("goods", [1])
        owner.close()
        other.sql("INSERT INTO goods VALUES (1, 'a')")  # It owns the database from here on.
        with pytest.raises(Conflict, match="another owner"):
            other.change_behind(guard, "ALTER TABLE goods DROP COLUMN what")
        assert names(other) == ["id", "what"]
