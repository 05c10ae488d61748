"""Transcripts in a relational database: one schema and one set of statements, and a store per engine."""
