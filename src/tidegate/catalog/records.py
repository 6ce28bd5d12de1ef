"""The catalog's records as bytes: JSON with a format number, so that a log written today is read by later versions."""

from __future__ import annotations

import json
from typing import Any, Final

from tidegate.errors import InvalidArgument, InvariantBroken

_FORMAT: Final = 1


def write(what: str, **facts: Any) -> bytes:
    """Raises: `InvalidArgument` for facts that are not plain."""
    try:
        return json.dumps({"format": _FORMAT, "what": what, **facts}, sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"options are plain JSON values: {error}") from None


def read(record: bytes) -> tuple[str, dict[str, Any]]:
    """What it says and its facts. Raises: `InvariantBroken` for bytes that are no record."""
    try:
        facts = json.loads(record)
        version, what = facts.pop("format"), facts.pop("what")
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InvariantBroken(f"catalog: {record[:40]!r} is not a record of the catalog") from error
    if version != _FORMAT:
        raise InvariantBroken(f"catalog: a record of format {version}; this Tidegate reads {_FORMAT}: upgrade it")
    return what, facts
