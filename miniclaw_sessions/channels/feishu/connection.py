"""Feishu's long connection: a websocket by which events come, each of which has to be answered."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
import anyio
import msgspec

from miniclaw_sessions.channels.feishu.calls import Calls, Endpoint, ping_seconds
from miniclaw_sessions.channels.feishu.frames import CONTROL, DATA, Frame, Parts, decode, encode
from miniclaw_sessions.channels.feishu.replies import DONE
from miniclaw_sessions.errors import Unreachable

_MAX_FRAME_BYTES = 2**24
_SERVICE = re.compile(r"[?&]service_id=(\d+)")
_TOO_MANY = "1000040350"


class Heard(NamedTuple):
    """An event or callback that has come, and waits to be answered.

    Attributes:
        connection: by which it came; no other one can take its reply.
        frame: the event, whole.
        at: when, by the event loop's clock.
    """

    connection: aiohttp.ClientWebSocketResponse
    frame: Frame
    at: float

    async def reply(self, body: Mapping[str, Any] | None = None) -> None:
        """Answer it, unless the connection is gone: then it comes again.

        Args:
            body: what the program of a person who has pressed a button is to show; None: nothing.
        """
        said: dict[str, Any] = {"code": DONE}
        if body is not None:
            said["data"] = base64.b64encode(msgspec.json.encode(body)).decode()
        took_ms = round(1000 * (anyio.current_time() - self.at))
        headers = {**self.frame.headers, "biz_rt": str(took_ms)}
        frame = msgspec.structs.replace(self.frame, headers=headers, payload=msgspec.json.encode(said))
        if not self.connection.closed:
            try:
                await self.connection.send_bytes(encode(frame))
            except (aiohttp.ClientError, OSError):
                return


async def events(calls: Calls) -> AsyncGenerator[Heard | None, None]:
    """What comes by one connection, until Feishu closes it; None each time that it is kept alive.

    Raises:
        Unreachable: it cannot be opened, or has brought nothing before it was closed, or is silent.
        ConfigError: Feishu refuses the app.
    """
    endpoint = await calls.endpoint()
    connection = await _opened(calls, endpoint)
    found = _SERVICE.search(endpoint.url)
    ping = encode(Frame(method=CONTROL, service=int(found[1]) if found else 0, headers={"type": "ping"}))
    parts, ping_s = Parts(), endpoint.ping_s
    was_used = is_silent = False
    ping_at = anyio.current_time() + ping_s
    try:
        while True:
            try:
                message = await connection.receive(max(ping_at - anyio.current_time(), 0.001))
            except TimeoutError:
                if is_silent:
                    raise Unreachable("Feishu's long connection is silent: it does not answer a ping") from None
                is_silent = True
                ping_at = anyio.current_time() + ping_s  # the answer has all of it, however late the ping is
                await connection.send_bytes(ping)
                yield None
                continue
            if message.type is not aiohttp.WSMsgType.BINARY:
                break
            was_used, is_silent = True, False
            frame = _frame_in(message.data, parts)
            if frame is not None and frame.method == DATA:
                yield Heard(connection, frame, anyio.current_time())
            elif frame is not None:  # a pong
                with suppress(ValueError):
                    ping_s = ping_seconds(msgspec.json.decode(frame.payload or b"null"), ping_s)
    except (aiohttp.ClientError, OSError):
        pass  # it broke off, which is as good as closed
    finally:
        with anyio.move_on_after(1, shield=True):
            await connection.close()
    if not was_used:
        raise Unreachable("Feishu's long connection was closed before anything came")


async def _opened(calls: Calls, endpoint: Endpoint) -> aiohttp.ClientWebSocketResponse:
    try:
        return await calls.session.ws_connect(endpoint.url, max_msg_size=_MAX_FRAME_BYTES)
    except aiohttp.WSServerHandshakeError as error:
        headers: Mapping[str, str] = error.headers or {}
        if headers.get("handshake-autherrcode") == _TOO_MANY:
            raise Unreachable("Feishu gives an app at most 50 long connections, and this one has them") from None
        code = headers.get("handshake-status", "")
        why = f"code {code}" if re.fullmatch(r"\d{1,12}", code) else f"status {error.status}"
        raise Unreachable(f"Feishu refuses the long connection: {why}") from None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unreachable(f"Feishu's long connection cannot be opened: {type(error).__name__}") from None


def _frame_in(data: bytes, parts: Parts) -> Frame | None:
    """The frame in these bytes, with all of its event; None: more of it is to come, or it is no frame."""
    try:
        frame = decode(data)
        return parts.whole(frame) if frame.method == DATA else frame
    except ValueError:
        return None
