"""The known programs; docs/reference/discovery.md has the source of each fact."""

from __future__ import annotations

import re
from collections.abc import Sequence

from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.files.discovery import places
from miniclaw_sessions.files.discovery.program import Program

_FIRST_CODEX = "it is one document, as the first versions of Codex wrote them, and that form is not read"
_OF_PI = (b'"type":"message"',)

PROGRAMS: tuple[Program, ...] = (
    Program(
        name="pi", places=places.pi, form="pi", names=re.compile(r"(?:.*/)?(?:[^/]*_)?([^/_]+)\.jsonl"), marks=_OF_PI
    ),
    Program(
        name="claude-code",
        places=places.inside("projects", of=(".claude", ".config/claude"), variables=("CLAUDE_CONFIG_DIR",)),
        form="claude-code",
        marks=(b'"type":"user"', b'"type":"assistant"'),
    ),
    Program(
        name="codex",
        places=places.inside("sessions", "archived_sessions", of=(".codex",), variables=("CODEX_HOME",)),
        form="codex",
        names=re.compile(r"(?:.*/)?(?:rollout-[^/]*?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})|([^/]+))\.jsonl"),
        not_read=(re.compile(r"(?:.*/)?rollout-[^/]*\.json"), _FIRST_CODEX),
        marks=(b'"payload":{"type":"message"', b'"payload":{"type":"function_call'),
    ),
    Program(
        name="nanobot",
        places=places.inside(".nanobot/workspace/sessions", ".nanobot/sessions"),
        is_rewritten=True,
        form="nanobot",
        names=re.compile(r"([^/]+)\.jsonl"),
        marks=(b'"role": ', b'"role":"'),
    ),
    Program(
        name="openclaw",
        places=places.openclaw,
        databases=places.openclaw_databases,
        form="pi",
        names=re.compile(r"[^/]+/sessions/([^/]+)\.jsonl"),
        marks=_OF_PI,
    ),
    Program(name="opencode", databases=places.opencode, form="opencode", older=places.opencode_older),
    Program(
        name="gemini-cli",
        places=places.inside(".gemini/tmp", variables=("GEMINI_CLI_HOME",)),
        names=re.compile(r"[^/]+/chats/(?:[^/]+/)?([^/]+)\.jsonl?"),
        inside=re.compile(rb'"sessionId":\s*"([^"\\\\]+)"'),
        marks=(b'"type":"gemini"', b'"type":"user"', b'"type": "gemini"', b'"type": "user"'),
    ),
    Program(name="llm", databases=places.llm, form="llm"),
    Program(
        name="goose",
        places=places.goose,
        databases=places.goose_databases,
        is_rewritten=True,
        is_moved=True,
        has_unique_ids=False,
        form="goose",
        names=re.compile(r"([^/]+)\.jsonl"),
        marks=(b'"role":"',),
    ),
    Program(name="crush", databases=places.crush, form="crush"),
    Program(
        name="aider",
        places=places.aider,
        depth=0,
        is_rewritten=True,
        is_named_by_directory=True,
        form="aider",
        names=re.compile(r"\.aider\.chat\.history\.md"),
        marks=(b"\n#### ",),
    ),
    Program(
        name="copilot-cli",
        places=places.inside("session-state", "history-session-state", of=(".copilot",), variables=("COPILOT_HOME",)),
        depth=1,
        names=re.compile(r"(?:([^/]+)/events\.jsonl|([^/]+)\.jsonl?)"),
        inside=re.compile(rb'"sessionId":\s*"([^"\\\\]+)"'),
        marks=(b'"type":"user.message"', b'"type":"assistant.message"', b'"role": "user"', b'"role": "assistant"'),
    ),
    Program(name="open-webui", databases=places.open_webui, form="open-webui"),
    Program(name="librechat", older=places.librechat),
    Program(name="cursor", databases=places.cursor, older=places.cursor_command_line, form="cursor"),
    Program(
        name="amp",
        places=places.amp,
        depth=0,
        is_rewritten=True,
        form="amp",
        names=re.compile(r"(T-[^/]+)\.json"),
        marks=(b'"role": "user"', b'"role": "assistant"', b'"role":"user"', b'"role":"assistant"'),
    ),
)


def programs_named(names: Sequence[str]) -> list[Program]:
    """The programs of these names; all of them for none, and for `*`.

    Raises:
        ConfigError: one is not known.
    """
    known = {program.name: program for program in PROGRAMS}
    if "*" in names:
        return list(PROGRAMS)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"the sessions of {unknown[0]!r} are not known; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)] if names else list(PROGRAMS)
