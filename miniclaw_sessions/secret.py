"""Secrets: files that hold one, systemd's credentials, and a text that no output shows.

A setting only names a file. Its content becomes a `Secret`, which no log, error or debugger can show (rule S19).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NoReturn

from miniclaw_sessions.errors import ConfigError

_MAX_BYTES = 65_536
_OTHERS_MAY_READ_OR_WRITE = 0o006


class Secret:
    """A text that only `reveal` shows: logs, errors and debuggers do not."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not serialized")


def credential_path(name: str, environ: Mapping[str, str]) -> Path | None:
    """The path of a systemd credential; None if systemd passed none of this name."""
    directory = environ.get("CREDENTIALS_DIRECTORY")
    path = Path(directory) / name if directory else None
    return path if path is not None and path.exists() else None


def read_secret(
    file: str, credential_name: str, environ: Mapping[str, str], *, variable: str = "", lines: bool = False
) -> Secret | None:
    """Read a secret from its file, else from systemd's credential, else from the variable that a setting names.

    Args:
        file: path of the file; empty: none is set.
        credential_name: name below `$CREDENTIALS_DIRECTORY`, where a missing file means that there is no secret.
        environ: the environment.
        variable: name of an environment variable; empty: none is set.
        lines: whether it may have several lines.

    Returns:
        The secret without surrounding white space, or None when no source has one.

    Raises:
        ConfigError: a named source is missing, unreadable, open to others, empty, or holds more than it may.
    """
    if file:
        path = Path(file).expanduser()
        if os.sep not in file and not path.exists():  # nothing that may be the secret itself gets into a log
            named = f" `{credential_name}`" if credential_name else ""
            raise ConfigError(f"what is set as the file of the secret{named} is no file; is it the secret itself?")
        return _secret_from(path, lines=lines)
    if (credential := credential_path(credential_name, environ)) is not None:
        return _secret_from(credential, lines=lines)
    if variable:
        if not (value := environ.get(variable)):
            raise ConfigError(f"the environment variable {variable}, which should hold a secret, is not set")
        return _checked_secret(value, f"the environment variable {variable}", lines=lines)
    return None


def channel_secret(channel: str, kind: str, file: str, environ: Mapping[str, str], *, variable: str = "") -> Secret:
    """The secret that a channel logs in with: in its file, a credential, or a variable of the channel's name.

    Args:
        channel: its name.
        kind: such as `token` or `password`: the setting is `{kind}_file`, the credential `{channel}_{kind}`.
        file: what is set.
        environ: the environment.
        variable: what the variable is called behind the channel's name; empty: as the kind is.

    Raises:
        ConfigError: none of them has it, or as for `read_secret`.
    """
    secret = optional_channel_secret(channel, kind, file, environ, variable=variable)
    if secret is None:
        raise ConfigError(
            f"the channel {channel} needs its {kind}: in the file that channels.{channel}.{kind}_file names, in the "
            f"credential {channel}_{kind}, or in the environment variable {_variable(channel, variable or kind)}"
        )
    return secret


def optional_channel_secret(
    channel: str, kind: str, file: str, environ: Mapping[str, str], *, variable: str = ""
) -> Secret | None:
    """A secret that a channel may have: `channel_secret`, or None where none of its places has it.

    Raises:
        ConfigError: as for `read_secret`.
    """
    named = _variable(channel, variable or kind)
    return read_secret(file, f"{channel}_{kind}", environ, variable=named if named in environ else "")


def _variable(channel: str, kind: str) -> str:
    return re.sub(r"\W", "_", f"{channel}_{kind}").upper()


def _secret_from(path: Path, *, lines: bool) -> Secret:
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the secret in {path}: {error.strerror}") from None
    if mode & _OTHERS_MAY_READ_OR_WRITE:
        raise ConfigError(f"the secret in {path} is open to every user of this machine; run chmod 600 on it")
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"the file {path} is too large to be a secret")
    return _checked_secret(content.decode("utf-8", "replace"), str(path), lines=lines)


def _checked_secret(text: str, source: str, *, lines: bool) -> Secret:
    value = text.strip()
    if not value:
        raise ConfigError(f"the secret in {source} is empty")
    if not all(line.isascii() and line.isprintable() for line in (value.splitlines() if lines else [value])):
        wanted = "hold nothing but" if lines else "be one line of"
        raise ConfigError(f"the secret in {source} must {wanted} printable ASCII characters")
    return Secret(value)


def open_regular(path: Path) -> BinaryIO:
    """A regular file, open for reading; a pipe without a writer would block for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(fd, "rb")
