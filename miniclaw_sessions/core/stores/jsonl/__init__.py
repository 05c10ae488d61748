"""Transcripts as plain files: one append-only JSON Lines file per session, readable with any tool."""
