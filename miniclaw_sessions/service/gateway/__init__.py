"""The daemon: sockets, HTTP, signals and systemd around one `SessionManager`."""
