"""`PostgresTarget`: a PostgreSQL database that transactions are applied to, through psycopg.

Constraints that may be deferred are, to the end of each chunk. What we write carries a replication origin, by which a
capture of the same database knows it; where the role may not use one, or the server has no room for it, the transaction
says it in a logical message instead. `tidegate_applied` says it in any case.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from tidegate.capture.apply_origin import SAID, with_name
from tidegate.capture.target import Target, TargetBusy, TargetRefused, Violation, without_password
from tidegate.capture.target_values import for_postgres, is_simple_list
from tidegate.cdc.apply_plan import (
    POSTGRES,
    STATE_TABLE,
    Child,
    ForeignKey,
    Row,
    TargetColumn,
    TargetTable,
)
from tidegate.errors import DiskFull, InvalidArgument, StorageFailed, Unavailable

_CONNECT_S: Final = 10
_ORIGIN_S: Final = 2.0
"""How long a session that has our origin may take to end."""
_MESSAGES_SINCE: Final = 140_000
"""The version of the server since which `pgoutput` sends logical messages."""
_MAY_SAY: Final = """
    SELECT coalesce(bool_or(has_function_privilege(oid, 'EXECUTE')), false) FROM pg_proc
    WHERE proname = 'pg_logical_emit_message' AND pronamespace = 'pg_catalog'::regnamespace
"""
_NO_ROOM: Final = re.compile("No space left|File too large|Disk quota exceeded")
"""What the server says of files that cannot grow, and has no code of its own for."""
_NAMES: Final = ("pg_type_typname_nsp_index", "pg_class_relname_nsp_index")
"""What two that create one table at once stumble over."""
_TYPES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
}
_UNSAID: Final = (
    "{}: captures of it cannot tell what is applied from what the application writes, so in a ring transactions would"
    " go round; let the role use replication origins (GRANT EXECUTE on the functions pg_replication_origin_*), and see"
    " that max_replication_slots leaves room"
)
_COLUMNS: Final = """
    SELECT a.attname,
           quote_ident(n.nspname) || '.' || quote_ident(t.typname),
           CASE WHEN t.typname IN ('bpchar', 'varchar', 'bit', 'varbit')
                THEN quote_ident(n.nspname) || '.' || quote_ident(t.typname)
                ELSE format_type(a.atttypid, a.atttypmod) END,
           NOT a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '',
           a.attidentity = 'a'
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEYS: Final = """
    SELECT (SELECT array_agg(a.attname::text) FROM pg_attribute a
            WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])),
           i.indimmediate
    FROM pg_index i
    WHERE i.indrelid = %s::oid AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
    ORDER BY NOT i.indisprimary
"""
_NAMED: Final = """
    CASE WHEN n.nspname || o.relname ~ '[."]'
         THEN '"' || replace(n.nspname, '"', '""') || '"."' || replace(o.relname, '"', '""') || '"'
         ELSE CASE WHEN pg_table_is_visible(o.oid) THEN '' ELSE n.nspname || '.' END || o.relname END
"""
"""As `Dialect.table` takes it."""
_CALLED: Final = f"SELECT {_NAMED} FROM pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace WHERE o.oid = %s::oid"
_OWN_AND_PARENTS: Final = """
    ARRAY(SELECT a.attname::text FROM unnest(c.conkey) WITH ORDINALITY AS k (number, place)
          JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number ORDER BY k.place),
    ARRAY(SELECT a.attname::text FROM unnest(c.confkey) WITH ORDINALITY AS k (number, place)
          JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.number ORDER BY k.place)
"""
"""The columns of a foreign key, and those that they refer to."""
_PARENTS: Final = f"""
    SELECT {_NAMED}, c.confdeltype IN ('c', 'n', 'd') OR c.confupdtype IN ('c', 'n', 'd'), {_OWN_AND_PARENTS}
    FROM pg_constraint c JOIN pg_class o ON o.oid = c.confrelid JOIN pg_namespace n ON n.oid = o.relnamespace
    WHERE c.contype = 'f' AND c.conrelid = %s::oid
"""
_CHILDREN: Final = f"""
    SELECT {_NAMED}, c.confdeltype IN ('c', 'n', 'd', 'r'), c.confupdtype IN ('c', 'n', 'd'),
           {_OWN_AND_PARENTS}
    FROM pg_constraint c JOIN pg_class o ON o.oid = c.conrelid JOIN pg_namespace n ON n.oid = o.relnamespace
    WHERE c.contype = 'f' AND c.confrelid = %s::oid
"""


_many: Final = ContextVar("tidegate_many", default=False)
"""Whether this thread writes many rows now."""


@contextmanager
def _in_many() -> Iterator[None]:
    token = _many.set(True)
    try:
        yield
    finally:
        _many.reset(token)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether psycopg says what its error does not: of many rows, that all behind one that failed were not tried."""
    return not (_many.get() and str(record.msg).startswith("error ignored terminating"))


class PostgresTarget(Target):
    """See the module."""

    kind = "postgresql"
    dialect = POSTGRES

    def __init__(self, url: str) -> None:
        try:
            import psycopg
            from psycopg.types.numeric import Int8Dumper
        except ImportError as error:
            raise InvalidArgument(
                "a PostgreSQL database is reached with psycopg, which is not installed:"
                " pip install 'tidegate[postgres]'"
            ) from error
        self._psycopg = psycopg
        self.shown = without_password(url).partition("?")[0]
        try:
            given = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            given = None
        if given is None or str(given.get("port", "")).strip("0123456789,") or "@" in str(given.get("host", "")):
            # What libpq says of it may show the password.
            raise InvalidArgument(
                f"{self.shown} is no URL of a PostgreSQL database; write postgresql://user:password@host:5432/name, and"
                f" %40, %3A, %2F and %25 for @, :, / and % in a user or password"
            )
        options: dict[str, Any] = {"client_encoding": "UTF8"}  # Whatever the database has: the server translates.
        if "connect_timeout" not in given:
            options["connect_timeout"] = _CONNECT_S
        try:
            self._connection = psycopg.connect(url, autocommit=True, **options)
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        logging.getLogger("psycopg").addFilter(_is_news)
        self._version: Final = self._connection.info.server_version  # A connection that is lost says 0.
        self._marked: str | None = None
        """The origin that was asked for last."""
        self._has_mark = False
        """Whether the session has it."""
        self._kept_by_others: set[str] = set()
        # Else each width of a number would make another statement.
        self._connection.adapters.register_dumper(int, Int8Dumper)
        # What has no time zone is UTC here.
        self.run("SELECT set_config('TimeZone', 'UTC', false), set_config('lock_timeout', '10s', false)")
        ((longest,),) = self.run("SELECT current_setting('max_identifier_length')::int")
        self.name_bytes = int(longest)
        ((system, name),) = self.run("SELECT (pg_control_system()).system_identifier::text, current_database()::text")
        self.identity = f"postgresql:{system}/{name}"
        info = self._connection.info
        self.known_as = frozenset({self.identity, f"{info.host or 'localhost'}:{info.port}/{info.dbname}"})

    def mark_origin(self, origin: str, name: str) -> None:
        if origin == self._marked:
            return
        with suppress(Unavailable):  # It needs a right that not every role has, and room among the server's origins.
            if self._has_mark:
                self.run("SELECT pg_replication_origin_session_reset()")
                self._has_mark = False
            if origin in self._kept_by_others or not self._waits_for(origin):
                self._kept_by_others.add(origin)
                self._has_mark = self._has_origin(with_name(origin, quote(name, safe="")))
        self._marked = origin
        self.unsaid = "" if self._has_mark or self._may_say() else _UNSAID.format(self.shown)

    def _may_say(self) -> bool:
        """Whether a transaction can say by a message where it comes from."""
        if self._version < _MESSAGES_SINCE:
            return False
        ((may,),) = self.run(_MAY_SAY)
        return bool(may)

    def _waits_for(self, origin: str) -> bool:
        """Give the session an origin, when the session that has it ends soon."""
        until = time.monotonic() + _ORIGIN_S
        while not self._has_origin(origin):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        self._has_mark = True
        return True

    def _has_origin(self, origin: str) -> bool:
        """Give the session an origin; whether that could be done: one session has it at a time."""
        try:
            if not self.run("SELECT 1 FROM pg_replication_origin WHERE roname = %s", (origin,)):
                self.run("SELECT pg_replication_origin_create(%s)", (origin,))
            self.run("SELECT pg_replication_origin_session_setup(%s)", (origin,))
        except (Violation, TargetRefused):
            return False
        return True

    # -- statements ------------------------------------------------------------------------------------------------

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        try:
            found = self._connection.execute(sql, tuple(values) or None)  # type: ignore[arg-type,unused-ignore]
            return found.fetchall() if found.description else []
        except self._psycopg.Error as error:
            raise self._explained(error) from error

    def many(self, sql: str, rows: Sequence[Row]) -> int:
        try:
            with _in_many(), self._connection.cursor() as cursor:
                cursor.executemany(sql, rows)  # type: ignore[arg-type,unused-ignore]
                return max(cursor.rowcount, 0)
        except self._psycopg.Error as error:
            raise self._explained(error) from error

    def begin(self, *, deferred: bool = True) -> None:
        self.run("BEGIN")
        self.run(f"SET CONSTRAINTS ALL {'DEFERRED' if deferred else 'IMMEDIATE'}")
        if self._marked is not None and not self._has_mark and not self.unsaid:
            self.run("SELECT pg_logical_emit_message(true, %s, %s)", (SAID, self._marked))

    def commit(self) -> None:
        self.run("COMMIT")

    def rollback(self) -> None:
        with suppress(self._psycopg.Error):
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        with suppress(self._psycopg.Error):
            self._connection.close()

    def _unreachable(self, error: Exception) -> Unavailable:
        text = " ".join(str(error).split())
        if "password" in text or "authentication" in text:
            return Unavailable(f"{self.shown} does not let us in: {text}; check user and password")
        if "FATAL" in text:  # The server says it.
            return Unavailable(f"{self.shown} does not take the connection: {text}; check user and database, or wait")
        return Unavailable(f"{self.shown} cannot be reached: {text}; check that it runs, and its host and port")

    def _lost(self, text: str) -> Unavailable:
        return Unavailable(
            f"{self.shown}: the connection was lost ({text}); see that the server runs, and does not end sessions"
            f" early, as idle_in_transaction_session_timeout does. A repeat goes on from what the target has"
        )

    def _explained(self, error: Any) -> Exception:
        state = error.sqlstate or ""
        text = " ".join(str(error).split())
        if not state and isinstance(error, self._psycopg.DataError):
            return Violation(text, is_value=True)  # psycopg itself has refused it: the server was not asked.
        if not state and isinstance(error, self._psycopg.ProgrammingError | self._psycopg.NotSupportedError):
            return TargetRefused(f"{self.shown}: {text}; nothing of the chunk was applied")
        if state in ("42P07", "42710") or (state == "23505" and error.diag.constraint_name in _NAMES):
            return TargetBusy(
                f"{self.shown}: somebody else has created the same table at the same time ({text}); nothing of the"
                f" chunk was applied, and a repeat goes on"
            )
        match state[:2], state:
            case "23", _:
                return Violation(text, is_unique=state in ("23505", "23P01"), is_reference=state in ("23503", "23001"))
            case "22", _:
                return Violation(text, is_value=True)
            case _, "P0001":
                return Violation(text)  # A trigger has raised it.
            case (_, "53100") | (_, "XX000") if state == "53100" or _NO_ROOM.search(text):
                return DiskFull(
                    f"{self.shown}: {text}; make room. Nothing of the chunk was applied, and a repeat goes on"
                )
            case ("40", _) | (_, "55P03"):
                return TargetBusy(f"{self.shown}: {text}; nothing of the chunk was applied, and a repeat goes on")
            case _, "42501":
                return Unavailable(
                    f"{self.shown} cannot be written to: {text}; give the role the right to: SELECT, INSERT, UPDATE and"
                    f" DELETE on {STATE_TABLE} and the tables, CREATE on the schema for what is not there yet"
                )
            case _, "25006":
                return Unavailable(
                    f"{self.shown} cannot be written to: {text}; apply to the primary, or set"
                    f" default_transaction_read_only to off for the role or the database"
                )
            case (_, "42P01") | (_, "42703"):
                return InvalidArgument(
                    f"{self.shown}: {text}; it was there before: put it back, or start anew with restart=True"
                )
            case "42", _:
                return InvalidArgument(f"{self.shown}: {text}; nothing of the chunk was applied")
            case _, "57014":
                return TargetBusy(
                    f"{self.shown}: {text}; give the role more time (ALTER ROLE ... SET statement_timeout = 0)."
                    f" Nothing of the chunk was applied, and a repeat goes on"
                )
            case _, "53200":
                return TargetBusy(f"{self.shown}: {text}; nothing of the chunk was applied, and a repeat goes on")
            case _, "53400":
                return Unavailable(
                    f"{self.shown}: {text}; raise this limit of the server. Nothing of the chunk was applied"
                )
            case "58", _:
                return StorageFailed(f"{self.shown}: {text}; check its disk. Nothing of the chunk was applied")
            case ("", _) | ("08", _) | ("57", _) | ("53", _) | (_, "25P03") | (_, "25P04"):
                return self._lost(text)
            case _:
                return TargetRefused(f"{self.shown}: {text}; nothing of the chunk was applied")

    # -- tables ----------------------------------------------------------------------------------------------------

    def shape(self, table: str) -> TargetTable | None:
        ((oid,),) = self.run("SELECT to_regclass(%s)::oid", (self.dialect.table(table),))
        if oid is None:
            return None
        ((called,),) = self.run(_CALLED, (oid,))
        keys = self.run(_KEYS, (oid,))
        parents = self.run(_PARENTS, (oid,))
        children = self.run(_CHILDREN, (oid,))
        return TargetTable(
            table,
            tuple(TargetColumn(*each) for each in self.run(_COLUMNS, (oid,))),
            tuple(frozenset(names) for names, is_immediate in keys if is_immediate),
            tuple(ForeignKey(str(name), tuple(own), tuple(theirs)) for name, _, own, theirs in parents),
            frozenset(str(name) for name, on_delete, *_ in children if on_delete),
            frozenset(str(column) for _, _, on_update, _, columns in children if on_update for column in columns),
            any(is_acting for _, is_acting, *_ in parents),
            tuple(frozenset(names) for names, is_immediate in keys if not is_immediate),
            tuple(Child(str(name), tuple(own), tuple(theirs)) for name, _, _, own, theirs in children),
            called=str(called),
        )

    def is_one(self, table: str, other: str) -> bool:
        """Names that differ by case are different ones, and a schema may be in the search path."""
        if table.rpartition(".")[2] != other.rpartition(".")[2]:
            return False
        names = tuple(map(self.dialect.table, (table, other)))
        ((same,),) = self.run("SELECT to_regclass(%s) = to_regclass(%s)", names)
        return bool(same)

    def column_type(self, type: pa.DataType) -> str:
        if pa.types.is_decimal(type):
            return f"numeric({type.precision}, {type.scale})"
        if is_simple_list(type):
            return f"{self.column_type(type.value_type)}[]"
        return _TYPES.get(type, "jsonb")

    def values(self, column: pa.Array | pa.ChunkedArray) -> list[Any]:
        return for_postgres(column)

    def takes(self, value: Any) -> bool:
        """A text of PostgreSQL has no NUL, nor has one in an array."""
        if isinstance(value, str):
            return "\0" not in value
        return not isinstance(value, list) or all(map(self.takes, value))

    def broken_references(self, tables: Sequence[str]) -> str:  # noqa: ARG002
        return ""  # Its errors name the constraint and the key.
