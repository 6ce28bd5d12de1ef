"""How commands reach a database: through the process that has it open, or by opening it themselves."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidegate.cli.output import console, print_json
from tidegate.errors import NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.database.database import Database

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|min|h)?")

path_argument: Final[Callable[[Any], Any]] = click.argument("path", type=click.Path(path_type=Path))
watch_options: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option("--watch", is_flag=True, help="Show it again and again until Ctrl-C."),
    click.option(
        "--every",
        "every_s",
        type=click.FloatRange(min=0.1, max=3600),
        default=1.0,
        show_default=True,
        metavar="SECONDS",
        help="With --watch: how often.",
    ),
)


def watchable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--watch` and `--every`."""
    for option in reversed(watch_options):
        command = option(command)
    return command


@contextmanager
def reach(path: Path, command: str, *, create: bool = False) -> Iterator[Database]:
    """The database at `path`; `command` is how this client is called in lists.

    Raises: `NotFound` when there is none and `create` is off: looking must not make one.
    """
    import tidegate

    if not create:
        check_exists(path)
    with tidegate.open(path, name=f"tidegate {command}, process {os.getpid()}") as db:
        yield db


def check_exists(path: Path) -> None:
    """Raises: `NotFound` when `path` holds no database."""
    if (path / "log" / "system").is_dir():
        return
    if not path.exists():
        raise NotFound(f"there is no database at {path}; check the path, or make one with tidegate.open({str(path)!r})")
    if path.is_dir() and (path / "log").is_dir():
        raise NotFound(f"{path} holds a log and no database; look at it with `tidegate log show {path}`")
    raise NotFound(f"{path} is not a database; name the directory that was given to tidegate.open")


def note_opened(db: Database) -> None:
    """Say on stderr that nobody else has the database open, which explains why so little is going on in it."""
    if db.is_owner:
        click.echo(f"nobody had {db.path} open, so this command opened it", err=True)


def span_ms(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A span of time as text: `10s`, `500ms`, `2m`, or a number of seconds."""
    if value is None:
        return None
    match = _SPAN.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is no span of time; write 500ms, 10s, 2m or 1h.", ctx, param)
    return round(float(match[1]) * _UNITS[match[2] or "s"])


def show(
    ask: Callable[[], Any],
    draw: Callable[[Any], RenderableType],
    as_lines: Callable[[Any], Iterator[Any]],
    *,
    as_json: bool,
    watch: bool,
    every_s: float,
) -> None:
    """Print what `ask` returns: drawn, or as JSON; with `watch` again and again."""
    if not watch:
        found = ask()
        if not as_json:
            console().print(draw(found))
        for line in as_lines(found) if as_json else ():
            print_json(line)
        return
    from rich.live import Live

    screen = console()
    if as_json or not screen.is_terminal:
        while True:
            found = ask()
            if as_json:
                print_json(found)
            else:
                screen.print(draw(found))
                screen.print()
            time.sleep(every_s)
    with Live(draw(ask()), console=screen, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            time.sleep(every_s)
            live.update(draw(ask()), refresh=True)
