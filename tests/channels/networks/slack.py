"""Slack, for the contract: Socket Mode from a local Slack, and the conversations that it keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.channels.slack.channel import SlackChannel, SlackSettings
from miniclaw_sessions.channels.slack.mrkdwn import unescaped
from tests.channels.clocks import HastyClock
from tests.channels.contract import GROUP, Failure, Network, Person
from tests.channels.slack_server import (
    ANN,
    APP_TOKEN,
    BOB,
    BOT,
    CUT_AFTERWARDS,
    DIRECT,
    EVE,
    GENERAL,
    LIMITED,
    PAGE,
    TOKEN,
    Json,
    SlackServer,
    refusal,
)

_PEOPLE: dict[str, str] = {Person.ANN: ANN, Person.BOB: BOB, Person.EVE: EVE}
_CHATS = {person: DIRECT[user] for person, user in _PEOPLE.items()} | {GROUP: GENERAL}
_FAILURES = {
    Failure.ERROR: refusal("internal_error"),
    Failure.LIMIT: LIMITED,
    Failure.STRANGE: PAGE,
    Failure.LOST: CUT_AFTERWARDS,
}
_TYPES = {"png": "image/png", "ogg": "audio/ogg", "pdf": "application/pdf"}


class Slack(Network):
    name = "slack"
    announces_once = False
    has_buttons = True

    def __init__(self) -> None:
        self._server = SlackServer()
        self._said: dict[str, tuple[str, Json, Json]] = {}
        """What is to be answered, by its time stamp: where, what and its event."""
        self._edits: list[Json] = []
        self._thread = ""
        self._pressed: Json = {}

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        async with self._server:
            yield
        assert self._server.problems == []

    def channel(self, directory: Path) -> Channel:
        del directory
        settings = SlackSettings(allow=(ANN, BOB), api_url=self._server.url)
        return SlackChannel(
            "slack", settings, {"SLACK_BOT_TOKEN": TOKEN, "SLACK_APP_TOKEN": APP_TOKEN}, HastyClock(goes=True)
        )

    def environment(self, home: Path) -> dict[str, str]:
        del home
        return {
            "SLACK_BOT_TOKEN": TOKEN,
            "SLACK_APP_TOKEN": APP_TOKEN,
            "MINICLAW_CHANNELS_SLACK_ALLOW": f"{ANN},{BOB}",
            "MINICLAW_CHANNELS_SLACK_API_URL": self._server.url,
        }

    # --- what people do ----------------------------------------------------------------------------------------------

    async def say(self, text: str, by: Person = Person.ANN, *, in_group: bool = False, to_bot: bool = True) -> str:
        """In the group all is said in the thread that Ann or Bob has begun with the bot."""
        user, channel = _PEOPLE[by], GENERAL if in_group else DIRECT[_PEOPLE[by]]
        written = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        written = f"<@{BOT}> {written}" if in_group and to_bot else written
        message = self._server.say(written, user=user, channel=channel, thread=self._thread if in_group else "")
        return self._note(channel, message) if to_bot and by is not Person.EVE else message["ts"]

    def _note(self, channel: str, message: Json) -> str:
        ts = str(message["ts"])
        self._thread = self._thread or (ts if channel == GENERAL else "")
        self._said[ts] = channel, message, self._server.event(channel, message)
        return ts

    async def send_file(self, name: str, data: bytes, caption: str = "") -> str:
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        return self._note(DIRECT[ANN], self._server.send_file(name, data, kind, caption))

    async def deliver_again(self, message_id: str) -> None:
        *_, event = self._said[message_id]
        await self._deliver(event, attempt=1)

    async def _deliver(self, event: Json, attempt: int = 0) -> None:
        await self._server.until(lambda: bool(self._server.connections))
        self._server.acknowledged.pop(f"{event['id']}-{attempt}", None)
        self._server.deliver(event, attempt)
        await self._server.until(lambda: self._server.is_acknowledged(event, attempt))

    async def edit(self, message_id: str, text: str) -> None:
        channel, *_ = self._said[message_id]
        self._server.edit(channel, message_id, text)
        self._edits.append(self._server.events[-1])

    async def press(self, by: Person = Person.ANN, *, yes: bool) -> None:
        """A question that is decided has no buttons, but a program may show them for a while."""
        await self._server.until(lambda: bool(self._server.connections))
        if self._server.has_buttons(DIRECT[ANN]):
            action = "miniclaw_yes" if yes else "miniclaw_no"
            self._pressed = self._server.press(action, user=_PEOPLE[by], channel=DIRECT[ANN])
            return
        await self._deliver(self._pressed, attempt=1)

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def fail(self, failure: Failure, count: int = 1) -> None:
        self._server.heal("chat.postMessage")
        self._server.fail("chat.postMessage", *[_FAILURES[failure]] * count)

    @property
    def failing(self) -> int:
        return self._server.failing("chat.postMessage")

    async def break_off(self) -> None:
        await self._server.drop()

    # --- what people see ---------------------------------------------------------------------------------------------

    def shown(self, chat: str = Person.ANN) -> list[str]:
        posts = [one for one in self._server.posts(_CHATS[chat]) if "files" not in one]
        return [one["blocks"][0]["text"]["text"] if "blocks" in one else unescaped(one["text"]) for one in posts]

    @property
    def is_done(self) -> bool:
        """All is past before a `/stop`, which has an answer of its own or is followed by the one that it stopped."""
        server, done, past = self._server, dict[str, str](), dict[str, str]()
        for channel in server.messages:
            for post in server.posts(channel):
                mark = post.get("metadata", {}).get("event_payload", {})
                done |= {mark["to"]: post["ts"]} if mark.get("done") else {}
        for ts, (channel, message, _) in self._said.items():
            if message["text"] == "/stop" and (ts in done or any(after > ts for after in done.values())):
                past[channel] = ts
        left = [ts for ts, (channel, *_) in self._said.items() if ts not in done and ts > past.get(channel, "")]
        return not left and all(map(server.is_acknowledged, self._edits))

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self._server.until(is_so)
