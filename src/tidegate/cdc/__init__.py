"""What other databases say of their changes: formats and transaction boundaries, without IO (seed 003)."""
