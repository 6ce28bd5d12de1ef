"""`open_source`: the source that a URL names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from tidegate.capture.source import Source
from tidegate.errors import InvalidArgument

if TYPE_CHECKING:
    from tidegate.database.database import Database

KNOWN: Final = (
    "sqlite:///app.db, turso:///app.db, postgresql://user@host/database, debezium:///events or debezium+topic:name"
)


def open_source(url: str, name: str | None = None, db: Database | None = None, **options: Any) -> Source:
    """Open a source; `name` is that of the capture, and tells apart what several of them create at one source.

    `sqlite:///app.db` is a path from here, `sqlite:////data/app.db` one from the root; what follows a `?` are options,
    as the keywords are. `debezium+topic:name` is a topic of the database `db`.
    Raises: `InvalidArgument` for what names no source; `NotFound`, `Unavailable` when it cannot be opened.
    """
    check_url(url)
    _check_mappings(options)
    scheme, colon, _ = url.partition(":")
    try:
        match scheme.lower() if colon else "":
            case "sqlite":
                from tidegate.capture.sqlite_source import SqliteSource

                path, said = path_of(url)
                _check_mappings(said)
                return SqliteSource(path, **{**said, **options})
            case "turso":
                from tidegate.capture.turso_source import TursoSource

                path, said = path_of(url)
                _check_mappings(said)
                return TursoSource(path, **{**said, **options})
            case "postgresql" | "postgres":
                from tidegate.capture.pg_source import PgSource

                return PgSource(url, name=name or "", owner="" if db is None else db.id.hex(), **options)
            case "debezium":
                from tidegate.capture.debezium_source import DebeziumSource

                path, said = path_of(url)
                _check_mappings(said)
                return DebeziumSource(path, **{**said, **options})
            case "debezium+topic" if db is not None:
                from tidegate.capture.debezium_source import DebeziumSource
                from tidegate.capture.event_topic import EventTopic

                return DebeziumSource(events=EventTopic(db, url.partition(":")[2].lstrip("/")), **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        unknown = str(error).rpartition("argument ")[2]
        raise InvalidArgument(f"a source of {scheme} has no option {unknown}") from None
    raise InvalidArgument(f"{_shown(url)!r} names no source: a source is {KNOWN}")


def path_of(url: str) -> tuple[str, dict[str, str]]:
    """The path of a file in a URL, and its options.

    Raises: `InvalidArgument` when there is none.
    """
    scheme, found, rest = url.partition("://")
    scheme = scheme.partition(":")[0].lower()
    where, _, query = rest.partition("?")  # A path may have a `#`, which means nothing in these.
    host, slash, path = where.partition("/")
    if host:
        raise InvalidArgument(
            f"{url!r} names a host, {host!r}, where files have none: write {scheme}:///{host}{slash}{path}"
        )
    if not found or not path:
        raise InvalidArgument(f"{url!r} names no file: write {scheme}:///app.db")
    return unquote(path), dict(parse_qsl(query, keep_blank_values=True))


def check_url(url: object) -> None:
    """Raises: `InvalidArgument` for what is no text."""
    if not isinstance(url, str):
        shown = f"; for a file write 'sqlite:///{url}'" if isinstance(url, PurePath) else ""
        raise InvalidArgument(f"url: a source is named by a URL such as {KNOWN}, not by {url!r}{shown}")


def _check_mappings(options: Mapping[str, Any]) -> None:
    """Raises: `InvalidArgument` for an option that is to say something of several columns or tables, and does not."""
    types, keys = options.get("types"), options.get("keys")
    if types is not None and not (isinstance(types, Mapping) and all(_are_texts(each) for each in types.items())):
        raise InvalidArgument(
            f"types: {types!r} is not of the form {{'table.column': type}}; the command has --type TABLE.COLUMN=TYPE"
        )
    if keys is not None and not (
        isinstance(keys, Mapping)
        and all(isinstance(table, str) for table in keys)
        and all(not isinstance(key, str) and _are_texts(key) for key in keys.values())
    ):
        raise InvalidArgument(
            f"keys: {keys!r} is not of the form {{'table': ['column', ...]}}; the command has --key TABLE=COLUMN,..."
        )


def _are_texts(values: object) -> bool:
    return isinstance(values, Sequence) and all(isinstance(each, str) for each in values)


def _shown(url: str) -> str:
    """Without a password."""
    before, at, after = url.rpartition("@")
    return f"...@{after}" if at and ":" in before else url
