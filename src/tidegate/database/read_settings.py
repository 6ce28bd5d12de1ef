"""`ReadSettings`: how a session reads when a query does not say: consistency, limits on waiting, engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.reads.consistency import LEVELS, Asked, Consistency, asked
from tidegate.reads.waiting import MAX_LAG_MS

EngineName = Literal["auto", "duckdb", "spark"]
_SET: Final = re.compile(r"\s*SET\s+([a-z_]+)\s*(?:=|\s+TO\s+)\s*(.+?)\s*;?\s*", re.IGNORECASE | re.DOTALL)
_BOUNDED: Final = re.compile(r"bounded\s+(\d+(?:\.\d+)?)\s*(ms|s|m|min)?", re.IGNORECASE)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0}


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Immutable, checked when made."""

    asked: Asked = field(default_factory=Asked)
    timeout_s: float | None = None
    """How long a query may take, waiting included."""
    max_lag_s: float = MAX_LAG_MS / 1000
    """A read whose cut is further off than this fails at once."""
    engine: EngineName = "auto"

    def with_(
        self,
        *,
        consistency: Consistency | str | None = None,
        staleness: float | None = None,
        timeout: float | None = None,
        max_lag: float | None = None,
        engine: str | None = None,
    ) -> ReadSettings:
        """The same, but for what is given. Raises: `InvalidArgument`."""
        found = self
        if consistency is not None:
            found = replace(found, asked=asked(consistency, staleness))
        elif staleness is not None:
            found = replace(found, asked=self.asked.with_staleness(staleness))
        if timeout is not None:
            found = replace(found, timeout_s=seconds("timeout", timeout))
        if max_lag is not None:
            found = replace(found, max_lag_s=seconds("max_lag", max_lag))
        if engine is not None:
            for each in get_args(EngineName):
                if engine == each:
                    return replace(found, engine=each)
            raise InvalidArgument(f"engine is {', '.join(map(repr, get_args(EngineName)))}, not {engine!r}")
        return found

    def set(self, name: str, value: str) -> ReadSettings:
        """After `SET name = value`. Raises: `InvalidArgument`."""
        text = value.strip().strip("'\"").strip()
        match name.lower():
            case "consistency":
                if found := _BOUNDED.fullmatch(text):
                    seconds = float(found[1]) * _UNITS[(found[2] or "s").lower()]
                    return self.with_(consistency="bounded", staleness=seconds)
                level: Consistency | str = text.lower()
                if level not in LEVELS:
                    try:
                        level = Timestamp.parse(text)
                    except InvalidArgument:
                        level = text
                return self.with_(consistency=level)
            case "staleness":
                return self.with_(staleness=_number(name, text))
            case "max_lag":
                return self.with_(max_lag=_number(name, text))
            case "timeout":
                if text.lower() in ("none", "0", "off"):
                    return replace(self, timeout_s=None)
                return self.with_(timeout=_number(name, text))
            case "engine":
                return self.with_(engine=text.lower())
        raise InvalidArgument(
            f"there is no setting {name!r}; there are: consistency, staleness, timeout, max_lag, engine"
        )

    def rows(self) -> list[dict[str, Any]]:
        """As `SHOW SETTINGS` lists them."""
        return [
            {"name": "consistency", "value": str(self.asked)},
            {"name": "timeout", "value": "none" if self.timeout_s is None else f"{self.timeout_s:g} s"},
            {"name": "max_lag", "value": f"{self.max_lag_s:g} s"},
            {"name": "engine", "value": self.engine},
        ]


def parse_set(sql: str) -> tuple[str, str] | None:
    """The name and value of a SET statement; None when it is another one."""
    found = _SET.fullmatch(sql)
    return None if found is None else (found[1], found[2])


def _number(name: str, text: str) -> float:
    try:
        return float(text.removesuffix("s").strip())
    except ValueError:
        raise InvalidArgument(f"`{name}` is a number of seconds, not {text!r}") from None


def seconds(name: str, value: Any) -> float:
    """A number of seconds. Raises: `InvalidArgument`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise InvalidArgument(f"`{name}` is a number of seconds above 0, not {value!r}")
    return float(value)
