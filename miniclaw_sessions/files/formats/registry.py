"""All formats of session files, in the order in which a file is compared with them: ours, then other packages'.

A codec is loaded only when it may be needed. A file's signs decide that: names of fields without which the codec would
not recognize the file. Then the codec itself looks: its `recognize` has the last word. The command line's help takes
the names from here, so that this module itself loads little.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from miniclaw_sessions.errors import ConfigError, ImportRefused, PluginFailed
from miniclaw_sessions.log import get_logger

if TYPE_CHECKING:
    from miniclaw_sessions.files.formats.codec import Format, Sample

log = get_logger(__name__)


class OwnFormat(NamedTuple):
    """A format of ours, and what its files cannot be without.

    Attributes:
        name: as the command line has it.
        module, constant: where its `Format` is.
        signs: sets of names in one text each; a file of this format has one set whole, in one line or at the top of
            its document. `type=x` is a field `type` with the value `x`, `[]` a document that is a list, whose names
            are those of its first element, and `#text` a file without JSON.
        never: a name that no line of such a file has; None: there is no such name.
        is_written: whether a session can be written in it.
    """

    name: str
    module: str
    constant: str
    signs: tuple[str, ...] = ()
    never: str | None = None
    is_written: bool = True

    @property
    def is_read(self) -> bool:
        """Whether a file of it can be imported: without signs none is recognized."""
        return bool(self.signs)

    def load(self) -> Format:
        """The format itself."""
        form: Format = getattr(import_module(f"miniclaw_sessions.files.formats.{self.module}"), self.constant)
        return form

    def is_possible(self, lines: Sequence[frozenset[str]], document: frozenset[str]) -> bool:
        """Whether a file with these names, in each of its lines and in its document, has the signs of this format."""
        if self.never is not None and any(self.never in line for line in lines):
            return False
        return any(names.issuperset(sign) for sign in map(str.split, self.signs) for names in (*lines, document))


OURS = (
    OwnFormat(
        "jsonl",
        "entry_line",
        "ENTRY_LINE",
        ("id parent_id", "type=session session_id", "type=session version"),
        never="parentId",
    ),
    OwnFormat("pi", "pi", "PI", ("type parentId", "type=session cwd", "type timestamp message", "type=agent_start")),
    OwnFormat("dive", "dive", "DIVE", ("line_type data",)),
    OwnFormat(
        "claude-code",
        "claude_code",
        "CLAUDE_CODE",
        (
            "uuid parentUuid sessionId",
            "type=summary leafUuid",
            "type=file-history-snapshot snapshot",
            "type=queue-operation operation",
        ),
        is_written=False,
    ),
    OwnFormat("codex", "codex", "CODEX", ("type payload", "id timestamp instructions"), is_written=False),
    OwnFormat("gemini-cli", "gemini_cli", "GEMINI_CLI", ("sessionId projectHash",), is_written=False),
    OwnFormat(
        "gemini-cli-json", "gemini_cli", "GEMINI_CLI_JSON", ("sessionId projectHash messages",), is_written=False
    ),
    OwnFormat("opencode", "opencode", "OPENCODE", ("info",), is_written=False),
    OwnFormat("opencode-export", "opencode", "OPENCODE_EXPORT", ("info messages",), is_written=False),
    OwnFormat(
        "goose",
        "goose",
        "GOOSE",
        (
            *("description message_count", "description extension_data", "description accumulated_total_tokens"),
            *("name message_count", "name extension_data", "name accumulated_total_tokens"),
            "role created content",
        ),
        is_written=False,
    ),
    OwnFormat("goose-export", "goose", "GOOSE_EXPORT", ("id working_dir conversation",), is_written=False),
    OwnFormat("crush", "crush", "CRUSH", ("session",), is_written=False),
    OwnFormat("open-webui", "open_webui", "OPEN_WEBUI", ("chat",), is_written=False),
    OwnFormat("open-webui-export", "open_webui", "OPEN_WEBUI_EXPORT", ("[] chat", "chat"), is_written=False),
    OwnFormat(
        "librechat",
        "librechat",
        "LIBRECHAT",
        ("conversationId exportAt messages", "conversationId exportAt messagesTree"),
        is_written=False,
    ),
    OwnFormat("cursor", "cursor", "CURSOR", ("composer",), is_written=False),
    OwnFormat("amp", "amp", "AMP", ("id created messages",), is_written=False),
    OwnFormat("aider", "aider", "AIDER", ("#text",), is_written=False),
    OwnFormat("copilot-cli", "copilot_cli", "COPILOT_CLI", ("type data id parentId",), is_written=False),
    OwnFormat("copilot-cli-json", "copilot_cli", "COPILOT_CLI_JSON", ("sessionId chatMessages",), is_written=False),
    OwnFormat("llm", "llm", "LLM", ("thread", "conversation"), is_written=False),
    OwnFormat("nanobot", "nanobot", "NANOBOT", ("_type created_at", "_type key")),
    OwnFormat("miniclaw", "rust_miniclaw", "RUST_MINICLAW", ("session_id channel chat_id created_at messages",)),
    OwnFormat("openai-items", "openai_items", "OPENAI_ITEMS", ("input", "output", "items", "[]")),
    OwnFormat("google", "google", "GOOGLE", ("contents", "[] parts")),
    OwnFormat("anthropic", "anthropic", "ANTHROPIC", ("messages", "[] role")),
    OwnFormat("openai", "openai_chat", "OPENAI_CHAT", ("messages", "[] role")),
    OwnFormat("markdown", "markdown", "MARKDOWN"),
    OwnFormat("html", "html", "HTML"),
)

FAILED: dict[str, str] = {}
"""The formats of other packages that cannot be used, by name, and why."""

_failing: set[str] = set()  # the names of formats whose `recognize` has failed and was logged


@cache
def others() -> tuple[Format, ...]:
    """The formats of other packages; one that cannot be used is in `FAILED`."""
    from miniclaw_sessions.files.formats.codec import Format  # noqa: PLC0415 - help does not need it
    from miniclaw_sessions.plugins import declared, find, loaded  # noqa: PLC0415 - same

    usable: list[Format] = []
    for name in declared("formats"):
        try:
            form = loaded(find("formats", name, "an entry point"), f"the format {name!r}")
            if not isinstance(form, Format) or form.name != name or any(name == ours.name for ours in OURS):
                raise PluginFailed(
                    f"the format {name!r} of another package is no Format of this name, or has one of ours"
                )
            usable.append(form)
        except ConfigError as error:
            FAILED[name] = str(error)
    return tuple(usable)


def all_formats() -> tuple[Format, ...]:
    """Every format, ours first. Loads them all."""
    return (*(ours.load() for ours in OURS), *others())


def recognize(sample: Sample) -> Format:
    """The format of a file that begins like this.

    Raises:
        ImportRefused: no format recognizes it, or it is known not to be a session.
    """
    is_list = isinstance(sample.document, list)
    top = next(iter(sample.document), None) if is_list else sample.document
    lines = [*map(_names_of, sample.objects)]
    document = _names_of(top if isinstance(top, dict) else {}) | ({"[]"} if is_list else frozenset())
    document |= {"#text"} if sample.text else frozenset()
    for ours in OURS:
        if ours.is_possible(lines, document) and (form := ours.load()).recognize(sample):
            return form
    for form in others():
        if recognizes(form, sample):
            return form
    known = ", ".join(form.name for form in all_formats() if form.is_read)
    raise ImportRefused(
        f"this is not a session in any known format ({known}); if it is one, name its format (--format NAME)"
    )


def _names_of(fields: dict[str, Any]) -> frozenset[str]:
    """What `OwnFormat.signs` are looked for in."""
    return frozenset(fields) | {f"type={kind}"} if isinstance(kind := fields.get("type"), str) else frozenset(fields)


def recognizes(form: Format, sample: Sample) -> bool:
    """Whether a file that begins like this has this format.

    A format of another package that fails at that is logged once, and recognizes nothing.

    Raises:
        ImportRefused: it is something that is known not to be a session.
    """
    try:
        return form.recognize(sample)
    except ImportRefused:
        raise
    except Exception as error:
        if any(form.name == ours.name and form is ours.load() for ours in OURS):
            raise
        if form.name not in _failing:
            _failing.add(form.name)
            sentence = f"the format {form.name!r} of another package fails with a file, and is passed over"
            log.warning(sentence, action="format.failed", error_type=type(error).__name__)
        return False


def format_named(name: str) -> Format:
    """The format of this name.

    Raises:
        ImportRefused: no format has this name, or it cannot be used.
    """
    for ours in OURS:
        if ours.name == name:
            return ours.load()
    for form in others():
        if form.name == name:
            return form
    known = ", ".join(form.name for form in all_formats())
    raise ImportRefused(FAILED.get(name, f"there is no format {name!r}; there are {known}"))
