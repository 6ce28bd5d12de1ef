"""Barriers, epochs and checkpoints as pure machines: when to cut, where the cut lies, when it may be committed."""
