"""The client: the words of `SessionManager` and `Session`, wherever the workspace is held."""
