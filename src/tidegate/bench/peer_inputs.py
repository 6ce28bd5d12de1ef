"""What every side of `bench-peers` is fed: the same CSV files of signed rows, and the answer they must lead to.

A row begins with its weight: 1 comes, -1 goes; an update is both, the old row first. Files are numbered, and one file
is what a side may take as one step. Nothing is random but by a fixed seed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

STEP: Final = 100_000
"""Changes in a file, at most."""
REGIONS: Final = 50
ACCOUNTS: Final = 1_000
BALANCE: Final = 100
TOTAL: Final = ACCOUNTS * BALANCE
"""What the balances of the bank add up to after every transfer."""

Answer = dict[int, tuple[int, int]]
"""Sum and count by group."""


@dataclass(frozen=True, slots=True)
class Input:
    """A workload's files below `directory`, one folder a table; `changes` counts an update once."""

    directory: Path
    changes: int
    steps: int


def keyed(directory: Path, changes: int, keys: int, step: int = STEP) -> Input:
    """Events that come and, one of five, go in the step after."""
    added, written, number = step * 4 // 5, 0, 0
    while written < changes:
        new = _events(number * added, added, keys, 1)
        rows = [new]
        if number:
            rows.append(_events((number - 1) * added, step - added, keys, -1))
        written += _write(directory / "events", number, rows)
        number += 1
    return Input(directory, written, number)


def joined(directory: Path, orders: int, customers: int, step: int = STEP) -> Input:
    """Orders, of which one of ten is an update, while customers move to other regions."""
    steps = max(orders // step, 2)
    added, updated, moved = step * 9 // 10, step // 10, customers // 10 // steps
    changes = _write(directory / "customers", 0, [_customers(0, customers, 0, 1)])
    for number in range(steps):
        rows = [_orders(number * added, added, customers, 0, 1)]
        changes += added
        if number:
            first = (number - 1) * added
            rows += [_orders(first, updated, customers, turn, weight) for turn, weight in ((0, -1), (1, 1))]
            changes += updated
        _write(directory / "orders", number, rows)
        _write(
            directory / "customers",
            number + 1,
            [_customers(number * moved, moved, turn, weight) for turn, weight in ((0, -1), (1, 1))],
        )
        changes += moved
    return Input(directory, changes, steps)


def bank(directory: Path, transfers: int) -> Input:
    """Accounts, then transfers, four rows each, in one file: the balances always add up to `TOTAL`."""
    generator = np.random.default_rng(6)
    balances = [BALANCE] * ACCOUNTS
    folder = directory / "bank"
    folder.mkdir(parents=True)
    with (folder / "00000.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["w", "tx", "account", "balance"])
        out.writerows([1, 0, account, BALANCE] for account in range(ACCOUNTS))
        for tx in range(1, transfers + 1):
            source, target = (int(each) for each in generator.choice(ACCOUNTS, 2, replace=False))
            amount = int(generator.integers(1, 20))
            for account, change in ((source, -amount), (target, amount)):
                out.writerow([-1, tx, account, balances[account]])
                balances[account] += change
                out.writerow([1, tx, account, balances[account]])
    return Input(directory, transfers, 1)


def read(path: Path) -> pa.Table:
    """The rows of one file."""
    return pa_csv.read_csv(path)


def files(directory: Path, table: str) -> list[Path]:
    return sorted((directory / table).glob("*.csv"))


def answer(rows: Iterable[Sequence[object]]) -> Answer:
    """Rows of group, sum and count as an answer; groups that hold nothing are no groups."""
    found = ((int(str(group)), int(str(total)), int(str(count))) for group, total, count in rows)
    return {group: (total, count) for group, total, count in found if count}


def read_answer(path: Path) -> Answer:
    """The answer that a side stored: a CSV file without a heading."""
    with path.open(newline="") as file:
        return answer(csv.reader(file))


def transfers(path: Path) -> Iterator[list[tuple[int, int, int]]]:
    """The rows (tx, account, balance) that come, by transfer; the accounts as they begin are the first."""
    rows: list[tuple[int, int, int]] = []
    with path.open(newline="") as file:
        for each in csv.DictReader(file):
            if each["w"] != "1":
                continue
            row = (int(each["tx"]), int(each["account"]), int(each["balance"]))
            if rows and rows[0][0] != row[0]:
                yield rows
                rows = []
            rows.append(row)
    yield rows


def _events(start: int, count: int, keys: int, weight: int) -> pa.Table:
    ids = np.arange(start, start + count, dtype=np.int64)
    key = (ids * 2_654_435_761) % keys
    return pa.table({"w": np.full(count, weight), "number": ids, "key": key, "amount": ids % 1_000})


def _orders(start: int, count: int, customers: int, turn: int, weight: int) -> pa.Table:
    ids = np.arange(start, start + count, dtype=np.int64)
    customer = (ids * 7_919 + turn) % customers
    return pa.table({"w": np.full(count, weight), "number": ids, "customer": customer, "amount": ids % 500 + turn})


def _customers(start: int, count: int, turn: int, weight: int) -> pa.Table:
    ids = np.arange(start, start + count, dtype=np.int64)
    return pa.table({"w": np.full(count, weight), "number": ids, "region": (ids + turn) % REGIONS})


def _write(folder: Path, number: int, parts: list[pa.Table]) -> int:
    """Write one file; how many rows it has."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.concat_tables(parts)
    pa_csv.write_csv(table, folder / f"{number:05}.csv", pa_csv.WriteOptions(quoting_style="none"))
    return int(table.num_rows)
