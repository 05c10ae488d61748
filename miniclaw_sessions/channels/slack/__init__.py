"""Slack, by Socket Mode or the Events API."""
