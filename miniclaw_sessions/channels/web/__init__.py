"""The chat of a website: a script that it embeds, and what the daemon answers that script."""
