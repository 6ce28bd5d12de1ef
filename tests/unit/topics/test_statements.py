"""The SQL of topics: what is read, and what an error says (public face: CREATE TOPIC; errors name the thing)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import InvalidArgument
from tidegate.topics.statements import (
    CreateTopic,
    DescribeTopic,
    DropSubscription,
    DropTopic,
    ShowSubscriptions,
    ShowTopics,
    ShowTransactions,
    Statement,
    is_topic_statement,
    parse,
)

READ: list[tuple[str, Statement]] = [
    ("CREATE TOPIC audit", CreateTopic("audit")),
    ("create topic Audit;", CreateTopic("Audit")),
    ("CREATE TOPIC IF NOT EXISTS audit SHARDS 4", CreateTopic("audit", 4, True)),
    ("CREATE TOPIC audit WITH (shards = 16)", CreateTopic("audit", 16)),
    ("CREATE TOPIC audit with(SHARDS=1) ;", CreateTopic("audit", 1)),
    ("CREATE TOPIC `my-topic`", CreateTopic("my-topic")),
    ('CREATE TOPIC "my-topic" SHARDS 2', CreateTopic("my-topic", 2)),
    ("CREATE TOPIC `a``b`", CreateTopic("a`b")),
    ('CREATE TOPIC "a""b"', CreateTopic('a"b')),
    ("CREATE TOPIC shop.orders", CreateTopic("shop.orders")),
    ("CREATE TOPIC shards SHARDS 3", CreateTopic("shards", 3)),
    ("CREATE TOPIC `if`", CreateTopic("if")),
    ("DROP TOPIC audit", DropTopic("audit")),
    ("drop topic if exists audit", DropTopic("audit", True)),
    ("DESCRIBE TOPIC audit", DescribeTopic("audit")),
    ("SHOW TOPICS", ShowTopics()),
    ("SHOW SUBSCRIPTIONS", ShowSubscriptions()),
    ("SHOW SUBSCRIPTIONS ON audit", ShowSubscriptions("audit")),
    ("SHOW SUBSCRIPTIONS FOR `audit`;", ShowSubscriptions("audit")),
    ("DROP SUBSCRIPTION billing ON audit", DropSubscription("billing", "audit")),
    ("DROP SUBSCRIPTION IF EXISTS billing ON audit", DropSubscription("billing", "audit", True)),
    ("SHOW TRANSACTIONS", ShowTransactions()),
    (
        "-- first\n  /* a comment;\n over lines */ CREATE -- here\n TOPIC/**/audit; -- and there",
        CreateTopic("audit"),
    ),
]


@pytest.mark.parametrize(("sql", "expected"), READ, ids=[sql for sql, _ in READ])
def test_each_statement_is_read(sql: str, expected: Statement) -> None:
    assert parse(sql) == expected
    assert is_topic_statement(sql)


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("", "the statement ends where CREATE TOPIC or"),
        (";", "';' at column 1"),
        ("SELECT 1", "'SELECT' at column 1 is not understood: CREATE TOPIC or DESCRIBE TOPIC or DROP SUBSCRIPTION"),
        ("CREATE TABLE t (a INT)", "'TABLE' at column 8 is not understood: TOPIC is expected"),
        ("SHOW TABLES", "'TABLES' at column 6 is not understood: SUBSCRIPTIONS or TOPICS or TRANSACTIONS is expected"),
        ("CREATE TOPIC", "the statement ends where the name of a topic is expected: CREATE TOPIC"),
        ("CREATE TOPIC 'audit'", '"\'" at column 14 is not understood: the name of a topic'),
        ("CREATE TOPIC 7up", "'7' at column 14 is not understood: the name of a topic"),
        ("CREATE TOPIC my-topic", "quote a name that has a dash: `my-...`"),
        ("CREATE TOPIC IF EXISTS a", "'EXISTS' at column 17 is not understood: NOT is expected"),
        ("CREATE TOPIC a SHARD 3", "'SHARD' at column 16 is not understood: SHARDS, WITH or the end"),
        ("CREATE TOPIC a SHARDS", "ends where a number is expected"),
        ("CREATE TOPIC a SHARDS -1", "'-' at column 23 is not understood: a number"),
        ("CREATE TOPIC a SHARDS 1000000000000000000000", "a number of fewer digits"),
        ("CREATE TOPIC a WITH shards = 3", "'shards' at column 21 is not understood: ( is expected"),
        ("CREATE TOPIC a WITH (retention = 3)", "'retention' at column 22 is not understood: SHARDS is expected"),
        ("CREATE TOPIC a WITH (shards = 3", "ends where ) is expected"),
        ("CREATE TOPIC a SHARDS 3 WITH (shards = 3)", "'WITH' at column 25 is not understood: the end"),
        ("CREATE TOPIC a; DROP TOPIC a", "'DROP' at column 17 is not understood: the end of the statement"),
        ("DROP TOPIC IF NOT EXISTS a", "'NOT' at column 15 is not understood: EXISTS"),
        ("DROP SUBSCRIPTION billing", "ends where ON is expected"),
        ("DROP SUBSCRIPTION billing FROM a", "'FROM' at column 27 is not understood: ON is expected"),
        ("SHOW\nTOPICS\n  now", "'now' at line 3, column 3 is not understood: the end of the statement"),
        ("SHOW SUBSCRIPTIONS OF a", "'OF' at column 20"),
        ("CREATE TOPIC `open", "'`' at column 14"),
        ("SHOW TOPICS /* open", "'/' at column 13"),
        ('"CREATE" TOPIC a', "at column 1 is not understood"),
    ],
)
def test_an_error_names_the_token_its_place_and_what_is_expected(sql: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(complaint)):
        parse(sql)


@pytest.mark.parametrize(
    ("sql", "ours"),
    [
        ("CREATE TOPIC", True),
        ("/* x */ drop subscription", True),
        ("SHOW TOPICS everywhere", True),
        ("CREATE TABLE topic (a INT)", False),
        ("SELECT * FROM topics", False),
        ("SHOW TABLES", False),
        ("DESCRIBE accounts", False),
        ("CREATE", False),
        ("", False),
        ("-- CREATE TOPIC a", False),
        ("CREATE 'TOPIC'", False),
        ('CREATE "TOPIC" a', False),
    ],
)
def test_two_words_decide_whose_statement_it_is(sql: str, ours: bool) -> None:
    assert is_topic_statement(sql) is ours


@given(st.text(alphabet=st.sampled_from(list("aB0_.-` \"'\n;()=/*")), max_size=30))
@settings(max_examples=300, deadline=None)
def test_a_quoted_name_comes_back_whatever_it_holds(name: str) -> None:
    for quote in ("`", '"'):
        quoted = quote + name.replace(quote, quote * 2) + quote
        assert parse(f"DROP TOPIC {quoted};") == DropTopic(name)


WORDS = ("CREATE", "DROP", "SHOW", "TOPIC", "TOPICS", "IF", "NOT", "EXISTS", "ON", "SHARDS", "WITH")


@given(st.lists(st.sampled_from([*WORDS, "a", "`b`", "3", "(", ")", "=", ";", "-"])))
@settings(max_examples=500, deadline=None)
def test_any_sequence_of_tokens_is_read_or_refused_and_nothing_else(words: list[str]) -> None:
    sql = " ".join(words)
    try:
        parse(sql)
    except InvalidArgument as error:
        assert "expected" in str(error)
    else:
        assert is_topic_statement(sql)
