"""What becomes of an error at the edge: the reply to it, and where it is the operator's affair a line in the log.

Faults of the store, of the model and of the program itself are logged here, the one place that sees them all.
"""

from __future__ import annotations

import traceback

from miniclaw_sessions.api.error_table import MODELS_FAULT, OUR_FAULT, RequestError, as_request_error
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)


def as_reply(error: Exception) -> RequestError:
    """The reply to any error; what the daemon's operator must see to, and not the client, is logged too."""
    refused = as_request_error(error)
    if refused is None:
        return _unexpected(error)
    if refused.status in (OUR_FAULT, MODELS_FAULT):
        log.error("a request failed", action="http.failed", error_type=type(error).__name__, error=str(error))
    return refused


def _unexpected(error: Exception) -> RequestError:
    """Log where it happened, without the text, which may be a message's; reply with an id that finds the line."""
    import uuid_utils  # noqa: PLC0415 - a client loads this module too

    error_id = str(uuid_utils.uuid7())
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    log.error(
        "a request failed unexpectedly",
        action="http.failed",
        error_id=error_id,
        error_type=type(error).__name__,
        where=[f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    )
    return RequestError(OUR_FAULT, "internal_error", f"unexpected error; the daemon's log has it as {error_id}")
