"""The messages of one transaction, gathered from batches: found by id, chosen by position, put into physical order.

Everything here works on columns; only what is done once for each batch or run is done in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.log.batch import U64, Batch, concat
from tidegate.log.message import MessageType

Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

SMALL: Final = 1024
"""Batches of fewer messages are joined."""
CONTROL: Final = np.zeros(256, np.bool_)
"""By message type: whether it says something about transactions or time, and so is no message of one."""
CONTROL[[int(kind) for kind in MessageType if kind.is_system]] = True


def txns_of(batch: Batch) -> npt.NDArray[np.void]:
    """Transaction ids, zeros where there is none."""
    if batch.txns is None:
        return np.zeros(len(batch), "V16")
    return np.ascontiguousarray(batch.txns)


def ids_of(batch: Batch) -> U64:
    """Transaction ids as two numbers each: comparing those is quick."""
    return txns_of(batch).view(np.uint64).reshape(-1, 2)


def grouped(batch: Batch, ids: U64, rows: Rows) -> dict[bytes, Rows]:
    """The rows of each transaction, ascending."""
    if not len(rows):
        return {}
    mine = ids[rows]
    if (mine == mine[0]).all():
        groups = [rows]
    else:
        order = np.lexsort((mine[:, 0], mine[:, 1]))
        rows, mine = rows[order], mine[order]
        groups = np.split(rows, np.flatnonzero((mine[1:] != mine[:-1]).any(axis=1)) + 1)
        groups.sort(key=lambda each: int(each[0]))
    txns = txns_of(batch)
    return {txns[each[0]].tobytes(): each for each in groups}


def where(batch: Batch, mask: Mask) -> Batch:
    """As `Batch.where`; on strings and bytes Arrow filters many times faster than it takes by index."""
    return replace(
        batch,
        time_ticks=batch.time_ticks[mask],
        positions=batch.positions[mask],
        last_confirmed=batch.last_confirmed[mask],
        types=batch.types[mask],
        vchannel_ids=batch.vchannel_ids[mask],
        rows=batch.rows.filter(pa.array(mask)),
        txns=None if batch.txns is None else batch.txns[mask],
    )


def copied(batch: Batch) -> Batch:
    """The same messages in memory of their own."""
    return where(batch, np.ones(len(batch), np.bool_))


def only(txn: bytes) -> Callable[[Batch], Batch | None]:
    """Leaves of a batch what can be a message of the transaction."""
    wanted = np.frombuffer(txn, np.uint64)

    def only(batch: Batch) -> Batch | None:
        mask = (ids_of(batch) == wanted).all(axis=1) & ~CONTROL[batch.types]
        return batch if mask.all() else where(batch, mask) if mask.any() else None

    return only


def are_exactly(pieces: list[Batch], wanted: U64) -> bool:
    """Whether they hold the positions wanted, in that order, and no other."""
    if sum(map(len, pieces)) != len(wanted):
        return False
    return not pieces or np.array_equal(np.concatenate([each.positions for each in pieces]), wanted)


def choose(pieces: list[Batch], wanted: U64, found: Mask) -> list[Batch]:
    """The messages at positions that are wanted and not found yet; they are found from now on."""
    chosen: list[Batch] = []
    for batch in pieces if len(wanted) else ():
        places = np.minimum(np.searchsorted(wanted, batch.positions), len(wanted) - 1)
        mask = (wanted[places] == batch.positions) & ~found[places]
        if mask.any():
            found[places[mask]] = True
            chosen.append(batch if mask.all() else where(batch, mask))
    return chosen


def by_position(pieces: list[Batch]) -> list[Batch]:
    """The same messages in physical order, cut as often as that needs."""
    positions = np.concatenate([each.positions for each in pieces]) if pieces else np.zeros(0, np.uint64)
    if (positions[1:] > positions[:-1]).all():
        return pieces
    ordered = []
    for each in pieces:
        ascends = (each.positions[1:] > each.positions[:-1]).all()
        ordered.append(each if ascends else each.take(np.argsort(each.positions)))
    positions = np.concatenate([each.positions for each in ordered])
    owners = np.repeat(np.arange(len(ordered)), [len(each) for each in ordered])[np.argsort(positions)]
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(owners)) + 1, [len(owners)]))
    taken = [0] * len(ordered)
    out = []
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        owner = int(owners[start])
        out.append(ordered[owner].slice(taken[owner], taken[owner] + stop - start))
        taken[owner] += stop - start
    return out


def joined(pieces: list[Batch]) -> list[Batch]:
    """Small neighbours of one schema and term as one, so that many single messages are not as many batches."""
    if len(pieces) < 2:
        return pieces
    out = []
    # Schemas that differ in nothing but metadata are equal to Arrow, and rows of two versions of a table are not alike.
    for _, group in groupby(pieces, key=lambda each: (each.term, each.rows.schema, each.rows.schema.metadata)):
        same = list(group)
        small = sum(map(len, same)) < SMALL * len(same)
        out.extend([concat(same)] if small else same)
    return out
