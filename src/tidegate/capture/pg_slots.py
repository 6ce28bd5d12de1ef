"""Slots of a PostgreSQL server: a new one, and the snapshot of where it begins; and none."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidegate.capture.pg_catalog import server_of, slot_of
from tidegate.capture.pg_connect import client, explained
from tidegate.capture.pg_position import Position
from tidegate.errors import InUse, WaitTimeout

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
SLOT_S: Final = 120.0
"""How long a new slot may wait for transactions that began before it."""
NOTICED_S: Final = 3.0
"""After so long without noticing it the server is told that a reader is gone."""
# Of another user, or called otherwise, it is none of ours.
_END_READER: Final = """
SELECT pg_terminate_backend(a.pid) FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = %s AND a.usename = current_user AND a.application_name = current_setting('application_name')
"""
CROWDED_S: Final = 30.0
"""How long a new slot is tried for while the server says that its "initial slot snapshot" is "too large"."""
FREE_S: Final = 15.0
"""How long the server may take to see that a slot's reader is gone."""


def new_slot(
    connection: psycopg.Connection[Any], replication: psycopg.Connection[Any], where: str, name: str
) -> tuple[Position, str]:
    """The place where a new slot begins, and the name of the snapshot that sees what was committed there.

    The snapshot lasts until the connection for replication is used again.
    Raises: `InUse`, `WaitTimeout`; `Unavailable` while the server has too many savepoints under way to see through.
    """
    command = f"CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput EXPORT_SNAPSHOT"
    crowded_until = time.monotonic() + CROWDED_S
    while True:
        drop_slot(connection, where, name, FREE_S)
        with explained(where, f"making slot {name!r}"):
            result = _patiently(connection, replication, where, command)
            if result.status == client().pq.ExecStatus.TUPLES_OK:
                point, exported = (str(result.get_value(0, at), "utf-8") for at in (1, 2))
                server = server_of(connection)
                return Position.beginning(point, server.timeline or 0, server.system), exported
            error = client().errors.error_from_result(result, encoding="utf-8")
            if not isinstance(error, client().errors.SerializationFailure) or time.monotonic() > crowded_until:
                raise error
            while replication.pgconn.get_result() is not None:
                pass  # The command is over; another one can be sent.
        time.sleep(0.1)


def _patiently(
    connection: psycopg.Connection[Any], replication: psycopg.Connection[Any], where: str, command: str
) -> Any:
    """Runs a command that waits for other transactions to end, up to a bound."""
    pgconn = replication.pgconn
    pgconn.send_query(command.encode())
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    deadline = time.monotonic() + SLOT_S
    while pgconn.is_busy():
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(
                f"PostgreSQL at {where} waits for transactions that began before the capture: {_oldest(connection)};"
                f" end them, or try again later"
            )
        poll.poll(left * 1000)
        pgconn.consume_input()
    return pgconn.get_result()


def _oldest(connection: psycopg.Connection[Any]) -> str:
    rows = connection.execute(
        "SELECT pid, usename, xact_start FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
        " ORDER BY xact_start LIMIT 3"
    )
    found = [f"process {pid} of {user} since {since}" for pid, user, since in rows]
    return ", ".join(found) or "some that are prepared (pg_prepared_xacts)"


def patiently(do: Callable[[], T], wait_s: float) -> T:
    """Try again while somebody else has the slot: who only looks at it, or drops it, has it for a moment.

    Raises: `InUse`.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return do()
        except InUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def free_slot(connection: psycopg.Connection[Any], name: str) -> None:
    """Have the server end whoever reads a slot that is of this capture alone, unless he goes by himself.

    It is a reader of ours whose connection was lost, and the server may take minutes to notice; or that of a capture of
    the same name that began before this one.
    """
    deadline = time.monotonic() + NOTICED_S
    while (slot := slot_of(connection, name)) is not None and slot.active_pid is not None:
        if time.monotonic() > deadline:
            connection.execute(_END_READER, [name])
            return
        time.sleep(0.05)


def drop_slot(connection: psycopg.Connection[Any], where: str, name: str, wait_s: float) -> None:
    """Raises: `InUse` for one that is read all the time."""
    deadline = time.monotonic() + wait_s
    with explained(where, f"dropping slot {name!r}"):
        while (slot := slot_of(connection, name)) is not None:
            if slot.active_pid is None:
                try:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
                    return
                except client().errors.ObjectInUse:
                    pass
                except client().errors.UndefinedObject:
                    return
            if time.monotonic() > deadline:
                raise InUse(
                    f"slot {name!r} at {where} is read by the server's process {slot.active_pid}: stop the capture that"
                    f" reads it, or give this one another name"
                )
            time.sleep(0.05)
