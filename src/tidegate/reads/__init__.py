"""Reads: what a query in Spark SQL asks, and how it is answered without Spark."""
