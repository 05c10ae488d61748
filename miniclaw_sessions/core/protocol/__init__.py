"""What is said and logged: plain values, no I/O and no event loop."""
