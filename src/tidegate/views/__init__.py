"""Materialized views, without IO: from a query to what is stored for it, and how it follows its inputs' changes."""
