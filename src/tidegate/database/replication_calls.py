"""`ReplicationCalls`: the part of a `Database` that exchanges transactions with other databases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tidegate.clock.timestamp import Timestamp
from tidegate.database.read_calls import ReadCalls
from tidegate.errors import InvalidArgument, TidegateError

if TYPE_CHECKING:
    from tidegate.capture.applying import Applying
    from tidegate.capture.capturing import Capture


class ReplicationCalls(ReadCalls):
    """Capturing and applying; `Database` has the rest. What stands above it is loaded when it is called."""

    @cached_property
    def captures(self) -> list[Capture]:
        """Those at work in this process."""
        return []

    _applying: tuple[Applying, ...] = ()
    """Those that follow."""

    def capture(
        self,
        url: str,
        tables: str | Sequence[str] | None = None,
        into: str | Mapping[str, str] | None = None,
        *,
        name: str | None = None,
        restart: bool = False,
        wait: bool = True,
        progress: Callable[[str, int, int], None] | None = None,
        **options: Any,
    ) -> Capture:
        """Take the transactions of another database into this one: whole, in order, each exactly once.

        `url` is `sqlite:///app.db`, `turso:///app.db`, `postgresql://...` or `debezium:///events`; `tables` are those
        to take, by default all. `into` is what goes in front of their names here, or a name for each. The first time
        everything that is there is taken in one transaction; after that, and when it is called again with the same
        `name`, it goes on where it was; `restart` reads everything anew, in place of what is here. A thread of this
        process does the work until `stop()`, or until the database is closed. Returns when the snapshot is in the log,
        or at once without `wait`; `progress` is told of a table, its rows so far and about how many there are.
        Raises: `InvalidArgument`, `NotFound`; `SourceGone` when what follows the position is not there any more;
        `SourceUnreadable`; `Unavailable` when the source cannot be reached.
        """
        from tidegate.capture.capturing import Capture
        from tidegate.capture.opening import check_url

        check_url(url)
        _check_capture(into, name, progress)
        started = Capture(
            self,  # type: ignore[arg-type]
            url,
            tables=_names(tables),
            into=into,
            name=name,
            restart=restart,
            progress=progress,
            options=options,
        )
        self.captures[:] = [each for each in self.captures if each.is_running]
        self.captures.append(started)
        if wait:
            try:
                started.wait_ready()
            except BaseException:
                started.stop()
                self.captures.remove(started)
                raise
        return started

    def flush(self, timeout: float = 60.0) -> Timestamp:
        """A checkpoint that holds everything written before; its Timestamp.

        What the sources of this process's captures had committed before is written, too.
        Raises: `WaitTimeout`, `Unavailable`, saying what holds it up.
        """
        for each in list(self.captures):
            if each.state == "following":
                with suppress(TidegateError):  # Its own `error` and `status` say it.
                    each.catch_up(timeout)
        return super().flush(timeout)

    def _stop_captures(self) -> None:
        for each in self.captures:
            each.stop()
        for applying in self._applying:
            with suppress(TidegateError):  # Whoever asks for it hears of it.
                applying.stop()

    def apply(
        self,
        tables: str | Sequence[str],
        to: str,
        *,
        name: str | None = None,
        policy: Literal["stop", "overwrite", "skip"] = "stop",
        chunk_rows: int = 1000,
        start: Literal["snapshot", "now"] | Timestamp = "snapshot",
        restart: bool = False,
        follow: bool = False,
    ) -> Applying:
        """Apply committed transactions of tables to SQLite, Turso or PostgreSQL, in order, none of them in part.

        `to` is `sqlite:///app.db`, `turso:///app.db` or `postgresql://...`. A target to which nothing was applied
        under `name` gets the tables' rows first, unless `start` says otherwise; then it goes on where it was. `restart`
        replaces the rows there and begins anew. Returns when all that was committed before the call is there; with
        `follow` at once, and goes on until `stop()`.
        See docs/apply.md for `policy`, which says what happens when the target's rows are not what they should be.
        Raises: `ApplyConflict`; `InvalidArgument`, `NotFound`; `Truncated` when the log behind the position is gone;
        `Unavailable`, `Retryable` when the target cannot be written to.
        """
        from tidegate.capture.applying import apply

        found = apply(
            self,
            [tables] if isinstance(tables, str) else tables,
            to,
            name=name,
            policy=policy,
            chunk_rows=chunk_rows,
            start=start,
            restart=restart,
            follow=follow,
        )
        if follow:
            self._applying = (*(each for each in self._applying if each.is_running), found)
        return found


def _names(tables: str | Iterable[str] | None) -> list[str] | None:
    """Raises: `InvalidArgument` for what are no names."""
    if tables is None or isinstance(tables, str):
        return tables if tables is None else [tables]
    if isinstance(tables, Mapping) or not isinstance(tables, Iterable):
        raise InvalidArgument(f"tables are names of tables, or None for all, not {tables!r}")
    found = list(tables)
    for each in found:
        if not isinstance(each, str):
            raise InvalidArgument(f"tables are names of tables, and {each!r} is none")
    if not found:
        raise InvalidArgument("tables: name at least one, or leave them out to capture all")
    return found


def _check_capture(into: object, name: object, progress: object) -> None:
    """Raises: `InvalidArgument`, naming the argument and what it may be."""
    if isinstance(into, Mapping):
        for pair in into.items():
            if not all(isinstance(each, str) for each in pair):
                raise InvalidArgument(
                    f"into: {pair[0]!r}: {pair[1]!r} is not a name of a table and what it is called here"
                )
    elif into is not None and not isinstance(into, str):
        raise InvalidArgument(
            f"into is what goes in front of the tables' names here, or a name for each, {{'table': 'name'}}, and not"
            f" {into!r}"
        )
    if name is not None and not isinstance(name, str):
        raise InvalidArgument(f"name is a text, not {name!r}")
    if progress is not None and not callable(progress):
        raise InvalidArgument(f"progress is a function of a table, its rows so far and of how many, not {progress!r}")
