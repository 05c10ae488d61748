"""Who asks: token, Host and Origin, decided on the headers alone; and what a body must be declared as.

Whoever can open the Unix socket is trusted; its mode says who that is. On TCP a request needs a bearer token, a `Host`
that names this server (a web page that rebinds a DNS name to the loopback address does not), and no `Origin` but the
server's own and the listed ones (rules S15, S16, S18). Unknown and wrong tokens get the same answer at the same cost.
What needs no token says so itself (`api.access.Scope`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from miniclaw_sessions.service.api.access import STRANGER, Caller, Scope
from miniclaw_sessions.service.api.error_table import RequestError

RawHeaders = Sequence[tuple[bytes, bytes]]

JSON = ("application/json",)
FILES = ("application/octet-stream", "application/x-ndjson", "application/json")
"""What a request's body may be: JSON for us to read, or a file of any kind."""


class Tokens(Protocol):
    """The tokens that there are."""

    def caller_of(self, token: bytes) -> Caller | None:
        """Whose a token is, in a time that tells nothing of any; None: nobody's, or not any more.

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
        looked at all the same: its holder may be told more than a stranger.

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
        """Why a request is refused whatever its token, or None: it names another server, or is a foreign page's."""
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


def body_refusal(headers: RawHeaders, accepted: Sequence[str] = JSON) -> RequestError | None:
    """Why a body is not what a route takes, by its headers, or None.

    A browser sends forms and plain text to anybody for any web page, and asks the server first for all other types; so
    neither of those, nor a body without a type, is ever among the accepted ones.

    Args:
        headers: the request's.
        accepted: the media types, in lower case; where they are text, it is UTF-8.
    """
    types = values_of(headers, b"content-type")
    media_type, *parameters = (types[0] if len(types) == 1 else b"").lower().split(b";")
    pairs = [(name.strip(), value.strip(b' "')) for name, _, value in (p.partition(b"=") for p in parameters)]
    wrong_charset = any(name == b"charset" and value not in (b"utf-8", b"utf8") for name, value in pairs)
    if media_type.strip().decode("latin-1") not in accepted or wrong_charset:
        sentence = f"send the body as `Content-Type: {' or '.join(accepted)}`, in UTF-8"
        return RequestError(415, "unsupported_media_type", sentence, param="Content-Type", close=True)
    if any(encoding.strip().lower() != b"identity" for encoding in values_of(headers, b"content-encoding")):
        sentence = "send the body uncompressed"
        return RequestError(415, "unsupported_media_type", sentence, param="Content-Encoding", close=True)
    return None


def values_of(headers: RawHeaders, name: bytes) -> list[bytes]:
    """The values of all headers of this name."""
    return [value for header, value in headers if header == name]
