"""What a statement is, told by its words."""

import pytest

from tidegate.capture.statements import Kind, classify, indexed, moment, says_to_replace, split, target


@pytest.mark.parametrize(
    "sql, kind, verb",
    [
        ("insert into t values (1)", Kind.WRITE, "INSERT"),
        ("-- DELETE\n /* DROP */ ; update t set a = 1", Kind.WRITE, "UPDATE"),
        ("WITH a AS (DELETE), b(c) AS (SELECT 'UPDATE') REPLACE INTO t SELECT 1", Kind.WRITE, "REPLACE"),
        ("WITH a AS (SELECT 1) SELECT * FROM a", Kind.READ, ""),
        ('SELECT "DELETE" FROM t', Kind.READ, ""),
        ("EXPLAIN QUERY PLAN DELETE FROM t", Kind.READ, ""),
        ("BEGIN EXCLUSIVE", Kind.BEGIN, "BEGIN"),
        ("end transaction", Kind.COMMIT, "END"),
        ("ROLLBACK", Kind.ROLLBACK, "ROLLBACK"),
        ("ROLLBACK TRANSACTION TO SAVEPOINT a", Kind.ROLLBACK_TO, "ROLLBACK"),
        ("savepoint a", Kind.SAVEPOINT, "SAVEPOINT"),
        ("RELEASE a", Kind.RELEASE, "RELEASE"),
        ("CREATE TEMP TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t; END", Kind.SCHEMA, "CREATE"),
        ("ATTACH 'x' AS y", Kind.DATABASES, "ATTACH"),
        ("", Kind.READ, ""),
        ("'unended", Kind.READ, ""),
    ],
)
def test_the_first_word_that_counts_says_what_it_is(sql, kind, verb):
    found = classify(sql)
    assert (found.kind, found.verb) == (kind, verb)


@pytest.mark.parametrize(
    "sql, returning, replaces, counts",
    [
        ("INSERT INTO t VALUES (1) RETURNING *", True, False, False),
        ("INSERT INTO t VALUES ('returning', :replace, \"changes\")", False, False, False),
        ("INSERT OR REPLACE INTO t VALUES (replace(a, b, c))", False, True, False),
        ("INSERT INTO t SELECT changes ()", False, False, True),
        ("DELETE FROM t WHERE x = (SELECT total_changes())", False, False, True),
        ("UPDATE t SET a = replace(a, 'b', 'c') WHERE b OR replace(c, 1, 2)", False, False, False),
        ("WITH w AS (SELECT 1) REPLACE INTO t SELECT * FROM w", False, True, False),
        ("UPDATE OR /* so */ replace t SET a = 1", False, True, False),
        ("UPDATE t SET changes = 1", False, False, False),
    ],
)
def test_words_in_strings_names_and_parameters_do_not_count(sql, returning, replaces, counts):
    found = classify(sql)
    assert (found.returning, found.replaces, found.counts) == (returning, replaces, counts)


@pytest.mark.parametrize(
    "sql, name, value",
    [
        ("PRAGMA journal_mode", "journal_mode", None),
        ("pragma main.Journal_Mode = 'WAL'", "journal_mode", "WAL"),
        ("PRAGMA capture_data_changes_conn('full,my log')", "capture_data_changes_conn", "full,my log"),
    ],
)
def test_a_pragma_has_a_name_and_perhaps_a_value(sql, name, value):
    found = classify(sql)
    assert (found.kind, found.what, found.value) == (Kind.PRAGMA, name, value)


@pytest.mark.parametrize(
    "sql, table",
    [
        ("INSERT OR IGNORE INTO main.T VALUES (1)", "t"),
        ('REPLACE INTO "A ""b" VALUES (1)', 'a "b'),
        ("UPDATE OR FAIL [t u] SET a = 1", "t u"),
        ("WITH x AS (SELECT 1 FROM y) DELETE FROM t WHERE a IN (SELECT * FROM u)", "t"),
        ("DELETE FROM t", "t"),
    ],
)
def test_a_statement_writes_one_table(sql, table):
    assert target(sql) == table


def test_a_script_is_split_where_statements_end():
    script = "a;; b 'x;y' -- c;\n; CREATE TRIGGER t AFTER INSERT ON u BEGIN d; e; END; /* ; */ f"
    assert [part.strip() for part in split(script)] == [
        "a;",
        "b 'x;y' -- c;\n;",
        "CREATE TRIGGER t AFTER INSERT ON u BEGIN d; e; END;",
        "/* ; */ f",
    ]


@pytest.mark.parametrize(
    "sql, says",
    [
        ("CREATE TRIGGER a AFTER INSERT ON t BEGIN UPDATE t SET b = replace(b, 'x', 'y'); END", False),
        ("CREATE TRIGGER a AFTER INSERT ON t BEGIN SELECT 1 WHERE new.b OR replace (new.c, 1, 2); END", False),
        ("CREATE TRIGGER a AFTER INSERT ON t BEGIN SELECT 1; INSERT or Replace INTO u VALUES (1); END", True),
        ("CREATE TRIGGER a AFTER INSERT ON t BEGIN REPLACE INTO u VALUES (1); END", True),
        ("CREATE TRIGGER a AFTER INSERT ON t BEGIN UPDATE OR REPLACE u SET a = 1; END", True),
        ("CREATE TABLE t(a DEFAULT 'on conflict replace', \"or replace into\")", False),
        ("CREATE TABLE t(a, UNIQUE (a) ON CONFLICT REPLACE)", True),
    ],
)
def test_a_clause_that_replaces_is_told_from_the_function_and_from_names(sql, says):
    assert says_to_replace(sql) is says


@pytest.mark.parametrize(
    "sql, expected",
    [
        ("CREATE TRIGGER a BEFORE DELETE ON t BEGIN INSERT INTO u VALUES ('after insert'); END", ("BEFORE", "DELETE")),
        ("CREATE TRIGGER a DELETE ON t BEGIN SELECT 1; END", ("BEFORE", "DELETE")),
        (
            "CREATE TEMP TRIGGER IF NOT EXISTS m.[before] AFTER UPDATE OF a ON t BEGIN SELECT 1; END",
            ("AFTER", "UPDATE"),
        ),
        ("CREATE TRIGGER a INSTEAD OF INSERT ON v BEGIN SELECT 1; END", ("INSTEAD", "INSERT")),
    ],
)
def test_a_trigger_says_when_it_runs(sql, expected):
    assert moment(sql) == expected


def test_what_an_index_has_is_read_as_it_is_written():
    sql = "CREATE UNIQUE INDEX i ON t(lower(a || ', '), b COLLATE NOCASE DESC, c ASC) WHERE a > (1)"
    terms, where = indexed(sql)
    assert [each.strip() for each in terms] == ["lower(a || ', ')", "b COLLATE NOCASE", "c"]
    assert where.strip() == "a > (1)"


@pytest.mark.parametrize("text", [" " * 5000, "\n" + " " * 5000 + "-- nothing", " ;" * 5000 + "(", "/* " * 5000])
def test_what_is_no_statement_is_seen_at_once(text):
    """Without trying all the ways in which spaces can be divided."""
    assert classify(text).kind is Kind.READ
