"""Seals: nothing wrong ever opens, a wrong key is no damage, keys are read strictly and never shown."""

from __future__ import annotations

import base64
import io
import pickle
import secrets
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions import encryption
from miniclaw_sessions.config import EncryptionSettings
from miniclaw_sessions.encryption import (
    OVERHEAD,
    PIECE_BYTES,
    DamagedSeal,
    KeyRing,
    PieceSealer,
    is_in_pieces,
    is_sealed,
    load_keys,
    of_entry,
    of_snapshot,
    opened_pieces,
    refuse_sealed,
    sealed_in_pieces,
)
from miniclaw_sessions.errors import ConfigError, KeyNeeded, NotEncrypted, SchemaTooNew, WrongKey

KEY, OTHER = b"k" * 32, b"o" * 32
KEYS = KeyRing([KEY])
PLACE = of_snapshot("telegram_1")

# --- sealing ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=5_000))
def test_what_is_sealed_opens_and_shows_nothing(data: bytes) -> None:
    sealed = KEYS.seal(data, PLACE)
    assert KEYS.open(sealed, PLACE, "it") == data
    assert len(sealed) == len(data) + OVERHEAD
    assert is_sealed(sealed)
    if len(data) > 4:
        assert data not in sealed


def test_every_changed_byte_is_noticed_and_never_taken_for_another_key() -> None:
    sealed = KEYS.seal(b"a short text", PLACE)
    for index in range(len(sealed)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(sealed)
            damaged[index] ^= change
            with pytest.raises(NotEncrypted if index < 4 else DamagedSeal):
                KEYS.open(bytes(damaged), PLACE, "it")
    for length in range(4, len(sealed)):
        with pytest.raises(DamagedSeal):
            KEYS.open(sealed[:length], PLACE, "it")
    with pytest.raises(DamagedSeal):
        KEYS.open(sealed + b"\0", PLACE, "it")


@given(st.tuples(st.text(), st.integers(), st.text()), st.tuples(st.text(), st.integers(), st.text()))
def test_no_two_places_are_the_same(one: tuple[str, int, str], other: tuple[str, int, str]) -> None:
    assert (of_entry(*one) == of_entry(*other)) == (one == other)
    assert of_entry(*one) != of_snapshot(one[0])


def test_it_opens_in_its_own_place_only() -> None:
    sealed = KEYS.seal(b"text", PLACE)
    for place in (of_snapshot("telegram_2"), of_entry("telegram_1", 1, "x"), b""):
        with pytest.raises(DamagedSeal):
            KEYS.open(sealed, place, "it")


def test_a_wrong_key_is_told_by_its_id_and_is_no_damage() -> None:
    sealed = KeyRing([OTHER]).seal(b"text", PLACE)
    with pytest.raises(WrongKey) as caught:
        KEYS.open(sealed, PLACE, "the file x")
    assert caught.value.needed == KeyRing([OTHER]).ids[0]
    for part in ("the file x", *KEYS.ids, caught.value.needed, "Nothing was changed"):
        assert part in str(caught.value)


def test_the_first_key_seals_and_all_open() -> None:
    old, new = KeyRing([OTHER]), KeyRing([KEY, OTHER])
    sealed = old.seal(b"text", PLACE)
    assert new.open(sealed, PLACE, "it") == b"text"
    assert (old.is_current(sealed), new.is_current(sealed)) == (True, False)
    assert KEYS.open(new.seal(b"text", PLACE), PLACE, "it") == b"text"


def test_a_newer_version_is_neither_damage_nor_a_wrong_key() -> None:
    header = bytearray(KEYS.seal(b"text", PLACE))
    header[4] = 2
    header[41:45] = zlib.crc32(header[:41]).to_bytes(4, "big")
    with pytest.raises(SchemaTooNew):
        KEYS.open(bytes(header), PLACE, "it")


def test_no_two_sealings_are_alike_and_no_two_processes_use_the_same_derived_key() -> None:
    sealed = [KEYS.seal(b"text", PLACE) for _ in range(1_000)]
    assert len({one[29:41] for one in sealed}) == 1_000  # nonces
    assert len({one[13:29] for one in sealed}) == 1  # the salt of this run
    assert KeyRing([KEY]).seal(b"text", PLACE)[13:29] != sealed[0][13:29]


def test_a_derived_key_is_renewed_before_it_was_used_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "MAX_SEALINGS", 3)
    keys = KeyRing([KEY])
    sealed = [keys.seal(b"%d" % number, PLACE) for number in range(7)]
    assert [sealed.index(next(s for s in sealed if s[13:29] == one[13:29])) for one in sealed] == [0, 0, 0, 3, 3, 3, 6]
    assert [keys.open(one, PLACE, "it") for one in sealed] == [b"%d" % number for number in range(7)]


def test_the_format_stays_readable() -> None:
    """What was sealed on 21 November 2026, with the key of 32 letters k."""
    sealed = base64.b64decode(SEALED_ONCE)
    assert KEYS.open(sealed, PLACE, "it") == b"Hello, reader of the future."


SEALED_ONCE = (
    "9W1jcwFWP1LORY7sTV+1tOKm5Vb28pvrWb6HKHJBF/K7SSFf72dSZrcHIiHU"
    "q2TMGrWXgoUU3HUcW4j8Pn9zRd2poZWhawgQmIg22bMirwIBtoeb7Si9FJc="
)


# --- long files ------------------------------------------------------------------------------------------------------


def in_pieces(data: bytes, name: str = "long.jsonl") -> bytes:
    return b"".join(sealed_in_pieces(KEYS, name, [data]))


def opened(sealed: bytes, name: str = "long.jsonl") -> bytes:
    return b"".join(opened_pieces(KEYS, name, io.BytesIO(sealed).read))


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7])
def test_a_long_file_comes_back_whatever_its_length_and_however_it_was_fed(size: int) -> None:
    data = secrets.token_bytes(size)
    assert opened(in_pieces(data)) == data
    sealer = PieceSealer(KEYS, "long.jsonl")
    fed = b"".join([sealer.feed(data[at : at + 50_000]) for at in range(0, size, 50_000)]) + sealer.finish()
    assert opened(fed) == data
    assert is_in_pieces(fed)


def test_a_long_file_that_was_cut_reordered_or_renamed_does_not_open() -> None:
    sealed = in_pieces(secrets.token_bytes(3 * PIECE_BYTES))
    step = PIECE_BYTES + OVERHEAD + 4
    pieces = [sealed[4 + number * step : 4 + (number + 1) * step] for number in range(3)]
    assert opened(sealed[:4] + b"".join(pieces))
    for wrong in (
        sealed[:4],
        sealed[:-1],
        sealed[:4] + pieces[0],
        sealed[:4] + pieces[0] + pieces[1],
        sealed[:4] + pieces[0] + pieces[2],
        sealed[:4] + pieces[1] + pieces[0] + pieces[2],
        sealed[:4] + b"\xff\xff\xff\xff" + sealed[8:],
        sealed + b"\0",
        sealed + pieces[2],
    ):
        with pytest.raises(DamagedSeal):
            opened(wrong)
    with pytest.raises(DamagedSeal):
        opened(sealed, "other.jsonl")


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_key_file_has_one_key_a_line_in_base64_or_hexadecimal() -> None:
    one, two, three = (secrets.token_bytes(32) for _ in range(3))
    text = f"""# the newest first
{base64.b64encode(one).decode()}

   {two.hex().upper()}
{base64.urlsafe_b64encode(three).decode().rstrip("=")}
"""
    assert KeyRing.parse(text, "file").ids == KeyRing([one, two, three]).ids


@pytest.mark.parametrize(
    "text",
    [
        "password",
        "k" * 32,
        "0" * 63,
        "z" * 64,
        base64.b64encode(b"k" * 31).decode(),
        base64.b64encode(b"k" * 33).decode(),
    ],
)
def test_what_is_no_key_is_refused_by_its_line_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KeyRing.parse(f"# comment\n{text}\n", "/keys")
    assert "line 2 of /keys" in str(caught.value)
    assert text not in str(caught.value)


def test_a_file_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds no key"):
        KeyRing.parse("# nothing\n\n", "/keys")


def test_keys_do_not_show_themselves() -> None:
    assert "kkk" not in repr(KEYS)
    assert KEYS.ids[0] in repr(KEYS)
    with pytest.raises(TypeError):
        pickle.dumps(KEYS)


def test_keys_come_from_the_file_else_from_the_credential_else_there_are_none(tmp_path: Path) -> None:
    file, credentials = tmp_path / "keys", tmp_path / "credentials"
    credentials.mkdir()
    for path, key in ((file, KEY), (credentials / "encryption_key", OTHER)):
        path.write_text(f"# two lines\n{base64.b64encode(key).decode()}\n")
        path.chmod(0o400)
    environ = {"CREDENTIALS_DIRECTORY": str(credentials)}
    by_file = load_keys(EncryptionSettings(key_file=str(file)), environ)
    by_credential = load_keys(EncryptionSettings(), environ)
    assert by_file is not None
    assert by_credential is not None
    assert (by_file.ids, by_credential.ids) == (KEYS.ids, KeyRing([OTHER]).ids)
    assert load_keys(EncryptionSettings(), {}) is None
    assert load_keys(EncryptionSettings(), {"CREDENTIALS_DIRECTORY": str(tmp_path)}) is None


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(base64.b64encode(KEY).decode())
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_keys(EncryptionSettings(key_file=str(file)), {})
    with pytest.raises(ConfigError, match="cannot read"):
        load_keys(EncryptionSettings(key_file=str(tmp_path / "missing")), {})


def test_without_the_extra_the_error_names_it() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from miniclaw_sessions.encryption import KeyRing\n"
        "from miniclaw_sessions.errors import ConfigError\n"
        "try: KeyRing([b'k' * 32])\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install '.[encryption]' in a checkout" in done.stdout


def test_without_a_key_what_is_sealed_asks_for_one() -> None:
    refuse_sealed(b'{"session_id": ...', "a file")
    for sealed in (KEYS.seal(b"text", PLACE), in_pieces(b"text")):
        with pytest.raises(KeyNeeded, match="a file"):
            refuse_sealed(sealed, "a file")
