"""Builds segments in memory, block by block, as a writer would, and messages to compare with what is read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.log import block
from tidegate.log.batch import Batch, body_rows
from tidegate.log.block import Encoded, Stamp
from tidegate.log.message import ALL_VCHANNELS, Message, MessageType, Position, Term, Tick
from tidegate.ports.files import File
from tidegate.sim.disk import SimDisk, SimFiles

PATH = "c/0000000001-000001.seg"
START = 512
BASE_CHAIN = 0xBA5E
TXN = bytes(range(1, 17))


def memory_file(data: bytes) -> File:
    """A file in memory that holds `data`."""
    file = SimFiles(SimDisk(Random(0)), lambda operation, path, *, done: None).create(PATH, len(data))
    file.write(0, [data])
    return file


def stamp(**changes: int) -> Stamp:
    first = Stamp(
        first_position=11,
        first_time_tick=101,
        last_confirmed=9,
        term=3,
        offset=START,
        synced=START,
        previous=BASE_CHAIN,
    )
    return first._replace(**changes)


def decode(encoded: Encoded) -> Batch:
    """Through the same doors as a reader: header, checksum, content."""
    view = encoded.view()
    header = block.decode_header(view, 0)
    assert header is not None
    assert header.size == encoded.size == len(view)
    assert block.is_intact(view, 0, header)
    return block.decode(view, 0, header)


@dataclass
class Segment:
    """The blocks of one segment. `synced` is what the writer knows to be durable when it writes the next block."""

    term: int = 1
    synced: int = START
    data: bytearray = field(default_factory=lambda: bytearray(START))
    chain: int = BASE_CHAIN
    position: int = 1
    time_tick: int = 101
    offsets: list[int] = field(default_factory=list)
    expected: list[Message | Tick] = field(default_factory=list)

    def rows(
        self,
        *bodies: bytes,
        types: Sequence[MessageType] | None = None,
        vchannels: Sequence[str] | None = None,
        txns: Sequence[bytes | None] | None = None,
        last_confirmed: int = 0,
    ) -> Segment:
        kinds = list(types or [MessageType.INSERT] * len(bodies))
        names = list(vchannels or ["v"] * len(bodies))
        self._expect(kinds, names, bodies, txns, last_confirmed)
        return self._put(block.encode_rows(self._stamp(last_confirmed), kinds, names, bodies, txns), len(bodies))

    def arrow(self, rows: pa.RecordBatch, *, vchannel: str = "v", txn: bytes | None = None) -> Segment:
        for index, row in enumerate(rows.to_pylist()):
            self.expected.append(
                Message(
                    Timestamp(self.time_tick + index),
                    Position(self.position + index),
                    Position(0),
                    MessageType.INSERT,
                    vchannel,
                    Term(self.term),
                    row=row,
                    txn=txn,
                )
            )
        encoded = block.encode_arrow(self._stamp(0), rows, MessageType.INSERT, vchannel, txn=txn)
        return self._put(encoded, rows.num_rows)

    def tick(self, last_confirmed: int = 0) -> Segment:
        self.expected.append(Tick(Timestamp(self.time_tick), Position(self.position), Position(last_confirmed), True))
        encoded = block.encode_rows(self._stamp(last_confirmed), [MessageType.TIME_TICK], [ALL_VCHANNELS], [b""])
        return self._put(encoded, 1)

    def all_durable(self) -> Segment:
        """The writer syncs: what comes next may say so."""
        self.synced = self.end
        return self

    @property
    def end(self) -> int:
        return len(self.data)

    def file(self, *, zeros: int = 4096) -> File:
        """As an open segment: preallocated, so zeros follow the last block."""
        return memory_file(bytes(self.data) + bytes(zeros))

    def _stamp(self, last_confirmed: int) -> Stamp:
        return Stamp(self.position, self.time_tick, last_confirmed, self.term, len(self.data), self.synced, self.chain)

    def _put(self, encoded: Encoded, count: int) -> Segment:
        self.offsets.append(len(self.data))
        self.data += encoded.view()
        self.chain = encoded.checksum
        self.position += count
        self.time_tick += count
        return self

    def _expect(
        self,
        types: Sequence[MessageType],
        vchannels: Sequence[str],
        bodies: Sequence[bytes],
        txns: Sequence[bytes | None] | None,
        last_confirmed: int,
    ) -> None:
        for index, body in enumerate(bodies):
            self.expected.append(
                Message(
                    Timestamp(self.time_tick + index),
                    Position(self.position + index),
                    Position(last_confirmed),
                    types[index],
                    vchannels[index],
                    Term(self.term),
                    body=body,
                    txn=None if txns is None else txns[index],
                )
            )


def flat(items: Sequence[Batch | Tick]) -> list[Message | Tick]:
    """What was read, one after the other."""
    out: list[Message | Tick] = []
    for item in items:
        if isinstance(item, Tick):
            out.append(item)
        else:
            out.extend(item.messages())
    return out


def batch(
    time_ticks: Sequence[int],
    *,
    positions: Sequence[int] | None = None,
    vchannels: Sequence[str] | None = None,
    types: Sequence[int] | None = None,
    rows: pa.RecordBatch | None = None,
    txns: Sequence[bytes | None] | None = None,
    term: int = 1,
) -> Batch:
    """Messages made by hand; unless told otherwise each body is its own TimeTick."""
    count = len(time_ticks)
    names = list(vchannels or ["v"] * count)
    table = tuple(dict.fromkeys(names))
    return Batch(
        time_ticks=np.array(time_ticks, np.uint64),
        positions=np.array(positions if positions is not None else range(1, count + 1), np.uint64),
        last_confirmed=np.zeros(count, np.uint64),
        types=np.array(types or [MessageType.INSERT] * count, np.uint8),
        vchannel_ids=np.array([table.index(name) for name in names], np.uint16),
        vchannels=table,
        rows=rows if rows is not None else body_rows([b"%d" % each for each in time_ticks]),
        term=Term(term),
        txns=None if txns is None else np.frombuffer(b"".join(each or bytes(16) for each in txns), "V16"),
    )
