"""The database: what `tidegate.open` returns, in the process that owns it and in the others."""
