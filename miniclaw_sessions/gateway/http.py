"""The front door of the HTTP interface: who may ask, and what becomes of errors.

`make_app` puts the routes together; `Gateway` stands before all of them. Nothing that a stranger sends ends in a reply
of 500, and whatever else goes wrong is answered with an opaque id that the log explains, without any message text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from miniclaw_sessions.api.context import Context
from miniclaw_sessions.api.error_table import RequestError, as_reply
from miniclaw_sessions.api.table import OPERATIONS
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import Settings
from miniclaw_sessions.gateway import metrics
from miniclaw_sessions.gateway.binding import routes_of
from miniclaw_sessions.gateway.chat import DispatchedChats
from miniclaw_sessions.gateway.metrics import LoopDelay, RequestCounts, make_registry
from miniclaw_sessions.gateway.replies import error_reply
from miniclaw_sessions.gateway.security import AccessPolicy, refusal
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.session.compacting import Summarizer

log = get_logger(__name__)


def make_app(
    manager: SessionManager,
    dispatcher: Dispatcher,
    settings: Settings,
    policy: AccessPolicy | None,
    summarizer: Summarizer,
) -> Gateway:
    """The whole application.

    Args:
        manager: whose sessions are served.
        dispatcher: takes what is said in chats.
        settings: sizes and times; an answer that nobody waits for any more goes on for `model.timeout_s`.
        policy: what requests by TCP must show; None refuses all of them.
        summarizer: who summarizes for compactions.
    """
    requests, delay = RequestCounts(), LoopDelay()
    registry = make_registry(manager.statistics, requests, delay)
    chats = DispatchedChats(dispatcher, patience_s=settings.model.timeout_s)
    context = Context(manager, summarizer=summarizer, chats=chats)
    routes = [
        *routes_of(OPERATIONS, context, settings.listen),
        Route("/metrics", _metrics_of(registry)),
    ]
    return Gateway(Router(routes, redirect_slashes=False), context, policy, requests, delay)


def _metrics_of(registry: CollectorRegistry) -> Callable[[Request], Awaitable[Response]]:
    async def show_metrics(request: Request) -> Response:
        """Numbers for Prometheus."""
        request.scope["operation"] = "metrics"
        return Response(metrics.render(registry), media_type=metrics.CONTENT_TYPE)

    return show_metrics


class Gateway:
    """ASGI: admits requests, routes them on the raw path, turns errors into replies, and counts.

    Attributes:
        context: what the handlers work with.
        policy: what requests by TCP must show; None refuses all of them. It may be replaced at any time.
        delay: the event loop's delay, measured while its `watch` runs.
    """

    def __init__(
        self,
        router: ASGIApp,
        context: Context,
        policy: AccessPolicy | None,
        requests: RequestCounts,
        delay: LoopDelay,
    ) -> None:
        self.context = context
        self.policy = policy
        self.delay = delay
        self._router = router
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        # Routed undecoded: an encoded slash in a session id must not look like the end of it.
        routed: Scope = {**scope, "path": scope["raw_path"].decode("ascii"), "app": self}
        try:
            self._admit(scope)
            await self._router(routed, exchange.receive, exchange.send)
        except ClientDisconnect:
            log.debug("a client went away before its request was complete", action="http.disconnected")
        except Exception as error:  # noqa: BLE001 - this is the edge: whatever happens becomes a reply
            await exchange.fail(error)
        finally:
            name = str(routed.get("operation") or getattr(routed.get("endpoint"), "__name__", "none"))
            self._requests.count(name, exchange.status)

    def _admit(self, scope: Scope) -> None:
        if scope.get("state", {}).get("trusted") is True:
            return
        if self.policy is None:
            raise RequestError(403, "forbidden", "this daemon does not serve TCP", close=True)
        if (refused := refusal(scope["headers"], self.policy)) is not None:
            raise refused


class Exchange:
    """One request and its reply, watched for what must be known when something fails.

    A reply that is sent before the request's body was read must end the connection: the rest of the body would be taken
    for the next request.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        names = {name for name, _ in scope["headers"]}
        self._body_pending = b"transfer-encoding" in names or (
            b"content-length" in names and (b"content-length", b"0") not in scope["headers"]
        )

    async def receive(self) -> Message:
        """The next piece of the body."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._body_pending = False
        return message

    async def send(self, message: Message) -> None:
        """The next piece of the reply."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._body_pending:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await self._send(message)

    async def fail(self, error: Exception) -> None:
        """Reply with the error, or break the connection if the reply has begun."""
        refused = _from_starlette(error) if isinstance(error, HTTPException) else as_reply(error)
        if self.status:
            self._scope["state"]["abort"]()
        else:
            await error_reply(refused)(self._scope, self.receive, self.send)


def _from_starlette(error: HTTPException) -> RequestError:
    kinds = {404: "not_found", 405: "method_not_allowed"}
    kind = kinds.get(error.status_code, "bad_request")
    sentences = {"not_found": "there is nothing at this path", "method_not_allowed": "this path has no such method"}
    sentence = sentences.get(kind, "the request is not valid")
    return RequestError(error.status_code, kind, sentence, headers=dict(error.headers or {}))
