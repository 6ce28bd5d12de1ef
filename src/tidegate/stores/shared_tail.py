"""`SharedTail`: the tail port on memory-mapped files, for processes of one machine.

`fence` holds the newest term; `tail.TERM` holds what that term's writer publishes. Both start with the
machine's boot id, so that what a power loss left of them is not believed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Final

_LAYOUT: Final = Struct("<8s16sQQ")
_MAGIC: Final = b"TGTAIL01"
_SIZE: Final = 64
_FIRST: Final = 24
_SECOND: Final = 32


@cache
def boot_id() -> bytes:
    """Something that differs after every start of the machine."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return bytes(16)
    return bytes.fromhex(text.replace("-", ""))[:16].ljust(16, b"\0")


class _Mapped:
    """64 shared bytes: a magic, a boot id and two numbers."""

    def __init__(self, path: Path, *, create: bool) -> None:
        descriptor = os.open(path, (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY) | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < _SIZE:
                if not create:
                    raise FileNotFoundError(path)
                # With its room reserved: writing to a mapped hole on a full disk would kill the process.
                os.posix_fallocate(descriptor, 0, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE, access=mmap.ACCESS_WRITE if create else mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        self._bytes = memoryview(self._map)
        self._numbers = self._bytes.cast("Q")
        magic, boot, _, _ = _LAYOUT.unpack_from(self._bytes)
        self.is_current = magic == _MAGIC and boot == boot_id()
        """Whether it was written since the machine started."""
        if not self.is_current and create:
            self._bytes[:_SIZE] = _LAYOUT.pack(_MAGIC, boot_id(), 0, 0).ljust(_SIZE, b"\0")
            self.is_current = True

    def get(self, at: int) -> int:
        return self._numbers[at // 8]

    def set(self, at: int, value: int) -> None:
        # One aligned store of eight bytes: readers see the old number or the new one.
        self._numbers[at // 8] = value

    def close(self) -> None:
        self._numbers.release()
        self._bytes.release()
        self._map.close()


class SharedSlot:
    """One term's slot."""

    def __init__(self, mapped: _Mapped) -> None:
        self._mapped = mapped

    def publish_address(self, value: int) -> None:
        self._mapped.set(_FIRST, value)

    def publish_tick(self, value: int) -> None:
        self._mapped.set(_SECOND, value)

    def address(self) -> int:
        return self._mapped.get(_FIRST)

    def tick(self) -> int:
        return self._mapped.get(_SECOND)

    def close(self) -> None:
        self._mapped.close()


class SharedTail:
    """The tail of one channel, in its directory."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._fence: _Mapped | None = None

    def current_term(self) -> int:
        if self._fence is None:
            try:
                fence = _Mapped(self._directory / "fence", create=False)
            except FileNotFoundError:
                return 0
            if not fence.is_current:
                fence.close()
                return 0
            self._fence = fence
        return self._fence.get(_FIRST)

    def fence(self, term: int) -> SharedSlot:
        self.close()
        slot = SharedSlot(_Mapped(self._directory / f"tail.{term}", create=True))
        try:
            self._raise_fence(term)
        except BaseException:
            slot.close()
            raise
        return slot

    def _raise_fence(self, term: int) -> None:
        # The lock makes "the larger of both" one step when two writers fence at once.
        lock = os.open(self._directory / "fence.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._fence = _Mapped(self._directory / "fence", create=True)
            self._fence.set(_FIRST, max(term, self._fence.get(_FIRST)))
        finally:
            os.close(lock)
        for path in self._directory.glob("tail.*"):
            if path.suffix[1:].isdecimal() and int(path.suffix[1:]) < term:
                path.unlink(missing_ok=True)

    def slot(self, term: int) -> SharedSlot | None:
        try:
            mapped = _Mapped(self._directory / f"tail.{term}", create=False)
        except FileNotFoundError:
            return None
        if not mapped.is_current:
            mapped.close()
            return None
        return SharedSlot(mapped)

    def close(self) -> None:
        if self._fence is not None:
            self._fence.close()
            self._fence = None
