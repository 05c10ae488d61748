"""Decisions about conversations: pure functions and plain objects, no I/O."""
