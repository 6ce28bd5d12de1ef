"""Connections to PostgreSQL, and its errors as ours: each names the server and what to do."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from tidegate.errors import InUse, InvalidArgument, NotFound, SourceUnreadable, TidegateError, Unavailable

if TYPE_CHECKING:
    import psycopg

Mode = Literal["streaming", "polling"]
OLDEST: Final = 130_000
"""The oldest server that has all that is asked for."""
IDLE_S: Final = 10.0
"""After so long without a change of ours a position comes by itself."""
_OURS: Final = ("mode", "slot", "publication", "schema", "idle_s")
_NO_CODE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NO_PORT: Final = re.compile(r":(?![0-9]*(?:,|\Z))[^\]]*(?:,|\Z)")
_SESSION: Final = {
    # Texts are read in these forms.
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    # A capture may be busy with a large transaction for a while, and a snapshot takes its time.
    "wal_sender_timeout": "600000",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_NETWORK: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a source is, and what its capture uses there."""

    conninfo: str = field(repr=False)
    """For libpq; it may hold a password."""
    mode: Mode
    slot: str
    publication: str
    schema: str
    idle_s: float
    has_own_slot: bool = False
    """Whether the slot is called after the capture and the database that it goes into: it is of no other one."""


def address_of(url: str, name: str, options: Mapping[str, Any], owner: str = "") -> Address:
    """Takes our own options out of a URL; those given beside it win.

    Slots are one server's, whatever the database: what a slot is called tells databases apart, and owners.

    Raises: `InvalidArgument`.
    """
    parts = _split(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidArgument(f"a source in PostgreSQL is postgresql://user@host/database, not {parts.scheme}:...")
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {key: value for key, value in given if key in _OURS}
    ours |= {key: value for key, value in options.items() if value is not None}
    rest = urlencode([(key, value) for key, value in given if key not in _OURS], quote_via=quote)
    mode = ours.get("mode", "streaming")
    if mode not in ("streaming", "polling"):
        raise InvalidArgument(f"mode={mode}: a source in PostgreSQL is read by streaming or by polling")
    database = parts.path.strip("/") or dict(given).get("dbname", "")
    whose = "\0".join((owner, unquote(database), name))
    unique = f"tidegate_{hashlib.blake2s(whose.encode(), digest_size=6).hexdigest()}"
    slot = ours.get("slot") or unique
    if not all(each in "abcdefghijklmnopqrstuvwxyz0123456789_" for each in slot) or len(slot) > 63:
        raise InvalidArgument(f"slot={slot}: PostgreSQL takes lower case letters, digits and underscores, at most 63")
    return Address(
        f"postgresql://{parts.netloc}{parts.path}{'?' if rest else ''}{rest}",  # Without a host, too: a socket's.
        "polling" if mode == "polling" else "streaming",
        slot,
        ours.get("publication") or unique,
        ours.get("schema") or "public",
        _seconds("idle_s", ours.get("idle_s", IDLE_S)),
        bool(owner) and slot == unique,
    )


def _split(url: str) -> SplitResult:
    """Raises: `InvalidArgument`. What it says has nothing of the URL: a part of a password may stand anywhere in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is not None:
        _, at, hosts = parts.netloc.rpartition("@")
        is_whole = not parts.fragment and parts.netloc.count("@") < 2 and not _NO_CODE.search(parts.netloc)
        # Without a user, what follows a colon is a port, or the beginning of a password with one of these in it.
        if is_whole and (at or not _NO_PORT.search(hosts)):
            return parts
    raise InvalidArgument(
        "no address of PostgreSQL: it is postgresql://user:password@host:port/database, where in a user and a password"
        " % is written %25, / %2F, ? %3F, # %23, @ %40, : %3A, [ %5B and ] %5D"
    )


def _seconds(option: str, given: object) -> float:
    """Raises: `InvalidArgument`."""
    try:
        found = math.nan if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not 0 <= found < math.inf:
        raise InvalidArgument(f"{option}={given}: a source in PostgreSQL takes a number of seconds, such as 10")
    return found


def client() -> Any:
    """psycopg, which is loaded only when it is needed. Raises: `InvalidArgument`."""
    try:
        import psycopg
    except ImportError as error:
        raise InvalidArgument("a source in PostgreSQL needs psycopg: run pip install 'tidegate[postgres]'") from error
    return psycopg


def connect(address: Address, name: str, *, replication: bool = False) -> psycopg.Connection[Any]:
    """A connection that commits each statement.

    Raises: `InvalidArgument` for what the server refuses, `Unavailable` when it cannot be reached.
    """
    pg = client()
    try:
        given = pg.conninfo.conninfo_to_dict(address.conninfo)
    except pg.Error as error:
        raise InvalidArgument(f"no address of PostgreSQL: {_said(error)}") from None
    session = " ".join(f"-c {key}={value}" for key, value in _SESSION.items())
    settings = {**_NETWORK, "application_name": f"tidegate {name}"[:60], **given}
    settings["options"] = f"{given.get('options', '')} {session}".strip()
    settings["client_encoding"] = "UTF8"
    if replication:
        settings["replication"] = "database"
    try:
        found: psycopg.Connection[Any] = pg.connect(autocommit=True, **settings)
    except pg.OperationalError as error:
        raise _refused(error, given) from None
    except pg.Error as error:
        raise InvalidArgument(f"PostgreSQL at {_place(given)}: {_said(error)}") from None
    # None of its statements is repeated often, and poolers in between know none.
    found.prepare_threshold = None
    return found


def identity_of(connection: psycopg.Connection[Any]) -> str:
    """`host:port/database`."""
    info = connection.info
    return f"{info.host or 'localhost'}:{info.port}/{info.dbname}"


def _place(given: Mapping[str, Any]) -> str:
    host = given.get("host") or given.get("hostaddr") or "localhost"
    return f"{host}:{given.get('port') or 5432}/{given.get('dbname') or ''}"


def _refused(error: Exception, given: Mapping[str, Any]) -> TidegateError:
    said, place, user = _said(error), _place(given), given.get("user") or "the user of this process"
    if "password" in said or "authentication" in said:
        return InvalidArgument(
            f"PostgreSQL at {place} does not let {user} in: {said}; give the right user and password"
        )
    if "WAL sender" in said or "walsender" in said:
        return InvalidArgument(f"PostgreSQL at {place}: {user} may not replicate; run ALTER ROLE {user} REPLICATION")
    if "max_wal_senders" in said:
        return Unavailable(
            f"PostgreSQL at {place} has no WAL sender left; raise max_wal_senders there, or end a reader"
        )
    if "does not exist" in said:
        return NotFound(f"PostgreSQL at {place}: {said}")
    if "pg_hba.conf" in said:
        return InvalidArgument(f"PostgreSQL at {place} does not let {user} in: {said}; add a line to its pg_hba.conf")
    return Unavailable(f"PostgreSQL at {place} cannot be reached: {said}; see that it runs, and try again")


def _said(error: Exception) -> str:
    """What the server or libpq said, in one line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    said = "; ".join(lines)
    return said.rpartition("FATAL:")[2].strip() if "FATAL:" in said else said


@contextmanager
def explained(where: str, doing: str) -> Iterator[None]:
    """What the server refuses within, as errors of ours."""
    psycopg = client()
    try:
        yield
    except psycopg.Error as error:
        raise explain(error, where, doing) from error


def explain(error: Any, where: str, doing: str) -> TidegateError:
    """An error of psycopg, which happened while `doing`."""
    psycopg = client()
    said = _said(error)
    about = f"PostgreSQL at {where}, {doing}: {said}"
    match error.sqlstate:
        case "42501" if "row-level security" in said:
            return InvalidArgument(
                f"{about}; a capture must see all rows: ALTER ROLE ... BYPASSRLS, or capture as another user"
            )
        case "42501":
            return InvalidArgument(f"{about}; grant it to the user, or capture as another one")
        case "53400":
            return InvalidArgument(
                f"{about}; raise max_replication_slots there and restart it, or drop a slot that nobody uses:"
                f" SELECT pg_drop_replication_slot(slot_name) of those in pg_replication_slots"
            )
        case "55006":
            return InUse(f"{about}; another capture uses it: stop that one, or give this one another name")
        case "22021" | "22P05":
            return SourceUnreadable(f"{about}: a value is no text in UTF-8; change it, or leave its table out")
        case "42P01" | "42704" | "3F000":
            return NotFound(about)
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if lost or str(error.sqlstate or "").startswith(("08", "57P", "53")):
        return Unavailable(f"{about}; see that it runs, and try again")
    return InvalidArgument(about)
