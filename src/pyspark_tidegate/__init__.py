"""Lets Spark find `format("tidegate")` by itself: it looks into every package whose name begins with `pyspark_`."""

from tidegate.spark.source import TidegateSource as DefaultSource

__all__ = ["DefaultSource"]
