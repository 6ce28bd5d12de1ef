"""Recording and reading the changes of other databases, transaction by transaction (seed 003)."""
