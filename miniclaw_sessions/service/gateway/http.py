"""The front door of the HTTP interface: who may ask, and what becomes of errors.

`make_app` puts the routes together; `Gateway` stands before all of them. Nothing that a stranger sends ends in a reply
of 500; any other failure is answered with an opaque id that the log explains, without any message text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from urllib.parse import parse_qsl, unquote

import anyio
import msgspec
from anyio import sleep
from msgspec import UNSET

from miniclaw_sessions.channels.base import WebhookReply, WebhookRequest
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import ListenSettings, Settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.session.compacting import Summarizer
from miniclaw_sessions.errors import NotPermitted
from miniclaw_sessions.log import get_logger, name_request
from miniclaw_sessions.log.audit import AuditLog, Deed
from miniclaw_sessions.service.api.context import OWNER, Caller, Context, Scope
from miniclaw_sessions.service.api.error_table import RequestError, as_reply
from miniclaw_sessions.service.api.table import OPERATIONS
from miniclaw_sessions.service.gateway import metrics
from miniclaw_sessions.service.gateway.binding import Asked, Binding, content_reply, method_refusal
from miniclaw_sessions.service.gateway.chat import DispatchedChats
from miniclaw_sessions.service.gateway.exchange import ClientGone, Exchange, Reply, read_body_in_time
from miniclaw_sessions.service.gateway.mcp import MCP, mcp_reply
from miniclaw_sessions.service.gateway.page import FILES
from miniclaw_sessions.service.gateway.responding import DispatchedResponses
from miniclaw_sessions.service.gateway.security import AccessPolicy, is_preflight, permission, sharing
from miniclaw_sessions.service.gateway.telemetry import LoopDelay, Telemetry

log = get_logger(__name__)

METRICS = "/metrics"
LOOK_EVERY_S = 1.0
"""So soon the connections of a token end that was revoked, or has expired; a new request is refused at once."""

_METRICS_SCOPE: dict[str, Scope] = {"token": "read", "open": "probe"}

Webhook = Callable[[WebhookRequest], Awaitable[WebhookReply]]

_BELOW = "/channels/"


def make_app(  # noqa: PLR0913, PLR0917 - what it is put together of
    manager: SessionManager,
    dispatcher: Dispatcher,
    settings: Settings,
    policy: AccessPolicy | None,
    summarizer: Summarizer,
    telemetry: Telemetry | None = None,
) -> Gateway:
    """The whole application.

    Args:
        manager: whose sessions are served.
        dispatcher: takes what is said in chats.
        settings: sizes and times; an answer goes on for `model.timeout_s` after its reader has left.
        policy: what requests by TCP must show; None refuses all of them.
        summarizer: who summarizes for compactions.
        telemetry: counts and measures; the default one counts requests only.
    """
    chats = DispatchedChats(dispatcher, patience_s=settings.model.timeout_s)
    responses = DispatchedResponses(dispatcher, patience_s=settings.model.timeout_s)
    context = Context(manager, summarizer=summarizer, chats=chats, responses=responses)
    if (budgets := dispatcher.assistant.agent.budgets) is not None:
        context.may_spend = budgets.check
    return Gateway(context, settings, policy, telemetry)


class Gateway:
    """Admits requests, has them answered, turns errors into replies, and writes down who did what.

    Attributes:
        context: what the handlers work with.
        policy: what requests by TCP must show; None refuses all of them. It may be replaced at any time.
        audit: where it is written down who did what; None: nowhere.
        delay: the event loop's delay, measured while its `watch` runs.
        webhooks: what takes the requests of networks, by the names of their channels.
    """

    def __init__(
        self, context: Context, settings: Settings, policy: AccessPolicy | None, telemetry: Telemetry | None = None
    ) -> None:
        self.context = context
        self.policy = policy
        self.audit: AuditLog | None = None
        self.telemetry = telemetry or Telemetry(context.manager.statistics, settings)
        self.delay = LoopDelay(self.telemetry.metrics)
        self._binding = Binding(OPERATIONS, settings.listen)
        self.webhooks: Mapping[str, Webhook] = {}
        self._limits = settings.listen
        self._metrics_scope = _METRICS_SCOPE.get(settings.listen.metrics)
        self._admitted: dict[Exchange, Caller] = {}

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        name_request(exchange.request_id)
        telemetry = self.telemetry
        began, span = telemetry.now(), telemetry.asked(exchange)
        try:
            reply = await self._answer(exchange)
            self._write_down(exchange, reply.status)  # a stream may last for weeks, and the daemon be killed then
            await exchange.reply(reply)
        except ClientGone:
            log.debug("a client went away before its request was complete", action="http.disconnected")
        except Exception as error:  # noqa: BLE001 - this is the edge: every error becomes a reply
            refused = exchange.form_of_errors(as_reply(error))
            self._write_down(exchange, refused.status)
            if exchange.status:
                exchange.break_off()
            else:
                await exchange.reply(Reply.of_error(refused))
        except BaseException as error:
            span.failed(type(error).__name__)
            raise
        finally:
            self._admitted.pop(exchange, None)
            self._write_down(exchange, exchange.status)
            telemetry.answered(exchange, telemetry.now() - began, span)

    async def _answer(self, exchange: Exchange) -> Reply:
        if (webhook := webhook_of(exchange, self.webhooks)) is not None:
            return await webhook_reply(exchange, webhook, self._limits)
        if not exchange.is_trusted and is_preflight(exchange.method, exchange.headers):  # it shows no token
            if (refused := self._policy_of(exchange).elsewhere(exchange.headers)) is not None:
                raise refused
            return Reply(200, b"", "text/plain", permission(exchange.headers))
        asked = self._binding.find(exchange)
        if isinstance(asked, Asked):
            return await self._done(asked, exchange)
        if exchange.path == METRICS and self._metrics_scope is not None:
            return self._metrics(exchange, self._admit(exchange, self._metrics_scope))
        if exchange.path == MCP:
            return await self._mcp(exchange)
        if (file := FILES.get(exchange.path)) is not None:
            self._admit(exchange, "open")
            exchange.operation = "page"
            if (refused := method_refusal(exchange, ("GET", "HEAD"))) is not None:
                raise refused
            return content_reply(file, exchange)
        self._admit(exchange, "read")  # strangers do not learn what there is
        raise asked

    async def _done(self, asked: Asked, exchange: Exchange) -> Reply:
        exchange.scope = asked.operation.scope
        caller = self._admit(exchange, exchange.scope)
        exchange.context = self.context.for_caller(caller)
        if (subject := asked.names.get("session_id") or asked.names.get("conversation_id")) is not None:
            exchange.context.note(unquote(subject))
        caller.require(exchange.scope)
        return await self._binding.reply(asked, exchange, exchange.context)

    def _admit(self, exchange: Exchange, scope: Scope) -> Caller:
        """Who asks, for something that needs this scope: the one place where requests are let in.

        Raises:
            RequestError: the request shows too little, or its token was used too often.
        """
        if exchange.is_trusted:
            return OWNER
        policy = self._policy_of(exchange)
        try:
            caller = policy.admit(exchange.headers, scope)
        except RequestError as error:
            log.warning("a request was refused", action="http.refused", reason=error.kind, operation=exchange.operation)
            raise
        if caller.token:
            self._admitted[exchange] = caller
        return caller

    def _policy_of(self, exchange: Exchange) -> AccessPolicy:
        if self.policy is None:
            raise RequestError(403, "forbidden", "this daemon does not serve TCP", close=True)
        exchange.sharing = sharing(exchange.headers, self.policy.origins)
        return self.policy

    async def watch_tokens(self) -> None:
        """Break off what is under way for tokens that are valid no longer, such as streams that never end."""
        while True:
            await sleep(LOOK_EVERY_S)
            if self.policy is not None:
                for exchange, caller in list(self._admitted.items()):
                    if not self.policy.tokens.holds(caller):
                        exchange.break_off()

    def _write_down(self, exchange: Exchange, status: int) -> None:
        """Who did what, for the audit log: once for each request, when it is known what becomes of it."""
        context, exchange.context = exchange.context, None
        if self.audit is not None and context is not None and self.audit.keeps(exchange.scope):
            deed = Deed(
                who=context.caller.name,
                token=context.caller.token or None,
                operation=exchange.operation,
                session_id=context.about,
                made=context.made or UNSET,
                of_token=context.of_token or UNSET,
                request_id=exchange.request_id,
                status=exchange.outcome or status,
            )
            self.audit.note(deed)
            for session_id in context.also_about:
                self.audit.note(msgspec.structs.replace(deed, session_id=session_id))

    def expired(self, session_id: str) -> None:
        """Write down that a session went by the rules of the settings."""
        if self.audit is not None and self.audit.keeps("admin"):
            deed = Deed(who="retention", token=None, operation="sweep", session_id=session_id, status=200)
            self.audit.note(deed)

    async def _mcp(self, exchange: Exchange) -> Reply:
        exchange.operation = "mcp"
        caller = self._admit(exchange, "read")
        exchange.context = context = self.context.for_caller(caller)
        caller.require("read")
        if (refused := method_refusal(exchange, ("POST",))) is not None:
            raise refused
        return await mcp_reply(exchange, context, self._limits)

    def _metrics(self, exchange: Exchange, caller: Caller) -> Reply:
        """Numbers for Prometheus."""
        exchange.operation = "metrics"
        if (refused := method_refusal(exchange, ("GET", "HEAD"))) is not None:
            raise refused
        if caller.bounds is not None and self._metrics_scope == "read":
            raise NotPermitted(f"this is about all sessions, and this token is for {caller.bounds}")
        return Reply(200, self.telemetry.metrics.render(), metrics.CONTENT_TYPE)


# --- webhooks of networks --------------------------------------------------------------------------------------------


def webhook_of(exchange: Exchange, webhooks: Mapping[str, Webhook]) -> Webhook | None:
    """What takes this request; None: it is for no channel that takes any."""
    below, _, rest = exchange.path.partition(_BELOW)
    return webhooks.get(rest.partition("/")[0]) if not below else None


async def webhook_reply(exchange: Exchange, webhook: Webhook, limits: ListenSettings) -> Reply:
    """What a channel replies.

    Raises:
        RequestError: the body is too long (413), or did not come in time (408).
        TimeoutError: the channel takes long.
    """
    exchange.operation = "webhook"
    _, slash, rest = exchange.path.removeprefix(_BELOW).partition("/")
    request = WebhookRequest(
        method=exchange.method,
        path=slash + rest,
        query=dict(parse_qsl(exchange.query.decode("latin-1"), keep_blank_values=True)),
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(exchange.headers)},
        body=partial(read_body_in_time, exchange, limits),
        address=exchange.address,
    )
    with anyio.fail_after(2 * limits.request_timeout_s):
        reply = await webhook(request)
    body = reply.body
    if exchange.method == "HEAD" and not isinstance(body, bytes):
        await body.aclose()  # it may never end
        body = b""
    return Reply(reply.status, body, reply.media_type, reply.headers)
