"""The law of looking up one key: the answer is that of the general way, whatever lies in files, layers and the log."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate
from folding import folding
from tidegate import DatabaseSettings, LogSettings
from tidegate.database import cut_reader as cut_reader_module
from tidegate.database import engine as engine_module

NUMBERS = st.integers(-3, 3)
NAMES = st.sampled_from(["", "a", "A", "a ", "it's", "\u00e4", "7"])
KEYS = st.tuples(NUMBERS, NAMES)
ROWS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 9))), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), ROWS),
        st.tuples(st.just("delete"), st.lists(KEYS, min_size=1, max_size=3)),
        st.tuples(st.just("checkpoint"), st.none()),
        st.tuples(st.just("add column"), st.none()),
        st.tuples(st.just("ask"), KEYS),
    ),
    min_size=1,
    max_size=8,
)
FORMS = (
    "SELECT * FROM {t} WHERE a = {a} AND b = {b}",
    "SELECT v, B, a AS x FROM {t} AS q WHERE {b} = q.b AND v > 2 AND q.a = ({a})",
    "SELECT count(*) AS n, max(v) AS v FROM {t} WHERE (a = {a} AND b = {b})",
    "SELECT a FROM {t} WHERE a = {a} AND b = {b} AND a = 2",
    "SELECT v FROM {t} WHERE b = {b} AND a = {a}",
)
numbers = count()


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(engine_module, "spark_worker", folding())
    options = DatabaseSettings(log=LogSettings(tick_interval_ms=1000), channels=2, barrier_interval_ms=3_600_000)
    with tidegate.open(tmp_path_factory.mktemp("points") / "p.tide", settings=options) as found:
        yield found
    patch.undo()


def both_ways(ask, sql) -> None:
    """The same question, of the same cut, with the key known before and without."""
    seen = []

    def looked_up(translated, tables, look=cut_reader_module._one_key):
        seen.append(look(translated, tables))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_reader_module, "_one_key", looked_up)
        quick = ask(sql).to_arrow()
        patch.setattr(cut_reader_module, "_one_key", lambda *_: None)
        general = ask(sql).to_arrow()
    assert seen and seen[-1] is not None, "the key was not found in the query"
    assert quick.equals(general), sql


def ask_all(ask, table, key) -> None:
    for form in FORMS:
        escaped = key[1].replace("'", "\\'")
        both_ways(ask, form.format(t=table, a=key[0], b=f"'{escaped}'"))


@settings(max_examples=15, deadline=None)
@given(steps=STEPS, own=ROWS, shards=st.integers(1, 3), asked=st.lists(KEYS, min_size=1, max_size=3))
def test_one_key_is_found_as_it_is_among_all_rows(db, steps, own, shards, asked):
    """Promise 4: one cut, whoever asks for how much of it. In snapshots, and with a transaction's own rows on top."""
    table = f"t{next(numbers)}"
    db.sql(f"CREATE TABLE {table} (a INT, b STRING, v BIGINT, PRIMARY KEY (a, b)) SHARDS {shards}")
    added = count()
    for what, given_ in steps:
        match what:
            case "upsert":
                db.upsert(table, [{"a": a, "b": b, "v": v} for (a, b), v in given_])
            case "delete":
                db.delete(table, [{"a": a, "b": b} for a, b in given_])
            case "checkpoint":
                db.flush(30)
            case "add column":
                db.sql(f"ALTER TABLE {table} ADD COLUMN w{next(added)} STRING")
            case "ask":
                with db.snapshot("strong") as snapshot:
                    ask_all(snapshot.query, table, given_)
    touched = [key for what, given_ in steps if what == "upsert" for key, _ in given_]
    with db.snapshot("strong") as snapshot:
        for key in [*asked, *touched[:2]]:
            ask_all(snapshot.query, table, key)
    with db.transaction() as txn:
        txn.upsert(table, [{"a": a, "b": b, "v": v} for (a, b), v in own])
        for key in [own[0][0], *asked]:
            ask_all(txn.query, table, key)
    db.sql(f"DROP TABLE {table}")
