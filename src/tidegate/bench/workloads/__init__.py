"""Data, changes and queries that views and reads are proved and measured with: TPC-H and Nexmark."""
