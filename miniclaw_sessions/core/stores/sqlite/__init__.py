"""The store in one SQLite file: its connections, statements and search index, and what is left of a damaged file."""
