"""Which web pages may read what is answered: Cross-Origin Resource Sharing, for the origins that the settings list.

A page of another origin gets none of these headers, so that its browser shows it nothing, not even an error. There are
no cookies, so nothing is ever sent along that the page does not have itself.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from miniclaw_sessions.service.gateway.security import RawHeaders, values_of

EXPOSED = "ETag, Location, Retry-After, Content-Disposition, Allow, X-Request-Id"
"""Headers of a reply that such a page may read, beside those that every page may."""

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_REMEMBERED_S = 600


def sharing(headers: RawHeaders, origins: AbstractSet[str]) -> dict[str, str]:
    """The headers with which any reply to a request goes, an error's too.

    Args:
        headers: the request's.
        origins: whose pages may read it.
    """
    if not origins:
        return {}
    found = [value.decode("latin-1") for value in values_of(headers, b"origin")]
    if len(found) != 1 or found[0] not in origins:
        return {"Vary": "Origin"}
    return {"Vary": "Origin", "Access-Control-Allow-Origin": found[0], "Access-Control-Expose-Headers": EXPOSED}


def is_preflight(method: str, headers: RawHeaders) -> bool:
    """Whether a browser asks if a page may send a request; it sends no token with that."""
    return method == "OPTIONS" and bool(values_of(headers, b"access-control-request-method"))


def permission(headers: RawHeaders) -> dict[str, str]:
    """The answer to such a question from a listed page: it may send anything; its token says what it may do."""
    asked = b", ".join(values_of(headers, b"access-control-request-headers")).decode("latin-1")
    is_private = values_of(headers, b"access-control-request-private-network") == [b"true"]
    return {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": asked,
        "Access-Control-Max-Age": str(_REMEMBERED_S),
        **({"Access-Control-Allow-Private-Network": "true"} if is_private else {}),
    }
