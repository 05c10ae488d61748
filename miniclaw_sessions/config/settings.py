"""Every setting, with its default and its bounds.

Secrets are not settings: a setting only names the file (see `secret`). This module defines the values; their users give
them meaning. It imports nothing heavy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

DEFAULT_WORKSPACE = Path("~/.miniclaw/workspace")
"""Where a workspace is unless another one is named."""

MAX_MESSAGES = 50
"""How many messages a window holds by default; the default of `sessions.window`."""

PERSISTENCE_INTERVAL_SECS = 30.0
"""Seconds between two flushes by default; the default of `sessions.flush_interval_s`."""

_LONGEST_S = 10 * 365 * 86_400.0  # keeps infinity and typing errors out of every timer
_LARGEST_BYTES = 2**50

PLUGINS = ("channels", "tools", "hooks", "providers")
"""The kinds of plug-ins that have settings, in `[KIND.NAME]`."""

_SECRET = re.compile(r"passw|secret|token|credential|_?key$", re.IGNORECASE)  # names of values that are never shown
_HANDED_ON = re.compile(r"mcp\..+\.(?:args|env)", re.DOTALL)

Seconds = Annotated[float, msgspec.Meta(gt=0, le=_LONGEST_S)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=_LARGEST_BYTES)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Days = Annotated[float, msgspec.Meta(ge=0, le=36_500)]


class PostgreSQLSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The connection of a `postgresql:` store. Each of these may also be an option in the store's URL.

    Attributes:
        password_file: file with the role's password; empty: the systemd credential `postgresql_password`, else the
            files of PostgreSQL's own programs (`PGPASSFILE`, `~/.pgpass`).
        sslmode: how strictly TLS is required, by the names of PostgreSQL's own programs.
        sslrootcert: file with the certificates that must have signed the server's; empty: `~/.postgresql/root.crt`.
        sslcert: file with our own certificate, if the server asks for one.
        sslkey: file with its key.
        write_connections: connections that append and delete.
        read_connections: connections for everything else.
        connect_timeout_s: seconds for a new connection.
        statement_timeout_s: seconds for one statement; then it is cancelled, and repeated if that changes nothing.
        acquire_timeout_s: seconds to wait for a free connection.
        allow_unsafe_commits: also accept a server that can lose acknowledged messages in a crash.
    """

    password_file: str = ""
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] = "prefer"
    sslrootcert: str = ""
    sslcert: str = ""
    sslkey: str = ""
    write_connections: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 2
    read_connections: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 4
    connect_timeout_s: Seconds = 10.0
    statement_timeout_s: Annotated[float, msgspec.Meta(ge=0.05, le=86_400)] = 30.0
    acquire_timeout_s: Seconds = 30.0
    allow_unsafe_commits: bool = False


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long the conversations of one channel are kept; the defaults are those of `sessions`.

    Attributes:
        ttl_days: days without access after which a session expires; 0: never.
        archive_expired: keep an expired session's transcript rather than delete it.
        archive_days: days after which the archive forgets it; 0: never.
    """

    ttl_days: Days | None = None
    archive_expired: bool | None = None
    archive_days: Days | None = None


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations are kept.

    Attributes:
        store: URL of the append-only store of every transcript: `sqlite:`, `jsonl:`, `postgresql:`, `memory:` or
            `none:`.
        window: messages of one session that stay in memory and in its snapshot.
        flush_interval_s: seconds between two checkpoints of changed sessions.
        ttl_days: days without access after which a session expires; 0: never.
        sweep_interval_s: seconds between two searches for expired sessions.
        archive_expired: keep an expired session's transcript rather than delete it.
        archive_days: days after which the archive forgets a session for good; 0: never.
        restore_archived: a chat that speaks again after its session has expired goes on with what the archive has.
        max_unsaved_bytes: accepted but uncommitted bytes beyond which appending is refused.
        max_message_bytes: the largest message, encoded, with the files in it.
        max_metadata_bytes: the largest metadata of one session, all of it together, encoded.
        max_sessions: sessions beyond which none is created.
        max_cached: sessions in memory beyond which the least recently used ones are evicted, once they are saved; they
            are loaded again at their next use.
        quarantine_max_files: damaged files set aside beyond which further ones stay in place.
        quarantine_max_bytes: the same, in bytes.
        snapshot_max_bytes: the largest session file: beyond it the oldest messages are in the store alone, from which
            they come back at the next start (with `none:` they are lost then). A larger file from elsewhere is not read
            but quarantined. Metadata and a compaction, up to their own limits, always find room.
        shutdown_timeout_s: seconds without progress after which the last commit and flush are given up.
        lock_wait_s: seconds that the daemon and commands that write wait for another process that holds the workspace.
        turn_lease_s: for a store that several processes write: seconds for which a turn belongs to the process that
            answers it. The lease is prolonged while the turn runs.
        currency: the currency of shown costs; by default that of `[prices]`, or USD.
        postgresql: the connection of a `postgresql:` store.
        retention: by the name of a channel, how long its conversations are kept.
    """

    store: Annotated[str, msgspec.Meta(min_length=1)] = "sqlite:"
    window: Annotated[int, msgspec.Meta(ge=2, le=100_000)] = MAX_MESSAGES
    flush_interval_s: Seconds = PERSISTENCE_INTERVAL_SECS
    ttl_days: Days = 30.0
    sweep_interval_s: Seconds = 86_400.0
    archive_expired: bool = True
    archive_days: Days = 0.0
    restore_archived: bool = True
    max_unsaved_bytes: Bytes = 67_108_864
    max_message_bytes: Bytes = 8_388_608
    max_metadata_bytes: Bytes = 1_048_576
    max_sessions: Count = 100_000
    max_cached: Count = 100_000
    quarantine_max_files: Count = 1_000
    quarantine_max_bytes: Bytes = 1_073_741_824
    snapshot_max_bytes: Bytes = 67_108_864
    shutdown_timeout_s: Seconds = 60.0
    lock_wait_s: Annotated[float, msgspec.Meta(ge=0, le=_LONGEST_S)] = 10.0
    turn_lease_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 30.0
    currency: Annotated[str, msgspec.Meta(min_length=1)] = "USD"
    postgresql: PostgreSQLSettings = PostgreSQLSettings()
    retention: dict[str, RetentionSettings] = {}


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the daemon listens, and to whom.

    Attributes:
        socket: path of the Unix socket; empty: the default path (see `socket_path`), `none`: no socket.
        tcp: address such as 127.0.0.1:8080; empty: no TCP.
        token_file: file with the bearer token for everything; empty: the systemd credential `token`, else a new
            one, if TCP is for this machine alone.
        tokens_file: file of further tokens, as `tokens create` writes it; empty: `tokens.json` in the workspace. Those
            of the systemd credential `tokens` are added.
        token_rate: requests per second that a token may send, unless it has a rate of its own; 0: no limit.
        metrics: access to `/metrics`: with a `token`, without one (`open`), or none (`off`).
        allowed_hosts: further `Host` values, with port, that TCP requests may carry.
        allowed_origins: `Origin` values of web pages that may call the API from a browser, beside the daemon's own.
        max_body_bytes: the largest request body.
        request_timeout_s: seconds for a request to arrive and to be answered (chats and streams excepted).
        graceful_timeout_s: seconds for running requests to finish at shutdown.
        max_connections: connections by TCP, and as many by Unix socket, beyond which new ones are answered 503.
    """

    socket: str = ""
    tcp: str = ""
    token_file: str = ""
    tokens_file: str = ""
    token_rate: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    metrics: Literal["token", "open", "off"] = "token"
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: Bytes = 10_485_760
    request_timeout_s: Seconds = 30.0
    graceful_timeout_s: Seconds = 10.0
    max_connections: Count = 512


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The model that answers chats.

    Attributes:
        provider: its interface: `openai` (chat completions), `openai-responses`, `anthropic`, `google`, or
            `pydantic-ai`, whose models are named `SERVICE:MODEL`; or a provider of an installed package.
        base_url: the provider's address; empty: the provider library's own default.
        model: the model's name; empty: the built-in responder, which needs no network.
        fallback: the model that answers while this one's service is overloaded, also after retries; `PROVIDER:MODEL`
            for another provider's. Empty: none.
        choices: other models that a chat may change to with `/model`, written as `fallback` is.
        thinking: how much the model thinks before it answers: `low`, `medium`, `high`, ... for models with efforts; a
            number of tokens, 0, or `adaptive`, for models with a budget. Empty: the model's default.
        thinking_levels: the levels of thinking that a chat may choose with `/thinking`, the least first. Empty: those
            of the model, where they are known by its name.
        titles: whether the model is asked for a title behind the first answer in a session that has none.
        api_key_file: file with the key; empty: the systemd credential `model_api_key`; without that, and without a
            `base_url`, the environment variable that the provider itself names, such as OPENAI_API_KEY.
        api_key_env: environment variable with the key, if a file is not possible.
        system_prompt: the first instruction to the model.
        max_iterations: rounds of tool calls in one turn.
        tool_timeout_s: seconds for one tool call.
        tools: the model's tools: `time`, `calculator`, `search_history`, `reminders`, those of installed packages, or
            patterns of names (`github_*`); empty: none.
        search_all_chats: whether `search_history` searches all chats, and not only its own: every person who chats can
            then learn the content of all other chats.
        timeout_s: seconds without a sign of life from the model's service; such a request is repeated twice.
        reply_timeout_s: seconds for one reply of the model, however steadily it comes.
        max_reply_bytes: the largest reply.
        files: media types of files that the model takes beside texts and pictures, such as `application/pdf`; empty:
            those that its service is known to take.
        context_window: how many tokens the model accepts; 0: unknown, and it gets the messages of the window.
        reserve_tokens: how many of them stay free for the reply; beyond that the older part is summarized.
        keep_tokens: about how much of the newest part is not summarized.
    """

    provider: Annotated[str, msgspec.Meta(min_length=1)] = "openai"
    base_url: str = ""
    model: str = ""
    fallback: str = ""
    choices: tuple[str, ...] = ()
    thinking: str = ""
    thinking_levels: tuple[str, ...] = ()
    titles: bool = False
    api_key_file: str = ""
    api_key_env: str = ""
    system_prompt: str = "You are a helpful assistant."
    max_iterations: Count = 200
    tool_timeout_s: Seconds = 30.0
    tools: tuple[str, ...] = ("time", "calculator")
    search_all_chats: bool = False
    timeout_s: Seconds = 120.0
    reply_timeout_s: Seconds = 600.0
    max_reply_bytes: Bytes = 8 * 2**20
    files: tuple[str, ...] = ()
    context_window: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    reserve_tokens: Count = 16_384
    keep_tokens: Count = 20_000


class TranscriptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The service that writes down what is said in voice messages and other sounds, which most models do not take.

    It speaks OpenAI's `/audio/transcriptions`; the extra `openai` is its client. The sound stays in the session.

    Attributes:
        model: the model's name, such as `whisper-1`; empty: sounds are kept, and not heard.
        base_url: the service's address, with its version; empty: OpenAI's own.
        api_key_file: file with the key; empty: the systemd credential `transcription_api_key`; without that, and
            without a `base_url`, OPENAI_API_KEY.
        api_key_env: environment variable with the key, if a file is not possible.
        language: the language that is spoken, such as `en`; empty: the model finds out.
        timeout_s: seconds without a sign of life from the service; such a request is repeated twice.
    """

    model: str = ""
    base_url: str = ""
    api_key_file: str = ""
    api_key_env: str = ""
    language: str = ""
    timeout_s: Seconds = 60.0


class DocumentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How PDF, Word and Excel files are read for models that do not take them; the extra `documents` reads them.

    The text stands in the session before the document. Each is read in a process of its own.

    Attributes:
        max_pages: how many pages of a document are read; 0: none is read, and the model reads that it cannot be shown.
        max_memory_mb: how much memory that may take.
        timeout_s: how many seconds.
    """

    max_pages: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 300
    max_memory_mb: Annotated[int, msgspec.Meta(ge=64, le=2**20)] = 512
    timeout_s: Seconds = 30.0


class ChannelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages may wait for an answer, on any channel.

    Attributes:
        max_waiting_per_chat: messages of one chat that wait while another one is answered.
        max_messages: messages of all chats that wait or are being answered.
    """

    max_waiting_per_chat: Count = 20
    max_messages: Count = 1_000


class ReminderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is said in chats at its time: `/remind`, the tool `reminders`, and `[schedules.NAME]`.

    Attributes:
        enabled: whether reminders can be set, and are said.
        timezone: the time zone of chats that have chosen none with `/timezone`.
        missed: whether one whose time passed while no gateway ran is said `late`, or left out (`skip`).
        missed_within_s: seconds after which one that was missed is left out in any case.
        max_per_chat: reminders of one chat beyond which none is set.
    """

    enabled: bool = True
    timezone: Annotated[str, msgspec.Meta(min_length=1)] = "UTC"
    missed: Literal["late", "skip"] = "late"
    missed_within_s: Seconds = 86_400.0
    max_per_chat: Count = 100


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is said or asked in a chat again and again: a `text`, a `prompt`, or the open points of a file.

    Attributes:
        chat: the id of the chat's session, such as `telegram_123456789`.
        cron: when, as a cron expression of five fields, in the chat's time zone or in `timezone`; empty: `every_s`.
        every_s: seconds from one time to the next, at least 60.
        timezone: the time zone of `cron`.
        text: what is said.
        prompt: what the model is asked; its answer is said.
        points_file: what the model looks at, unless it is empty; where it answers SILENT, nothing is said.
    """

    chat: str
    cron: str = ""
    every_s: Annotated[float, msgspec.Meta(ge=60, le=_LONGEST_S)] | None = None
    timezone: str = ""
    text: str = ""
    prompt: str = ""
    points_file: str = ""

    def __post_init__(self) -> None:
        if bool(self.cron) == bool(self.every_s) or sum(map(bool, (self.text, self.prompt, self.points_file))) != 1:
            raise ValueError("it needs cron or every_s, and one of text, prompt and points_file")


class MCPSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server, whose tools models may call as `NAME_tool`, if `model.tools` allows them.

    Attributes:
        command: the program that is started; it speaks MCP on its standard input and output.
        args: its arguments.
        env: environment variables for it, beside `PATH`, `HOME` and the like; no others are passed on.
        env_files: environment variables that are secrets: for each the file that holds it.
        url: the server's address over HTTP, in place of a command.
        token_file: file with the bearer token that the URL asks for; empty: the systemd credential `mcp_NAME_token`.
        allow: the tools that may be used, by the server's names for them; `*` stands for anything.
        deny: those that may not be used, although `allow` has them.
        approve: those whose every call a person must approve, in the chat.
        timeout_s: seconds for one call.
        start_timeout_s: seconds until it must have listed its tools.
        max_result_bytes: the length of a result's text for the model.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    env_files: dict[str, str] = {}
    url: str = ""
    token_file: str = ""
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    approve: tuple[str, ...] = ()
    timeout_s: Seconds = 30.0
    start_timeout_s: Seconds = 60.0
    max_result_bytes: Bytes = 100_000


class PriceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of a model: `[prices."gpt-5"]`. A cost that its service reports itself wins.

    Attributes:
        input: the price of a million input tokens.
        output: that of a million output tokens, thoughts included.
        cache_read: that of a million tokens from its service's cache; -1: as `input`.
        cache_write: that of a million tokens into its service's cache; -1: as `input`.
        currency: that of these prices, one for all models; empty: `sessions.currency`.
    """

    input: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    output: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    cache_read: Annotated[float, msgspec.Meta(ge=-1, le=1e9)] = -1.0
    cache_write: Annotated[float, msgspec.Meta(ge=-1, le=1e9)] = -1.0
    currency: str = ""


class BudgetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be spent before chats get no more answers, until the next day or month (UTC). 0: without bounds.

    Attributes:
        unit: the unit of the amounts: `cost` (in the currency of `prices`) or `tokens`.
        chat_day: in one chat, a day.
        chat_month: in one chat, a month.
        channel_day: in all chats of a channel together, a day.
        channel_month: in all chats of a channel together, a month.
    """

    unit: Literal["cost", "tokens"] = "cost"
    chat_day: Amount = 0.0
    chat_month: Amount = 0.0
    channel_day: Amount = 0.0
    channel_month: Amount = 0.0

    @property
    def has_any(self) -> bool:
        """Whether anything has a bound."""
        return any((self.chat_day, self.chat_month, self.channel_day, self.channel_month))


class EncryptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Encryption of all written messages.

    Attributes:
        key_file: file with the keys, one a line: the first one encrypts, all of them decrypt. Empty: the systemd
            credential `encryption_key`; without that, nothing is encrypted.
    """

    key_file: str = ""


class FollowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The other programs whose sessions the daemon follows; see docs/how-to/import-other-programs.md.

    Attributes:
        programs: their names, of `pi`, `claude-code`, `codex`, `nanobot`, `openclaw`, `opencode`, `gemini-cli`,
            `llm`, `goose`, `crush`, `aider`, `copilot-cli`, `open-webui`, `librechat`, `cursor` and `amp`; or
            `*`: all of them. The daemon looks in the home of the user that it runs as.
    """

    programs: tuple[str, ...] = ()


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics and traces.

    Attributes:
        channels: channels with labels of their own in the metrics, beside the connected ones; all other names,
            which callers may choose, are counted as `other`.
        otlp_endpoint: where traces go, such as http://127.0.0.1:4318, by OTLP over HTTP; empty: none are made.
        otlp_headers_file: file with headers for the collector, such as a key, one `name: value` a line; empty: the
            systemd credential `otlp_headers`.
        service_name: the service name in the traces.
        sample_ratio: the part of traces that are kept, where the caller does not decide.
        propagate_traces: send the model's service the trace of each request (the header `traceparent`).
    """

    channels: tuple[str, ...] = ("cli", "conv", "resp")
    otlp_endpoint: str = ""
    otlp_headers_file: str = ""
    service_name: Annotated[str, msgspec.Meta(min_length=1)] = "miniclaw-sessions"
    sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    propagate_traces: bool = False


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged, and how it looks.

    Attributes:
        level: the least severe records that are written.
        format: `json` (one object per line), `pretty`, or `auto`: pretty on a terminal, json otherwise.
        audit: which requests the audit log has: `off`, `writes`, or `all`, also those that only read.
        audit_file: the file of the audit log; empty: where the log goes.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "pretty"] = "auto"
    audit: Literal["off", "writes", "all"] = "writes"
    audit_file: str = ""


class Table(msgspec.Struct, frozen=True):
    """A table with a name of its own, such as `[channels.telegram]`, as it was written.

    `check_table` checks it, when its struct is known.

    Attributes:
        section: its kind.
        name: its own name.
        source: where it was named.
        stated: its content in the file.
        places: the place of each option in the file, by its whole dotted name.
        variables: its values in the environment, by the names of the variables.
    """

    section: str
    name: str
    source: str
    stated: dict[str, Any] = {}
    places: Mapping[str, str] = {}
    variables: dict[str, str] = {}

    @property
    def shown(self) -> str:
        """Its dotted name, as the file has it."""
        is_bare = re.fullmatch(r"[\w-]+", self.name)
        return f"{self.section}.{self.name if is_bare else json.dumps(self.name)}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set.

    Attributes:
        workspace: the directory that holds all files; or the URL of a shared store (`postgresql:`), with the same
            meaning as in `sessions.store`. With a shared store a directory holds nothing but the daemon's socket.
        sessions, listen, model, transcription, documents, budgets, channels, reminders, follow, encryption, telemetry,
            log: the sections.
        schedules: what is said in chats again and again, by name: `[schedules.NAME]`.
        mcp: MCP servers, by name: `[mcp.NAME]`.
        prices: the prices of models, by name.
        plugins: the tables of plug-ins, by kind and name: `[channels.NAME]`, `[tools.NAME]` and so on.
    """

    workspace: Annotated[str, msgspec.Meta(min_length=1)] = "~/.miniclaw/workspace"
    sessions: SessionSettings = SessionSettings()
    listen: ListenSettings = ListenSettings()
    model: ModelSettings = ModelSettings()
    transcription: TranscriptionSettings = TranscriptionSettings()
    documents: DocumentSettings = DocumentSettings()
    budgets: BudgetSettings = BudgetSettings()
    channels: ChannelSettings = ChannelSettings()
    reminders: ReminderSettings = ReminderSettings()
    follow: FollowSettings = FollowSettings()
    encryption: EncryptionSettings = EncryptionSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()
    schedules: dict[str, ScheduleSettings] = {}
    mcp: dict[str, MCPSettings] = {}
    prices: dict[str, PriceSettings] = {}
    plugins: dict[str, dict[str, Table]] = {}


def masked(value: Any, name: str = "") -> Any:
    """The value, with what is secret by its name, and passwords inside a URL, masked.

    Also a password that is written as it is, with a slash or an @ in it.

    Args:
        value: of an option.
        name: the option's; of what is handed to a program nothing is shown, for its manual may want tokens there.
    """
    if _HANDED_ON.fullmatch(name):
        if isinstance(value, dict):
            return dict.fromkeys(value, "***")
        return ["***"] * len(value) if isinstance(value, list | tuple) else "***"
    if isinstance(value, dict):
        return {name: "***" if _SECRET.search(str(name)) else masked(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one) for one in value]
    if not isinstance(value, str):
        return value
    scheme, separator, rest = value.partition("://")
    user_info, _, where = rest.rpartition("@")
    user, colon, _ = user_info.partition(":")
    if separator and colon:
        value = f"{scheme}://{user}:***@{where}"
    return re.sub(r"([?&]\w*(?:passw|secret|token|key)\w*=)[^&\s]*", r"\1***", value, flags=re.IGNORECASE)


def show_value(value: Any, name: str = "") -> str:
    """A value as one short line for people, in TOML's notation, `masked`."""
    value = masked(value, name)
    if isinstance(value, str):
        return json.dumps(cut(value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(show_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {show_value(one)}' for key, one in value.items())}}}"
    return cut(str(value))


def cut(text: str) -> str:
    """A text as one that fits into a line."""
    return text if len(text) <= 120 else text[:117] + "..."  # noqa: PLR2004 - one line
