"""`tidegate topic`: send messages to a topic, and see what is in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidegate.cli.log_print import moment
from tidegate.cli.output import columns, json_option, print_json, print_line, printable, shorten, to_json
from tidegate.cli.reach import path_argument, reach
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import NotFound, Truncated

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.received import Received

_VALUE_MIN: Final = 20
_RECEIVE_S: Final = 0.5
_BATCH: Final = 100


@click.group()
def topic() -> None:
    """Send messages to a topic, and read them.

    Topics are made, listed and dropped with `tidegate sql`.

    \b
    Examples:
      tidegate topic send shop.tide audit '{"what": "moved"}' --key ann
      tidegate topic read shop.tide audit --follow
      tidegate topic read shop.tide audit --subscription billing --limit 1
    """


@topic.command(short_help="Send a message, or one for each line of stdin.")
@path_argument
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--key", help="Messages with the same key stay in order. A text.")
@click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="A header; may be given again.")
@click.option("--text", is_flag=True, help="Send the value as it is, and not as the JSON it may be.")
@click.option("--atomic", is_flag=True, help="All lines of stdin in one transaction: visible together, or not at all.")
@json_option
def send(
    path: Path,
    topic: str,
    value: str | None,
    key: str | None,
    headers: tuple[str, ...],
    text: bool,
    atomic: bool,
    as_json: bool,
) -> None:
    """Send VALUE to TOPIC of the database at PATH; without it, every line of stdin. Durable when it returns.

    A value that is JSON is sent as what it says: '{"id": 7}' as an object, 7 as a number; anything else as text.

    \b
    Examples:
      tidegate topic send shop.tide audit '{"what": "moved", "amount": 10}' --key ann
      tidegate topic send shop.tide audit hello --header source=shell
      tidegate topic send shop.tide audit --atomic < events.jsonl

    Exit codes: 0 sent, 1 no such database or topic, or it could not be sent, 2 usage.
    """
    found = _headers(headers)
    with reach(path, "topic send") as db:
        if value is not None:
            sent = db.send(topic, _value(value, text), key=key, headers=found)
            count, timestamp = sent.messages, sent.timestamp
        elif atomic:
            lines = list(_lines())  # Before it begins: it must not run out of time while somebody types.
            with db.transaction() as txn:
                for line in lines:
                    txn.send(topic, _value(line, text), key=key, headers=found)
            count = len(lines)
            timestamp = txn.commit_timestamp or Timestamp.ZERO
        else:
            db.topic(topic)
            count, timestamp = 0, Timestamp.ZERO
            for line in _lines():
                timestamp = db.send(topic, _value(line, text), key=key, headers=found).timestamp
                count += 1
    if as_json:
        print_json({"topic": topic, "messages": count, "timestamp": int(timestamp), "time": str(timestamp)})
    else:
        print_line(f"{count:,} sent, visible at {timestamp}" if count else "stdin was empty; nothing was sent")


def _lines() -> Iterator[str]:
    return (line.rstrip("\n") for line in sys.stdin if line.strip())


def _value(text: str, is_text: bool) -> Any:
    if is_text:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _headers(found: tuple[str, ...]) -> dict[str, str] | None:
    wrong = next((each for each in found if "=" not in each), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r} has no '='; write NAME=TEXT.", param_hint="--header")
    return dict(each.split("=", 1) for each in found) or None


@topic.command(short_help="Print messages, with or without a subscription.")
@path_argument
@click.argument("topic")
@click.option("--subscription", metavar="NAME", help="Receive what this subscription has left, and acknowledge it.")
@click.option("--keep", is_flag=True, help="With --subscription: give everything back instead of acknowledging it.")
@click.option(
    "--since",
    callback=moment,
    metavar="TIMESTAMP",
    help="Start at this time: 2026-01-31T12:00:00Z, 2026-01-31 (midnight UTC), or a 64-bit number.",
)
@click.option("--follow", is_flag=True, help="Go on as messages arrive, until Ctrl-C.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@json_option
def read(
    path: Path,
    topic: str,
    subscription: str | None,
    keep: bool,
    since: Timestamp | None,
    follow: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC in the database at PATH, in the order in which they became visible.

    Without --subscription it only looks: nothing is acknowledged, and no subscription knows of it. Messages of
    a transaction come together, and only once it is committed. With --subscription it is a consumer of one that exists
    and acknowledges every message after printing it.

    \b
    Examples:
      tidegate topic read shop.tide audit --limit 20
      tidegate topic read shop.tide audit --since 2026-01-31 --json | jq .value
      tidegate topic read shop.tide audit --follow
      tidegate topic read shop.tide audit --subscription billing --keep --limit 1

    Exit codes: 0 fine, also with nothing to print; 1 no such database, topic or subscription; 2 usage.
    """
    if subscription is not None and since is not None:
        raise click.UsageError("--since does not go with --subscription: it goes on where it was.")
    if keep and subscription is None:
        raise click.UsageError("--keep goes with --subscription; without one nothing is acknowledged anyway.")
    printer = _Printer(as_json, sys.maxsize if limit is None else limit)
    with reach(path, "topic read") as db:
        if subscription is None:
            try:
                _look(db, topic, since, follow, printer)
            except Truncated as error:
                raise Truncated(f"{error}; start later, with --since") from error
        else:
            _consume(db, topic, subscription, keep, follow, printer)


def _look(db: Database, topic: str, since: Timestamp | None, follow: bool, printer: _Printer) -> None:
    from tidegate.database.topic_reading import TopicReader
    from tidegate.topics.value import decode
    from tidegate.txn.txn_id import TxnId

    after = Timestamp.ZERO if since is None else Timestamp(max(since - 1, 0))
    until = None if follow else Timestamp(db.status()["now"])
    with TopicReader(db.path, db.topic(topic), db.channels, after) as reader:
        for messages in reader.read(until):
            for each in messages:
                value = None if each.body is None else decode(each.body)
                printer.print(
                    each.time_tick,
                    reader.shard(each),
                    None if each.txn is None else str(TxnId.from_bytes16(each.txn)),
                    None if value is None else value.key,
                    {} if value is None else value.headers,
                    each.row if value is None else value.value,
                )
                if printer.is_full:
                    return
            printer.flush()


def _consume(db: Database, topic: str, name: str, keep: bool, follow: bool, printer: _Printer) -> None:
    known = [each for each in db.sql("SHOW SUBSCRIPTIONS") if each["topic"] == db.topic(topic).name]
    found = next((each for each in known if each["name"] == name), None)
    if found is None:
        names = ", ".join(each["name"] for each in known) or "none"
        raise NotFound(f"topic {topic!r} has no subscription {name!r}; there are: {names}. db.subscribe makes one")
    with db.subscribe(topic, name, kind=found["kind"]) as consumer:
        while True:
            messages: list[Received] = consumer.receive_many(min(_BATCH, printer.left), _RECEIVE_S)
            for each in messages:
                printer.print(each.timestamp, each.id.shard, None, each.key, each.headers, each.value, each)
            printer.flush()
            if messages and not keep:
                consumer.ack(messages)
            if printer.is_full or (not messages and not follow):
                return


class _Printer:
    """Prints one line a message."""

    def __init__(self, as_json: bool, left: int) -> None:
        self._as_json = as_json
        self.left = left
        self._titled = False
        self._width = columns()

    @property
    def is_full(self) -> bool:
        return self.left <= 0

    def print(
        self,
        at: Timestamp,
        shard: int | None,
        txn: str | None,
        key: str | bytes | int | None,
        headers: dict[str, str],
        value: Any,
        received: Received | None = None,
    ) -> None:
        self.left -= 1
        if self._as_json:
            row = {
                "timestamp": int(at),
                "time": str(at),
                "shard": shard,
                "key": key,
                "headers": headers,
                "value": value,
            }
            if received is None:
                row["transaction"] = txn
            else:
                row |= {"id": str(received.id), "redelivered": received.redelivery_count}
            sys.stdout.write(to_json(row) + "\n")
            return
        text = value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else to_json(value)
        self._line(str(at), "" if shard is None else str(shard), "" if key is None else _key(key), text)

    def _line(self, at: str, shard: str, key: str, value: str) -> None:
        if not self._titled:
            self._titled = True
            self._line("time", "shard", "key", "value")
        head = f"{at:<28}  {shard:>5}  {shorten(printable(key), 12):<12}  "
        sys.stdout.write(head + shorten(printable(value), max(self._width - len(head), _VALUE_MIN)) + "\n")

    def flush(self) -> None:
        sys.stdout.flush()


def _key(key: str | bytes | int) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)
