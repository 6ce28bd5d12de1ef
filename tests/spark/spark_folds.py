"""Folds for the tests: what a share's messages are, and folds that fail or wait."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tidegate.spark.reading import Span, read_span
from tidegate.spark.work import WorkItem
from tidegate.topics.value import decode


def values(item: WorkItem) -> list[dict[str, Any]]:
    """Every value in the share."""
    found = []
    for batch in read_span(item.database, Span(item.channel, item.after, item.upto, item.position)):
        found += [decode(each.body).value for each in batch.messages() if each.vchannel.startswith("topic/")]
    return [{"values": found}] if found else []


def fails_while_told(item: WorkItem) -> list[dict[str, Any]]:
    """As `values`, but for as long as the file `fail` is there it fails, at length."""
    if Path(item.arguments["fail"]).exists():
        raise ValueError("this share cannot be folded: " + "x" * 20_000)
    return values(item)


def slow(item: WorkItem) -> list[dict[str, Any]]:
    Path(item.arguments["began"]).touch()
    time.sleep(item.arguments["seconds"])
    return values(item)
