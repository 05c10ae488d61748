"""What a trace is to the rest of the daemon: spans that begin, are told of, and end; here those that nobody collects.

`otlp.py` has those that go to a collector. It alone imports OpenTelemetry, and is imported only when traces are
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from miniclaw_sessions.config import TelemetrySettings
from miniclaw_sessions.errors import ConfigError, to_install

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]
"""What is said of a span, by the names of OpenTelemetry's conventions; never content."""

Headers = Sequence[tuple[bytes, bytes]]
"""A request's, as ASGI has them."""

Kind = Literal["server", "client", "internal"]


class Span:
    """Something that takes time, of which nobody keeps anything."""

    def rename(self, name: str) -> None:
        """It turned out what it is."""

    def set(self, attributes: Attributes) -> None:
        """Say something of it."""

    def failed(self, error_type: str) -> None:
        """It went wrong, in a way that has this name."""

    def end(self) -> None:
        """It is over."""


_NOTHING = Span()


class Spans:
    """Makes spans that cost nothing."""

    def start(
        self,
        name: str,  # noqa: ARG002 - for those who override it
        attributes: Attributes,  # noqa: ARG002 - same
        *,
        kind: Kind = "internal",  # noqa: ARG002 - same
        caller: Headers | None = None,  # noqa: ARG002 - same
    ) -> Span:
        """Begin a span under the one that is open in this task; what is begun in this task until its end is under it.

        Args:
            name: what it is, with few different values.
            attributes: what is said of it.
            kind: whether it answers somebody, asks somebody, or neither.
            caller: the headers of a request, which may name a span of the caller's: then it is under that.
        """
        return _NOTHING

    def record(self, name: str, attributes: Attributes, seconds: float) -> None:
        """Note a span of its own that ends now."""

    def here(self) -> AbstractContextManager[None]:
        """A block, for any task, in which spans are under the one that is open now in this one."""
        return nullcontext()

    def headers(self) -> Mapping[str, str]:
        """What is sent to those who are asked on behalf of the span that is open, so that they can join it."""
        return {}

    async def close(self) -> None:
        """Send what is left."""


def open_spans(settings: TelemetrySettings) -> Spans:
    """Spans as the settings want them: by default nobody keeps them.

    Raises:
        ConfigError: they are to go to a collector, and cannot.
    """
    if not settings.otlp_endpoint:
        return Spans()
    try:
        from miniclaw_sessions.service.gateway.otlp import collected  # noqa: PLC0415 - loads the SDK
    except ImportError as error:
        raise ConfigError(f"telemetry.otlp_endpoint needs: {to_install('otel')} ({error})") from None
    return collected(settings)
