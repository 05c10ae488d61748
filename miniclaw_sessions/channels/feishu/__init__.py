"""Feishu and Lark, by the long connection."""
