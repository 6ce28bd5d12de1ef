"""`tidegate log repair`: give up what cannot be read, and nothing else."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from tidegate.cli.log_verify import check, print_problems
from tidegate.cli.output import json_option, print_json, print_line
from tidegate.errors import InUse
from tidegate.log.segment import SegmentId
from tidegate.ports.files import File, Files
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.log import LogFiles
from tidegate.runtime.verify import Problem, Repaired
from tidegate.runtime.verify import repair as repair_segment
from tidegate.runtime.writer_lock import writer_of


@click.command(short_help="Rewrite damaged segments with all that can be read.")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("channel")
@click.option("--yes", is_flag=True, help="Repair without asking.")
@json_option
@click.pass_context
def repair(ctx: click.Context, path: Path, channel: str, yes: bool, as_json: bool) -> None:
    """Rewrite the damaged segments of CHANNEL in the log at PATH with all that can be read of them.

    Shows first what would be lost, and asks. Damaged files are kept beside the new ones, with `.damaged`
    behind their name. No process may have the log open for writing.

    \b
    Examples:
      tidegate log repair shop.tide orders          # shows, then asks
      tidegate log repair shop.tide orders --yes
    """
    files = LogFiles(path)
    found = files.channel(channel)
    with _alone(path):
        problems = check(files, channel).problems
        damaged = _segments_of(found, problems)
        if not damaged:
            _say(as_json, {"channel": channel, "damaged": False}, f"{channel}: nothing is damaged")
            return
        planned = [repair_segment(ChannelFiles(_Unwritten(found.files), channel), each) for each in damaged]
        if not as_json:
            print_problems(problems)
            for each in planned:
                print_line(f"{each.segment}: {each.kept_messages:,} messages can be kept; {_lost(each)}")
        if not yes and not click.confirm(f"Repair {len(damaged)} segment(s) of {channel}?", err=True):
            click.echo("tidegate: nothing was changed", err=True)
            ctx.exit(1)
        for segment in damaged:
            done = repair_segment(found, segment)
            _say(as_json, {"channel": channel, "damaged": True, **asdict(done)}, _done(done))


def _say(as_json: bool, data: dict[str, object], text: str) -> None:
    if as_json:
        print_json(data)
    else:
        print_line(text)


def _done(each: Repaired) -> str:
    return f"{each.segment}: repaired, {each.kept_messages:,} messages kept; the damaged file is {each.set_aside}"


def _lost(each: Repaired) -> str:
    if not each.lost:
        return "none are lost"
    ranges = ", ".join(f"{first:,} to {last:,}" if first != last else f"{first:,}" for first, last in each.lost)
    return f"lost: positions {ranges}"


def _segments_of(channel: ChannelFiles, problems: Sequence[Problem]) -> list[SegmentId]:
    named = {problem.segment for problem in problems}
    return [each for each in channel.segments() if channel.describe(each) in named]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the writer's lock, so that nobody opens the log meanwhile.

    Raises: `InUse` when somebody has.
    """
    descriptor = os.open(path / "log" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = writer_of(path) or "another process"
            raise InUse(f"{path} is open in {who}; close it there, then repair") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


class _Unwritten:
    """Files that can be read, and only seem to be written: for a rehearsal."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def create(self, path: str, size: int) -> File:  # noqa: ARG002
        return _Nowhere()

    def open(self, path: str, *, write: bool = False) -> File:
        return self._files.open(path, write=write)

    def names(self, path: str) -> list[str]:
        return self._files.names(path)

    def describe(self, path: str) -> str:
        return self._files.describe(path)

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def make_dir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None: ...

    def sync(self) -> None: ...

    def read(self, offset: int, size: int) -> memoryview:  # noqa: ARG002
        return memoryview(b"")

    def size(self) -> int:
        return 0

    def next_data(self, offset: int) -> int:
        return offset

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...
