"""A query that ends with a number is translated once for all of them, if that gives what its own translation would."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.reads.shapes import shape_of
from tidegate.reads.translate import translate

SCHEMAS = {
    "t": pa.schema(
        [("id", pa.int64()), ("n", pa.int32()), ("s", pa.int16()), ("d", pa.decimal128(9, 2)), ("name", pa.string())]
    )
}
FILLED = [
    "SELECT * FROM t WHERE id = {}",
    "SELECT n + 1 AS m, name FROM t WHERE name = 'x = 5' AND n = {}",
    "SELECT count(*), max(d) FROM t AS q WHERE q.id={} ",
]
LEFT = [
    "SELECT id = {}",
    "SELECT id FROM t WHERE s = {}",
    "SELECT id FROM t WHERE d = {}",
    "SELECT id FROM t WHERE id > 3 OR id = {}",
    "SELECT id FROM t WHERE id = 5 HAVING max(id) = {}",
    "SELECT id FROM t ORDER BY id = {}",
    "SELECT id FROM t WHERE n <= {}",
]
numbers = st.integers(0, 999_999_999)


@pytest.mark.parametrize("form", FILLED)
@given(number=numbers)
def test_what_is_filled_in_is_what_would_be_translated(form, number):
    shape = shape_of(form.format(number))
    assert shape.fill(translate(shape.sql, SCHEMAS)) == translate(form.format(number), SCHEMAS)


def test_zeros_in_front_do_not_count():
    shape = shape_of("SELECT id FROM t WHERE id = 007")
    assert shape.fill(translate(shape.sql, SCHEMAS)) == translate("SELECT id FROM t WHERE id = 7", SCHEMAS)


@pytest.mark.parametrize("form", LEFT)
def test_a_number_on_which_more_may_depend_is_not_filled_in(form):
    shape = shape_of(form.format(7))
    assert shape is not None
    try:
        found = shape.fill(translate(shape.sql, SCHEMAS))
    except Exception as error:
        with pytest.raises(type(error)):
            translate(form.format(7), SCHEMAS)
    else:
        assert found is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t",
        "SELECT * FROM t WHERE id = 7 LIMIT 1",
        "SELECT * FROM t WHERE id = -7",
        "SELECT * FROM t WHERE id = 1234567890",
        "SELECT * FROM t WHERE id = 7L",
        "SELECT * FROM t WHERE id = 1.5",
        "SELECT 1000000007 FROM t WHERE id = 5",
    ],
)
def test_other_texts_have_no_shape(sql):
    assert shape_of(sql) is None
