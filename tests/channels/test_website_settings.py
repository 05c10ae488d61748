"""What of a website's settings is refused, whose address counts, how often one may do something, what is remembered."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from miniclaw_sessions.channels.base import Incoming, NotAnswered, Reason
from miniclaw_sessions.channels.web import limits
from miniclaw_sessions.channels.web.channel import WebChannel
from miniclaw_sessions.channels.web.exchanges import Exchange, outcome
from miniclaw_sessions.channels.web.limits import Rate, Room, client_address
from miniclaw_sessions.channels.web.settings import WebSettings, key_of_workspace
from miniclaw_sessions.channels.web.words import words_in
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.testing.clock import FakeClock

SITE = "https://www.example.org"
PROXIES = ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("origins", "sentence"),
    [
        ((), "the channel web needs the web pages that may embed it, such as channels.web.origins = "),
        (("*",), "'\\*' is no origin"),
        (("null",), "'null' is no origin"),
        (("www.example.org",), "'www.example.org' is no origin; write scheme and host"),
        ((f"{SITE}/shop",), "is no origin"),
        ((SITE, "https://a b"), "is no origin"),
    ],
)
def test_pages_are_named_by_their_origins_and_never_all(origins: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        WebChannel("web", WebSettings(origins=origins), {})


def test_an_origin_is_known_however_a_person_writes_it() -> None:
    WebChannel("web", WebSettings(origins=("HTTPS://WWW.Example.org/", "http://localhost:8000", "http://[::1]:1")), {})


@pytest.mark.parametrize("kind", ["key", "users_key"])
def test_a_short_key_is_refused_without_being_shown(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"the {kind} of the channel web has fewer than 32 characters") as refused:
        WebChannel("web", WebSettings(origins=(SITE,)), {f"WEB_{kind.upper()}": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_the_key_of_a_workspace_is_made_once(tmp_path: Path) -> None:
    first = key_of_workspace("web", tmp_path)
    assert key_of_workspace("web", tmp_path).reveal() == first.reveal()
    assert key_of_workspace("shop", tmp_path).reveal() != first.reveal()


def test_a_key_that_cannot_be_kept_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"all gateways of this store have: in the file that channels\.web\.key_file"):
        key_of_workspace("web", None)
    (tmp_path / "web.key").mkdir()
    with pytest.raises(ConfigError, match=r"web\.key"):
        key_of_workspace("web", tmp_path)


@pytest.mark.parametrize(
    ("connected", "forwarded", "address"),
    [
        ("203.0.113.7", "", "203.0.113.7"),
        ("203.0.113.7", "10.0.0.1", "203.0.113.7"),  # it is no proxy of ours, and may say what it likes
        ("127.0.0.1", "10.0.0.1, 203.0.113.7", "203.0.113.7"),
        ("", "10.0.0.1, 203.0.113.7, 127.0.0.1", "203.0.113.7"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "<script>", ""),
        ("", "", ""),
        ("2001:db8:1:2:3:4:5:6", "", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.7", "", "203.0.113.7"),
    ],
)
def test_the_address_is_the_last_that_no_proxy_of_ours_has(connected: str, forwarded: str, address: str) -> None:
    assert client_address(connected, forwarded, PROXIES) == address


@pytest.mark.anyio
async def test_what_is_left_unused_can_be_used_for_a_minute_and_no_longer() -> None:
    clock = FakeClock()
    rate = Rate(3, clock)
    assert [rate.take("a") for _ in range(4)] == [0, 0, 0, 20]
    assert rate.take("b") == 0
    await clock.advance(20)
    assert [rate.take("a") for _ in range(2)] == [0, 20]
    await clock.advance(86_400)
    assert [rate.take("a") for _ in range(4)] == [0, 0, 0, 20]


def test_no_more_visitors_are_counted_than_the_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REMEMBERED", 2)
    rate = Rate(1, FakeClock())
    assert [rate.take(who) for who in ("a", "b", "c", "c", "a")] == [0, 0, 0, 60, 0]
    assert len(rate._left) == 2


def test_room_is_bounded_for_each_address_and_for_all() -> None:
    room = Room(of_visitor=2, of_address=2, of_all=3)
    with room.taken("a", "1"), room.taken("b", "1"):
        assert not room.has("c", "1")
        assert room.has("c", "2")
        assert not room.has("c", "2", 2)
        with room.taken("c", "2"):
            assert not room.has("d", "3")
    assert not room._taken


def test_every_language_has_all_words_and_others_get_english() -> None:
    english = words_in("")
    for language in ("en", "de", "fr-CH", "es_MX", "it", "PT", "nl", "ar", "he"):
        words = words_in(language)
        assert words.keys() == english.keys()
        assert all(word.strip() for word in words.values())
    assert words_in("de-AT")["send"] == "Senden"
    assert words_in("xx") == english


def test_of_a_message_that_is_over_only_its_outcome_is_remembered_and_none_of_its_files() -> None:
    incoming, exchange = Incoming("visitor-1", None), Exchange(ExitStack())
    known = sys.getrefcount(incoming)
    exchange.end(NotAnswered(incoming, Reason.CUT_OFF, RuntimeError()))
    assert outcome(exchange).status == 200
    assert sys.getrefcount(incoming) == known, "a thousand messages with files of 5 MB are remembered"
