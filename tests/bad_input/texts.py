"""The bad texts: what strangers may send as an id or as content, each by its name, and where each is refused.

Everything that is not refused is kept exactly: code point by code point, whatever it looks like.
"""

from __future__ import annotations

TEXTS = {
    "empty": "",
    "one byte": "x",
    "255 characters": "x" * 255,
    "256 characters": "x" * 256,
    "4096 characters": "x" * 4096,
    "4097 characters": "x" * 4097,
    "128 e acute": "é" * 128,
    "dot dot": "..",
    "dot": ".",
    "parent": "../x",
    "absolute path": "/etc/passwd",
    "slash": "a/b",
    "backslash": "a\\b",
    "home": "~",
    "hash tail": "a~" + "0" * 64,
    "option": "-rf",
    "leading space": " x",
    "trailing space": "x ",
    "leading dot": ".x",
    "trailing dot": "x.",
    "device": "CON",
    "device file": "nul.json",
    "temporary": "x.tmp",
    "lock": ".lock",
    "quarantined": "x.json.20260101T000000Z-1-abc",
    "colon": "a:b",
    "colon later": "b:c",
    "capital": "A",
    "small": "a",
    "NFC": "\u00e9",
    "NFD": "e\u0301",
    "sharp s": "ß",
    "SS": "SS",
    "fullwidth digits": "\uff11\uff12",
    "superscript": "²",
    "right to left override": "\u202ex",
    "zero width joiner": "a\u200db",
    "line separator": "a\u2028b",
    "next line": "a\u0085b",
    "file separator": "a\x1cb",
    "CR": "a\rb",
    "LF": "a\nb",
    "CRLF": "a\r\nb",
    "NUL": "a\0b",
    "escape sequence": "\x1b[31mred\x1b]0;title\x07",
    "lone surrogate": "\ud800",
    "reversed pair": "\udc00\ud800",
    "astral": "😀",
    "byte order mark": "\ufeffx",
    "journal priority": "<0>x",
    "newline and priority": "x\n<2>forged",
    "formats": "{}%s{0}%(x)s${x}",
    "percent": "%2F%00%",
    "19 digits": "9" * 19,
    "20 digits": "9" * 20,
    "4300 digits": "9" * 4300,
    "4301 digits": "9" * 4301,
    "float": "1e400",
    "minus zero": "-0",
    "NaN": "NaN",
    "proto": "__proto__",
    "constructor": "constructor",
    "html": "<script>alert(1)</script>",
    "sql": "'; DROP TABLE entries; --",
}
MILLION = "x" * 10**6
"""Too large for the requests that hold most of the others, and for an id."""

REFUSED_AS_CONTENT = {"lone surrogate", "reversed pair"}
"""They have no form in UTF-8, so nothing could write them."""

REFUSED_AS_ID = REFUSED_AS_CONTENT | {"empty", "NUL", "4097 characters", "4300 digits", "4301 digits"}
