"""What happens to sessions, published once to whoever listens: commits, flushes, sessions that come and go, turns."""
