"""Bodies of messages: what is sent comes back as the same type, or is refused with its place (topics)."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import IntEnum
from timeit import repeat
from typing import Any

import numpy as np
import pytest

from tidegate.errors import InvalidArgument, LimitExceeded
from tidegate.topics.value import DEPTH_MAX, decode, encode

SMALL = {"what": "moved", "from": 1, "to": 2, "amount": 12.5, "ok": True}


def same(a: Any, b: Any) -> bool:
    """Equal, and of equal types all the way down: 1, 1.0 and True are three things."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[each], b[each]) for each in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00raw\xff",
        b"null",
        "",
        "text",
        "ünïcode \U0001f30a \x00",
        0,
        -1,
        1 << 200,
        1.0,
        -0.0,
        5e-324,
        True,
        None,
        [],
        {},
        [1, 1.0, True, None, "1"],
        SMALL,
        {"": {"a b": [[{}]]}},
    ],
    ids=repr,
)
def test_a_value_comes_back_as_the_same_type(value: Any) -> None:
    assert same(decode(encode(value)).value, value)


@pytest.mark.parametrize("key", ["", "1", b"1", b"", 1, 0, -1, (1 << 63) - 1, -(1 << 63), "schlüssel"], ids=repr)
@pytest.mark.parametrize("headers", [None, {}, {"trace": "ab", "größe": "√"}], ids=repr)
def test_a_key_comes_back_as_the_same_type_with_and_without_headers(key: Any, headers: dict[str, str] | None) -> None:
    read = decode(encode(SMALL, key, headers))
    assert same(read.key, key)
    assert read.headers == (headers or {})
    assert same(read.value, SMALL)


def test_headers_need_no_key_and_bytes_may_have_both() -> None:
    read = decode(encode(b"\x21{}", headers={"a": "b"}))
    assert (read.value, read.key, read.headers) == (b"\x21{}", None, {"a": "b"})
    assert repr(decode(encode(b"x", 7, {"a": "b"}))) == "Value(b'x', key=7, headers={'a': 'b'})"


def test_the_bytes_on_disk_are_fixed() -> None:
    """A body written today is read by every later version: these bytes may not change."""
    assert encode({"a": [1, None]}) == b'\x21{"a":[1,null]}'
    assert encode(b"raw") == b"\x20raw"
    assert encode("é", "k", {"h": "v"}) == b'\x35\x01\x00k\x09\x00\x00\x00{"h":"v"}"\xc3\xa9"'
    assert encode(None, -2) == b"\x2d\x08\x00\xfe\xff\xff\xff\xff\xff\xff\xffnull"
    assert encode(None, b"k") == b"\x29\x01\x00knull"


class Colour(IntEnum):
    RED = 1


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"items": [1, 2, {"when": datetime(2026, 1, 1)}]}, "value.items[2].when is a datetime"),
        ({"a b": Decimal("1")}, "value['a b'] is a decimal.Decimal"),
        ({"at": {1: "one"}}, "value.at has the key 1, an int; keys inside a value are strings"),
        ([float("nan")], "value[0] is nan"),
        (float("inf"), "value is inf"),
        ({"x": -float("inf")}, "value.x is -inf"),
        ((1, 2), "value is a tuple; send a list"),
        ([{1}], "value[0] is a set; send a sorted list"),
        ({"raw": b"x"}, "value.raw is a bytes; bytes are a value of their own"),
        (bytearray(b"x"), "value is a bytearray; send bytes"),
        (Colour.RED, "value is a "),
        (np.float64(1), "value is a numpy.float64"),
        ({"t": "\ud800"}, "value.t holds half a surrogate pair"),
        ({"\ud800": 1}, "half a surrogate pair"),
        ([10**5000], "value[0] is a number of too many digits"),
        (circle(), "levels deep, or contains itself"),
        (nested(DEPTH_MAX + 1), "levels deep"),
        (nested(100_000), "levels deep"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_what_would_come_back_changed_is_refused_with_its_place(value: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        encode(value)
    assert complaint in str(caught.value)


def test_the_deepest_value_that_is_accepted_can_be_read() -> None:
    assert decode(encode(nested(DEPTH_MAX))).value == nested(DEPTH_MAX)


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        (1.5, "not a float"),
        (True, "not a bool"),
        (("a",), "not a tuple"),
        (1 << 63, "does not fit into 64 bits"),
        ("\ud800", "half a surrogate pair"),
        (b"x" * 65_536, "at most 65,535 bytes, not 65,536"),
    ],
    ids=["float", "bool", "tuple", "large", "surrogate", "long"],
)
def test_a_key_that_would_not_come_back_is_refused(key: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        encode(None, key)


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": b"b"}], ids=repr)
def test_headers_are_strings(headers: Any) -> None:
    with pytest.raises(InvalidArgument, match="headers are strings by name"):
        encode(None, headers=headers)


def test_size_counts_key_and_headers_and_is_limited() -> None:
    body = encode("v" * 10, "k" * 20, {"h": "x" * 30})
    assert decode(body).nbytes == len(body) == 1 + 2 + 20 + 4 + 38 + 12
    assert encode("v" * 10, "k" * 20, {"h": "x" * 30}, bytes_max=len(body)) == body
    with pytest.raises(LimitExceeded, match="message_bytes_max") as caught:
        encode("v" * 10, "k" * 20, {"h": "x" * 30}, bytes_max=len(body) - 1)
    assert (caught.value.value, caught.value.limit) == (len(body), len(body) - 1)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "empty body"),
        (b"\x00", "starts with the byte 0x00"),
        (b'{"a":1}', "version 3; this Tidegate reads 1: upgrade"),
        (b"\x22", "starts with the byte 0x22"),
        (b"\x25\x05\x00ab", "ends inside its key or headers"),
        (b"\x25\x05", "ends inside its key or headers"),
        (b"\x31\x05\x00\x00\x00{}", "ends inside its key or headers"),
    ],
    ids=repr,
)
def test_what_is_not_a_body_is_refused_at_once(body: bytes, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        decode(body)


def test_a_small_dict_costs_microseconds() -> None:
    """Aimed at: 6 us to encode, 5 us to decode. Ten times that fails, so that a busy machine does not."""
    body = encode(SMALL)
    assert min(repeat(lambda: encode(SMALL), number=2000, repeat=5)) / 2000 < 60e-6
    assert min(repeat(lambda: decode(body).value, number=2000, repeat=5)) / 2000 < 50e-6
