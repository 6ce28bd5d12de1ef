"""Transactions, one timeline and untorn answers for streaming data."""

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import TidegateError

__all__ = ["TidegateError", "Timestamp"]
