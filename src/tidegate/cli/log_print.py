"""`tidegate log print`: a channel's messages in TimeTick order."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from tidegate.cli.channel_view import end_of, view
from tidegate.cli.output import body_preview, columns, json_option, print_json, printable, shorten, to_json
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.log.message import ALL_VCHANNELS, NO_POSITION, Message, Position, Tick
from tidegate.runtime.channel_reader import ChannelReader, Delivery
from tidegate.runtime.log import LogFiles

_FOLLOW_WAIT_S: Final = 0.2
_BODY_MIN: Final = 20
_POSITION_MAX: Final = (1 << 64) - 1
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> Timestamp | None:
    """A Timestamp, or a day, whose beginning in UTC is meant."""
    if value is None:
        return None
    text = value.strip()
    try:
        return Timestamp.parse(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except InvalidArgument as error:
        raise click.BadParameter(f"{error}.", ctx, param) from error


@click.command("print", short_help="Print messages in TimeTick order; --follow goes on.")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("channel")
@click.option(
    "--from", "position", type=click.IntRange(0, _POSITION_MAX), metavar="POSITION", help="Start at this position."
)
@click.option(
    "--since",
    callback=moment,
    metavar="TIMESTAMP",
    help="Start at this time: 2026-01-31T12:00:00Z, 2026-01-31 (midnight UTC), or a 64-bit number.",
)
@click.option("--vchannel", metavar="NAME", help="Only this virtual channel.")
@click.option("--follow", is_flag=True, help="Go on as messages arrive, until Ctrl-C.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option("--ticks", is_flag=True, help="Print time ticks, too. Sealed segments that were merged keep only some.")
@json_option
def print_messages(
    path: Path,
    channel: str,
    position: int | None,
    since: Timestamp | None,
    vchannel: str | None,
    follow: bool,
    limit: int | None,
    ticks: bool,
    as_json: bool,
) -> None:
    """Print the messages of CHANNEL in the log at PATH, in TimeTick order.

    Bodies are shown as text, or as hexadecimal digits when they are not text, and shortened to the line.
    --json prints all of them: "body" with "encoding" "utf-8" or "base64", or the columns as "row".

    \b
    Examples:
      tidegate log print shop.tide orders --limit 20
      tidegate log print shop.tide orders --since 2026-01-31T12:00:00Z --vchannel orders/0
      tidegate log print shop.tide orders --follow --json | jq .body
    """
    if position is not None and since is not None:
        raise click.UsageError("--from and --since both say where to start; give one of them.")
    after = Timestamp.ZERO if since is None else Timestamp(max(since - 1, 0))
    files = LogFiles(path)
    start = NO_POSITION if position is None else Position(position)
    printer = _Printer(as_json=as_json)
    with files.reader(channel, position=start, after=after, vchannel=vchannel) as reader:
        left = sys.maxsize if limit is None else limit
        for delivery in _follow(reader) if follow else _until_end(reader, end_of(files, channel).published_tick):
            for message in delivery.messages():
                printer.message(message)
                left -= 1
                if not left:
                    return
            if ticks:
                printer.tick(delivery.tick)
            printer.flush()
    waiting = view(files, channel).waiting
    if waiting:
        click.echo(
            f"{waiting:,} more entries lie behind the last tick; they become readable when the log is next opened"
            f" for writing",
            err=True,
        )


def _follow(reader: ChannelReader) -> Iterator[Delivery]:
    while True:
        delivery = reader.read(_FOLLOW_WAIT_S)
        if delivery is not None:
            yield delivery


def _until_end(reader: ChannelReader, published: int) -> Iterator[Delivery]:
    """What the log holds now; a writer that is faster than this goes on without us."""
    while (delivery := reader.poll()) is not None:
        yield delivery
        if published and int(delivery.tick.time_tick) >= published:
            return


class _Printer:
    """Prints one line a message."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._titled = False
        self._width = columns()

    def message(self, message: Message) -> None:
        if self._as_json:
            sys.stdout.write(to_json(_as_dict(message)) + "\n")
            return
        body = body_preview(message.body) if message.body is not None else printable(to_json(message.row))
        self._line(
            str(message.time_tick),
            f"{message.position:,}",
            f"{message.last_confirmed:,}",
            message.type.name.lower(),
            printable(message.vchannel) if message.vchannel != ALL_VCHANNELS else "(all)",
            body,
        )

    def tick(self, tick: Tick) -> None:
        if self._as_json:
            print_json(
                {
                    "type": "time_tick",
                    "time_tick": int(tick.time_tick),
                    "time": str(tick.time_tick),
                    "position": int(tick.position),
                    "last_confirmed": int(tick.last_confirmed),
                    "persisted": tick.persisted,
                }
            )
            return
        note = "everything at or below this has arrived" + ("" if tick.persisted else " (in memory)")
        self._line(
            str(tick.time_tick), f"{tick.position:,}", f"{tick.last_confirmed:,}", "time_tick", "(all)", f"-- {note}"
        )

    def _line(self, *cells: str) -> None:
        if not self._titled:
            self._titled = True
            self._line("time", "position", "confirmed", "type", "vchannel", "body")
        time, position, confirmed, kind, vchannel, body = cells
        head = f"{time:<28}  {position:>10}  {confirmed:>10}  {kind:<9}  {vchannel:<12}  "
        sys.stdout.write(head + shorten(body, max(self._width - len(head), _BODY_MIN)) + "\n")

    def flush(self) -> None:
        sys.stdout.flush()


def _as_dict(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": message.type.name.lower(),
        "time_tick": int(message.time_tick),
        "time": str(message.time_tick),
        "position": int(message.position),
        "last_confirmed": int(message.last_confirmed),
        "vchannel": message.vchannel,
        "term": int(message.term),
        "txn": None if message.txn is None else message.txn.hex(),
    }
    if message.body is None:
        found["row"] = message.row
        return found
    try:
        found["body"], found["encoding"] = message.body.decode(), "utf-8"
    except UnicodeDecodeError:
        found["body"], found["encoding"] = base64.b64encode(message.body).decode(), "base64"
    return found
