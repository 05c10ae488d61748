"""The front door of the HTTP interface: who may ask, and what becomes of errors.

`make_app` puts the routes together; `Gateway` stands before all of them. Nothing that a stranger sends ends in a reply
of 500, and whatever else goes wrong is answered with an opaque id that the log explains, without any message text.
"""

from __future__ import annotations

from miniclaw_sessions.api.context import Context
from miniclaw_sessions.api.error_table import RequestError, as_reply
from miniclaw_sessions.api.table import OPERATIONS
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import Settings
from miniclaw_sessions.gateway import metrics
from miniclaw_sessions.gateway.binding import Binding, check_method
from miniclaw_sessions.gateway.chat import DispatchedChats
from miniclaw_sessions.gateway.exchange import ClientGone, Exchange, Receive, Reply, Scope, Send
from miniclaw_sessions.gateway.metrics import LoopDelay, RequestCounts, make_registry
from miniclaw_sessions.gateway.responding import DispatchedResponses
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
    chats = DispatchedChats(dispatcher, patience_s=settings.model.timeout_s)
    responses = DispatchedResponses(dispatcher, patience_s=settings.model.timeout_s)
    return Gateway(Context(manager, summarizer=summarizer, chats=chats, responses=responses), settings, policy)


class Gateway:
    """ASGI: admits requests, has them answered, turns errors into replies, and counts.

    Attributes:
        context: what the handlers work with.
        policy: what requests by TCP must show; None refuses all of them. It may be replaced at any time.
        delay: the event loop's delay, measured while its `watch` runs.
    """

    def __init__(self, context: Context, settings: Settings, policy: AccessPolicy | None) -> None:
        self.context = context
        self.policy = policy
        self.delay = LoopDelay()
        self._binding = Binding(OPERATIONS, context, settings.listen)
        self._requests = RequestCounts()
        self._registry = make_registry(context.manager.statistics, self._requests, self.delay)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        try:
            self._admit(exchange)
            answer = self._metrics(exchange) if exchange.path == "/metrics" else await self._binding.reply(exchange)
            await exchange.reply(answer)
        except ClientGone:
            log.debug("a client went away before its request was complete", action="http.disconnected")
        except Exception as error:  # noqa: BLE001 - this is the edge: whatever happens becomes a reply
            refused = exchange.form_of_errors(as_reply(error))
            if exchange.status:
                exchange.break_off()
            else:
                await exchange.reply(Reply.of_error(refused))
        finally:
            self._requests[exchange.operation, exchange.status] += 1

    def _admit(self, exchange: Exchange) -> None:
        if exchange.is_trusted:
            return
        if self.policy is None:
            raise RequestError(403, "forbidden", "this daemon does not serve TCP", close=True)
        if (refused := refusal(exchange.headers, self.policy)) is not None:
            raise refused

    def _metrics(self, exchange: Exchange) -> Reply:
        """Numbers for Prometheus."""
        check_method(exchange, ("GET", "HEAD"))
        exchange.operation = "metrics"
        return Reply(200, metrics.render(self._registry), metrics.CONTENT_TYPE)
