"""Options of `format("tidegate")` that several modules name."""

from __future__ import annotations

from typing import Final

CUT: Final = "tidegateCut"
"""The option that names a cut as `TableCut.encode` wrote it: nobody is asked again."""
FRESHNESS: Final = ("consistency", "staleness", "timestamp", "version", "sessionToken")
"""The options that say which cut is wanted."""
FROM: Final = "startingFrom"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
