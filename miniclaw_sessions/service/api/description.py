"""The interface's own description: as an OpenAPI document, and as a page to read."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import orjson
from anyio import CapacityLimiter, to_thread

from miniclaw_sessions.service.api.operation import Content, operation
from miniclaw_sessions.service.api.service import Nothing, program_version

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

CACHED = {"Cache-Control": "no-cache"}
"""A copy may be kept, and is asked about each time."""

_ONE = CapacityLimiter(1)
"""Both are made in a thread, because that takes a second or so; once, however many ask for it first."""


@operation("GET", "/openapi.json", Nothing, Content, scope="open")
async def show_openapi(context: Context, request: Nothing) -> Content:
    """This interface as an OpenAPI 3.1 document: every path, body, reply, event and error, with examples."""
    del context, request
    return await to_thread.run_sync(_as_json, limiter=_ONE)


@operation("GET", "/docs", Nothing, Content, scope="open", media_types=("text/html",))
async def show_docs(context: Context, request: Nothing) -> Content:
    """The OpenAPI document as one page to read, which asks for nothing else and runs no script."""
    del context, request
    return await to_thread.run_sync(_as_page, limiter=_ONE)


@functools.cache
def document() -> dict[str, Any]:
    """The OpenAPI document of all operations; made once."""
    from miniclaw_sessions.service.api.openapi import openapi_document  # noqa: PLC0415 - heavy, and seldom asked for
    from miniclaw_sessions.service.api.table import OPERATIONS as ALL  # noqa: PLC0415 - these two are in the table themselves

    return openapi_document(ALL, program_version())


@functools.cache
def _as_json() -> Content:
    return Content.tagged(orjson.dumps(document()), "application/json", **CACHED)


@functools.cache
def _as_page() -> Content:
    from miniclaw_sessions.service.api.docs_page import CONTENT_SECURITY_POLICY, docs_page  # noqa: PLC0415 - same

    page = docs_page(document()).encode()
    return Content.tagged(page, "text/html", **CACHED, **{"Content-Security-Policy": CONTENT_SECURITY_POLICY})


OPERATIONS = (show_openapi, show_docs)
