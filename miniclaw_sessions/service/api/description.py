"""The interface's own description: as an OpenAPI document, and as a page to read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from anyio import CapacityLimiter, to_thread

from miniclaw_sessions.service.api.operation import Content, Operation, operation
from miniclaw_sessions.service.api.service import Nothing

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

CACHED = {"Cache-Control": "no-cache"}
"""A copy may be kept; the client asks each time whether it is still current."""

_ONE_AT_A_TIME = CapacityLimiter(1)


def operations_showing(document: Callable[[], dict[str, Any]]) -> tuple[Operation[Any, Any], ...]:
    """The operations that show the interface's description.

    They are part of the table that they describe, so the table gives them the description.

    Args:
        document: makes the OpenAPI document of the whole table. It takes about a second, so a thread calls it, once
            for any number of first requests.
    """

    @operation("GET", "/openapi.json", Nothing, Content, scope="open")
    async def show_openapi(context: Context, request: Nothing) -> Content:
        """This interface as an OpenAPI 3.1 document: every path, body, reply, event and error, with examples."""
        del context, request
        return await to_thread.run_sync(_as_json, document, limiter=_ONE_AT_A_TIME)

    @operation("GET", "/docs", Nothing, Content, scope="open", media_types=("text/html",))
    async def show_docs(context: Context, request: Nothing) -> Content:
        """The OpenAPI document as one page to read, which asks for nothing else and runs no script."""
        del context, request
        return await to_thread.run_sync(_as_page, document, limiter=_ONE_AT_A_TIME)

    return show_openapi, show_docs


@functools.cache
def _as_json(document: Callable[[], dict[str, Any]]) -> Content:
    return Content.tagged(orjson.dumps(document()), "application/json", **CACHED)


@functools.cache
def _as_page(document: Callable[[], dict[str, Any]]) -> Content:
    from miniclaw_sessions.service.api.docs_page import CONTENT_SECURITY_POLICY, docs_page  # noqa: PLC0415 - not a client's

    page = docs_page(document()).encode()
    return Content.tagged(page, "text/html", **CACHED, **{"Content-Security-Policy": CONTENT_SECURITY_POLICY})
