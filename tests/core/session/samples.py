"""The files of document 003, section 12."""

from __future__ import annotations

SIMPLE = """\
{"type":"session","id":"sess-123","version":1,"timestamp":"2024-01-01T10:00:00Z"}
{"type":"message","id":"msg-1","parent_id":null,"timestamp":"2024-01-01T10:00:01Z","message":{"role":"user",\
"content":[{"type":"text","text":{"content":"Hello"}}]}}
{"type":"message","id":"msg-2","parent_id":"msg-1","timestamp":"2024-01-01T10:00:02Z","message":{"role":"assistant",\
"content":[{"type":"text","text":{"content":"Hi there!"}}]}}
"""
COMPLEX = """\
{"type":"session","id":"sess-456","version":1,"timestamp":"2024-02-01T12:00:00Z"}
{"type":"message","id":"m-1","parent_id":null,"timestamp":"2024-02-01T12:00:01Z","message":{"role":"user",\
"content":[{"type":"text","text":{"content":"Read main.go"}}]}}
{"type":"message","id":"m-2","parent_id":"m-1","timestamp":"2024-02-01T12:00:02Z","message":{"role":"assistant",\
"content":[{"type":"tool_use","tool_use":{"id":"call_abc","name":"read_file","input":{"path":"main.go"}}}]}}
{"type":"message","id":"m-3","parent_id":"m-2","timestamp":"2024-02-01T12:00:03Z","message":{"role":"tool",\
"content":[{"type":"tool_result","tool_result":{"tool_use_id":"call_abc","content":"package main..."}}]}}
"""
