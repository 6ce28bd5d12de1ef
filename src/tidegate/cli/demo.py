"""`tidegate demo`: a log and a database at work, live in the terminal."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Protocol, TypeVar

import click
from rich.console import RenderableType
from rich.live import Live

from tidegate.cli.demo_reader import Count
from tidegate.cli.demo_view import frame, is_right, line
from tidegate.cli.demo_work import Work
from tidegate.cli.output import console, print_json, print_line
from tidegate.errors import InvalidArgument, Unavailable
from tidegate.runtime.log import Log

_FRAME_S = 0.1
_SECONDS_BANK = 60.0
_SECONDS_SHOP = 50.0
_SECONDS = 8.0
_SECONDS_TABLES = 15.0
_LINE_S = 2.0
"""Between two lines of the bank and the shop, where there is no terminal."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Closes(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closes)


@click.command()
@click.argument("scene", type=click.Choice(["bank", "shop", "log", "money", "tables"]), default="bank")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=3600),
    help="How long a scene takes: bank 60, shop 50, log and money 8, tables 15 once Spark runs.",
)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Keep the data here; else it is temporary.")
@click.option("--plain", is_flag=True, help="Lines of text instead of a live picture; so it is in a pipe, too.")
@click.option(
    "--json", "to_json", is_flag=True, help="Of bank and shop: a JSON object at the end. Of tables: one a second, too."
)
@click.option("--no-kill", is_flag=True, help="Of bank, shop and tables: kill no process.")
@click.pass_context
def demo(
    ctx: click.Context,
    scene: str,
    seconds: float | None,
    directory: Path | None,
    plain: bool,
    to_json: bool,
    no_kill: bool,
) -> None:
    """Watch Tidegate at work, live. Ctrl-C ends it.

    bank, the main scene: a process moves money between 1,000 accounts, each transfer a transaction over two tables,
    while Spark folds all of it into checkpoints and four readers add up all balances: strong, bounded, in the writer's
    session, eventual. The sum must be the same at every cut. After a third of the time the writer is killed and started
    again; at the end every acknowledged transfer must be there once. Without Spark or Java there are no checkpoints.

    shop: an application sells on SQLite: orders, items and payments, in transactions. A capture takes each of them into
    Tidegate, where a view joins every order with its items and its payment, and readers ask for all of them, again and
    again. Application, capture and pipeline are killed in turn, and start again. No answer may have a part of an order,
    and at the end tables and view must be what SQLite has.

    log: seven threads write to two channels, and two processes read them. One writer now and then takes a TimeTick
    and holds it: no tick may pass it, so both TimeTicks of its channel wait, and nobody else's appends do. At the end
    both readers must have got everything that was acknowledged, in order.

    money: four threads move money between accounts, each transfer a transaction over four channels, while a reader adds
    all of it up at every cut and a subscription consumes every message in transactions of its own. The sum must be the
    same at every cut, and every message be consumed once, though transactions are rolled back all the time.

    tables: four threads move money between the rows of a table and note each transfer in another, while Spark folds all
    of it into checkpoints. The balances are added up at the last checkpoint, strongly, and at random earlier times; the
    sum must always be the same. In the middle the worker with Spark in it is killed: another one goes on, and nothing
    is lost. It needs Spark and Java.

    If something is not as it must be, the exit code is 1.

    \b
    Examples:
      tidegate demo
      tidegate demo --seconds 20 --dir demo.tide
      tidegate demo --json
      tidegate demo shop
      tidegate demo money --seconds 30
      tidegate demo tables --no-kill
    """
    if to_json and scene not in ("bank", "shop", "tables"):
        raise click.UsageError("--json is for three scenes: tidegate demo bank --json, and so shop and tables")
    is_live = not (plain or to_json) and sys.stdout.isatty()
    with ExitStack() as stack:
        # Cleaning up takes a moment; a second Ctrl-C must not leave half of it behind.
        stack.callback(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        path = directory or _temporary(stack)
        mine, what = ("shop.tide", "shop") if scene == "shop" else ("log", "log")
        if path.is_dir() and any(path.iterdir()) and not (path / mine).is_dir():
            raise InvalidArgument(f"{path} is not empty and holds no {what}; name a new directory")
        stack.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)
        match scene:
            case "log":
                good = _play_log(path, seconds or _SECONDS, is_live)
            case "money":
                good = _play_money(path, seconds or _SECONDS, is_live)
            case "tables":
                missing = _missing()
                if missing is not None:
                    raise Unavailable(f"demo tables: {missing}")
                good = _play_tables(path, seconds or _SECONDS_TABLES, is_live, kill=not no_kill, to_json=to_json)
            case "shop":
                good = _play_shop(path, seconds or _SECONDS_SHOP, is_live, kill=not no_kill, to_json=to_json)
            case _:
                good = _play_bank(path, seconds or _SECONDS_BANK, is_live, kill=not no_kill, to_json=to_json)
        if not good:
            ctx.exit(1)
        if directory is not None and not to_json:
            look = f"tidegate sql {path / 'shop.tide'}" if scene == "shop" else f"tidegate log show {path}"
            print_line(f"The data is in {path}; look at it with `{look}`.")


def _play_bank(path: Path, seconds: float, is_live: bool, *, kill: bool, to_json: bool) -> bool:
    from tidegate.cli import demo_bank_view as view
    from tidegate.cli.demo_bank import Bank

    bank = Bank(path, seconds, kill=kill)
    with _in_good_order(bank):
        say = _say_line(lambda: view.line(bank), to_json)
        _watch(bank.done, lambda: view.frame(bank), say, is_live, every_s=_LINE_S)
        good = view.summary(bank, to_json=to_json)
        if is_live and bank.is_spark_starting:
            print_line("Spark, which was still starting, is ended; that takes a moment.", style="dim")
        return good


def _play_shop(path: Path, seconds: float, is_live: bool, *, kill: bool, to_json: bool) -> bool:
    from tidegate.cli import demo_shop_view as view
    from tidegate.cli.demo_shop import Shop

    shop = Shop(path, seconds, kill=kill)
    with _in_good_order(shop):
        say = _say_line(lambda: view.line(shop), to_json)
        _watch(shop.done, lambda: view.frame(shop), say, is_live, every_s=_LINE_S)
        return view.summary(shop, to_json=to_json)


class _Interruptible(_Closes, Protocol):
    @property
    def interrupted(self) -> Event: ...

    def start(self) -> None: ...


@contextmanager
def _in_good_order(scene: _Interruptible) -> Iterator[None]:
    """Start a scene; it ends in good order and with a summary, whoever asks for it, and however often."""

    def interrupt(*_: object) -> None:
        scene.interrupted.set()

    with ExitStack() as stack:
        for each in _ENDS:
            stack.callback(signal.signal, each, signal.signal(each, interrupt))
        stack.callback(scene.close)
        scene.start()
        yield


def _say_line(text: Callable[[], str], to_json: bool) -> Callable[[], None]:
    def say() -> None:
        if not to_json:
            click.echo(text())

    return say


def _play_log(path: Path, seconds: float, is_live: bool) -> bool:
    with _closing(Log(path)) as log, _closing(Work(log, random.Random())) as work:
        work.start()
        ran = _show(work, seconds, lambda: frame(work, seconds), lambda: line(work), is_live)
        return _summary(work, ran)


def _play_money(path: Path, seconds: float, is_live: bool) -> bool:
    from tidegate.cli import demo_money_view as view
    from tidegate.cli.demo_money import Money

    with _closing(Money(path, random.Random())) as money:
        money.start()
        ran = _show(money, seconds, lambda: view.frame(money, seconds), lambda: view.line(money), is_live)
        return view.summary(money, ran)


def _missing() -> str | None:
    from tidegate.cli.demo_tables import what_is_missing

    with tempfile.TemporaryDirectory(prefix="tidegate-demo-java-") as work:
        return what_is_missing(Path(work))


def _play_tables(path: Path, seconds: float, is_live: bool, *, kill: bool, to_json: bool) -> bool:
    from tidegate.cli import demo_tables_view as view
    from tidegate.cli.demo_tables import Tables

    def say() -> None:
        if to_json:
            print_json(view.as_json(tables))
        else:
            click.echo(view.line(tables))

    with _closing(Tables(path, random.Random(), seconds, kill=kill)) as tables:
        tables.start()
        _watch(tables.done, lambda: view.frame(tables), say, is_live)
        return view.summary(tables, to_json=to_json)


@contextmanager
def _closing(thing: T) -> Iterator[T]:
    """Close it at the end, whatever happens, and let no second Ctrl-C disturb that."""
    try:
        yield thing
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        thing.close()
        signal.signal(signal.SIGINT, before)


def _temporary(stack: ExitStack) -> Path:
    path = tempfile.mkdtemp(prefix="tidegate-demo-")
    stack.callback(shutil.rmtree, path, ignore_errors=True)
    return Path(path) / "demo.tide"


class _Scene(Protocol):
    started: float

    def finish(self) -> float:
        """Come to the end; how many seconds it ran."""


def _show(
    scene: _Scene, seconds: float, picture: Callable[[], RenderableType], text: Callable[[], str], is_live: bool
) -> float:
    """Show a picture ten times a second and one of the end, or print a line a second; how long it ran."""
    end = scene.started + seconds
    if not is_live:
        while (left := end - monotonic()) > 0:
            sleep(min(left, 1.0))
            click.echo(text())
            sys.stdout.flush()
        return scene.finish()
    with Live(picture(), console=console(), auto_refresh=False) as live:
        while monotonic() < end:
            sleep(_FRAME_S)
            live.update(picture(), refresh=True)
        ran = scene.finish()
        live.update(picture(), refresh=True)
    return ran


def _watch(
    done: Event, picture: Callable[[], RenderableType], say: Callable[[], None], is_live: bool, every_s: float = 1.0
) -> None:
    """As `_show`, of a scene that knows itself when it is over."""
    if not is_live:
        while not done.wait(every_s):
            say()
            sys.stdout.flush()
        return
    with Live(picture(), console=console(), auto_refresh=False) as live:
        while not done.wait(2 * _FRAME_S):  # The machine is Spark's, too.
            live.update(picture(), refresh=True)
        live.update(picture(), refresh=True)


def _summary(work: Work, ran: float) -> bool:
    """Say how it went; whether both readers got all that was acknowledged, in order."""
    rows = work.rows
    print_line()
    print_line(f"{rows:,} rows acknowledged in {ran:.1f} s, {rows / ran:,.0f} rows/s, each synced before that")
    holder = work.writers[-1]
    if holder.holds:
        print_line(
            f"{holder.holds} times {holder.name} held the watermark of orders back, for up to"
            f" {holder.held_max_s * 1e3:.0f} ms; no append waited for that"
        )
    ok = True
    for name, counts in (("this process", work.here), (f"process {work.process_id}", work.there)):
        received = sum(each.rows for each in counts.values())
        good = received == rows and is_right(counts)
        ok = ok and good
        print_line(f"{received:,} rows received in {name}, {_order(counts)}", style=None if good else "red")
    for writer in work.writers:
        if writer.error is not None:
            ok = False
            print_line(f"{writer.name} stopped: {writer.error}", style="red")
    verdict = "Everything acknowledged was received by both readers, in order."
    if ok:
        print_line(verdict, style="bold green")
    else:
        print_line("NOT everything acknowledged was received by both readers in order.", style="bold red")
    return ok


def _order(counts: dict[str, Count]) -> str:
    errors = [each.error for each in counts.values() if each.error is not None]
    if errors:
        return errors[0]
    return "in TimeTick order" if is_right(counts) else "NOT in TimeTick order"
