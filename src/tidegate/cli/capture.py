"""`tidegate capture`: take another database's transactions into this one, and watch them come."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import click

from tidegate.cli.output import console, json_option, print_json, print_line, print_table
from tidegate.cli.reach import check_exists, reach

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.capture.capturing import Capture
    from tidegate.database.database import Database

_FRAME_S: Final = 0.2
_LINE_S: Final = 2.0
"""Between two lines where there is no terminal."""
_RATE_OVER_S: Final = 3.0


@click.command()
@click.argument("url", required=False)
@click.option(
    "--into",
    "path",
    type=click.Path(path_type=Path),
    required=True,
    help="The database; it is made if it is not there.",
)
@click.option("--tables", metavar="NAME,...", help="Those to take; all, unless you say so.")
@click.option("--prefix", help="What goes in front of their names here.")
@click.option(
    "--as", "names", multiple=True, metavar="NAME=OTHER", help="Another name for one here; may be given again."
)
@click.option(
    "--name", help="What this capture is called: it goes on from its own position. Made from the URL by default."
)
@click.option("--once", is_flag=True, help="End when all that is committed now is in; otherwise Ctrl-C ends it.")
@click.option("--restart", is_flag=True, help="Read everything anew, in place of what is here, in one transaction.")
@click.option("--drop", is_flag=True, help="Remove what it has made at the source and forget its position; rows stay.")
@click.option("--list", "is_list", is_flag=True, help="List the captures that the database knows.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of the source, such as mode=polling; may be given again.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TABLE.COLUMN=TYPE",
    help="Another type than the source's for a column here; may be given again.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="TABLE=COLUMN,...",
    help="The key of a table whose Debezium events bring none; may be given again.",
)
@json_option
def capture(
    url: str | None,
    path: Path,
    tables: str | None,
    prefix: str | None,
    names: tuple[str, ...],
    name: str | None,
    once: bool,
    restart: bool,
    drop: bool,
    is_list: bool,
    options: tuple[str, ...],
    types: tuple[str, ...],
    keys: tuple[str, ...],
    as_json: bool,
) -> None:
    """Take the transactions of the database at URL into the one at --into: whole, in order, each exactly once.

    What is there comes first, as one transaction; what is committed from then on follows, until Ctrl-C. The next time
    it goes on from exactly where it was. The position lies in the same transaction as the rows, so a crash anywhere
    neither loses nor repeats one.

    URL is sqlite:///app.db or turso:///app.db (from here; four slashes from the root), postgresql://user@host/db,
    debezium:///events (a file, or a directory of them) or debezium+topic:name (a topic of the database). An
    application on SQLite must record its changes: it connects by tidegate.capture.sqlite.connect.

    \b
    Examples:
      tidegate capture sqlite:///app.db --into shop.tide
      tidegate capture sqlite:///app.db --into shop.tide --tables orders,items --prefix app_
      tidegate capture postgresql://ann@db.example/shop --into shop.tide --once --json
      tidegate capture postgresql://ann@db.example/shop --into shop.tide --option mode=polling
      tidegate capture sqlite:///app.db --into shop.tide --type orders.total=STRING
      tidegate capture debezium:///events --into shop.tide --key orders=id
      tidegate capture --list --into shop.tide
      tidegate capture postgresql://ann@db.example/shop --into shop.tide --drop

    Exit codes: 0 ended by Ctrl-C or all taken, 1 source or database cannot be read or written, 2 usage.
    """
    if is_list:
        with reach(path, "capture") as db:
            _list(db, as_json)
        return
    if url is None:
        raise click.UsageError("which database? Give its URL, such as sqlite:///app.db, or --list")
    said: dict[str, Any] = dict(_pairs("--option", options))
    if types:
        said["types"] = _pairs("--type", types, "TABLE.COLUMN=TYPE")
    if keys:
        said["keys"] = {
            table: [each.strip() for each in key.split(",")]
            for table, key in _pairs("--key", keys, "TABLE=COLUMN,...").items()
        }
    into: str | dict[str, str] | None = _pairs("--as", names) or None
    if prefix is not None:
        if into is not None:
            raise click.UsageError("--prefix and --as cannot be combined: name every table with --as")
        into = prefix
    if not drop:
        _look(url, path, name, said)
    with reach(path, "capture", create=not drop) as db:
        if drop:
            from tidegate.capture.dropping import drop_capture

            found = drop_capture(db, url, name, **said)
            print_json({"name": found, "dropped": True}) if as_json else print_line(f"capture {found} is dropped")
            return
        with _ending() as ended:
            # None of them is a mistake, such as a variable of a script that is not set.
            wanted = None if tables is None else [each.strip() for each in tables.split(",") if each.strip()]
            work = db.capture(url, wanted, into, name=name, restart=restart, wait=False, **said)
            _watch(work, ended, once, as_json)


def _watch(work: Capture, ended: Event, once: bool, as_json: bool) -> None:
    """Show how it goes until it ends. Raises: what has ended it."""
    from rich.live import Live

    is_live = sys.stdout.isatty() and not as_json
    rates = _Rates()
    told = 0.0
    live = Live(console=console(), refresh_per_second=8, transient=False) if is_live else None
    try:
        if live is not None:
            live.start()
        while work.is_running and not ended.is_set():
            if once and work.state == "following":
                _catch_up(work, ended)
                break
            rates.sample(work.status())
            if live is not None:
                live.update(_picture(work, rates))
            elif time.monotonic() - told >= _LINE_S:
                told = time.monotonic()
                _tell(work, as_json)
            ended.wait(_FRAME_S)
        work.stop()
        if live is not None:
            live.update(_picture(work, rates))
    finally:
        if live is not None:
            live.stop()
    if not is_live:
        _tell(work, as_json)
    if work.state == "failed" and work.error is not None:
        raise work.error


def _catch_up(work: Capture, ended: Event) -> None:
    from tidegate.errors import WaitTimeout

    while not ended.is_set():
        try:
            work.catch_up(1.0)
            return
        except WaitTimeout:
            continue


class _Rates:
    """Transactions and rows a second over the last seconds."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int, int]] = []

    def sample(self, status: dict[str, Any]) -> None:
        now = time.monotonic()
        self._samples.append((now, status["transactions"], status["rows"]))
        while len(self._samples) > 2 and now - self._samples[1][0] > _RATE_OVER_S:
            self._samples.pop(0)

    def now(self) -> tuple[float, float]:
        if len(self._samples) < 2:
            return 0.0, 0.0
        (first, transactions, rows), (last, now_transactions, now_rows) = self._samples[0], self._samples[-1]
        over = max(last - first, 0.001)
        return (now_transactions - transactions) / over, (now_rows - rows) / over


def _picture(work: Capture, rates: _Rates) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    status = work.status()
    colours = {"following": "green", "waiting": "yellow", "failed": "red", "snapshot": "cyan"}
    head = Text.assemble(
        (f"{status['name'] or 'capture'} ", "bold"), (status["state"], colours.get(status["state"], "dim"))
    )
    parts: list[RenderableType] = [head]
    if status["state"] == "snapshot":
        bars = Table.grid(padding=(0, 2))
        for table, (done, whole) in sorted(work.snapshot_rows.items()):
            bars.add_row(
                table, ProgressBar(total=max(whole, 1), completed=done, width=30), f"{done:,} of {whole:,} rows"
            )
        parts.append(bars)
    else:
        transactions, rows = rates.now()
        facts = Table.grid(padding=(0, 2))
        facts.add_row("taken", f"{status['transactions']:,} transactions, {status['rows']:,} rows")
        facts.add_row("now", f"{transactions:,.0f} transactions/s, {rows:,.0f} rows/s")
        facts.add_row("behind", _behind(status["behind"]))
        facts.add_row("position", str(status["position"]))
        facts.add_row("tables", ", ".join(a if a == b else f"{a} as {b}" for a, b in status["tables"].items()))
        for table, why in status["left_out"].items():
            facts.add_row("not taken", f"{table}: {why}")
        parts.append(facts)
    if status["error"]:
        parts.append(Text(status["error"], style="red" if status["state"] == "failed" else "yellow"))
    return Group(*parts)


def _behind(found: dict[str, Any]) -> str:
    if not found:
        return "unknown"
    return ", ".join(
        f"{value:,} {name}" if isinstance(value, int) else f"{name} {value}" for name, value in found.items()
    )


def _tell(work: Capture, as_json: bool) -> None:
    status = work.status()
    if as_json:
        rows = {table: {"rows": done, "of": whole} for table, (done, whole) in work.snapshot_rows.items()}
        print_json({**status, "snapshot": rows})
        return
    if status["state"] in ("starting", "failed"):
        return
    if status["state"] == "snapshot":
        done = sum(each for each, _ in work.snapshot_rows.values())
        whole = sum(each for _, each in work.snapshot_rows.values())
        print_line(f"{status['name']}: snapshot, {done:,} of {whole:,} rows")
        return
    said = f"{status['name'] or 'capture'}: {status['state']}, {status['transactions']:,} transactions,"
    print_line(f"{said} {status['rows']:,} rows, behind: {_behind(status['behind'])}")
    for table, why in status["left_out"].items():
        print_line(f"  not taken: {table}: {why}")
    if status["error"] and status["state"] != "failed":
        print_line(f"  {status['error']}")


def _list(db: Database, as_json: bool) -> None:
    from tidegate.capture.places import list_captures

    found = list_captures(db)
    if as_json:
        for each in found:
            print_json(each)
        return
    if not found:
        print_line("this database captures nothing; begin with `tidegate capture URL --into PATH`")
        return
    print_table(
        ["capture", "source", "transactions", "rows", "last committed", "tables"],
        [
            [
                each["capture"],
                each["source"],
                f"{each['transactions']:,}",
                f"{each['rows']:,}",
                "" if each["committed_at"] is None else f"{each['committed_at']:%Y-%m-%d %H:%M:%S}",
                ", ".join(each["tables"].values()),
            ]
            for each in found
        ],
        right="transactions rows",
    )


def _look(url: str, path: Path, name: str | None, said: dict[str, Any]) -> None:
    """See that the source is there before a database is made for it. Raises: what opening it raises."""
    from tidegate.capture.opening import open_source
    from tidegate.errors import NotFound

    with suppress(NotFound):
        check_exists(path)
        return
    if url.startswith("debezium+topic:"):
        raise NotFound(f"there is no database at {path}, and so no topic of it to capture")
    open_source(url, name, **said).close()


def _pairs(option: str, given: tuple[str, ...], form: str = "NAME=VALUE") -> dict[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} is {form}, not {each!r}")
        found[name] = value
    return found


@contextmanager
def _ending() -> Iterator[Event]:
    """An event that Ctrl-C and SIGTERM set, so that what has begun comes to its end."""
    ended = Event()
    before = {each: signal.signal(each, lambda *_: ended.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
