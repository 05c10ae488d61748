"""Matrix."""
