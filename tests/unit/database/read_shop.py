"""A database as reads see it: an owner and clients, and checkpoints when a test asks for one."""

import tidegate
from tidegate import DatabaseSettings, LogSettings

TABLE = "CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING) SHARDS 2"


class Shop:
    """A database with an owner and clients, all in this process, the clients through the socket."""

    def __init__(self, path):
        self.path = path
        self.opened = []
        self.owner = self.open()

    def open(self, **options):
        settings = DatabaseSettings(log=LogSettings(tick_interval_ms=1000), channels=2, barrier_interval_ms=3_600_000)
        self.opened.append(tidegate.open(self.path, settings=settings, **options))
        return self.opened[-1]

    def close(self):
        for each in reversed(self.opened):
            each.close()


def ids(result):
    return sorted(row["id"] for row in result.rows())
