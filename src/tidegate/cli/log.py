"""`tidegate log`: look into a log. Everything but `repair` only reads, and works while another process writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tidegate.cli.channel_view import ChannelView, Segment, view
from tidegate.cli.log_print import print_messages
from tidegate.cli.log_repair import repair
from tidegate.cli.log_verify import verify
from tidegate.cli.output import json_option, print_json, print_line, print_table, size, when
from tidegate.runtime.log import LogFiles
from tidegate.runtime.writer_lock import writer_of


@click.group("log")
def log() -> None:
    """Look into a log: channels, segments, messages; verify and repair it.

    PATH is the directory given to tidegate.open_log. Reading works while another process writes.

    \b
    Examples:
      tidegate log show shop.tide
      tidegate log segments shop.tide orders
      tidegate log print shop.tide orders --since 2026-01-31T12:00:00Z --limit 20
      tidegate log verify shop.tide
    """


@log.command(short_help="Show channels: term, segments, messages, last tick, position.")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("channel", required=False)
@json_option
def show(path: Path, channel: str | None, as_json: bool) -> None:
    """Show the channels of the log at PATH, or one CHANNEL.

    `messages` counts time ticks, too. It is exact for sealed segments; for the others it is the number
    of positions they span.

    \b
    Examples:
      tidegate log show shop.tide
      tidegate log show shop.tide orders --json
    """
    files = LogFiles(path)
    if channel is not None:
        files.channel(channel)
    views = [view(files, name) for name in ([channel] if channel is not None else files.channels())]
    writer = writer_of(path)
    if as_json:
        for each in views:
            print_json(_as_dict(each, writer))
        return
    if not views:
        print_line(f"{path} has no channels yet; Log.channel(NAME) makes one.")
        return
    titles = ["channel", "term", "segments", "sealed", "messages", "bytes", "last tick", "position"]
    rows = [
        [
            each.name,
            str(each.term),
            f"{len(each.segments):,}",
            f"{each.sealed:,}",
            f"{each.messages:,}",
            size(each.bytes),
            when(each.tick) if each.tick is not None else "none",
            f"{each.position:,}",
        ]
        for each in views
    ]
    print_table(titles, rows, right="term segments sealed messages bytes position")
    print_line(f"writer: {writer} has the log open" if writer else "writer: none")
    for each in views:
        for note in _notes(each, path):
            print_line(note, style="yellow")


def _notes(each: ChannelView, path: Path) -> list[str]:
    notes = []
    if each.unreadable:
        notes.append(f"{each.name}: a part cannot be read; run `tidegate log verify {path} {each.name}`")
    if each.waiting:
        notes.append(
            f"{each.name}: {each.waiting:,} entries behind the last tick become readable when the log is next"
            f" opened for writing"
        )
    return notes


def _as_dict(each: ChannelView, writer: str | None) -> dict[str, Any]:
    return {
        "channel": each.name,
        "term": each.term,
        "segments": len(each.segments),
        "sealed": each.sealed,
        "messages": each.messages,
        "bytes": each.bytes,
        "last_tick": None if each.tick is None else int(each.tick),
        "last_tick_time": None if each.tick is None else str(each.tick),
        "position": each.position,
        "waiting": each.waiting,
        "damaged": bool(each.unreadable),
        "live": each.is_live,
        "writer": writer,
    }


@log.command(short_help="List the segments of a channel.")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("channel")
@json_option
def segments(path: Path, channel: str, as_json: bool) -> None:
    """List the segments of CHANNEL in the log at PATH, oldest first.

    \b
    A segment is
      open    being written by a live process
      last    where the next writer goes on; nobody writes now
      closed  full, waiting to be sealed
      sealed  indexed, its small blocks merged

    \b
    Examples:
      tidegate log segments shop.tide orders
      tidegate log segments shop.tide orders --json
    """
    found = view(LogFiles(path), channel)
    if as_json:
        for each in found.segments:
            print_json(_segment_as_dict(each))
        return
    titles = ["segment", "term", "state", "positions", "messages", "bytes", "starts after"]
    rows = [
        [
            each.facts.name.removesuffix(".seg"),
            str(each.facts.term),
            each.state,
            f"{int(each.facts.first_position):,} to {each.last_position:,}",
            f"{each.messages:,}",
            size(each.used),
            when(each.facts.after_time_tick) if each.facts.after_time_tick else "the beginning",
        ]
        for each in found.segments
    ]
    print_table(titles, rows, right="term messages bytes positions")
    for note in _notes(found, path):
        print_line(note, style="yellow")


def _segment_as_dict(each: Segment) -> dict[str, Any]:
    facts = each.facts
    return {
        "segment": facts.name,
        "number": facts.number,
        "term": facts.term,
        "state": each.state,
        "first_position": int(facts.first_position),
        "last_position": each.last_position,
        "messages": each.messages,
        "bytes": each.used,
        "file_bytes": facts.size,
        "after_time_tick": int(facts.after_time_tick),
        "last_time_tick": None if facts.last_time_tick is None else int(facts.last_time_tick),
        "created_ms": facts.created_ms,
    }


log.add_command(print_messages)
log.add_command(verify)
log.add_command(repair)
