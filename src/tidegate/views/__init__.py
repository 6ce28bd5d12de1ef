"""Materialized views, without IO: from a query to what is stored for it, and how a change of its inputs changes that."""
