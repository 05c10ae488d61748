"""All formats of session files, in the order in which a file is compared with them: ours, then other packages'."""

from __future__ import annotations

from collections.abc import Iterator

from miniclaw_sessions.errors import ConfigError, ImportRefused, PluginFailed
from miniclaw_sessions.files.formats.anthropic import ANTHROPIC
from miniclaw_sessions.files.formats.claude_code import CLAUDE_CODE
from miniclaw_sessions.files.formats.codec import Format, Sample
from miniclaw_sessions.files.formats.codex import CODEX
from miniclaw_sessions.files.formats.dive import DIVE
from miniclaw_sessions.files.formats.entry_line import ENTRY_LINE
from miniclaw_sessions.files.formats.gemini_cli import GEMINI_CLI, GEMINI_CLI_JSON
from miniclaw_sessions.files.formats.google import GOOGLE
from miniclaw_sessions.files.formats.html import HTML
from miniclaw_sessions.files.formats.llm import LLM
from miniclaw_sessions.files.formats.markdown import MARKDOWN
from miniclaw_sessions.files.formats.nanobot import NANOBOT
from miniclaw_sessions.files.formats.openai_chat import OPENAI_CHAT
from miniclaw_sessions.files.formats.openai_items import OPENAI_ITEMS
from miniclaw_sessions.files.formats.opencode import OPENCODE, OPENCODE_EXPORT
from miniclaw_sessions.files.formats.pi import PI
from miniclaw_sessions.files.formats.rust_miniclaw import RUST_MINICLAW
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.plugins import declared, find, loaded

log = get_logger(__name__)

_OURS: tuple[Format, ...] = (
    ENTRY_LINE,
    PI,
    DIVE,
    CLAUDE_CODE,
    CODEX,
    GEMINI_CLI,
    GEMINI_CLI_JSON,
    OPENCODE,
    OPENCODE_EXPORT,
    LLM,
    NANOBOT,
    RUST_MINICLAW,
    OPENAI_ITEMS,
    GOOGLE,
    ANTHROPIC,
    OPENAI_CHAT,
    MARKDOWN,
    HTML,
)

_FAILING: set[str] = set()  # those whose `recognize` has failed, which was told

FAILED: dict[str, str] = {}
"""The formats of other packages that cannot be used, by name, and why."""


def _others() -> Iterator[Format]:
    for name in declared("formats"):
        try:
            form = loaded(find("formats", name, "an entry point"), f"the format {name!r}")
            if not isinstance(form, Format) or form.name != name or any(name == ours.name for ours in _OURS):
                raise PluginFailed(
                    f"the format {name!r} of another package is no Format of this name, or has one of ours"
                )
            yield form
        except ConfigError as error:
            FAILED[name] = str(error)


FORMATS = (*_OURS, *_others())
READABLE = tuple(form for form in FORMATS if form.reader is not None)
WRITABLE = tuple(form for form in FORMATS if form.is_written)


def recognize(sample: Sample) -> Format:
    """The format of a file that begins like this.

    Raises:
        ImportRefused: it is none of them, or something that is known not to be a session.
    """
    for form in READABLE:
        if recognizes(form, sample):
            return form
    names = ", ".join(form.name for form in READABLE)
    raise ImportRefused(
        f"this is not a session in any known format ({names}); name the one that is meant, if it is one"
    )


def recognizes(form: Format, sample: Sample) -> bool:
    """Whether a file that begins like this has this format.

    One of another package that fails at that names itself, once, and recognizes nothing.

    Raises:
        ImportRefused: it is something that is known not to be a session.
    """
    try:
        return form.recognize(sample)
    except ImportRefused:
        raise
    except Exception as error:
        if form in _OURS:
            raise
        if form.name not in _FAILING:
            _FAILING.add(form.name)
            sentence = f"the format {form.name!r} of another package fails with a file, and is passed over"
            log.warning(sentence, action="format.failed", error_type=type(error).__name__)
        return False


def format_named(name: str) -> Format:
    """The format of this name.

    Raises:
        ImportRefused: there is none.
    """
    for form in FORMATS:
        if form.name == name:
            return form
    there_are = f"there is no format {name!r}; there are {', '.join(form.name for form in FORMATS)}"
    raise ImportRefused(FAILED.get(name, there_are))
