"""`Spill`: the messages of one transaction, in memory while they are few and in a temporary file when they are many.

The file has no name, or is removed with its last handle: nothing is left behind by a process that dies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from struct import Struct
from typing import IO, Final

from tidegate.errors import InvariantBroken

MEMORY_BYTES: Final = 4 << 20
"""Up to here a transaction's messages stay in memory."""
CHUNK_BYTES: Final = 4 << 20
CHUNK_MESSAGES: Final = 50_000
"""How much is read back at a time."""
_LENGTH: Final = Struct(">I")


class Spill:
    """Messages in the order of their places. A message takes four bytes more than it has."""

    __slots__ = ("_buffer", "_buffered", "_file", "_limit", "_written")

    def __init__(self, limit: int = MEMORY_BYTES) -> None:
        self._limit = limit
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._written = 0
        self._file: IO[bytes] | None = None

    @property
    def end(self) -> int:
        """The place behind the last message."""
        return self._written + self._buffered

    @property
    def is_on_disk(self) -> bool:
        return self._file is not None

    def append(self, message: bytes) -> None:
        self._buffer.append(message)
        self._buffered += len(message) + 4
        if self._buffered > self._limit:
            self._write()

    def extend(self, messages: list[bytes]) -> None:
        self._buffer += messages
        self._buffered += sum(map(len, messages)) + 4 * len(messages)
        if self._buffered > self._limit:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="tidegate-", buffering=0)  # noqa: SIM115
        pack = _LENGTH.pack
        data = b"".join([part for each in self._buffer for part in (pack(len(each)), each)])
        self._file.seek(self._written)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._written += len(data)
        self._buffered = 0
        self._buffer = []

    def read(self, spans: list[tuple[int, int]]) -> Iterator[list[bytes]]:
        """The messages at places, in order, so many at a time that memory stays small."""
        for start, end in spans:
            if start < self._written:
                yield from self._from_file(start, min(end, self._written))
            if end > self._written:
                yield from self._from_memory(max(start, self._written), end)

    def _from_memory(self, start: int, end: int) -> Iterator[list[bytes]]:
        found = self._buffer
        if start > self._written or end < self.end:
            found, at = [], self._written
            for each in self._buffer:
                if start <= at < end:
                    found.append(each)
                at += len(each) + 4
        if len(found) <= CHUNK_MESSAGES:
            yield found
            return
        for first in range(0, len(found), CHUNK_MESSAGES):
            yield found[first : first + CHUNK_MESSAGES]

    def _from_file(self, start: int, end: int) -> Iterator[list[bytes]]:
        rest = b""
        while start < end:
            data = b""
            if self._file is not None:
                self._file.seek(start)
                data = self._file.read(min(CHUNK_BYTES, end - start))
            if not data:
                raise InvariantBroken(f"a held transaction ends at {start:,}, {end - start:,} bytes too early")
            start += len(data)
            data, at = rest + data, 0
            found: list[bytes] = []
            while at + 4 <= len(data):
                behind = at + 4 + _LENGTH.unpack_from(data, at)[0]
                if behind > len(data):
                    break
                found.append(data[at + 4 : behind])
                at = behind
                if len(found) == CHUNK_MESSAGES:
                    yield found
                    found = []
            rest = data[at:]
            if found:
                yield found

    def close(self) -> None:
        """Forget all. May be repeated."""
        self._buffer = []
        self._buffered = self._written = 0
        if self._file is not None:
            self._file.close()
            self._file = None
