"""What `record.py` recorded: the events of a real engine, and what PostgreSQL had after each commit."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

State = dict[str, dict[Any, tuple[Any, ...]]]
"""The rows of tables, by their ids."""


class Recording(NamedTuple):
    lines: list[str]
    """The events, as they were handed over."""
    truth: list[dict[str, list[dict[str, Any]]]]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def payloads(self) -> list[Any]:
        """The events' values without their schemas."""
        return [payload(each["value"]) for each in self.records]

    def states(self, columns: dict[str, tuple[str, ...]]) -> list[State]:
        """The tables after each commit. The first column is the id."""
        return [
            {table: {row[each[0]]: tuple(row.get(name) for name in each) for row in state[table]} for table, each in
             columns.items()}
            for state in self.truth
        ]  # fmt: skip


def recording(name: str) -> Recording:
    text = gzip.decompress((Path(__file__).parent / f"{name}.jsonl.gz").read_bytes()).decode()
    lines = text.splitlines()
    return Recording(lines[:-1], json.loads(lines[-1], parse_float=Decimal)["truth"])


def payload(value: Any) -> Any:
    return value["payload"] if value is not None and "payload" in value else value


def applied_as_they_come(events: list[Any]) -> Iterator[dict[str, set[Any]]]:
    """The ids in each table after each event, for a consumer that does not know transactions."""
    found: dict[str, set[Any]] = {}
    for each in events:
        if each is None or "op" not in each:
            continue
        ids = found.setdefault(each["source"]["table"], set())
        match each["op"]:
            case "t":
                ids.clear()
            case "d":
                ids.discard(each["before"]["id"])
            case _:
                ids.add(each["after"]["id"])
        yield {table: set(ids) for table, ids in found.items()}
