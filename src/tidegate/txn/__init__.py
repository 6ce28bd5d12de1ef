"""Transactions as pure machines: ids, sessions, coordinator, commit markers, assembly, conflicts."""
