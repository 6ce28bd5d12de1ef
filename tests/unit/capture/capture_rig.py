"""What the tests of captures ask for again and again."""

from __future__ import annotations


def rows(db, table="orders", order="id"):
    return [tuple(each.values()) for each in db.query(f"SELECT * FROM {table} ORDER BY `{order}`", "strong").rows()]


def captured(db, **how):
    return db.capture("fake://", name="shop", **how)
