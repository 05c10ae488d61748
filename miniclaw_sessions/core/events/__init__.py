"""What happens to sessions, published once to all listeners: commits, flushes, sessions that come and go, turns."""
