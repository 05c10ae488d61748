"""The service: typed operations, the client, the daemon with its page, and the command line."""
