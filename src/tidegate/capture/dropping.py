"""`drop_capture`: the end of a capture: what it made at the source goes, and its position; its rows stay."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tidegate.capture.capturing import name_of
from tidegate.capture.opening import open_source
from tidegate.capture.places import Places
from tidegate.errors import NotFound

if TYPE_CHECKING:
    from tidegate.database.database import Database


def drop_capture(db: Database, url: str, name: str | None = None, **options: Any) -> str:
    """Drop a capture; what it was called.

    What it has at the source goes also when this database knows nothing of it: its first snapshot was interrupted.
    Raises: `NotFound` when there is none of that name, here and at the source.
    """
    with closing(open_source(url, name, db, **options)) as source:
        called = name or name_of(source)
        places = Places(db, called, source.identity)
        place = places.load()
        look = getattr(source, "leftovers", None)  # Only some sources have anything there.
        there = look() if look is not None else []
        # First at the source: a position without a slot is found out, a slot without a position holds its log for ever.
        source.drop()
        if place is not None:
            with db.transaction() as txn:
                places.forget(txn, place.targets)
        elif not there:
            raise NotFound(
                f"this database has no capture {called!r}, and {source.identity} has nothing of one;"
                f" `tidegate capture --list` lists those that are here"
            )
    return called
