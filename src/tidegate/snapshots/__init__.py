"""Snapshots of tables: Parquet layers, the manifests that name them, and what keeps both few."""
