"""The settings of a website's chat, its keys, and what is wrong with them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from miniclaw_sessions.channels.unseen import MAX_FILE_BYTES
from miniclaw_sessions.channels.web.requests import SMALL_BYTES
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.secret import Secret, optional_channel_secret, read_secret

MIN_KEY_CHARACTERS = 32
"""How long a key must be at least: 128 bits, where it is hexadecimal."""

_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::\d{1,5})?")

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The chat of a website.

    Attributes:
        origins: the web pages that may embed it, as their browsers name them, such as `https://www.example.org`.
        key_file: file with the key that visitors' passes are signed with. Empty: the systemd credential `NAME_key`,
            else the environment variable `NAME_KEY` (for the channel `web`, `WEB_KEY`), else one that is made in the
            workspace. Gateways that share a store need the same.
        users_key_file: file with the key that the website signs its own users with. Empty: the credential
            `NAME_users_key`, else the environment variable `NAME_USERS_KEY`, else it signs none.
        visitor_days: days after which an unused pass of a visitor ends, and with it his way to his chat.
        trusted_proxies: addresses whose `X-Forwarded-For` is believed.
        messages_per_minute: how many messages a visitor may send.
        requests_per_minute: how many requests may come from one address, of all its visitors.
        all_messages_per_minute: how many messages all visitors together may send.
        streams: how many chats may be open at once, of all visitors; each is a connection of `listen.max_connections`.
        streams_of_address: of those, of one address.
        streams_of_visitor: of those, of one visitor.
        waiting_bytes: how large all messages with files may be together, from when they come until they are answered.
        waiting_bytes_of_address: of those, of one address.
        waiting_bytes_of_visitor: of those, of one visitor.
        max_characters: how long a message may be.
        max_file_bytes: how large the files of one message may be together. `sessions.max_message_bytes` and
            `listen.max_body_bytes` must have room for a third more.
        commands: whether visitors may use commands such as `/new` and `/model`; `/stop` always works.
    """

    origins: tuple[str, ...] = ()
    key_file: str = ""
    users_key_file: str = ""
    visitor_days: Annotated[float, msgspec.Meta(gt=0, le=3_650)] = 90
    trusted_proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    messages_per_minute: Count = 20
    requests_per_minute: Count = 240
    all_messages_per_minute: Count = 300
    streams: Count = 200
    streams_of_address: Count = 20
    streams_of_visitor: Count = 6
    waiting_bytes: Count = 200_000_000
    waiting_bytes_of_address: Count = 40_000_000
    waiting_bytes_of_visitor: Count = 20_000_000
    max_characters: Count = 8_000
    max_file_bytes: Count = MAX_FILE_BYTES
    commands: bool = False

    @property
    def max_say_bytes(self) -> int:
        """How long the body of a message may be: its text with escapes, and its files in base64."""
        longest = SMALL_BYTES + 12 * self.max_characters + 4 * (self.max_file_bytes // 3 + 1)
        return min(longest, self.waiting_bytes, self.waiting_bytes_of_address, self.waiting_bytes_of_visitor)


def listed_origins(name: str, settings: WebSettings) -> frozenset[str]:
    """The web pages that may embed the chat.

    Raises:
        ConfigError: there are none, or one is no origin.
    """
    listed = frozenset(one.strip().lower().rstrip("/") for one in settings.origins)
    example = f'channels.{name}.origins = ["https://www.example.org"]'
    if not listed:
        raise ConfigError(f"the channel {name} needs the web pages that may embed it, such as {example}")
    for one in sorted(listed):
        if _ORIGIN.fullmatch(one) is None:
            raise ConfigError(f"channels.{name}.origins: {one!r} is no origin; write scheme and host, as in {example}")
    return listed


def key_in(name: str, kind: str, file: str, environ: Mapping[str, str]) -> Secret | None:
    """A key of the channel: in its file, a credential or a variable; None: none of them has it.

    Raises:
        ConfigError: it is too short, or as for `read_secret`.
    """
    found = optional_channel_secret(name, kind, file, environ)
    return None if found is None else _long_enough(name, kind, found)


def key_of_workspace(name: str, directory: Path | None) -> Secret:
    """The key that is kept in the workspace, made at the first start; it blocks.

    Raises:
        ConfigError: it cannot be kept there, or there is no workspace.
    """
    if directory is None:
        raise ConfigError(
            f"the channel {name} needs a key that all gateways of this store have: in the file that "
            f"channels.{name}.key_file names, or in the credential {name}_key"
        )
    path = directory / f"{name}.key"
    try:
        with Directory(directory, is_ours=False) as opened:
            (failure,) = opened.create([(path.name, lambda: os.urandom(32).hex().encode())])
    except OSError as error:
        failure = error
    found = read_secret(str(path), "", {}) if failure is None or isinstance(failure, FileExistsError) else None
    if found is None:
        raise ConfigError(f"cannot keep the key of the channel {name} in {path}: {failure}")
    return _long_enough(name, "key", found)


def _long_enough(name: str, kind: str, key: Secret) -> Secret:
    if len(key.reveal()) < MIN_KEY_CHARACTERS:
        sentence = f"the {kind} of the channel {name} has fewer than {MIN_KEY_CHARACTERS} characters"
        raise ConfigError(f"{sentence}; `openssl rand -hex 32` makes one")
    return key
