"""The simulator: the real oracle, channels, recovery and readers under a seeded scheduler, clock and disk."""
