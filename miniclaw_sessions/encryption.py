"""Encryption at rest: AES-256-GCM, from bytes to bytes. Touches no file but the key file.

A sealed piece has this form, and is bound to its place: opened for another session, entry or file it fails.

    magic (4)  version (1)  key id (8)  salt (16)  nonce (12)  CRC-32 of all these (4)  ciphertext  tag (16)

The key id is a fingerprint of the key, so a wrong key is detected before anything counts as damaged. A sound header
with an unknown id means a wrong key; a header that contradicts its checksum means damage, and so does content that
does not open with the right key. The key from the file seals nothing itself: each process derives a key of its own from
it (HKDF-SHA256 with the salt), and another one after `MAX_SEALINGS`. The nonces are random. A random nonce of 96 bits
may occur twice under one key, with a chance that begins to matter after some 2^32 of them (rule S23).

Long files are sealed in pieces, each bound to its number, and the last one to its being the last.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from miniclaw_sessions.config import EncryptionSettings
from miniclaw_sessions.errors import (
    ConfigError,
    KeyNeeded,
    NotEncrypted,
    SchemaTooNew,
    SessionsError,
    WrongKey,
    to_install,
)
from miniclaw_sessions.secret import Secret, read_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CREDENTIAL = "encryption_key"
"""The name of the systemd credential that holds the keys."""

OVERHEAD = 61
"""The bytes that sealing adds."""

MAX_SEALINGS = 2**30
"""How often one derived key is used: the chance that a nonce occurs twice stays below 2^-36."""

PIECE_BYTES = 256 * 1024
"""How much of a long file is sealed at a time."""

_MAGIC = b"\xf5mcs"  # 0xF5 occurs in no UTF-8, so nothing plain of ours begins like this
_PIECES_MAGIC = b"\xf5mcf"
_VERSION = 1
_KEY_BYTES = 32
_SALT_BYTES = 16
_NONCE_BYTES = 12
_HEX_DIGITS = 2 * _KEY_BYTES
_DIGEST_DIGITS = 32
_HEADER = struct.Struct(f">4sB8s{_SALT_BYTES}s{_NONCE_BYTES}sI")
_LENGTH = struct.Struct(">I")
_OPENING_KEYS = 1024  # each run of the process has sealed with a key of its own


class DamagedSeal(SessionsError):
    """Data was sealed with a configured key, and does not open: it is damaged, or belongs to another place."""


# --- what it is bound to ---------------------------------------------------------------------------------------------


def of_snapshot(session_id: str) -> bytes:
    """The place of a session's snapshot."""
    return _encoded(f"snapshot {session_id}")


def of_entry(session_id: str, sequence: int, entry_id: str) -> bytes:
    """The place of an entry in a store."""
    return _encoded(f"entry {sequence} {len(session_id)} {session_id}{entry_id}")


def _of_piece(file: str, number: int, *, is_last: bool) -> bytes:
    return _encoded(f"piece {number} {int(is_last)} {file}")


def _encoded(place: str) -> bytes:
    """The associated data of a place; no two places share it."""
    return place.encode("utf-8", "surrogatepass")


# --- keys ------------------------------------------------------------------------------------------------------------


class KeyRing:
    """The configured keys: the first one seals, each of them opens. For any thread."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Use these keys of 32 random bytes.

        Raises:
            ConfigError: the list is empty, a key has another length, or the extra `encryption` is not installed.
        """
        if not keys or any(len(key) != _KEY_BYTES for key in keys):
            raise ConfigError(f"encryption needs at least one key, and each must have {_KEY_BYTES} bytes")
        self._keys = {_fingerprint(key): key for key in keys}
        self._first = _fingerprint(keys[0])
        self._cipher, self._derive, self._does_not_open = _cryptography()
        self._opening = lru_cache(maxsize=_OPENING_KEYS)(self._derived)
        self._digesting = lru_cache(maxsize=_OPENING_KEYS)(self._digest_key)
        self._sealing = self._new_sealing()

    @classmethod
    def parse(cls, text: str, source: str) -> KeyRing:
        """The keys in a key file: one a line, in base64 or hexadecimal; lines that begin with `#` are comments.

        Args:
            text: the file's content.
            source: the file's name in errors; none of them shows any of its content.

        Raises:
            ConfigError: a line is no key, the file has none, or the extra is not installed.
        """
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
        keys = [_key_in(line, f"line {number} of {source}") for number, line in lines if line and line[0] != "#"]
        if not keys:
            raise ConfigError(f"{source} holds no key; `openssl rand -base64 32` makes one")
        return cls(keys)

    def __repr__(self) -> str:
        return f"<KeyRing {', '.join(self.ids)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are not serialized")

    @property
    def ids(self) -> list[str]:
        """The ids of the keys that are held, the one that seals first."""
        return [key_id.hex() for key_id in self._keys]

    def seal(self, data: bytes, place: bytes) -> bytes:
        """Encrypt, bound to a place (`of_snapshot`, ...)."""
        sealing = self._sealing
        if sealing.count >= MAX_SEALINGS:
            sealing = self._sealing = self._new_sealing()
        sealing.count += 1  # threads may miss a few of each other's; the bound has room for four times as many
        nonce = os.urandom(_NONCE_BYTES)
        unchecked = _HEADER.pack(_MAGIC, _VERSION, self._first, sealing.salt, nonce, 0)[: -_LENGTH.size]
        header = unchecked + _LENGTH.pack(zlib.crc32(unchecked))
        return header + sealing.cipher.encrypt(nonce, data, header + place)

    def seal_like(self, sealed: bytes, data: bytes, place: bytes) -> bytes | None:
        """Reseal this data with the header of sealed bytes, only to compare a checksum.

        It uses the nonce a second time. None if the header is damaged, or its key is not configured.
        """
        try:
            header = _header_of(sealed, "")
        except (SessionsError, struct.error):
            return None
        if not is_sealed(sealed) or header.key_id not in self._keys:
            return None
        beginning = sealed[: _HEADER.size]
        cipher = self._opening(header.key_id, header.salt)
        return beginning + cipher.encrypt(header.nonce, data, beginning + place)

    def open(self, sealed: bytes, place: bytes, what: str) -> bytes:
        """Decrypt data that was sealed for this place.

        Args:
            sealed: the bytes.
            place: the place that it must be bound to.
            what: names it in errors.

        Raises:
            WrongKey: it is sealed with a key that is not held.
            DamagedSeal: it is damaged, or belongs in another place.
            NotEncrypted: it is not sealed at all.
            SchemaTooNew: a newer version sealed it.
        """
        if not is_sealed(sealed):
            raise NotEncrypted(what)
        header = _header_of(sealed, what)
        if header.key_id not in self._keys:
            raise WrongKey(what, header.key_id.hex(), self.ids)
        view = memoryview(sealed)
        beginning = bytes(view[: _HEADER.size])
        try:
            return self._opening(header.key_id, header.salt).decrypt(
                header.nonce, view[_HEADER.size :], beginning + place
            )
        except self._does_not_open:
            raise DamagedSeal(f"{what} is damaged, or is not what was written in its place: it does not open") from None

    def digests(self, text: str, place: str) -> list[str]:
        """The digests of a text that must be findable but not readable: one for each key, the sealing one first.

        Without the key a guessed text cannot be compared with its digest. In another place, such as another session,
        the same text has other digests.
        """
        data = f"{len(place)} {place}{text}".encode("utf-8", "surrogatepass")
        return [hmac.digest(self._digesting(key_id), data, "sha256").hex()[:_DIGEST_DIGITS] for key_id in self._keys]

    def is_current(self, sealed: bytes) -> bool:
        """Whether its header names the first key."""
        if not is_sealed(sealed):
            return False
        try:
            return _header_of(sealed, "it").key_id == self._first
        except (DamagedSeal, SchemaTooNew):
            return False

    def _new_sealing(self) -> _Sealing:
        salt = os.urandom(_SALT_BYTES)
        return _Sealing(salt, self._derived(self._first, salt))

    def _digest_key(self, key_id: bytes) -> bytes:
        return self._derive(self._keys[key_id], b"miniclaw-sessions idempotency")

    def _derived(self, key_id: bytes, salt: bytes) -> AESGCM:
        return self._cipher(self._derive(self._keys[key_id], salt))


class _Sealing:
    """The derived key that seals at present, and how often it was used."""

    __slots__ = ("cipher", "count", "salt")

    def __init__(self, salt: bytes, cipher: AESGCM) -> None:
        self.salt = salt
        self.cipher = cipher
        self.count = 0


def load_keys(settings: EncryptionSettings, environ: Mapping[str, str]) -> KeyRing | None:
    """The keys of the key file, else those of systemd's credential `encryption_key`, else None: no encryption.

    Raises:
        ConfigError: the file cannot be read, is open to others, or holds anything but keys; or the extra
            `encryption` is not installed.
    """
    secret: Secret | None = read_secret(settings.key_file, CREDENTIAL, environ, lines=True)
    source = str(Path(settings.key_file).expanduser()) if settings.key_file else f"the credential {CREDENTIAL}"
    return None if secret is None else KeyRing.parse(secret.reveal(), source)


def _key_in(line: str, source: str) -> bytes:
    try:
        if len(line) == _HEX_DIGITS:
            return bytes.fromhex(line)
        key = base64.b64decode(line.rstrip("=") + "=" * (-len(line.rstrip("=")) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"{source} is no key: it must be {_KEY_BYTES} bytes in base64 or hexadecimal")
    return key


def _fingerprint(key: bytes) -> bytes:
    return hashlib.sha256(b"miniclaw-sessions key id\0" + key).digest()[:8]


def _cryptography() -> tuple[Callable[[bytes], AESGCM], Callable[[bytes, bytes], bytes], type[Exception]]:
    """The cipher, the function that derives its keys, and the exception of a failed decryption."""
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - same
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - same
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - same
    except ImportError:
        raise ConfigError(f"encryption at rest needs the extra `encryption`: {to_install('encryption')}") from None

    def derive(key: bytes, salt: bytes) -> bytes:
        return HKDF(SHA256(), _KEY_BYTES, salt, b"miniclaw-sessions data key").derive(key)

    return AESGCM, derive, InvalidTag


# --- the header ------------------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    key_id: bytes
    salt: bytes
    nonce: bytes


def _header_of(sealed: bytes, what: str) -> _Header:
    if len(sealed) < OVERHEAD:
        raise DamagedSeal(f"{what} is damaged: it is sealed, and too short for that")
    _, version, key_id, salt, nonce, checksum = _HEADER.unpack_from(sealed)
    if zlib.crc32(sealed[: _HEADER.size - _LENGTH.size]) != checksum:
        raise DamagedSeal(f"{what} is damaged: the header of its seal contradicts its checksum")
    if version != _VERSION:
        raise SchemaTooNew(
            f"{what} was sealed by a newer version of miniclaw-sessions; install that, it was left alone"
        )
    return _Header(key_id, salt, nonce)


def is_sealed(data: bytes) -> bool:
    """Whether the data has a seal's header, whether or not it opens."""
    return data.startswith(_MAGIC)


def refuse_sealed(data: bytes, what: str) -> None:
    """Refuse sealed data where no key is configured, so that it does not count as damaged.

    Raises:
        KeyNeeded: it is sealed.
    """
    if is_sealed(data) or is_in_pieces(data):
        raise KeyNeeded(what)


# --- long files ------------------------------------------------------------------------------------------------------


def is_in_pieces(data: bytes) -> bool:
    """Whether a long file that begins with this has a seal's header."""
    return data.startswith(_PIECES_MAGIC)


class PieceSealer:
    """Seals a long file of this name, piece by piece; write the results of its methods in that order."""

    def __init__(self, keys: KeyRing, file: str) -> None:
        self._keys = keys
        self._file = file
        self._number = 0
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Add data; returns the bytes to write now."""
        self._held += data
        if len(self._held) <= PIECE_BYTES:
            return b""
        pieces = []
        while len(self._held) > PIECE_BYTES:  # something stays for the last piece
            pieces.append(self._piece(bytes(self._held[:PIECE_BYTES]), is_last=False))
            del self._held[:PIECE_BYTES]
        return b"".join(pieces)

    def finish(self) -> bytes:
        """The end of the file; without it the file does not open."""
        return self._piece(bytes(self._held), is_last=True)

    def _piece(self, data: bytes, *, is_last: bool) -> bytes:
        sealed = self._keys.seal(data, _of_piece(self._file, self._number, is_last=is_last))
        magic = b"" if self._number else _PIECES_MAGIC
        self._number += 1
        return magic + _LENGTH.pack(len(sealed)) + sealed


def sealed_in_pieces(keys: KeyRing, file: str, data: Iterable[bytes]) -> Iterator[bytes]:
    """A long file, sealed under this name."""
    sealer = PieceSealer(keys, file)
    for block in data:
        yield sealer.feed(block)
    yield sealer.finish()


def opened_pieces(keys: KeyRing, file: str, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """The content of a long file that was sealed under this name.

    Args:
        keys: the keys.
        file: its name.
        read: reads this many bytes from where the last call ended, or the rest.

    Raises:
        WrongKey: a key is missing.
        DamagedSeal: it is damaged, cut off, or another file; pieces that came before are sound.
    """
    if not is_in_pieces(read(len(_PIECES_MAGIC))):
        raise NotEncrypted(file)
    number, sealed = 0, _next_piece(read, file)
    if not sealed:
        raise DamagedSeal(f"{file} is damaged: it has lost its end")
    while sealed:
        following = _next_piece(read, file)
        yield keys.open(sealed, _of_piece(file, number, is_last=not following), f"piece {number} of {file}")
        number, sealed = number + 1, following


def first_piece(beginning: bytes) -> bytes:
    """The first piece in the beginning of a long file, as far as it is there; its header names the key."""
    return beginning[len(_PIECES_MAGIC) + _LENGTH.size :]


def _next_piece(read: Callable[[int], bytes], file: str) -> bytes:
    prefix = read(_LENGTH.size)
    if not prefix:
        return b""
    length = int.from_bytes(prefix, "big")
    if len(prefix) < _LENGTH.size or not OVERHEAD <= length <= PIECE_BYTES + OVERHEAD:
        raise DamagedSeal(f"{file} is damaged: a piece of it has an impossible length")
    return read(length)
