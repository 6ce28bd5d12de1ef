"""Values that PostgreSQL does not take: each is a conflict that names its row; the server is not called unreachable."""

from __future__ import annotations

import pytest

from apply_rig import Rig
from helpers import eventually
from tidegate.capture.target import ApplyConflict


@pytest.fixture
def rig(pg_rig: Rig) -> Rig:
    pg_rig.db.sql("CREATE TABLE t (id STRING PRIMARY KEY, s STRING, list ARRAY<STRING>)")
    return pg_rig


GOOD = ("good", "x", ["y"])
BAD = {"s": ("bad", "n\0l", None), "list": ("bad", None, ["y", "n\0l"]), "id": ("b\0d", None, None)}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("column", BAD)
def test_a_text_with_a_nul_is_a_conflict_that_names_the_column(rig: Rig, column: str, is_first: bool) -> None:
    """Fact: texts of PostgreSQL have no NUL. psycopg says so before the server is asked."""
    if not is_first:
        rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("t", [GOOD, BAD[column]])
    for policy in ("stop", "overwrite"):
        with pytest.raises(ApplyConflict, match=rf"table 't', id = .b.+d.: .*column '{column}'.*NUL") as raised:
            rig.apply(policy=policy)
        assert raised.value.conflict.table == "t" and raised.value.conflict.key == {"id": BAD[column][0]}
    with rig.apply(follow=True) as following:
        eventually(lambda: following.error is not None)
        assert isinstance(following.error, ApplyConflict)  # Trying again would not help.
        following.error = None
    done = rig.apply(policy="skip")
    assert [each.key for each in done.conflicts] == [{"id": BAD[column][0]}]
    assert rig.there("t") == [GOOD]


def test_a_row_is_looked_for_beside_what_is_there(rig: Rig) -> None:
    """A table with rows is compared with ours: a key that cannot be asked for is a conflict as well."""
    rig.at_target(
        "CREATE TABLE t (id TEXT PRIMARY KEY, s TEXT, list TEXT[])", "INSERT INTO t VALUES ('old', 'o', NULL)"
    )
    with rig.db.transaction() as txn:
        txn.insert("t", [GOOD, BAD["id"], ("old", "o", None)])
    done = rig.apply(policy="skip")
    assert done.done.copied == 1 and [each.key for each in done.conflicts] == [{"id": "b\0d"}]
    assert rig.there("SELECT id FROM t") == [("good",), ("old",)]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_value_that_the_column_has_no_room_for_is_skipped_alone(rig: Rig, is_first: bool) -> None:
    """What the server itself refuses (class 22): at the start as later."""
    rig.at_target("CREATE TABLE t (id VARCHAR(5) PRIMARY KEY, s INET, list TEXT[])")
    if not is_first:
        rig.apply()
    with rig.db.transaction() as txn:
        txn.insert("t", [("a", "10.0.0.1", None), ("too long", None, None), ("b", "no address", None)])
    with pytest.raises(ApplyConflict, match=r"the target does not take a value"):
        rig.apply()
    done = rig.apply(policy="skip")
    assert sorted(each.key["id"] for each in done.conflicts) == ["b", "too long"]
    assert rig.there("SELECT id FROM t") == [("a",)]
