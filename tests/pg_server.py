"""A real PostgreSQL server for tests, the one that benchmarks use."""

from tidegate.bench.pg_server import Server, shared

__all__ = ["Server", "shared"]
