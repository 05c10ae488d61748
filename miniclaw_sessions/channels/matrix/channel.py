"""The channel `matrix`: rooms and their threads, by the client-server interface of a homeserver.

How far its messages are done is kept on the homeserver, in the account data of the bot: a position of `/sync` before
which everything was answered. So a restart goes on there, wherever it happens; what is delivered again is answered
once, because an answer is sent under an id that is made of its question and of its text, and the homeserver takes it
once.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import msgspec
from anyio import to_thread

from miniclaw_sessions.channels.addresses import check_address
from miniclaw_sessions.channels.allowed import Allowed, AllowSettings
from miniclaw_sessions.channels.base import Incoming, Last, Outgoing, comes_again, meanwhile
from miniclaw_sessions.channels.commands import is_stop
from miniclaw_sessions.channels.markdown import html_of, images_in, model_message
from miniclaw_sessions.channels.splitting import split
from miniclaw_sessions.channels.unseen import MAX_FILE_BYTES, Kind, Unseen, file_in, unseen, with_unseen
from miniclaw_sessions.channels.waiting import take_next
from miniclaw_sessions.clock import derived_id
from miniclaw_sessions.config.settings import Bytes
from miniclaw_sessions.core.protocol.images import image_of
from miniclaw_sessions.core.protocol.messages import Message, Part, TextPart
from miniclaw_sessions.errors import ConfigError, Unreachable, to_install
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.secret import channel_secret

if TYPE_CHECKING:
    from nio import Event, MatrixRoom, Response, SyncResponse

    from miniclaw_sessions.channels.matrix.replies import Client

log = get_logger(__name__)

_POSITION = "io.github.miniclaw_sessions.position"
_WAIT_MS = 30_000
_DOWNLOAD_S = 30.0  # for one person's files of a reply of `/sync`: then the others have waited long enough
_TYPING_S = 20.0
_MAX_TEXT_BYTES = 16_000  # an event has at most 65,536 bytes, with the text once as it is and once as HTML
_PEOPLE_OF_A_GROUP = 3
_REFUSED_FOR_GOOD = {"M_FORBIDDEN", "M_TOO_LARGE", "M_NOT_FOUND", "M_BAD_JSON", "M_INVALID_PARAM"}
_KINDS: dict[str, Kind] = {
    "m.audio": "audio",
    "m.file": "file",
    "m.image": "picture",
    "m.location": "place",
    "m.video": "video",
}
"""What is sent beside text."""

_FILES = {"m.audio", "m.file"}
"""Of these, those that may be kept as they are, as pictures are."""

_VOICE = "org.matrix.msc3245.voice"  # stands in an m.audio that a person has spoken

_FILTER = {
    "presence": {"types": []},
    "account_data": {"types": []},
    "room": {
        "timeline": {"limit": 50},
        "state": {"lazy_load_members": True},
        "ephemeral": {"types": []},
        "account_data": {"types": []},
    },
}


class MatrixSettings(AllowSettings, frozen=True, kw_only=True):
    """A bot's account. `allow` names users as `@alice:example.org`, and rooms by their id.

    Attributes:
        homeserver: address of the homeserver, such as https://matrix.example.org.
        token_file: file with the account's access token; empty: the systemd credential `NAME_token`, else the
            environment variable `NAME_TOKEN`, such as MATRIX_TOKEN.
        max_image_bytes: how large an image may be; `sessions.max_message_bytes` must have room for a third more.
        max_file_bytes: how large a voice message, a sound, a PDF or a text may be; a larger one is only named.
    """

    homeserver: str = ""
    token_file: str = ""
    max_image_bytes: Bytes = 700_000
    max_file_bytes: Bytes = MAX_FILE_BYTES


class _Place(msgspec.Struct, frozen=True):
    """Where something was said: a room, its thread if it is in one, and the event."""

    room_id: str
    event_id: str
    thread: str = ""
    is_group: bool = False

    @property
    def chat_id(self) -> str:
        return f"{self.room_id},{self.thread}" if self.thread else self.room_id


class _Batch:
    """The events of one reply of `/sync`, until all are done; then its position is the one to go on from."""

    def __init__(self, position: str, waiting: set[str]) -> None:
        self.position = position
        self.waiting = waiting


class MatrixChannel:
    """Answers in the rooms that a bot was invited to by people who are allowed.

    Args:
        name: of the channel.
        settings: the account.

    Raises:
        ConfigError: the settings lack something, or the library is not installed.
    """

    Settings = MatrixSettings
    send_timeout_s = 120.0  # a homeserver may say that the next event has to wait

    def __init__(self, name: str, settings: MatrixSettings) -> None:
        try:
            import nio  # noqa: F401, PLC0415 - found out now, and not with the first message
        except ImportError as error:
            raise ConfigError(f"the channel `matrix` needs {to_install('matrix')}") from error
        check_address(f"channels.{name}.homeserver", settings.homeserver)
        logging.getLogger("nio").setLevel(logging.CRITICAL + 1)  # it quotes what people say, where it is malformed
        self.name = name
        self._settings = settings
        self._token = channel_secret(name, "token", settings.token_file, os.environ)
        self._allowed = Allowed(name, settings)
        self._made: Client | None = None
        self._places: dict[Incoming, _Place] = {}
        self._held: dict[str, tuple[Incoming, _Place]] = {}  # by their event ids, until there is room in their chats
        self._untold: dict[str, tuple[Incoming, _Place]] = {}  # handed over again with what comes next
        self._batches: list[_Batch] = []
        self._waited_s: dict[str, float] = {}  # for each person's files
        self._invited: set[str] = set()  # rooms that the bot has not come into yet
        self._changed = anyio.Event()

    @property
    def _client(self) -> Client:
        assert self._made is not None, "nothing is sent before something was received"  # noqa: S101
        return self._made

    async def aclose(self) -> None:
        """Close the connections."""
        if self._made is not None:
            await self._made.close()

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        """Hand over what is said in all rooms, from where everything before was answered.

        What was said before the first start is not answered.

        Raises:
            Unreachable: the homeserver refuses the token, or its answers are none.
        """
        await self._log_in()
        self._batches.clear()
        self._held.clear()
        self._untold.clear()
        reply = await self._synced(None)  # all rooms and invitations, and what was said before
        position = (await self._account_data("GET")).get("since")
        if not isinstance(position, str):
            position = reply.next_batch
            await self._keep(position)  # before any invitation is accepted: from then on, nothing is passed over
        await self._accept_invitations(reply)
        listening = self._listen(position)
        try:
            while True:
                self._changed = anyio.Event()
                if listening.done():
                    reply = listening.result()
                    await self._hold(reply, position)
                    position = reply.next_batch
                    listening = self._listen(position)
                while (incoming := self._next()) is not None:
                    yield incoming
                await self._changed.wait()
        finally:
            listening.cancel()

    def _listen(self, position: str) -> asyncio.Task[SyncResponse]:
        """Ask what is said from there on; in a task of its own, because a chat may have room again before that."""

        def end(listening: asyncio.Task[SyncResponse]) -> None:
            if not listening.cancelled():
                listening.exception()  # else asyncio logs it as never retrieved
            self._changed.set()

        listening = asyncio.create_task(self._synced(position))
        listening.add_done_callback(end)
        return listening

    async def _hold(self, reply: SyncResponse, position: str) -> None:
        """Take what was said, to be handed over when its chat has room."""
        await self._accept_invitations(reply)
        self._waited_s.clear()
        said = {place.event_id: (incoming, place) async for incoming, place in self._said(reply, position)}
        self._batches.append(_Batch(reply.next_batch, set(said)))  # not before all of it is known to wait
        in_hand = {place.event_id for place in self._places.values()}  # since before a failure
        waiting = {**self._untold, **self._held, **said}
        self._held = {event_id: one for event_id, one in waiting.items() if event_id not in in_hand}
        self._untold.clear()
        await self._advance()

    def _next(self) -> Incoming | None:
        """The first message whose chat has room."""
        found = take_next(
            self._held,
            (one.chat_id for one in self._places),
            lambda held: (held[0].chat_id, is_stop(held[0].message)),
            lambda held: self._end(held[1].event_id),
        )
        if found is None:
            return None
        incoming, place = found
        self._places[incoming] = place
        return incoming

    async def _log_in(self) -> None:
        from nio import WhoamiResponse  # noqa: PLC0415 - the settings alone need none of it

        from miniclaw_sessions.channels.matrix.replies import Client  # noqa: PLC0415 - loaded with the channel

        if self._made is None:
            client = Client(self._settings.homeserver.rstrip("/"))
            client.access_token = self._token.reveal()
            self._made = client
        who = await self._client.whoami()
        if not isinstance(who, WhoamiResponse):
            raise Unreachable(f"{self._settings.homeserver} does not take the access token: {_code_of(who)}")
        self._client.restore_login(who.user_id, who.device_id or "", self._token.reveal())

    async def _synced(self, position: str | None) -> SyncResponse:
        from nio import SyncResponse  # noqa: PLC0415 - loaded with the channel

        self._client.next_batch = ""  # else the library goes on from its own
        reply = await self._client.sync(_WAIT_MS if position else 0, _FILTER, since=position)
        if not isinstance(reply, SyncResponse):
            raise Unreachable(f"{self._settings.homeserver} does not give the messages: {_code_of(reply)}")
        return reply

    async def _accept_invitations(self, reply: SyncResponse) -> None:
        """Come into rooms; a proxy's refusal is retried with the next reply, and blocks no other room."""
        from nio import JoinError  # noqa: PLC0415 - loaded with the channel

        for room_id, invitation in reply.rooms.invite.items():
            for event in invitation.invite_state:
                is_ours = getattr(event, "state_key", None) == self._client.user_id
                if is_ours and self._allowed.admits(user_id=event.sender, chat_id=room_id):
                    self._invited.add(room_id)
        for room_id in sorted(self._invited):
            try:
                joined = await self._client.join(room_id)
            except Unreachable as error:
                why = {"channel": self.name, "detail": str(error)}
                log.warning("an invitation is accepted again later", action="channel.unconfirmed", **why)
                continue
            self._invited.discard(room_id)
            if isinstance(joined, JoinError):
                why = {"channel": self.name, "detail": _code_of(joined)}
                log.warning("a room cannot be joined", action="matrix.refused", **why)

    async def _said(self, reply: SyncResponse, position: str) -> AsyncIterator[tuple[Incoming, _Place]]:
        from aiohttp import ClientPayloadError  # noqa: PLC0415 - loaded with the channel

        for room_id, room in reply.rooms.join.items():
            events = list(room.timeline.events)
            came = next((number for number, event in enumerate(events) if self._is_coming(event)), None)
            if came is not None:
                events = events[came + 1 :]  # what was said before the bot was asked in is none of its business
            elif room.timeline.limited:
                events = [*await self._left_out(room_id, room.timeline.prev_batch or "", position), *events]
            for event in events:
                try:
                    said = await self._incoming(self._client.rooms[room_id], event)
                except (Unreachable, OSError, ClientPayloadError):
                    raise
                except Exception as error:  # noqa: BLE001 - a stranger's homeserver may send anything
                    kind = type(error).__name__
                    log.warning(
                        "an event cannot be read", action="channel.unreadable", channel=self.name, error_type=kind
                    )
                    continue
                if said is not None:
                    yield said

    def _is_coming(self, event: Event) -> bool:
        is_ours = event.source.get("type") == "m.room.member" and event.source.get("state_key") == self._client.user_id
        return is_ours and _table(event.source, "content").get("membership") in ("invite", "join")

    async def _left_out(self, room_id: str, start: str, position: str) -> Sequence[Event]:
        """What a reply left out of a room, because too much was said there."""
        from nio import RoomMessagesResponse  # noqa: PLC0415 - loaded with the channel

        events: list[Event] = []
        while start:
            page = await self._client.room_messages(room_id, start, position, limit=100)
            if not isinstance(page, RoomMessagesResponse):
                raise Unreachable(f"{self._settings.homeserver} does not give the messages: {_code_of(page)}")
            events += page.chunk
            start = page.end or "" if page.chunk else ""
        return events[::-1]

    async def _incoming(self, room: MatrixRoom, event: Event) -> tuple[Incoming, _Place] | None:
        """The message, if it must be answered."""
        content, kind = event.source.get("content"), event.source.get("type")
        if event.sender == self._client.user_id or not isinstance(content, dict):
            return None
        if kind == "m.room.encrypted":
            log.warning("a room is encrypted and cannot be read", action="matrix.encrypted", channel=self.name)
            return None
        relation, replaced = _table(content, "m.relates_to"), None
        if relation.get("rel_type") == "m.replace":
            replaced = str(relation.get("event_id"))
            content = _table(content, "m.new_content")
            original = await self._event(room.room_id, replaced)
            if original.get("sender") != event.sender:
                return None  # an edit by another person does not count
            relation = _table(_table(original, "content"), "m.relates_to")
        said_as = str(content.get("msgtype"))
        if kind != "m.room.message" or said_as not in {"m.text", *_KINDS}:
            return None  # an m.notice is a program's, which must not be answered
        thread = str(relation.get("event_id") or "") if relation.get("rel_type") == "m.thread" else ""
        is_group = room.member_count >= _PEOPLE_OF_A_GROUP
        place = _Place(room.room_id, event.event_id, thread, is_group)
        is_addressed = not is_group or await self._is_addressed(room, content, relation)
        who = {"user_id": event.sender, "chat_id": room.room_id}
        if not self._allowed.admits(**who, is_group=is_group, is_addressed=is_addressed):
            return None
        said, missed = await self._read(room, event.sender, content, relation)
        message = msgspec.structs.replace(Message.user(said), author=event.sender)
        incoming = Incoming(
            place.chat_id,
            message,
            event.event_id,
            answer_again=True,
            replaces=replaced,
            is_addressed=is_addressed,
            unseen=missed,
            is_private=not is_group,
        )
        return incoming, place

    async def _is_addressed(self, room: MatrixRoom, content: dict[str, Any], relation: dict[str, Any]) -> bool:
        """Whether the bot is spoken to in a room of several people: it is mentioned, or answered."""
        user_id = self._client.user_id
        if user_id in (_table(content, "m.mentions").get("user_ids") or ()) or user_id in str(content.get("body")):
            return True
        if relation.get("is_falling_back"):
            return False  # every event of a thread names the newest one, for programs that know no threads
        answered = _table(relation, "m.in_reply_to").get("event_id")
        if not answered:
            return False
        try:
            said = await self._event(room.room_id, str(answered))
        except Unreachable as error:  # raised, it would stop all rooms at this message for as long as it lasts
            why = {"channel": self.name, "detail": str(error)}
            log.warning("a reply is not taken for one to the bot", action="channel.unconfirmed", **why)
            return False
        return bool(said.get("sender") == user_id)

    async def _event(self, room_id: str, event_id: str) -> dict[str, Any]:
        """An event that another one refers to; an empty one if it is missing."""
        from nio import RoomGetEventResponse  # noqa: PLC0415 - loaded with the channel

        found = await self._client.room_get_event(room_id, event_id)
        return dict(found.event.source) if isinstance(found, RoomGetEventResponse) else {}

    async def _read(
        self, room: MatrixRoom, sender: str, content: dict[str, Any], relation: dict[str, Any]
    ) -> tuple[str | tuple[Part, ...], Sequence[Unseen]]:
        """The text and the file of a message, without what it quotes and whom it calls; and what no model sees."""
        text = str(content.get("body", ""))
        if "m.in_reply_to" in relation and text.startswith("> "):
            text = text.partition("\n\n")[2]  # older programs quote what they answer
        own_names = (self._client.user_id, room.own_user_id, room.user_name(room.own_user_id))
        names = "|".join(re.escape(name) for name in own_names if name)
        text = re.sub(rf"^\s*@?(?:{names})\s*[:,]?\s+", "", text, flags=re.IGNORECASE)
        said_as = str(content.get("msgtype"))
        if said_as == "m.text":
            return text, ()
        name = str(content.get("filename", text))
        caption = text if name != text else ""
        part = await self._file(said_as, sender, name, content)
        if part is None:
            missed = [_unseen_in(content, _KINDS[said_as], name)]
            return with_unseen(missed, caption), missed
        return (TextPart(caption), part) if caption else (part,), ()

    async def _file(self, said_as: str, sender: str, name: str, content: dict[str, Any]) -> Part | None:
        """The file of a message, as far as it can be kept."""
        if said_as == "m.image":
            return image_of(await self._content(sender, content, self._settings.max_image_bytes))
        if said_as not in _FILES:
            return None
        data = await self._content(sender, content, self._settings.max_file_bytes)
        return file_in(name, data, self._settings.max_file_bytes)

    async def _content(self, sender: str, content: dict[str, Any], most: int) -> bytes:
        """The bytes of what an event names; none where they are more than that, or cannot be had in time."""
        address, size = content.get("url"), _table(content, "info").get("size")
        if not isinstance(address, str) or (isinstance(size, int) and size > most):
            return b""
        began, before, data = anyio.current_time(), self._waited_s.get(sender, 0.0), b""
        with anyio.move_on_after(_DOWNLOAD_S - before):
            data = await self._client.content(address, most)
        self._waited_s[sender] = before + anyio.current_time() - began
        return data

    # --- answering ---------------------------------------------------------------------------------------------------

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """Answer where it was said, in as many events as the text needs; then the message is done.

        What the homeserver does not take now is handed over again with the next reply of `/sync`, which comes every 30
        seconds; what is wrong with an answer itself would fail each time.

        Raises:
            Unreachable: the homeserver refuses an event.
        """
        del chat_id  # the place knows more
        if not isinstance(outgoing, Last):
            return
        from aiohttp import ClientError  # noqa: PLC0415 - loaded with the channel

        place = self._places[outgoing.incoming]
        is_done = False
        try:
            if not comes_again(outgoing):
                await self._answer(place, outgoing)
                is_done = True
            elif text := meanwhile(outgoing):
                await self._put(place, "meanwhile", {"msgtype": "m.notice", "body": text})  # however often, once
        except (Unreachable, OSError, ClientError):
            raise
        except Exception:
            is_done = True
            raise
        finally:
            del self._places[outgoing.incoming]
            if is_done:
                self._end(place.event_id)
            else:
                self._untold[place.event_id] = (msgspec.structs.replace(outgoing.incoming), place)
            self._changed.set()
        await self._advance()

    async def _answer(self, place: _Place, outgoing: Last) -> None:
        from nio import UploadResponse  # noqa: PLC0415 - loaded with the channel

        said = model_message(outgoing)
        text = outgoing.text
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]  # another answer to the same is not taken for it
        for number, piece in enumerate(split(text, _MAX_TEXT_BYTES, size=lambda text: len(text.encode()))):
            content = {"msgtype": "m.notice", "body": piece}
            if said is not None:  # in a thread: brackets by the thousand take it a second
                content |= {
                    "format": "org.matrix.custom.html",
                    "formatted_body": await to_thread.run_sync(html_of, piece),
                }
            await self._put(place, f"{digest}.{number}", content)
        for number, image in enumerate(images_in(said)):
            data = base64.b64decode(image.data or "")
            name = f"image.{image.media_type.partition('/')[2] or 'png'}"
            stored, _ = await self._client.upload(
                lambda *_, data=data: data, image.media_type, name, filesize=len(data)
            )
            if not isinstance(stored, UploadResponse):
                self._give_up(_code_of(stored))
                continue
            info = {"mimetype": image.media_type, "size": len(data)}
            uploaded = {"msgtype": "m.image", "body": name, "url": stored.content_uri, "info": info}
            await self._put(place, f"{digest}.image{number}", uploaded)

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        """As `channels.base.Channel`. Raises Unreachable where the homeserver refuses it."""
        room_id, _, thread = chat_id.partition(",")
        part = f"announced.{derived_id(key)}"
        await self._put(_Place(room_id, thread, thread), part, {"msgtype": "m.notice", "body": text})

    async def _put(self, place: _Place, part: str, content: dict[str, Any]) -> None:
        """Send an event, in the thread of what it answers; the homeserver takes each part of an answer once."""
        from nio import RoomSendResponse  # noqa: PLC0415 - loaded with the channel

        relation: dict[str, Any] = {"m.in_reply_to": {"event_id": place.event_id}} if place.is_group else {}
        if place.thread:
            relation = {"rel_type": "m.thread", "event_id": place.thread, "is_falling_back": True}
            relation["m.in_reply_to"] = {"event_id": place.event_id}
        content = {**content, "m.mentions": {}, **({"m.relates_to": relation} if relation else {})}
        sent = await self._client.room_send(place.room_id, "m.room.message", content, tx_id=f"{place.event_id}.{part}")
        if not isinstance(sent, RoomSendResponse):
            self._give_up(_code_of(sent))

    def _give_up(self, code: str) -> None:
        """Nothing that is refused for good holds up what comes after it; it is in the session all the same."""
        if code not in _REFUSED_FOR_GOOD:
            raise Unreachable(f"{self._settings.homeserver} does not take an answer: {code}")
        log.error("an answer is refused for good", action="matrix.refused", channel=self.name, detail=code)

    @asynccontextmanager
    async def typing(self, chat_id: str) -> AsyncIterator[None]:
        """Show that an answer is on its way."""
        room_id = chat_id.partition(",")[0]

        async def keep() -> None:
            while True:
                await self._client.room_typing(room_id, typing_state=True, timeout=int(1.5 * _TYPING_S * 1000))
                await anyio.sleep(_TYPING_S)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
                with anyio.move_on_after(1, shield=True):
                    await self._client.room_typing(room_id, typing_state=False)

    # --- how far it is -----------------------------------------------------------------------------------------------

    def _end(self, event_id: str) -> None:
        for batch in self._batches:
            batch.waiting.discard(event_id)

    async def _advance(self) -> None:
        """Keep the newest position before which everything is done."""
        batches: list[_Batch] = []
        for batch in self._batches:
            if batches and not batch.waiting:
                batches[-1].position = batch.position  # so that no more are kept than wait
            else:
                batches.append(batch)
        done = batches.pop(0) if batches and not batches[0].waiting else None
        self._batches = batches
        if done is None:
            return
        try:
            await self._keep(done.position)
        except Unreachable as error:
            self._batches.insert(0, done)  # and with the next reply once more
            why = {"channel": self.name, "detail": str(error)}
            log.warning("how far all is done is kept later", action="channel.unconfirmed", **why)

    async def _keep(self, position: str) -> None:
        await self._account_data("PUT", json.dumps({"since": position}))

    async def _account_data(self, method: str, data: str | None = None) -> dict[str, Any]:
        """Read or write what the homeserver keeps for this channel; the library has no call for it."""
        path = f"/_matrix/client/v3/user/{quote(self._client.user_id)}/account_data/{_POSITION}.{quote(self.name)}"
        headers = {"Authorization": f"Bearer {self._token.reveal()}", "Content-Type": "application/json"}
        reply = await self._client.send(method, path, data, headers)
        found: dict[str, Any] = await reply.json(content_type=None)
        code = found.get("errcode")
        if code is not None and (method, code) != ("GET", "M_NOT_FOUND"):
            raise Unreachable(f"{self._settings.homeserver} does not keep a position: {code}")
        return found if code is None else {}


def _code_of(response: Response) -> str:
    """The homeserver's own word for what it refuses; its sentence may quote a message."""
    code = str(getattr(response, "status_code", None))
    return code if re.fullmatch(r"[\w.]{1,60}", code) and code != "None" else "its reply lacks what it must have"


def _unseen_in(content: dict[str, Any], kind: Kind, name: str) -> Unseen:
    """A file that no model sees; what is spoken has a length, and no name that a person gave it."""
    if _VOICE not in content:
        return unseen(kind, "" if kind == "place" else name)
    lasts = _table(content, "info").get("duration")
    return unseen("voice message", seconds=lasts / 1000 if isinstance(lasts, int) else 0)


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    """A table within what a stranger sent; an empty one where it is none."""
    found = content.get(name)
    return found if isinstance(found, dict) else {}
