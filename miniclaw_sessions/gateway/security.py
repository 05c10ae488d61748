"""Who may ask: token, Host, Origin and content type, decided on the headers alone.

Whoever can open the Unix socket is trusted; its mode says who that is. On TCP every request needs the bearer token, a
`Host` that names this server (a web page that rebinds a DNS name to the loopback address does not), and no `Origin`
but the listed ones (rules S15, S16, S18). Unknown and wrong tokens get the same answer at the same cost.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from miniclaw_sessions.api.error_table import RequestError

RawHeaders = Sequence[tuple[bytes, bytes]]

JSON = ("application/json",)
FILES = ("application/octet-stream", "application/x-ndjson", "application/json")
"""What a request's body may be: JSON for us to read, or a file of any kind."""


@dataclass(frozen=True)
class AccessPolicy:
    """What a request that came by TCP must show.

    Attributes:
        token_digest: SHA-256 of the bearer token.
        hosts: the accepted `Host` values in lower case, with port, such as 127.0.0.1:8080.
        origins: the accepted `Origin` values; a request without one is fine.
    """

    token_digest: bytes = field(repr=False)
    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, token: str, hosts: Iterable[str], origins: Iterable[str] = ()) -> AccessPolicy:
        """The policy for a token in clear and lists as the settings give them."""
        return cls(digest(token.encode()), frozenset(h.lower() for h in hosts), frozenset(origins))


def refusal(headers: RawHeaders, policy: AccessPolicy) -> RequestError | None:
    """Why a request by TCP is refused, or None; the token is looked at last, so that a web page cannot try tokens."""
    hosts = _values(headers, b"host")
    if len(hosts) != 1 or hosts[0].decode("latin-1").lower() not in policy.hosts:
        return RequestError(403, "forbidden_host", "the Host header does not name this server", param="Host")
    if any(origin.decode("latin-1") not in policy.origins for origin in _values(headers, b"origin")):
        return RequestError(403, "forbidden_origin", "requests from this web page are not allowed", param="Origin")
    if not _token_matches(_values(headers, b"authorization"), policy.token_digest):
        sentence = "the daemon's token is missing or wrong; send it as `Authorization: Bearer ...`"
        return RequestError(401, "unauthorized", sentence, headers={"WWW-Authenticate": "Bearer"})
    return None


def body_refusal(headers: RawHeaders, accepted: Sequence[str] = JSON) -> RequestError | None:
    """Why a body is not what a route takes, by its headers, or None.

    A browser sends forms and plain text to anybody for any web page, and asks the server first for all other types; so
    neither of those, nor a body without a type, is ever among the accepted ones.

    Args:
        headers: the request's.
        accepted: the media types, in lower case; where they are text, it is UTF-8.
    """
    types = _values(headers, b"content-type")
    media_type, *parameters = (types[0] if len(types) == 1 else b"").lower().split(b";")
    pairs = [(name.strip(), value.strip(b' "')) for name, _, value in (p.partition(b"=") for p in parameters)]
    wrong_charset = any(name == b"charset" and value not in (b"utf-8", b"utf8") for name, value in pairs)
    if media_type.strip().decode("latin-1") not in accepted or wrong_charset:
        sentence = f"send the body as `Content-Type: {' or '.join(accepted)}`, in UTF-8"
        return RequestError(415, "unsupported_media_type", sentence, param="Content-Type", close=True)
    if any(encoding.strip().lower() != b"identity" for encoding in _values(headers, b"content-encoding")):
        sentence = "send the body uncompressed"
        return RequestError(415, "unsupported_media_type", sentence, param="Content-Encoding", close=True)
    return None


def digest(token: bytes) -> bytes:
    """A token's SHA-256, so that comparing costs the same whatever is compared."""
    return hashlib.sha256(token).digest()


def _token_matches(authorizations: Sequence[bytes], expected: bytes) -> bool:
    scheme, _, token = (authorizations[0] if len(authorizations) == 1 else b"").partition(b" ")
    same = hmac.compare_digest(digest(token.strip()), expected)
    return same and scheme.lower() == b"bearer"


def _values(headers: RawHeaders, name: bytes) -> list[bytes]:
    return [value for header, value in headers if header == name]
