"""The URL of a source in PostgreSQL: what libpq is given, and what is said of one that is none."""

from __future__ import annotations

import pytest

from tidegate.capture.pg_connect import address_of
from tidegate.errors import InvalidArgument


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("postgresql:///shop?host=/run/pg", "postgresql:///shop?host=%2Frun%2Fpg"),
        ("postgres:///shop", "postgresql:///shop"),
        ("postgresql://", "postgresql://"),
        ("postgresql://ann:a%40b%2Fc%3Ad@db.example:5433/shop?mode=polling", None),
        ("postgresql://ann@one:5432,two:5433/shop", None),
        ("postgresql://one:5432,two/shop", None),
        ("postgresql://[::1]:5432/shop", None),
        ("postgresql://[::1]/shop", None),
        ("postgresql://%2Frun%2Fpg/shop", None),
    ],
)
def test_libpq_gets_the_url_without_our_options(url: str, given: str | None) -> None:
    """One without a host names a socket of this machine; it was refused."""
    assert address_of(url, "test", {}).conninfo == (given or url.removesuffix("?mode=polling"))


@pytest.mark.parametrize("password", ["hun[ter", "hun%ter", "hun#ter", "1#ter", "hun/ter", "hun?t=er", "hun@ter"])
def test_a_password_that_is_not_encoded_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(InvalidArgument, match=r"in a user and a password % is written %25") as found:
        address_of(f"postgresql://ann:{password}@db.example/shop", "test", {})
    assert "hun" not in str(found.value) and "ter" not in str(found.value).replace("tidegate", "")


def test_only_a_slot_called_after_the_capture_and_its_database_is_its_own() -> None:
    url = "postgresql://ann@db.example/shop"
    assert address_of(url, "test", {}, "here").has_own_slot
    assert not address_of(url, "test", {}).has_own_slot, "of which database nobody knows"
    assert not address_of(url + "?slot=mine", "test", {}, "here").has_own_slot
