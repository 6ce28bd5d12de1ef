"""What cannot be a view is refused, with its name and what to do instead (issue 6, "Updates, deletes, ...")."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.errors import InvalidArgument, NotFound
from tidegate.views.define import define
from tidegate.views.definition import Relation
from view_shop import SHOP

RELATIONS = {name: Relation(name, at, 1, table.schema, table.key) for at, (name, table) in enumerate(SHOP.items())}


@pytest.mark.parametrize(
    "call",
    [
        "now()",
        "current_timestamp",
        "current_timestamp()",
        "current_date",
        "unix_timestamp()",
        "rand()",
        "uuid()",
        "monotonically_increasing_id()",
        "current_user",
        "session_user()",
    ],
)
def test_a_function_without_a_fixed_answer_is_refused(call: str) -> None:
    with pytest.raises(InvalidArgument, match=r"view 'view' uses .*Store the value in a table when a row is written"):
        define(f"SELECT id, {call} AS t FROM o", (), RELATIONS)


def test_a_sample_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="uses TABLESAMPLE, which is random"):
        define("SELECT id FROM o TABLESAMPLE (10 PERCENT)", (), RELATIONS)


@pytest.mark.parametrize("sql", ["SELECT id FROM o LIMIT 3", "SELECT max(id) AS m FROM (SELECT id FROM o LIMIT 3)"])
def test_rows_without_an_order_are_not_the_first_ones(sql: str) -> None:
    with pytest.raises(InvalidArgument, match="takes LIMIT 3 without ORDER BY"):
        define(sql, (), RELATIONS)


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT id, id FROM o", "two columns 'id'; give one another name with AS"),
        ("SELECT id, n AS ID FROM o", "two columns 'id'"),
        ("SELECT * FROM o JOIN c ON o.cu = c.id", "two columns 'id'"),
        ("SELECT id, NULL AS x FROM o", "the column 'x' is NULL and has no type; cast it"),
        ("SELECT id AS _x FROM o", "the column '_x' begins with _"),
        ("SELECT id FROM o WHERE", "is not understood"),
        ("DELETE FROM o", "is not one query"),
        ("SELECT id FROM o WHERE n > ALL (SELECT lim FROM c)", "a view cannot have"),
    ],
)
def test_what_is_no_view_says_what_to_do(sql: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says.replace("(", r"\(")):
        define(sql, (), RELATIONS)


@pytest.mark.parametrize(
    ("sql", "says"), [("SELECT id FROM nope", "no table 'nope'"), ("SELECT x FROM c", "no column 'x'; there are id")]
)
def test_what_is_not_there_is_not_found(sql: str, says: str) -> None:
    with pytest.raises(NotFound, match=says):
        define(sql, (), RELATIONS)


def test_names_for_columns_must_be_as_many() -> None:
    with pytest.raises(InvalidArgument, match="names 1 columns, and its query has 2"):
        define("SELECT id, n FROM o", ("a",), RELATIONS)


def test_what_is_defined_has_plain_keys_and_hides_what_is_not_shown() -> None:
    found = define("SELECT tags, sum(n) AS s FROM o GROUP BY tags, g", ("labels", "total"), RELATIONS)
    assert found.columns == ["labels", "total"]
    (node,) = found.nodes
    types = {each.name: each.type for each in node.columns}
    assert types["labels"] == pa.list_(pa.string())
    assert all(not pa.types.is_nested(types[each]) for each in node.key)
    assert node.hidden == len(node.columns) - 2
