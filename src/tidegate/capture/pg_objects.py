"""What a capture has at a PostgreSQL server: its tables, its publication and its slot.

What the server's messages do not say of tables is looked up here, in the catalog as it is now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from tidegate.capture import pg_slots
from tidegate.capture.pg_catalog import (
    Shape,
    keys_of,
    loose,
    name_of,
    names_of,
    narrowed,
    places_of,
    publication_of,
    published,
    published_names,
    server_of,
    shapes_of,
    slot_of,
    table_of,
    tables_of,
    types_of,
    unfit,
)
from tidegate.capture.pg_connect import Address, explained
from tidegate.capture.pg_look import Look, by_names, followed
from tidegate.capture.pg_noted import Noted
from tidegate.capture.pg_partitions import Partitions
from tidegate.capture.pg_position import ANEW, Position
from tidegate.capture.source import Altered, Reshaped, SourceTable
from tidegate.cdc.pg_types import TypeInfo, reading_of
from tidegate.cdc.pgoutput import Relation
from tidegate.errors import InvalidArgument, NotFound, SourceGone, SourceUnreadable

if TYPE_CHECKING:
    import psycopg

_logger = logging.getLogger("tidegate.capture")
LATER: Final = "created later, and partitioned or of a publication of yours: take a new snapshot: restart=True"
"""Why a table is left out that was not there when all were taken: rows of it may have come before it was noticed."""
SOON: Final = "created later: it joins the capture now"
_FIRST_OF_USERS: Final = 16_384
"""Types with lower numbers are the server's own, and do not change."""


class Objects:
    """One capture's tables, publication and slot. It is the catalog that `Changes` asks."""

    def __init__(self, connection: psycopg.Connection[Any], where: str, address: Address) -> None:
        self._sql = connection
        self._where = where
        self._address = address
        self._types: dict[int, TypeInfo] = {}
        self._shapes: dict[str, Shape] = {}
        """Those that were chosen."""
        self._rules: dict[str, str] = {}
        self._noted = Noted()
        self._names: dict[int, str] = {}
        """What tables are captured as, by number."""
        self._looks: dict[int, Look] = {}
        """What captured tables look like where they are being read, as far as that is known."""
        self._is_ours = False
        self._has_all = False
        """Whether all tables were asked for."""
        self._missing = ""
        """What is to be said of a table that was asked for and is not there, unless a capture of it goes on."""
        self._met: set[int] = set()
        """Tables that were there before, captured or not."""
        self._unfit: set[int] = set()
        """Of these, such as cannot be captured as they are: they may get a key."""
        self._ended: set[str] = set()
        """Captured ones that are gone."""
        self._partitions = Partitions(connection, where)
        self._later: dict[int, Shape] = {}
        """Tables that can join: see `Joining`."""
        self.left_out: dict[str, str] = {}
        """Tables that are not captured though all were asked for, and why."""
        self.unnamed: Callable[[str], str | None] | None = None
        """See `Source`."""
        with explained(where, "reading its catalog"):
            self._types = types_of(connection)

    @property
    def chosen(self) -> list[SourceTable]:
        return [each.table for each in self._shapes.values()]

    # Tables -----------------------------------------------------------------------------------------------------------

    def choose(self, wanted: Sequence[str] | None) -> list[SourceTable]:
        """Raises: `NotFound`, `InvalidArgument`."""
        with explained(self._where, "reading its catalog"):
            server = server_of(self._sql)
            self._types = types_of(self._sql)
            there = shapes_of(self._sql, self._types, self._address.schema)
            there = self._published_only(there)
        if server.wal_level != "logical":
            raise InvalidArgument(
                f"PostgreSQL at {self._where} has wal_level={server.wal_level}: run ALTER SYSTEM SET wal_level ="
                f" logical there, and restart it"
            )
        if server.timeline is None:
            raise InvalidArgument(f"PostgreSQL at {self._where} only follows another server; capture from that one")
        self._has_all = wanted is None
        self._met = {shape.oid for shape in there.values()}
        if wanted is None:
            self.left_out = {name: why for name, shape in there.items() if (why := self._why_not(shape))}
            self._unfit = {there[name].oid for name in self.left_out}
            self._shapes = {name: shape for name, shape in there.items() if name not in self.left_out}
        else:
            self._shapes, self.left_out, self._missing = {}, {}, ""
            for name in wanted:
                shape = there.get(name) or there.get(name.removeprefix(f"{self._address.schema}."))
                if shape is None and name in self._taken_before():
                    # Dropped or renamed since: what became of it is found out when the capture goes on.
                    self._missing = self._missing or self._no_table(name, there)
                    continue
                if shape is None:
                    raise NotFound(self._no_table(name, there))
                why = unfit(shape)
                if why is not None:
                    raise InvalidArgument(f"table {name!r} cannot be captured: {why}")
                self._shapes[shape.table.name] = shape
        self._names = {shape.oid: name for name, shape in self._shapes.items()}
        return self.chosen

    def _taken_before(self) -> set[str]:
        """What tables were captured as, by what is noted at the server."""
        found = publication_of(self._sql, self._address.publication)
        return set(Noted.of(found[1]).names.values()) if found is not None and Noted.is_ours(found[1]) else set()

    def _published_only(self, there: dict[str, Shape]) -> dict[str, Shape]:
        """A publication that others have made says which tables, columns and rows there are."""
        found = publication_of(self._sql, self._address.publication)
        self._is_ours = found is None or Noted.is_ours(found[1])
        self._rules = {}
        if self._is_ours:
            return there
        rules = published(self._sql, self._address.publication)
        out = {}
        for name, shape in there.items():
            rule = rules.get((shape.schema, shape.relation))
            if rule is not None:
                columns, condition = rule
                out[name] = narrowed(shape, columns) if columns else shape
                if condition:
                    self._rules[name] = condition
        return out

    def _no_table(self, name: str, there: Mapping[str, Shape]) -> str:
        near = get_close_matches(name, there, 1)
        hint = f"; is it {near[0]!r}?" if near else f"; there are {', '.join(sorted(there)[:10]) or 'none'}"
        of = "" if self._is_ours else f" in publication {self._address.publication!r}"
        return f"PostgreSQL at {self._where} has no table {name!r}{of} that can be captured{hint}"

    def same_shapes(self, reading: psycopg.Connection[Any]) -> tuple[list[Shape], dict[str, str]]:
        """The chosen tables as a snapshot's transaction sees them, and which of their rows count.

        Raises: `Altered` when they look otherwise than when they were chosen.
        """
        with explained(self._where, "taking a snapshot"):
            there = shapes_of(reading, types_of(reading), self._address.schema)
            if not self._is_ours:
                there = self._published_only(there)
        for name, shape in self._shapes.items():
            now = there.get(name)
            if now is None or now.table != shape.table:
                raise Altered(f"table {name!r} was changed at {self._where} while its capture began; begin again")
        self._partitions.note(reading, self._names)
        self._note()
        return [there[name] for name in self._shapes], self._rules

    # The publication --------------------------------------------------------------------------------------------------

    def publish(self) -> bool:
        """Have a publication of exactly the chosen tables; one that others have made must have them.

        Whether there was none before.
        """
        from psycopg import sql

        if self._missing:
            raise NotFound(self._missing)
        name = sql.Identifier(self._address.publication)
        about = f"publishing tables as {self._address.publication!r}"
        with explained(self._where, about):
            there = publication_of(self._sql, self._address.publication)
            self._is_ours = there is None or Noted.is_ours(there[1])
            if not self._is_ours:
                self._check_options()
                return False
            # What inherits from a table is a table of its own, unless it is a partition.
            tables = sql.SQL(", ").join(
                sql.SQL("{}{}").format(
                    sql.SQL("" if each.is_partitioned else "ONLY "), sql.Identifier(each.schema, each.relation)
                )
                for each in self._shapes.values()
            )
            if there is not None:
                self._sql.execute(sql.SQL("DROP PUBLICATION {}").format(name))
            options = sql.SQL(" WITH (publish_via_partition_root = true)")
            some = sql.SQL(" FOR TABLE {}").format(tables) if self._shapes else sql.SQL("")
            self._sql.execute(sql.SQL("CREATE PUBLICATION {}{}{}").format(name, some, options))
            self._noted, self._ended = Noted(dict(self._names)), set()
            self._partitions.noted = None
            for each in self._shapes.values():
                self._looks[each.oid] = Look.of(each)
                self._noted.look(each.oid, Look.of(each))
                self._noted.files[each.oid] = each.file
            self._note()
        return there is None

    def _check_options(self) -> None:
        row = self._sql.execute(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication"
            " WHERE pubname = %s",
            [self._address.publication],
        ).fetchone()
        if row is None or not row[0] or (not row[1] and any(each.is_partitioned for each in self._shapes.values())):
            raise InvalidArgument(
                f"publication {self._address.publication!r} at {self._where} leaves changes out: it must publish"
                f" insert, update, delete and truncate, and partitioned tables with publish_via_partition_root = true"
            )

    def _note(self, connection: psycopg.Connection[Any] | None = None) -> None:
        """Keep what tables and columns are called, and which parts tables have."""
        from psycopg import sql

        if not self._is_ours:
            return
        self._noted.partitions = self._partitions.noted
        name, text = sql.Identifier(self._address.publication), sql.Literal(str(self._noted))
        with explained(self._where, "noting what tables and columns are called"):
            (connection or self._sql).execute(sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(name, text))

    def check_published(self, known: Sequence[SourceTable]) -> None:
        """Whether the publication has what is to be read. Raises: `SourceGone`."""
        name = self._address.publication
        with explained(self._where, f"looking for publication {name!r}"):
            there = publication_of(self._sql, name)
            if there is None:
                raise SourceGone(f"PostgreSQL at {self._where} has no publication {name!r} any more; {ANEW}")
            names = {table.name for table in known}
            self._is_ours = Noted.is_ours(there[1])
            self._noted = Noted.of(there[1]) if self._is_ours else Noted()
            self._names, left, self._later = {}, set(names), {}
            for oid, called in self._noted.names.items():
                if called in names:
                    left.discard(called)
                    if oid not in self._noted.joining:
                        self._names[oid] = called
            columns = {table.name: [each.name for each in table.columns] for table in known}
            looks = {oid: self._noted.looked(oid, columns[called]) for oid, called in self._names.items()}
            self._looks = {oid: look for oid, look in looks.items() if look is not None}
            if left:
                for each in shapes_of(self._sql, self._types, self._address.schema).values():
                    if each.table.name in left:
                        self._names[each.oid] = each.table.name
        self._ended = set()
        self._partitions.noted = self._noted.partitions
        self.watch()
        if self._has_all:
            self._leave_out([each for each in self._shapes.values() if each.oid not in self._names])

    def watch(self) -> tuple[list[str], int]:
        """Captured tables that are not there any more, and a place in the log behind their end.

        A table that was created later is to join, if it can; else it is noted in `left_out`, and said once.
        Raises: `SourceGone` for one that is there and not published any more, for one that was dropped and created
        anew, and for partitions with which rows came or went: see `Partitions`.
        """
        publication = self._address.publication
        with explained(self._where, f"looking for publication {publication!r}"):
            before, now = names_of(self._sql, self._names), self._published_now()
            there, tables = names_of(self._sql, self._names), tables_of(self._sql)
            row = self._sql.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        for oid, (schema, relation, *_) in there.items():
            # One that was renamed or dropped meanwhile is looked at next time.
            if oid in before and before[oid][:2] == (schema, relation) and (schema, relation) not in now:
                raise SourceGone(
                    f"publication {publication!r} at {self._where} was changed and leaves table {self._names[oid]!r}"
                    f" out; {ANEW}"
                )
        gone = [name for oid, name in self._names.items() if oid not in there]
        called = {name_of(*each, self._address.schema) for oid, each in tables.items() if oid not in self._names}
        for name in [*gone, *sorted(self._ended), *self._names.values()]:
            if name in called:
                raise SourceGone(
                    f"table {name!r} at {self._where} is another one than the one captured: it was dropped and created"
                    f" anew, or another one took its name; {ANEW}"
                )
        if self._partitions.watch(self._names):
            self._note()
        new = (tables.keys() - self._met) | (tables.keys() & self._unfit)
        if self._has_all and new:
            with explained(self._where, "reading its catalog"):
                shapes = self._published_only(shapes_of(self._sql, self._types, self._address.schema))
            self._leave_out([each for each in shapes.values() if each.oid in new])
        self._met |= tables.keys()
        return gone, int(row[0]) if row else 0

    def _published_now(self) -> set[tuple[str, str]]:
        """Schema and name of the tables that are published. One that others have made may name schemas, or all."""
        if self._is_ours:
            return published_names(self._sql, self._address.publication)
        return set(published(self._sql, self._address.publication))

    def _why_not(self, shape: Shape) -> str | None:
        """Why a table is not taken though all are."""
        named = None if self.unnamed is None else self.unnamed(shape.table.name)
        return unfit(shape) or loose(shape) or named

    def _leave_out(self, later: Sequence[Shape]) -> None:
        """Tables that were not there when all were taken."""
        for shape in later:
            name, why = shape.table.name, self._why_not(shape)
            (self._unfit.discard if why is None else self._unfit.add)(shape.oid)
            if why is None and self._is_ours and not shape.is_partitioned:
                self.put_off(shape, SOON)
                continue
            if why is None and self.left_out.get(name) != LATER:
                _logger.warning("table %r at %s is not captured: it was %s", name, self._where, LATER)
            self.left_out[name] = why or LATER

    # Tables that join -------------------------------------------------------------------------------------------------

    def take_later(self) -> list[Shape]:
        """Those that can join and were not taken up yet."""
        found, self._later = list(self._later.values()), {}
        return found

    def put_off(self, shape: Shape, why: str) -> None:
        """It can join, but not now."""
        self._later[shape.oid] = shape
        self.left_out[shape.table.name] = why

    def publish_more(self, connection: psycopg.Connection[Any], shape: Shape) -> bool:
        """Publish a table that joins, in the transaction of `connection`; whether it was joining before."""
        from psycopg import sql

        again, publication = shape.oid in self._noted.joining, sql.Identifier(self._address.publication)
        table = sql.Identifier(shape.schema, shape.relation)
        if (shape.schema, shape.relation) not in published_names(connection, self._address.publication):
            connection.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE ONLY {}").format(publication, table))
        self._noted.names[shape.oid] = shape.table.name
        self._noted.look(shape.oid, Look.of(shape))
        self._noted.files[shape.oid] = shape.file
        if not again:
            self._noted.joining.append(shape.oid)
        self._note(connection)
        return again

    def joined(self, shape: Shape) -> None:
        """From here on what is said of a table counts."""
        self._names[shape.oid] = shape.table.name
        self._shapes[shape.table.name] = shape
        self._looks[shape.oid] = Look.of(shape)
        self.left_out.pop(shape.table.name, None)

    def stays(self, shapes: Sequence[Shape]) -> None:
        """The rows of tables that joined are safe."""
        gone = {shape.oid for shape in shapes}
        self._noted.joining = [oid for oid in self._noted.joining if oid not in gone]
        self._note()

    def settle(self, seen: int) -> None:
        """Everything up to a place in the log was given. Raises: `SourceGone`, see `Partitions`."""
        if self._partitions.settle(seen, self._names):
            self._note()

    def emptied(self, oid: int, xid: int) -> None:
        """See `Catalog`."""
        if self._partitions.emptied(oid, xid, self._names):
            self._note()

    def forget(self, names: Sequence[str]) -> None:
        """Tables that are captured no more."""
        self._ended.update(names)
        self._names = {oid: name for oid, name in self._names.items() if name not in names}

    # The slot ---------------------------------------------------------------------------------------------------------

    def new_slot(self, replication: psycopg.Connection[Any]) -> tuple[Position, str]:
        """See `pg_slots.new_slot`."""
        return pg_slots.new_slot(self._sql, replication, self._where, self._address.slot)

    def drop_slot(self, wait_s: float) -> None:
        """See `pg_slots.drop_slot`."""
        pg_slots.drop_slot(self._sql, self._where, self._address.slot, wait_s)

    def drop(self, wait_s: float) -> None:
        """Remove the slot, and the publication if it is ours. May be repeated."""
        self.drop_slot(wait_s)
        self.drop_publication()

    def drop_publication(self) -> None:
        """If it is ours."""
        from psycopg import sql

        with explained(self._where, "dropping its publication"):
            there = publication_of(self._sql, self._address.publication)
            if there is not None and Noted.is_ours(there[1]):
                name = sql.Identifier(self._address.publication)
                self._sql.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(name))

    def leftovers(self) -> list[str]:
        """The slot, and the publication if it is ours, as far as they are there."""
        address = self._address
        with explained(self._where, "looking for what a capture has there"):
            slot = slot_of(self._sql, address.slot)
            publication = publication_of(self._sql, address.publication)
        found = [f"slot {address.slot!r}"] if slot is not None else []
        if publication is not None and Noted.is_ours(publication[1]):
            found.append(f"publication {address.publication!r}")
        return found

    def mark(self) -> int:
        """A place in the log behind all that was committed, which the server is going to reach by itself."""
        query = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        with explained(self._where, "asking where it is"):
            row = self._sql.execute(query).fetchone()
            # Commits that do not wait for the disk would be there, and not be sent until something else is written.
            with self._sql.transaction():
                self._sql.execute("SET LOCAL synchronous_commit = on")
                self._sql.execute("SELECT pg_logical_emit_message(true, 'tidegate', '')")
        return int(row[0]) if row else 0

    def behind(self, lsn: int) -> dict[str, Any]:
        name = self._address.slot
        with explained(self._where, "asking where it is"):
            row = self._sql.execute(
                "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn, pg_current_wal_lsn() - restart_lsn, wal_status"
                " FROM pg_replication_slots WHERE slot_name = %s",
                [name],
            ).fetchone()
        if row is None:
            return {"slot": name, "status": "gone"}
        kept = int(row[1]) if row[1] is not None else None
        return {"bytes": max(0, int(row[0]) - lsn), "slot": name, "kept_bytes": kept, "status": row[2]}

    # What messages do not say -----------------------------------------------------------------------------------------

    def shape(self, relation: Relation) -> Shape | None:
        """See `Catalog`."""
        name = self._names.get(relation.id)
        called = name_of(relation.schema, relation.name, self._address.schema)
        if name is None and called in self._names.values():
            raise SourceGone(f"table {called!r} at {self._where} is another one than the one captured; {ANEW}")
        return None if name is None else self._described(relation, name)

    def _described(self, relation: Relation, name: str) -> Shape:
        with explained(self._where, f"looking at table {name!r}"):
            if any(each.type >= _FIRST_OF_USERS and each.type not in self._types for each in relation.columns):
                self._types = types_of(self._sql)
            places, there = places_of(self._sql, relation.id), names_of(self._sql, [relation.id])
            keys = keys_of(self._sql, [relation.id]) if relation.identity in "fn" else {}
        columns = [column.name for column in relation.columns]
        readings = tuple(reading_of(column.type, column.modifier, self._types) for column in relation.columns)
        if relation.identity in "di":
            key = tuple(at for at, column in enumerate(relation.columns) if column.is_key)
        else:
            numbers = keys.get(relation.id, ((), ()))[0]
            key = tuple(at for at, each in enumerate(columns) if each in places and places[each].number in numbers)
            key = key if len(key) == len(numbers) else ()
        table = table_of(name, columns, readings, key)
        _, _, file, width = there.get(relation.id, ("", "", 0, 0))
        types = tuple((column.type, column.modifier) for column in relation.columns)
        found = Shape(
            *(relation.id, relation.schema, relation.name, table, readings, key, False, relation.identity, places),
            *(file, types, width),
        )
        if found.unfit_key is not None:
            raise SourceUnreadable(f"table {name!r} cannot be captured any more: {unfit(found)}")
        return found

    def reshaped(self, was: SourceTable | None, shape: Shape) -> Reshaped | None:
        """See `Catalog`. Raises: `SourceGone` for what became of columns and cannot be told, see `followed`."""
        look = self._looks.get(shape.oid) if self._is_ours and shape.places else None
        if was is None or look is None:
            found = Reshaped(shape.table) if was is None else by_names(shape, was)
            return None if was == shape.table else found
        file = self._noted.files.get(shape.oid, shape.file)
        self._looks[shape.oid], found = followed(look, shape, was, file=file, where=self._where, anew=ANEW)
        if self._noted.look(shape.oid, self._looks[shape.oid]):
            self._note()
        return None if was == shape.table and not found.renamed else found
