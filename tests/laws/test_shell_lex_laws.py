"""The shell's tokens against those of the reader of statements: both must agree on where a statement ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sqlglot.errors import TokenError
from sqlglot.tokens import TokenType

from tidegate.cli.shell.lex import tokens
from tidegate.cli.shell.script import Feed, items, split
from tidegate.errors import InvalidArgument
from tidegate.tables.spark_sql import DIALECT

# Marks of comments stand apart: sqlglot miscounts those that touch, as in /*/**/*/.
PIECES = st.sampled_from(
    [
        "'",
        '"',
        "`",
        ";",
        "--",
        "\n",
        " /* ",
        " */ ",
        "\\",
        "\\'",
        "''",
        "r'",
        'R"',
        " ",
        "a",
        "SELECT ",
        "1",
        "x.y",
        "é",
        "-",
    ]
)
TEXTS = st.lists(PIECES, max_size=25).map("".join)


@given(TEXTS)
def test_a_semicolon_ends_a_statement_where_the_reader_of_statements_says_so(text: str) -> None:
    """A law with a twin: sqlglot's tokenizer, in the dialect in which statements are read."""
    try:
        theirs = [each.start for each in DIALECT.tokenize(text) if each.token_type == TokenType.SEMICOLON]
    except TokenError:
        assert any(each.open for each in tokens(text)), "they miss an end, and the shell does not"
        return
    ours = list(tokens(text))
    assert [each.start for each in ours if each.kind == "end"] == theirs
    assert not any(each.open and each.open != "*/" for each in ours)


@given(TEXTS)
def test_tokens_are_the_text(text: str) -> None:
    assert "".join(each.text for each in tokens(text)) == text


@given(TEXTS)
def test_items_say_the_line_they_begin_in(text: str) -> None:
    lines = text.split("\n")
    for item in split(text).items:
        assert lines[item.line - 1].find(item.text.split("\n")[0].rstrip()) >= 0


@given(TEXTS)
def test_lines_one_by_one_give_the_same_items_as_the_whole(text: str) -> None:
    """A pipe is read as it comes."""

    def fed() -> list[object]:
        feed = Feed()
        found = [item for line in text.splitlines(keepends=True) for item in feed.add(line)]
        return [*found, *feed.end()]

    def outcome(read: object) -> object:
        try:
            return read()  # type: ignore[operator]
        except InvalidArgument as error:
            return str(error)

    if all(each not in text for each in ("\r", "\x0b", "\x0c")):
        assert outcome(fed) == outcome(lambda: items(text))
