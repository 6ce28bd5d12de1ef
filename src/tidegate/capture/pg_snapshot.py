"""`PgSnapshot`: all rows of the captured tables as of the place where a new slot begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.csv as pc

from tidegate.capture.pg_catalog import Shape
from tidegate.capture.pg_changes import batch_of
from tidegate.capture.pg_connect import client, explained
from tidegate.capture.source import Rows

if TYPE_CHECKING:
    import psycopg

BATCH_BYTES: Final = 4 << 20
BATCH_ROWS: Final = 64_000


class PgSnapshot:
    """Rows read within one transaction that sees what was committed where the slot begins. Owns its connection."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        where: str,
        position: str,
        shapes: Sequence[Shape],
        rules: Mapping[str, str],
    ) -> None:
        """`connection` is in a transaction with the exported snapshot; `rules` say which rows of a table count."""
        self._connection = connection
        self._where = where
        self._shapes = shapes
        self._rules = rules
        self.position = position
        with explained(where, "reading all rows of its tables"):
            # Rows that policies hide from this user would come with their changes, and be missing until then.
            connection.execute("SET LOCAL row_security = off")
        with explained(where, "estimating rows"):
            self.rows: Mapping[str, int] = {each.table.name: self._estimate(each) for each in shapes}

    def _estimate(self, shape: Shape) -> int:
        """What the server's planner takes it for: it knows of tables that were never analyzed, and of partitions."""
        from psycopg import sql

        query = sql.SQL("EXPLAIN (FORMAT JSON) {}").format(self._query(shape))
        found = self._connection.execute(query).fetchone()
        return int(found[0][0]["Plan"]["Plan Rows"]) if found else 0

    def _query(self, shape: Shape) -> Any:
        from psycopg import sql

        # What inherits from a table is a table of its own, unless it is a partition.
        only = sql.SQL("" if shape.is_partitioned else "ONLY ")
        rule = self._rules.get(shape.table.name)
        return sql.SQL("SELECT {} FROM {}{}{}").format(
            sql.SQL(", ").join(sql.Identifier(each.name) for each in shape.table.columns),
            only,
            sql.Identifier(shape.schema, shape.relation),
            sql.SQL(f" WHERE {rule}" if rule else ""),
        )

    def batches(self) -> Iterator[Rows]:
        for shape in self._shapes:
            yield from self._table(shape)

    def _table(self, shape: Shape) -> Iterator[Rows]:
        from psycopg import sql

        query = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')").format(self._query(shape))
        with explained(self._where, f"reading table {shape.table.name!r}"):
            # Below psycopg's own reading, which takes longer for a row than all that is done here.
            pgconn, status = self._connection.pgconn, client().pq.ExecStatus
            result = pgconn.exec_(query.as_bytes(self._connection))
            if result.status != status.COPY_OUT:
                raise client().errors.error_from_result(result, encoding="utf-8")
            get = pgconn.get_copy_data
            parts: list[Any] = []
            size = 0
            while True:
                count, data = get(0)
                if count <= 0:
                    break
                parts.append(data)  # A row.
                size += count
                if size >= BATCH_BYTES or len(parts) >= BATCH_ROWS:
                    yield self._batch(parts, shape)
                    parts, size = [], 0
            while (ended := pgconn.get_result()) is not None:
                if ended.status != status.COMMAND_OK:
                    raise client().errors.error_from_result(ended, encoding="utf-8")
        if parts:
            yield self._batch(parts, shape)

    def _batch(self, parts: list[Any], shape: Shape) -> Rows:
        names = [f"{number}" for number in range(len(shape.readings))]
        data = b"".join(parts)
        table = pc.read_csv(
            pa.BufferReader(data),
            read_options=pc.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
            parse_options=pc.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pc.ConvertOptions(
                check_utf8=False,  # The columns of texts are looked at later, and say which one it is.
                column_types={name: pa.string() for name in names},
                # NULL stands as nothing, an empty text as two quotes.
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        texts = [_whole(each) for each in table.columns]
        columns = [each.name for each in shape.table.columns]
        return Rows(shape.table.name, batch_of(texts, columns, shape.readings, shape.table.name))

    def close(self) -> None:
        self._connection.close()


def _whole(column: Any) -> pa.Array:
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
