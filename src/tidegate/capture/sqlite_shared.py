"""Recording connections that several threads use at once: what one of them does, the others wait for.

SQLite's own lock is not enough. Recording calls Python within a statement, so a thread that has SQLite's lock waits for
the interpreter's, and one that has the interpreter's and reads a value waits for SQLite's. And a statement that is
recorded is several, which no other thread's may come between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidegate.capture.sqlite_cursor import Cursor

if TYPE_CHECKING:
    from tidegate.capture.sqlite import Connection

_Kind = TypeVar("_Kind")
_OF_CURSORS: Final = (
    "execute",
    "executemany",
    "executescript",
    "fetchone",
    "fetchmany",
    "fetchall",
    "__next__",
    "close",
)
_OF_CONNECTIONS: Final = (
    "backup",
    "blobopen",
    "close",
    "commit",
    "create_aggregate",
    "create_collation",
    "create_function",
    "create_window_function",
    "deserialize",
    "enable_load_extension",
    "load_extension",
    "rollback",
    "serialize",
    "set_authorizer",
    "set_capture",
    "set_progress_handler",
    "set_trace_callback",
    "setlimit",
)
"""Not `interrupt`, which is for other threads to call meanwhile."""


@lru_cache(maxsize=64)
def shared_connection(kind: type[Connection]) -> type[Connection]:
    """A class of connections that can do what those of `kind` can, for one thread at a time."""

    def begin(self: Any, *arguments: Any, **options: Any) -> None:
        self.lock = RLock()
        kind.__init__(self, *arguments, **options)

    def cursor(self: Any, *arguments: Any, **options: Any) -> Any:
        with self.lock:
            made = kind.cursor(self, *arguments, **options)
        made.__class__ = _shared_cursor(type(made))  # type: ignore[arg-type]
        return made

    own = {"__init__": begin, "cursor": cursor, "_cursors": _shared_cursor(Cursor)}
    return _in_turn(kind, own, _OF_CONNECTIONS, attrgetter("lock"))


@lru_cache(maxsize=64)
def _shared_cursor(kind: type[Cursor]) -> type[Cursor]:
    """The same for cursors. It takes no more room, so that a cursor that was made can become one."""
    return _in_turn(kind, {"__slots__": ()}, _OF_CURSORS, attrgetter("connection.lock"))


def _in_turn(
    kind: type[_Kind], own: dict[str, Any], names: Iterable[str], lock_of: Callable[[Any], Any]
) -> type[_Kind]:
    """A class derived from `kind` of which these methods wait until no other thread is in one."""
    made = type(kind.__name__, (kind,), {**own, "__module__": kind.__module__, "__doc__": kind.__doc__})
    for name in names:
        if hasattr(kind, name):
            setattr(made, name, _alone(made, name, lock_of))
    return made


def _alone(owner: type[Any], name: str, lock_of: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(getattr(owner, name))
    def alone(self: Any, *arguments: Any, **options: Any) -> Any:
        with lock_of(self):
            return getattr(super(owner, self), name)(*arguments, **options)

    return alone
