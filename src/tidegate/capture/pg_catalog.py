"""What a PostgreSQL server's catalog says: tables, types, slots and publications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tidegate.capture.source import Column, SourceTable
from tidegate.cdc.pg_types import Reading, TypeInfo, reading_of
from tidegate.tables.schema import SYSTEM_COLUMNS

if TYPE_CHECKING:
    import psycopg

_TABLES: Final = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relreplident::text, c.relfilenode, c.relnatts
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
  AND NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
  )
ORDER BY n.nspname, c.relname
"""
# An array of one value. Between boxes stands no comma, so that one is not quoted though it has some.
_MISSING: Final = """
CASE WHEN left(attmissingval::text, 2) = '{"' OR (SELECT typdelim FROM pg_type t WHERE t.oid = atttypid) = ','
  THEN (attmissingval::text::text[])[1] ELSE btrim(attmissingval::text, '{}') END
"""
_COLUMNS: Final = f"""
SELECT attrelid, attnum, attname, atttypid, atttypmod, {_MISSING}, atthasdef OR attidentity <> ''
FROM pg_attribute
WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attrelid, attnum
"""
# Old rows of a partitioned table have values in their partitions alone.
_MISSING_IN_PARTS: Final = f"""
WITH RECURSIVE parts (oid) AS (
  SELECT inhrelid FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent WHERE inhparent = %s AND relkind = 'p'
  UNION ALL SELECT inhrelid FROM pg_inherits JOIN parts ON parts.oid = inhparent
)
SELECT attname, array_agg(DISTINCT {_MISSING})
FROM pg_attribute JOIN parts ON parts.oid = attrelid
WHERE attnum > 0 AND NOT attisdropped AND atthasmissing
GROUP BY attname
"""
# What is checked at the end of a transaction identifies nothing within it, to PostgreSQL neither.
_INDEXES: Final = """
SELECT indrelid, indisprimary, indisreplident, indnkeyatts, indkey::text
FROM pg_index
WHERE indrelid = ANY(%s::oid[]) AND (indisprimary OR indisreplident) AND indisvalid AND indimmediate
"""
# Of vectors, which have the category of arrays, none is one.
_TYPES: Final = """
SELECT t.oid, t.typtype::text, t.typbasetype, t.typtypmod, t.typelem, e.typdelim::text
FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem
WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typlen = -1 AND t.typelem <> 0 AND e.typarray = t.oid)
"""
_SLOT: Final = """
SELECT plugin, database, active_pid, confirmed_flush_lsn - '0/0'::pg_lsn, wal_status
FROM pg_replication_slots WHERE slot_name = %s
"""
_PUBLICATION: Final = "SELECT oid, obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s"
_SERVER: Final = """
SELECT (SELECT system_identifier FROM pg_control_system())::text,
  CASE WHEN pg_is_in_recovery() THEN NULL ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
  CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_lsn() - '0/0'::pg_lsn END,
  current_setting('wal_level')
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A column's number in its table, which stays, and what rows have in it that are older than it."""

    number: int
    missing: str | None
    has_default: bool
    is_mixed: bool = False
    """Whether such rows do not all have the same in it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A table of the source, and how its rows are read."""

    oid: int
    schema: str
    relation: str
    table: SourceTable
    readings: tuple[Reading, ...]
    key: tuple[int, ...]
    """The places of the key's columns."""
    is_partitioned: bool
    identity: str
    """`d` the primary key, `n` nothing, `f` the whole row, `i` an index."""
    places: Mapping[str, Place]
    file: int = 0
    """Where its rows lie, when it was looked up; another number once all of them were written again."""
    types: tuple[tuple[int, int], ...] = ()
    """PostgreSQL's own types of the columns, each with its modifier."""
    width: int = 0
    """The highest number that a column of it ever had, when it was looked up."""
    twin: str = ""
    """Another table that would be captured by the same name."""

    @property
    def unfit_key(self) -> str | None:
        """A column of the key that can be in none here."""
        return next((self.table.columns[at].name for at in self.key if not self.readings[at].may_be_key), None)


@dataclass(frozen=True, slots=True)
class Slot:
    plugin: str
    database: str
    active_pid: int | None
    confirmed: int
    wal_status: str | None


@dataclass(frozen=True, slots=True)
class Server:
    """Which server it is, and how far."""

    system: str
    timeline: int | None
    """None for one that only follows another."""
    lsn: int
    wal_level: str


def server_of(connection: psycopg.Connection[Any]) -> Server:
    system, timeline, lsn, wal_level = _one(connection, _SERVER)
    return Server(system, int(timeline, 16) if timeline else None, int(lsn or 0), wal_level)


def slot_of(connection: psycopg.Connection[Any], name: str) -> Slot | None:
    found = connection.execute(_SLOT, [name]).fetchone()
    if found is None:
        return None
    plugin, database, pid, confirmed, status = found
    return Slot(plugin or "", database or "", pid, int(confirmed or 0), status)


def publication_of(connection: psycopg.Connection[Any], name: str) -> tuple[int, str] | None:
    """Its number and its comment; None when there is none."""
    found = connection.execute(_PUBLICATION, [name]).fetchone()
    return None if found is None else (found[0], found[1] or "")


def published(connection: psycopg.Connection[Any], publication: str) -> dict[tuple[str, str], tuple[list[str], str]]:
    """By schema and table: the columns and the rows that are published; no columns and no condition for all."""
    more = "attnames, rowfilter" if connection.info.server_version >= 150_000 else "NULL, NULL"
    rows = connection.execute(
        f"SELECT schemaname, tablename, {more} FROM pg_publication_tables WHERE pubname = %s",
        [publication],
    )
    return {(schema, table): (list(names or ()), rule or "") for schema, table, names, rule in rows}


def published_names(connection: psycopg.Connection[Any], publication: str) -> set[tuple[str, str]]:
    """Schema and name of the tables that a publication names itself. It opens none of them, and so waits for nobody."""
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid"
        " JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s",
        [publication],
    )
    return {(schema, name) for schema, name in rows}


def types_of(connection: psycopg.Connection[Any]) -> dict[int, TypeInfo]:
    """Domains and arrays by their numbers."""
    return {
        oid: TypeInfo(base=base, modifier=modifier) if kind == "d" else TypeInfo(element=element, separator=separator)
        for oid, kind, base, modifier, element, separator in connection.execute(_TYPES)
    }


def shapes_of(
    connection: psycopg.Connection[Any], types: Mapping[int, TypeInfo], default_schema: str
) -> dict[str, Shape]:
    """All tables that users have, by the names that they are captured by."""
    tables = connection.execute(_TABLES).fetchall()
    oids = [row[0] for row in tables]
    columns: dict[int, list[tuple[Any, ...]]] = {oid: [] for oid in oids}
    for row in connection.execute(_COLUMNS, [oids]):
        columns[row[0]].append(row[1:])
    keys = keys_of(connection, oids)
    found: dict[str, Shape] = {}
    for row in tables:
        shape = _shape(row, columns[row[0]], *keys.get(row[0], ((), ())), types, default_schema)
        other = found.get(shape.table.name)
        if other is not None:
            shape = replace(shape, twin=f"{other.relation!r} of schema {other.schema!r}")
        found[shape.table.name] = shape
    return found


def tables_of(connection: psycopg.Connection[Any]) -> dict[int, tuple[str, str]]:
    """Schema and name of all tables that users have, by number."""
    return {row[0]: (row[1], row[2]) for row in connection.execute(_TABLES)}


def places_of(connection: psycopg.Connection[Any], oid: int) -> dict[str, Place]:
    """Where the columns of a table are now, by name; none when it is gone."""
    parts: dict[str, list[str | None]] = dict(connection.execute(_MISSING_IN_PARTS, [oid]).fetchall())
    found = {}
    for _, number, name, _, _, missing, has_default in connection.execute(_COLUMNS, [[oid]]):
        values = parts.get(name, [missing])
        found[name] = Place(number, values[0], has_default, len(values) > 1)
    return found


def names_of(connection: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, tuple[str, str, int, int]]:
    """Schema, name, file and width (see `Shape`) of tables now; those that are gone are not among them."""
    rows = connection.execute(
        "SELECT c.oid, n.nspname, c.relname, c.relfilenode, c.relnatts FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])",
        [list(oids)],
    )
    return {oid: (schema, name, file, width) for oid, schema, name, file, width in rows}


def keys_of(
    connection: psycopg.Connection[Any], oids: Iterable[int]
) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By table: the numbers of the columns of its primary key, and of the index that it is replicated by."""
    found: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for oid, is_primary, is_chosen, count, text in connection.execute(_INDEXES, [list(oids)]):
        numbers = tuple(int(each) for each in text.split()[:count])
        primary, chosen = found.get(oid, ((), ()))
        found[oid] = (numbers if is_primary else primary, numbers if is_chosen else chosen)
    return found


def _shape(
    table: tuple[Any, ...],
    columns: list[tuple[Any, ...]],
    primary: tuple[int, ...],
    chosen: tuple[int, ...],
    types: Mapping[int, TypeInfo],
    default_schema: str,
) -> Shape:
    oid, schema, relation, kind, identity, file, width = table
    # Updates and deletes name rows by the chosen index alone, whatever the primary key is.
    numbers = chosen if identity == "i" else primary
    readings = tuple(reading_of(row[2], row[3], types) for row in columns)
    key = tuple(at for at, row in enumerate(columns) if row[0] in numbers)
    if len(key) != len(numbers):  # A part of it is not published: generated.
        key = ()
    return Shape(
        oid,
        schema,
        relation,
        table_of(name_of(schema, relation, default_schema), [row[1] for row in columns], readings, key),
        readings,
        key,
        kind == "p",
        identity,
        {row[1]: Place(row[0], row[4], row[5]) for row in columns},
        file,
        tuple((row[2], row[3]) for row in columns),
        width,
    )


def name_of(schema: str, relation: str, default_schema: str) -> str:
    """What a table is captured by."""
    return relation if schema == default_schema else f"{schema}.{relation}"


def table_of(name: str, columns: list[str], readings: tuple[Reading, ...], key: tuple[int, ...]) -> SourceTable:
    # That a column has no NULLs is not said when it changes: only the key is known to have none.
    return SourceTable(
        name,
        tuple(
            Column(column, reading.sql, at not in key) for at, (column, reading) in enumerate(zip(columns, readings))
        ),
        tuple(columns[at] for at in key),
    )


def unfit(shape: Shape) -> str | None:
    """Why a table cannot be captured."""
    if shape.twin:
        return (
            f"{shape.relation!r} of schema {shape.schema!r} and {shape.twin} would both be called so here; rename one"
        )
    if not shape.table.columns:
        return "it has no columns"
    names = [each.name.casefold() for each in shape.table.columns]
    if len(set(names)) < len(names):
        return "it has columns whose names differ only by case"
    own = next((each.name for each in shape.table.columns if each.name.casefold() in SYSTEM_COLUMNS), None)
    if own is not None:
        return f"it has column {own!r}, and columns of that name are Tidegate's own; rename it"
    column = shape.unfit_key
    if column is not None:
        return (
            f"its key has column {column!r}, and floats and arrays identify no rows here; give it another unique index"
            f" and ALTER TABLE ... REPLICA IDENTITY USING INDEX"
        )
    return None


def loose(shape: Shape) -> str | None:
    """Why a table is captured only when it is named: once it is published, its server refuses to update its rows."""
    if shape.key and shape.identity != "n":
        return None
    if shape.key:
        return (
            "it has REPLICA IDENTITY NOTHING: its rows could only come; ALTER TABLE ... REPLICA IDENTITY DEFAULT, or"
            " name it to capture it all the same"
        )
    return (
        "it has no primary key that is checked at once: its rows could only come; name it to capture it all the same,"
        " or give it a key"
    )


def narrowed(shape: Shape, columns: list[str]) -> Shape:
    """With only those columns that are published."""
    left = [at for at, each in enumerate(shape.table.columns) if each.name in columns]
    key = tuple(left.index(at) for at in shape.key if at in left)
    if len(key) < len(shape.key):
        key = ()
    readings, types = tuple(shape.readings[at] for at in left), tuple(shape.types[at] for at in left)
    table = table_of(shape.table.name, [shape.table.columns[at].name for at in left], readings, key)
    return replace(shape, table=table, readings=readings, key=key, types=types)


def _one(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    found = connection.execute(query).fetchone()
    return found if found is not None else ()
