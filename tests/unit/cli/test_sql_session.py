"""A shell's session over a real database: transactions, settings and commands, without a terminal (issue 5)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from tidegate import Database
from tidegate.cli.shell.answer import Answer
from tidegate.cli.shell.calling import Call
from tidegate.cli.shell.script import items
from tidegate.cli.shell.session import Leave, Session, StatementFailed
from tidegate.cli.shell.settings import Settings
from tidegate.errors import Conflict, InvalidArgument, NotFound, WaitTimeout


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with tidegate.open(tmp_path / "shop.tide") as found:
        found.sql("CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner STRING)")
        found.sql("INSERT INTO accounts VALUES (1, 'ann'), (2, 'bo')")
        found.sql("CREATE TOPIC audit")
        yield found


@pytest.fixture
def session(db: Database) -> Session:
    return Session(lambda: db, Settings(limit=0))


def run(session: Session, text: str) -> list[Answer]:
    return [answer for item in items(text) for answer in session.run(item)]


def owners(db: Database) -> list[str]:
    return [each["owner"] for each in db.query("SELECT owner FROM accounts ORDER BY id", "strong").rows()]


class TestTransactions:
    def test_all_of_it_or_nothing_becomes_visible(self, db: Database, session: Session) -> None:
        """Promise 2."""
        run(session, "BEGIN; INSERT INTO accounts VALUES (3, 'cy'); UPDATE accounts SET owner = 'eve' WHERE id = 1")
        assert session.txn is not None and owners(db) == ["ann", "bo"]
        (answer,) = run(session, "COMMIT")
        assert answer.timestamp is not None and session.txn is None and owners(db) == ["eve", "bo", "cy"]

    def test_a_query_inside_has_what_it_has_written(self, db: Database, session: Session) -> None:
        run(session, "BEGIN; INSERT INTO accounts VALUES (3, 'cy')")
        db.sql("INSERT INTO accounts VALUES (4, 'di')")  # Somebody else's, later than its first read or not.
        (answer,) = run(session, "SELECT owner FROM accounts WHERE id = 3")
        assert answer.rows is not None and answer.rows.rows == [("cy",)]
        run(session, "ROLLBACK")

    def test_rollback_leaves_nothing(self, db: Database, session: Session) -> None:
        run(session, "BEGIN; DELETE FROM accounts; ROLLBACK")
        assert session.txn is None and owners(db) == ["ann", "bo"]

    def test_a_wrong_statement_leaves_it_open_without_itself(self, db: Database, session: Session) -> None:
        run(session, "BEGIN; INSERT INTO accounts VALUES (3, 'cy')")
        with pytest.raises(InvalidArgument) as error:
            run(session, "INSERT INTO accounts VALUES ('three', 4)")
        assert "still open" in error.value.__notes__[0]
        run(session, "COMMIT")
        assert owners(db) == ["ann", "bo", "cy"]

    def test_a_conflict_ends_it(self, db: Database, session: Session) -> None:
        run(session, "BEGIN; UPDATE accounts SET owner = 'eve' WHERE id = 1")
        db.sql("UPDATE accounts SET owner = 'fay' WHERE id = 1")
        with pytest.raises(Conflict) as error:
            run(session, "COMMIT")
        assert "nothing of it remains" in error.value.__notes__[0]
        assert session.txn is None and owners(db) == ["fay", "bo"]

    def test_one_that_was_aborted_from_outside_is_over(self, db: Database, session: Session) -> None:
        run(session, "BEGIN; INSERT INTO accounts VALUES (3, 'cy')")
        assert session.txn is not None
        db.abort(session.txn.id)
        with pytest.raises(tidegate.TidegateError):
            run(session, "COMMIT")
        assert session.txn is None and owners(db) == ["ann", "bo"]

    def test_leaving_aborts_it_and_says_so(self, db: Database, session: Session) -> None:
        run(session, "BEGIN; INSERT INTO accounts VALUES (3, 'cy')")
        assert session.txn is not None
        id = str(session.txn.id)
        note = session.close()
        assert note is not None and id in note and "rolled back" in note
        assert owners(db) == ["ann", "bo"] and db.transactions(finished=0) == []

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("BEGIN; BEGIN", "open already"),
            ("COMMIT", "no transaction is open"),
            ("ROLLBACK", "no transaction is open"),
            ("BEGIN; CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE cannot be part of a transaction"),
            ("BEGIN; GRANT all", "'GRANT' at column 1 is not understood"),
        ],
    )
    def test_what_cannot_be_is_refused(self, session: Session, text: str, says: str) -> None:
        with pytest.raises(InvalidArgument, match=says):
            run(session, text)
        session.close()


class TestAnswers:
    def test_an_answer_names_its_cut_and_how_long_it_took(self, session: Session) -> None:
        """Promise 4: one Timestamp, and says which."""
        (answer,) = run(session, "SELECT id, owner FROM accounts ORDER BY id")
        assert answer.rows is not None and answer.rows.rows == [(1, "ann"), (2, "bo")]
        assert answer.rows.is_number == (True, False)
        assert answer.timestamp is not None and answer.elapsed_s is not None

    def test_an_earlier_time_can_be_set(self, db: Database, session: Session) -> None:
        (before,) = run(session, "SELECT * FROM accounts")
        db.sql("DELETE FROM accounts")
        run(session, f"SET consistency = '{before.timestamp}'")
        (answer,) = run(session, "SELECT * FROM accounts")
        assert answer.rows is not None and answer.rows.total == 2 and answer.timestamp == before.timestamp

    def test_of_a_long_answer_the_first_rows_are_taken_and_all_are_counted(self, session: Session) -> None:
        run(session, "\\set limit 1")
        (answer,) = run(session, "SELECT id FROM accounts ORDER BY id")
        assert answer.rows is not None and (answer.rows.rows, answer.rows.total) == ([(1,)], 2)

    def test_columns_of_one_name_are_both_there(self, session: Session) -> None:
        (answer,) = run(session, "SELECT 1 AS n, 2 AS n")
        assert answer.rows is not None and answer.rows.rows == [(1, 2)]

    def test_with_may_begin_a_query_or_an_insert(self, db: Database, session: Session) -> None:
        (read,) = run(session, "WITH a AS (SELECT 1 AS n) SELECT n FROM a")
        (wrote,) = run(session, "WITH a AS (SELECT 9 AS id, 'di' AS owner) INSERT INTO accounts SELECT * FROM a")
        assert read.rows is not None and wrote.written == 1 and owners(db)[-1] == "di"

    def test_an_unknown_table_names_the_nearest(self, session: Session) -> None:
        with pytest.raises(NotFound, match="did you mean 'accounts'"):
            run(session, "SELECT * FROM acounts")


class TestCommands:
    def test_d_lists_tables_and_topics_and_describes_one(self, session: Session) -> None:
        (listed,) = run(session, "\\d")
        assert listed.rows is not None
        assert [(row[0], row[1]) for row in listed.rows.rows] == [("accounts", "table"), ("audit", "topic")]
        (table,), (topic,) = run(session, "\\d accounts"), run(session, "\\d `audit`")
        assert table.rows is not None and [row[0] for row in table.rows.rows] == ["id", "owner"]
        assert topic.rows is not None and topic.rows.rows[0][0] == "audit"
        with pytest.raises(NotFound, match="no table, view or topic 'acount'; did you mean 'accounts'"):
            run(session, "\\d acount")

    def test_c_says_where_the_database_is_open(self, db: Database, session: Session) -> None:
        (own,) = run(session, "\\c")
        assert own.word is not None and "open in this process" in own.word
        with tidegate.open(db.path) as other:
            (through,) = run(Session(lambda: other, Settings()), "\\c")
        assert through.word is not None and "open in process" in through.word and "through" in through.word

    def test_x_and_timing_are_switches(self, session: Session) -> None:
        run(session, "\\x")
        assert session.settings.expanded == "on"
        run(session, "\\x")
        run(session, "\\timing off")
        assert (session.settings.expanded, session.settings.timing) == ("off", False)

    def test_status_and_help_are_texts(self, session: Session) -> None:
        (status,), (help_,) = run(session, "\\status"), run(session, "\\?")
        assert status.text is not None and "transactions" in status.text
        assert help_.text is not None and "\\timing" in help_.text and "consistency" in help_.text
        assert max(map(len, help_.text.splitlines())) <= 100

    def test_q_leaves(self, session: Session) -> None:
        with pytest.raises(Leave):
            run(session, "\\q")

    def test_a_file_is_run_and_its_error_has_its_line(self, db: Database, session: Session, tmp_path: Path) -> None:
        inner, outer = tmp_path / "inner.sql", tmp_path / "outer.sql"
        inner.write_text("INSERT INTO accounts VALUES (3, 'cy');\n\nDROP TABLE nothing;\nDROP TABLE accounts;\n")
        outer.write_text(f"-- first\n\\i {inner}\n")
        with pytest.raises(StatementFailed, match=r"outer.sql:2: .*inner.sql:3: there is no table 'nothing'"):
            run(session, f"\\i {outer}")
        assert owners(db) == ["ann", "bo", "cy"]

    def test_files_that_include_one_another_end(self, session: Session, tmp_path: Path) -> None:
        loop = tmp_path / "loop.sql"
        loop.write_text(f"\\i {loop}\n")
        with pytest.raises(StatementFailed, match="more than 10 deep"):
            run(session, f"\\i {loop}")

    def test_a_file_that_cannot_be_read_is_named(self, session: Session, tmp_path: Path) -> None:
        (tmp_path / "x.sql").write_bytes(b"SELECT '\xff'")
        with pytest.raises(InvalidArgument, match="UTF-8"):
            run(session, f"\\i {tmp_path / 'x.sql'}")
        with pytest.raises(NotFound, match=r"none\.sql: No such file"):
            run(session, "\\i none.sql")


class TestCalls:
    def test_one_that_takes_too_long_is_left(self) -> None:
        gate = threading.Event()
        call = Call(gate.wait)
        with pytest.raises(WaitTimeout, match=r"within 0\.05 s"):
            call.wait(0.05)
        assert not call.is_done and not call.settle(0)
        gate.set()
        assert call.wait() is True

    def test_its_error_is_the_callers(self) -> None:
        def fail() -> None:
            raise NotFound("nothing")

        with pytest.raises(NotFound):
            Call(fail).wait()
