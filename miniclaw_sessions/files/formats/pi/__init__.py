"""pi's session files: `~/.pi/agent/sessions/*/*.jsonl`, read in the versions 1, 2 and 3, written in version 3.

Such a file is a tree, one JSON object per line: a header, then entries that name their parents. What each module does:

- `messages` is what was said, `entries` is what was logged, each in both directions; `messages` also knows how pi lays
  out its JSON objects, and keeps what our values have no field for;
- `file` recognizes a file, reads it and writes one.

Other things that pi calls sessions, such as the event stream of its JSON mode, are refused.
"""

from __future__ import annotations

from miniclaw_sessions.files.formats.codec import Format
from miniclaw_sessions.files.formats.pi.file import PiReader, PiWriter, is_pi

PI = Format(
    name="pi",
    about=(
        "Session files of the coding agent pi, with their whole tree; version 3 comes back as it was but for the "
        "spelling of numbers, our entries but for other formats' `extra` and for microseconds in a message's time"
    ),
    suffix=".jsonl",
    recognize=is_pi,
    reader=PiReader,
    writer=PiWriter,
)
