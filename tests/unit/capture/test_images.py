"""The fast images of rows are the records of `tidegate.cdc.record`, whatever the values are."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.capture.images import flags_of, image, update_images
from tidegate.cdc.record import encode

INTEGERS = st.one_of(st.integers(-300, 5000), st.integers(-(1 << 63), (1 << 63) - 1))
VALUES = st.one_of(
    st.none(), INTEGERS, st.floats(allow_nan=False), st.text(max_size=80), st.binary(max_size=80), st.just("x" * 20_000)
)


@given(st.lists(VALUES, max_size=70))
@settings(max_examples=100, deadline=None)
def test_an_image_is_the_record_of_its_values(values):
    assert image(*values) == encode(values)


@given(st.lists(st.tuples(VALUES, VALUES, st.booleans(), st.booleans()), max_size=70))
@settings(max_examples=100, deadline=None)
def test_the_images_of_an_update_are_three_records(columns):
    """A column may change without being set, if it is computed, and be set without changing."""
    old = tuple(was for was, *_ in columns)
    new = tuple(now if changes else was for was, now, changes, _ in columns)
    chosen = [is_set for *_, is_set in columns]
    flags = flags_of(len(columns), frozenset(at for at, is_set in enumerate(chosen) if is_set))
    updates = [*map(int, chosen), *(now if is_set else None for now, is_set in zip(new, chosen))]
    assert update_images(old, new, flags) == (encode(updates), encode(new), encode(old))


def test_zero_and_minus_zero_are_not_the_same():
    assert update_images((0.0,), (-0.0,), flags_of(1, frozenset()))[1:] == (encode((-0.0,)), encode((0.0,)))
    assert update_images((1,), (1.0,), flags_of(1, frozenset()))[1:] == (encode((1.0,)), encode((1,)))


def test_an_update_of_few_columns_beside_many_long_ones_is_three_records():
    """The headers of the row are longer than that of `updates`, which has twice as many values."""
    for columns in (25, 26, 45, 60):
        for long in (9_000, 1_100_000):
            old = ("x" * long,) * columns
            new = (1, *old[1:])
            updates = [1, *[0] * (columns - 1), 1, *[None] * (columns - 1)]
            assert update_images(old, new, flags_of(columns, frozenset((0,)))) == (
                encode(updates),
                encode(new),
                encode(old),
            )
