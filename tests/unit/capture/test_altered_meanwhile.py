"""A table that is altered just when its capture begins: the capture begins again (issue 7)."""

from __future__ import annotations

import pytest

import tidegate
from tidegate.capture import capturing, sqlite
from tidegate.capture.source import Altered
from tidegate.capture.sqlite_source import SqliteSource
from tidegate.database.settings import DatabaseSettings


@pytest.fixture
def app(tmp_path):
    with sqlite.connect(str(tmp_path / "app.db"), check_same_thread=False) as found:
        found.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        found.execute("INSERT INTO t VALUES (1)")
        found.commit()
        yield found


@pytest.fixture
def db(tmp_path):
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as found:
        yield found


def alter_before_snapshots(monkeypatch, app, times):
    begin, columns = SqliteSource.snapshot, iter(range(times))

    def altered(source):
        for column in columns:
            app.execute(f"ALTER TABLE t ADD COLUMN c{column} INTEGER DEFAULT {column}")
            app.commit()
            break
        return begin(source)

    monkeypatch.setattr(SqliteSource, "snapshot", altered)


def test_it_begins_again_with_the_table_as_it_is(monkeypatch, tmp_path, app, db):
    alter_before_snapshots(monkeypatch, app, 2)
    with db.capture(f"sqlite:///{tmp_path}/app.db"):
        assert db.query("SELECT * FROM t", "strong").rows() == [{"id": 1, "c0": 0, "c1": 1}]


def test_one_that_is_altered_all_the_time_is_given_up_with_what_is_the_matter(monkeypatch, tmp_path, app, db):
    monkeypatch.setattr(capturing, "ALTERED_MOST", 3)
    alter_before_snapshots(monkeypatch, app, 3)
    with pytest.raises(Altered, match="'t' was altered meanwhile"):
        db.capture(f"sqlite:///{tmp_path}/app.db")
    assert db.find_table("t") is None
