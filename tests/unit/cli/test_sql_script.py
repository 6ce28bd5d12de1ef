"""A script as statements and commands: quotes, comments and lines (issue 5: "keep line numbers")."""

from __future__ import annotations

import pytest

from tidegate.cli.shell.commands import (
    Begin,
    Commit,
    Rollback,
    SetValue,
    ShowSettings,
    read_command,
    read_statement,
    tag,
)
from tidegate.cli.shell.script import Feed, Item, is_complete, items
from tidegate.errors import InvalidArgument, NotFound

NAMES = frozenset({"consistency", "engine"})


class TestItems:
    @pytest.mark.parametrize(
        ("text", "parts"),
        [
            ("a;b", ["a", "b"]),
            ("a ; ; b;", ["a", "b"]),
            ("a 'x;y' b; c", ["a 'x;y' b", "c"]),
            ('a "x;y"; `;`', ['a "x;y"', "`;`"]),
            ("a -- b; c\nd; e", ["a -- b; c\nd", "e"]),
            ("a /* b; c */ d; e", ["a /* b; c */ d", "e"]),
            ("a /* b /* c; */ d; */ e; f", ["a /* b /* c; */ d; */ e", "f"]),
            ("a - b / c; d", ["a - b / c", "d"]),
            ("-- only a comment;\n/* and; another */ ;", []),
            (r"a 'it\'s; b'; c", [r"a 'it\'s; b'", "c"]),
            ("a 'it''s; b'; c", ["a 'it''s; b'", "c"]),
            (r"a r'\'; b", [r"a r'\'", "b"]),
        ],
    )
    def test_a_semicolon_in_quotes_or_a_comment_ends_nothing(self, text: str, parts: list[str]) -> None:
        assert [each.text for each in items(text)] == parts

    def test_each_knows_its_line_however_many_comments_stand_before_it(self) -> None:
        text = "-- first\nSELECT 1;\n\n/* two\nlines */ SELECT\n 2; SELECT 3"
        assert [(each.line, each.text.split()[-1]) for each in items(text)] == [(2, "1"), (5, "2"), (6, "3")]

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("SELECT 1;\nSELECT 'abc;\n\n", "a quote ' opened in line 2"),
            ("SELECT 1;\n\n/* to do;", "a comment opened in line 3"),
            ("SELECT `a", "a quote ` opened in line 1"),
        ],
    )
    def test_what_is_not_closed_is_named_with_its_line(self, text: str, says: str) -> None:
        with pytest.raises(InvalidArgument, match=says):
            items(text)

    def test_a_line_that_begins_with_a_backslash_is_a_command_whatever_is_in_it(self) -> None:
        assert items("SELECT 1;\n\\i it's.sql\nSELECT 2") == [
            Item("SELECT 1", 1),
            Item("\\i it's.sql", 2),
            Item("SELECT 2", 3),
        ]

    def test_a_backslash_inside_a_statement_is_none(self) -> None:
        assert [each.text for each in items("SELECT\n\\d\n;")] == ["SELECT\n\\d"]


def test_a_pipe_gives_each_statement_as_soon_as_it_is_complete() -> None:
    feed = Feed()
    assert feed.add("SELECT\n") == []
    assert feed.add("1; SELECT 'a;\n") == [Item("SELECT\n1", 1)]
    assert feed.add("b';\n") == [Item("SELECT 'a;\nb'", 2)]
    assert feed.add("\\d\n") == [Item("\\d", 4)]
    assert feed.add("SELECT 3\n") == [] and feed.end() == [Item("SELECT 3", 5)]


@pytest.mark.parametrize("text", ["", "  ", "\\d", " \\d acc", "SELECT 1;", "SELECT 1; -- done", "SELECT 1;\n\n"])
def test_enter_runs_what_is_complete(text: str) -> None:
    assert is_complete(text)


@pytest.mark.parametrize("text", ["SELECT 1", "SELECT ';", "SELECT 1; SELECT", "SELECT 1 -- ;", "/* ;"])
def test_enter_goes_on_with_what_is_not(text: str) -> None:
    assert not is_complete(text)


class TestShellStatements:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("SET consistency = strong", SetValue("consistency", "strong")),
            ("set consistency to bounded 2s -- a note", SetValue("consistency", "bounded 2s")),
            ("SET timeout 30", SetValue("timeout", "30")),
            ("SET consistency = '2026-01-01T00:00:00Z'", SetValue("consistency", "'2026-01-01T00:00:00Z'")),
            ("SET", ShowSettings()),
            ("SHOW SET", ShowSettings()),
            ("show engine", ShowSettings("engine")),
            ("SHOW TABLES", None),
            ("begin", Begin()),
            ("START TRANSACTION", Begin()),
            ("BEGIN WORK", Begin()),
            ("COMMIT", Commit()),
            ("/* so */ ROLLBACK TRANSACTION", Rollback()),
            ("SELECT 'SET x = 1'", None),
        ],
    )
    def test_the_shell_takes_what_is_its_own(self, text: str, expected: object) -> None:
        assert read_statement(text, NAMES) == expected

    @pytest.mark.parametrize("text", ["BEGIN ISOLATION LEVEL", "COMMIT twice", "SET x"])
    def test_what_it_half_understands_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match="not understood"):
            read_statement(text, NAMES)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("\\foo", "no command \\\\foo; .*lists them"),
            ("\\statsu", "did you mean \\\\status"),
            ("\\", "no command"),
            ("\\9", "no command"),
        ],
    )
    def test_an_unknown_command_is_told_and_the_nearest_named(self, text: str, says: str) -> None:
        with pytest.raises(NotFound, match=says):
            read_command(text)

    @pytest.mark.parametrize("text", ["\\q now", "\\i"])
    def test_an_argument_too_many_or_too_few_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidArgument):
            read_command(text)

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("select 1", "SELECT"),
            ("CREATE TABLE t", "CREATE TABLE"),
            ("DESCRIBE t", "DESCRIBE"),
            ("SHOW\nTOPICS", "SHOW TOPICS"),
        ],
    )
    def test_a_statement_has_a_name(self, text: str, name: str) -> None:
        assert tag(text) == name
