"""A session's name: injective, safe as a file name, and strict about what it refuses."""

from __future__ import annotations

import unicodedata
from enum import StrEnum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from miniclaw_sessions.core.protocol.keys import (
    MAX_KEY_BYTES,
    MAX_SESSION_ID_LENGTH,
    KeyBounds,
    SessionKey,
    is_session_id,
    of_channel,
)
from miniclaw_sessions.errors import InvalidKey

SUFFIX_ROOM = 255 - MAX_SESSION_ID_LENGTH  # a file name has 255 bytes; ".json" and a temporary's tail need some

halves = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=80)
"""What strangers call themselves: any text without NUL and lone surrogates."""

confusable = st.text("a_b~%.-/5F", min_size=1, max_size=6)
"""Texts that a careless escape would merge."""

STRANGE = [
    *("..", ".", "../x", "/etc/passwd", "a/b", "a\\b", "~", "-rf", " a", "a ", ".a", "a.", "CON", "nul.json"),
    *("x.tmp", ".lock", "telegram_1.json.20260101T000000Z.damaged", "a:b", "b:c", "A", "a", "\u00e9", "e\u0301"),
    *("ß", "SS", "１２３", "²", "\u202eevil", "a\u200db", "\u2028", "\u0085", "\x1c", "\r", "\n", "\r\n"),  # noqa: RUF001
    *("\x1b[31m", "\ufeffa", "<0>x", "{}%s{0}", "%2F", "%", "%%", "__proto__", "_", "__", "-", "-0", "NaN", "é" * 128),
]


def test_a_plain_key_keeps_its_plain_name() -> None:
    assert SessionKey.of("telegram", "123456789").session_id == "telegram_123456789"


def test_a_numeric_chat_id_is_the_same_as_its_text() -> None:
    assert SessionKey.of("telegram", -1001234567890) == SessionKey.of("telegram", "-1001234567890")
    assert SessionKey.of("telegram", -5).session_id == "telegram_-5"


def test_a_half_of_an_enumeration_is_its_text() -> None:
    class Channel(StrEnum):
        TELEGRAM = "telegram"

    key = SessionKey.of(Channel.TELEGRAM, Channel.TELEGRAM)
    assert (type(key.channel), type(key.chat_id)) == (str, str)
    assert key == SessionKey.of("telegram", "telegram")


@given(halves, halves, halves, halves)
@example("a_b", "c", "a", "b_c")
@example("a:b", "c", "a", "b:c")
@example("a%5Fb", "c", "a_b", "c")
@example("a.b", "c", "a.c", "c")
@example("é", "x", "e\u0301", "x")
@example("ß", "x", "SS", "x")
@example("A", "x", "a", "x")
@example("x" * 300, "y" * 300, "x" * 301, "y" * 299)
def test_two_keys_never_share_a_session_id(channel: str, chat_id: str, channel2: str, chat_id2: str) -> None:
    one, other = SessionKey.of(channel, chat_id), SessionKey.of(channel2, chat_id2)
    assert (one == other) == (one.session_id == other.session_id)


@given(confusable, confusable, confusable, confusable)
def test_two_keys_of_the_escape_s_own_characters_never_share_a_session_id(a: str, b: str, c: str, d: str) -> None:
    one, other = SessionKey.of(a, b), SessionKey.of(c, d)
    assert (one == other) == (one.session_id == other.session_id)


@given(st.one_of(halves, st.sampled_from(STRANGE)), st.one_of(halves, st.sampled_from(STRANGE)))
def test_a_session_id_is_a_safe_file_name(channel: str, chat_id: str) -> None:
    session_id = SessionKey.of(channel, chat_id).session_id
    assert session_id.isascii()
    assert session_id.isprintable()
    assert not set(session_id) & set("/\\\0 :*?\"<>|'`$&;")
    assert session_id[0] not in ".-~"
    assert len(session_id) <= MAX_SESSION_ID_LENGTH
    assert SUFFIX_ROOM >= 50
    assert is_session_id(session_id)


@given(st.one_of(halves, st.sampled_from(STRANGE)), st.one_of(halves, st.sampled_from(STRANGE)))
def test_a_session_id_that_was_not_shortened_gives_its_key_back(channel: str, chat_id: str) -> None:
    key = SessionKey.of(channel, chat_id)
    if "~" not in key.session_id:
        assert SessionKey.parse(key.session_id) == key


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
def test_every_strange_name_is_accepted_in_both_halves_and_comes_back(text: str) -> None:
    for key in (SessionKey.of(text, "1"), SessionKey.of("telegram", text), SessionKey.of(text, text)):
        assert is_session_id(key.session_id)
        if "~" not in key.session_id:
            assert SessionKey.parse(key.session_id) == key


def test_all_strange_names_are_different_sessions() -> None:
    ids = [SessionKey.of(a, b).session_id for a in STRANGE for b in STRANGE]
    assert len(set(ids)) == len(ids)


def test_normal_forms_are_compared_code_point_by_code_point() -> None:
    composed, decomposed = SessionKey.of("telegram", "é"), SessionKey.of("telegram", "e\u0301")
    assert unicodedata.normalize("NFC", decomposed.chat_id) == composed.chat_id
    assert composed.session_id != decomposed.session_id


@pytest.mark.parametrize("length", [1, 190, 191, 192, 193, 255, 256, 4096])
def test_a_long_name_is_cut_to_a_hash_and_stays_unique(length: int) -> None:
    one, other = SessionKey.of("telegram", "x" * length), SessionKey.of("telegram", "x" * (length - 1) + "y")
    assert one.session_id != other.session_id
    assert len(one.session_id) <= MAX_SESSION_ID_LENGTH
    assert ("~" in one.session_id) == (len("telegram_") + length > MAX_SESSION_ID_LENGTH)


@pytest.mark.parametrize("shift", range(6))
def test_shortening_never_ends_inside_an_escape(shift: int) -> None:
    head, _, digest = SessionKey.of("x" * (shift + 1), "é" * 200).session_id.partition("~")
    assert len(digest) == 64
    assert "%" not in head[-2:]


def test_a_shortened_id_whose_channel_fills_it_still_has_the_form_of_a_session_id() -> None:
    key = SessionKey.of("c" * 300, "1")
    assert "_" not in key.session_id
    assert is_session_id(key.session_id)


def test_a_shortened_id_says_that_its_key_is_elsewhere() -> None:
    with pytest.raises(InvalidKey, match="shortened"):
        SessionKey.parse(SessionKey.of("telegram", "x" * 300).session_id)


@given(st.one_of(halves, st.sampled_from(STRANGE), st.text("session_ab%5F~", min_size=1, max_size=24)))
@example("my-session")
@example("01981f3c-6b1e-7c52-9f61-2f3f5d2a9b10")
@example("telegram_1")
@example("session_my-session")
@example("session_telegram_1")
@example("session_session_telegram_1")
def test_any_text_names_a_session_and_comes_back(name: str) -> None:
    """S1.17, S0.25."""
    assert SessionKey.named(name).name == name


@given(st.sampled_from(["session", "telegram", "a_b"]), st.one_of(halves, st.text("session_ab", min_size=1)))
@example("session", "telegram_1")
def test_every_key_has_one_name_and_is_what_it_names(channel: str, chat_id: str) -> None:
    key = SessionKey.of(channel, chat_id)
    if "~" not in key.session_id:
        assert SessionKey.named(key.name) == key


def test_a_session_id_names_its_own_session() -> None:
    assert SessionKey.named("telegram_1") == SessionKey.of("telegram", 1)
    assert SessionKey.named("my-session").session_id == "session_my-session"


def test_the_longest_of_all_names_is_taken_apart() -> None:
    name = "session_" * 511 + "a"
    assert SessionKey.named(name).name == name


@pytest.mark.parametrize("field", ["channel", "chat_id"])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        ("\udc00\ud800", "surrogate"),
        ("x" * (MAX_KEY_BYTES + 1), "4097 bytes"),
        ("é" * (MAX_KEY_BYTES // 2 + 1), "4098 bytes"),
        ("x" * 10**6, "1000000 bytes"),
        (None, "NoneType"),
        (b"bytes", "bytes"),
        (True, "bool"),
        (1.5, "float"),
        (["a"], "list"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_cannot_name_a_session_is_refused_by_the_field_s_name(field: str, bad: object, reason: str) -> None:
    halves = {"channel": "telegram", "chat_id": "1", field: bad}
    with pytest.raises(InvalidKey, match=reason) as refused:
        SessionKey.of(**halves)  # type: ignore[arg-type]
    assert str(refused.value).startswith(field)
    assert str(refused.value).isascii()
    assert len(str(refused.value)) < 400  # a stranger's text is cut


def test_a_number_as_a_channel_is_refused() -> None:
    with pytest.raises(InvalidKey, match="channel must be text, not int"):
        SessionKey.of(5, "1")  # type: ignore[arg-type]


def test_a_chat_id_of_thousands_of_digits_is_refused_as_an_invalid_key() -> None:
    with pytest.raises(InvalidKey, match="chat_id is a number of thousands of digits"):
        SessionKey.of("telegram", 10**4300)
    assert len(SessionKey.of("telegram", 10**4000).session_id) <= MAX_SESSION_ID_LENGTH


def test_a_name_of_exactly_the_limit_is_accepted() -> None:
    assert len(SessionKey.of("telegram", "x" * MAX_KEY_BYTES).session_id) <= MAX_SESSION_ID_LENGTH


@pytest.mark.parametrize(
    "text",
    [
        *("", "telegram", "_", "_1", "telegram_", "telegram_a/b", "telegram_a b", "telegram_é", "telegram_\ud800"),
        *("%74elegram_1", "telegram_%2f", "telegram_%2", "telegram_%", "telegram_%zz", "telegram_%C3", "telegram_%00"),
        *(".a_1", "-a_1", "a%_1", "telegram_" + "x" * 200, "x" * 10**6, "telegram_1\n", "../telegram_1", "a~b_c"),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_what_is_not_a_session_id_is_not_parsed(text: str) -> None:
    with pytest.raises(InvalidKey) as refused:
        SessionKey.parse(text)
    assert str(refused.value).isascii()


@given(st.one_of(st.text(max_size=40), st.text("a_%.-~5F", max_size=12)))
def test_parsing_inverts_naming_or_refuses(text: str) -> None:
    try:
        key = SessionKey.parse(text)
    except InvalidKey:
        return
    assert key.session_id == text


@pytest.mark.parametrize(
    "text", ["", "telegram", ".a_1", "-a_1", "a_b/c", "a_b c", "a_é", "a_\ud800", "a_" + "x" * 200]
)
def test_what_cannot_be_a_session_id_does_not_have_its_form(text: str) -> None:
    assert not is_session_id(text)


@pytest.mark.parametrize("channel", ["", "\udcff", "a\0b", "x" * 5000])
def test_a_list_of_a_channel_that_none_can_have_is_refused(channel: str) -> None:
    with pytest.raises(InvalidKey, match="channel"):
        of_channel(channel)


@pytest.mark.parametrize("channels", [None, {"web"}, {"a_b", "web"}])
@pytest.mark.parametrize("prefix", ["", "a", "a_", "é", "%", "x" * 250])
def test_bounds_tell_of_an_id_what_they_tell_of_its_key(channels: set[str] | None, prefix: str) -> None:
    bounds = KeyBounds(None if channels is None else frozenset(channels), prefix)
    chats = ["a", "a_b", "ab", "é1", "e", "%41", "A", "x" * 249, "x" * 260, "xy" * 200, "."]
    keys = [SessionKey.of(channel, chat) for channel in ("web", "a_b", "a", "we", "webb", "w" * 300) for chat in chats]
    assert any(map(bounds.covers, keys)) or not chats
    for key in keys:
        if "~" not in key.session_id:
            assert bounds.may_cover(key.session_id) == bounds.covers(key), key
        elif bounds.covers(key):
            assert bounds.may_cover(key.session_id), key
    assert not KeyBounds(frozenset({"web"})).may_cover(SessionKey.of("mail", "x" * 300).session_id)
    assert not KeyBounds(None, "a").may_cover(SessionKey.of("mail", "x" * 300).session_id)
