"""Access control by request headers: token, Host and Origin, and which web pages may read replies (CORS).

The Unix socket's file mode decides who may use it. A TCP request needs a bearer token, a `Host` that names this server
(a web page that rebinds a DNS name to the loopback address has another), and no `Origin` but the server's own and the
listed ones (rules S15, S16, S18). Unknown and wrong tokens get the same answer at the same cost. An operation that
needs no token says so (`api.context.Scope`).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from miniclaw_sessions.service.api.context import STRANGER, Caller, Scope
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.gateway.exchange import RawHeaders, values_of

EXPOSED = "ETag, Location, Retry-After, Content-Disposition, Allow, X-Request-Id"
"""Headers of a reply that such a page may read, beside those that every page may."""

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_REMEMBERED_S = 600


class Tokens(Protocol):
    """The tokens that there are."""

    def caller_of(self, token: bytes) -> Caller | None:
        """The caller of a token, found in constant time; None: the token is unknown or no longer valid.

        Raises:
            RequestError: it was used too often (429).
        """
        ...

    def holds(self, caller: Caller) -> bool:
        """Whether a caller's token is still valid."""
        ...


@dataclass(frozen=True)
class AccessPolicy:
    """What a request that came by TCP must show.

    Attributes:
        tokens: who has a token, and for what.
        hosts: the accepted `Host` values in lower case, with port, such as 127.0.0.1:8080.
        origins: the accepted `Origin` values beside the server's own; a request without one is fine.
    """

    tokens: Tokens = field(repr=False)
    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tokens: Tokens, hosts: Iterable[str], origins: Iterable[str] = ()) -> AccessPolicy:
        """The policy for tokens and lists as the settings give them."""
        return cls(tokens, frozenset(h.lower() for h in hosts), frozenset(origins))

    def admit(self, headers: RawHeaders, scope: Scope) -> Caller:
        """Who sends this request, for something that needs this scope; whether he has it is looked at by others.

        The token is looked at last, so that a web page cannot try tokens. Of what needs none, a token that is shown is
        checked all the same: its holder may see more than a stranger.

        Raises:
            RequestError: it is refused.
        """
        if (refused := self.elsewhere(headers)) is not None:
            if scope == "probe":
                return STRANGER
            raise refused
        authorizations = values_of(headers, b"authorization")
        if not authorizations and scope in ("probe", "open"):
            return STRANGER
        scheme, _, token = (authorizations[0] if len(authorizations) == 1 else b"").partition(b" ")
        caller = self.tokens.caller_of(token.strip())
        if caller is None or scheme.lower() != b"bearer":
            sentence = "the token is missing or wrong, or over; send it as `Authorization: Bearer ...`"
            raise RequestError(401, "unauthorized", sentence, headers={"WWW-Authenticate": "Bearer"})
        return caller

    def elsewhere(self, headers: RawHeaders) -> RequestError | None:
        """Why a request is refused with any token, or None: it names another server, or is a foreign page's."""
        hosts = values_of(headers, b"host")
        if len(hosts) != 1 or hosts[0].decode("latin-1").lower() not in self.hosts:
            return RequestError(403, "forbidden_host", "the Host header does not name this server", param="Host")
        for origin in (value.decode("latin-1") for value in values_of(headers, b"origin")):
            scheme, _, where = origin.partition("://")
            is_own = scheme in ("http", "https") and where == hosts[0].decode("latin-1").lower()
            if not is_own and origin not in self.origins:
                sentence = "requests from this web page are not allowed; listen.allowed_origins lists those that are"
                return RequestError(403, "forbidden_origin", sentence, param="Origin")
        return None


# --- cross-origin requests -------------------------------------------------------------------------------------------


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
