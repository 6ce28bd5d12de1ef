"""What the tests of sources share: a fold over what a source gives, and what a database's tables are, as one shape.

A table is a dict from keys to rows, as dicts by column. `Model` takes only what `Source` promises.
"""

from __future__ import annotations

import pyarrow as pa

from tidegate.capture.source import Dropped, Reshaped, Rows, Truncated


class Model:
    """The captured tables, folded."""

    def __init__(self, tables):
        self.shapes = {each.name: each for each in tables}
        self.rows = {each.name: {} for each in tables}
        self.position = None

    def copy(self):
        other = Model(self.shapes.values())
        other.rows = {name: dict(rows) for name, rows in self.rows.items()}
        other.position = self.position
        return other

    def load(self, snapshot):
        try:
            for batch in snapshot.batches():
                self.change(batch)
        finally:
            snapshot.close()
        self.position = snapshot.position

    def take(self, transaction):
        for change in transaction.changes:
            self.change(change)
        self.position = transaction.position

    def change(self, change):
        match change:
            case Rows(table, rows, is_delete):
                shape = self.shapes[table]
                names = list(shape.key) if is_delete else [each.name for each in shape.columns]
                for row in tuples(rows, names):
                    found = dict(zip(names, row, strict=True))
                    key = tuple(found[each] for each in shape.key)
                    if is_delete:
                        self.rows[table].pop(key, None)
                    else:
                        self.rows[table][key] = found
            case Truncated(table):
                self.rows[table].clear()
            case Dropped(table):
                del self.shapes[table], self.rows[table]
            case Reshaped(table, renamed, filled):
                names = [each.name for each in table.columns]
                old = self.rows.get(table.name, {})
                moved = {}
                for row in old.values():
                    row = {renamed.get(name, name): value for name, value in row.items()}
                    row = {name: row.get(name, filled.get(name)) for name in names}
                    moved[tuple(row[each] for each in table.key)] = row
                self.shapes[table.name] = table
                self.rows[table.name] = moved


def tuples(rows, names):
    """Rows of a source as tuples."""
    if isinstance(rows, pa.RecordBatch | pa.Table):
        assert rows.schema.names == names
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert all(isinstance(row, tuple) for row in rows)
    return rows


def captured(source, wanted=None):
    """A model with the source's snapshot."""
    model = Model(source.tables(wanted))
    model.load(source.snapshot())
    return model


def resumed(source, model):
    """A new source goes on where a model is."""
    source.tables(None)
    source.resume(model.position, list(model.shapes.values()))
    return source


def everything(source):
    """The transactions there are, each gone through."""
    found = []
    for each in source.transactions(0):
        found.append((each, list(each.changes)))
    return found


def contents(connection, shapes):
    """What the database has in tables that are known by their shapes, as a model has it."""
    found = {}
    for shape in shapes:
        names = [each.name for each in shape.columns]
        columns = ", ".join("rowid" if name == "_rowid" else f'"{name}"' for name in names)
        rows = connection.execute(f'SELECT {columns} FROM "{shape.name}"').fetchall()
        table = {}
        for values in rows:
            row = {each.name: typed(value, each.type) for each, value in zip(shape.columns, values, strict=True)}
            table[tuple(row[each] for each in shape.key)] = row
        found[shape.name] = table
    return found


def typed(value, type):
    """A value of SQLite as one of a type: only what tests have."""
    if value is None:
        return None
    if type == "BOOLEAN":
        return bool(value)
    if type == "DOUBLE":
        return float(value)
    if type == "STRING" and not isinstance(value, str):
        return str(value)
    return value
