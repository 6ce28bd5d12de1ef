"""The `tidegate` command. Subcommands are imported when they are used, so that `--help` answers at once.

Exit codes: 0 fine; 1 the input or the data is wrong; 2 the command line is wrong; 3 damage was found;
4 a goal was missed; 5 a conflict with what a target holds; 130 interrupted; 141 whoever read the output closed it
before its end.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

import click

from tidegate import __version__
from tidegate.errors import TidegateError

INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
"""What a shell reports for a process that SIGPIPE ended; by hand here, since Python ignores that signal."""


class Failure(click.ClickException):
    """An error the user can do something about: its message and no traceback."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"tidegate: {self.format_message()}", file=file or sys.stderr)


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on use."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        """`lazy` maps a command's name to `module:attribute` and the line that `--help` shows for it."""
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise Failure(f"`{cmd_name}` needs the Python module {error.name!r}, which is not installed") from error
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Turn what can go wrong into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except TidegateError as error:
            raise Failure(str(error)) from error
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _silence(sys.stdout)
            ctx.exit(PIPE_CLOSED)
        except OSError as error:
            raise Failure(_explain(error)) from error


def _explain(error: OSError) -> str:
    if error.filename is None:
        return f"{error.strerror or error}; the output could not be written, or a file could not be read"
    return f"{error.filename}: {error.strerror}; check the path and its permissions"


def _silence(stream: TextIO) -> None:
    """Nobody reads any more: let whatever is still buffered go nowhere instead of failing at exit."""
    try:
        descriptor = stream.fileno()
    except OSError:
        return  # Not a file: a test's buffer.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


_COMMANDS: Final = {
    "demo": ("tidegate.cli.demo:demo", "Watch a bank, or a shop that is captured, live, and every cut of it checked."),
    "status": ("tidegate.cli.status:status", "Show the state of a database: what goes on, what waits, and on what."),
    "transactions": ("tidegate.cli.transactions:transactions", "List open and hanging transactions; end one."),
    "topic": ("tidegate.cli.topic:topic", "Send messages to a topic, and read them."),
    "capture": ("tidegate.cli.capture:capture", "Take another database's transactions into this one."),
    "sql": ("tidegate.cli.sql:sql", "Run statements in a database."),
    "apply": ("tidegate.cli.apply:apply", "Apply a database's transactions to SQLite, Turso or PostgreSQL."),
    "log": ("tidegate.cli.log:log", "Look into a log: channels, segments, messages; verify and repair it."),
    "bench": ("tidegate.cli.bench:bench", "Measure this machine, each figure against a plain alternative."),
    "simulate": ("tidegate.cli.simulate:simulate", "Run the code in a simulated world of faults, by seed."),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine, 1 input or data is wrong, 2 usage, 3 damage found, 4 goal missed, 5 conflict at a"
    " target, 130 interrupted, 141 output closed by its reader.",
)
@click.version_option(__version__, prog_name="tidegate", message="%(prog)s %(version)s")
def tidegate() -> None:
    """Transactions, one timeline and untorn answers for streaming data.

    \b
    Examples:
      tidegate demo
      tidegate sql shop.tide "CREATE TABLE t (id INT PRIMARY KEY, n INT)" --create
      tidegate sql shop.tide "CREATE TOPIC audit"
      tidegate topic read shop.tide audit --follow
      tidegate capture sqlite:///app.db --into shop.tide
      tidegate status shop.tide --watch
      tidegate transactions shop.tide --older-than 10s
      tidegate log show shop.tide
      tidegate log print shop.tide orders --follow
      tidegate bench all --check
    """


def main() -> None:
    """The entry point of the installed command."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # It was closed before we were started.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif hasattr(stream, "reconfigure"):
            # A body may hold characters that the terminal's encoding lacks; show them escaped rather than fail.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            tidegate(prog_name="tidegate")
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        _end(end)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except BrokenPipeError:
        _silence(sys.stdout)
        sys.exit(PIPE_CLOSED)
    except OSError as error:
        _silence(sys.stdout)
        Failure(_explain(error)).show()
        sys.exit(Failure.exit_code)


def _end(end: SystemExit) -> None:
    """End the process at once: taking apart all that was loaded takes 0.2 s, and everything is closed by now."""
    if not isinstance(end.code, int | None):
        raise end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(end.code or 0)


if __name__ == "__main__":
    main()
