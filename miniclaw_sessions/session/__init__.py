"""One live conversation, in three layers: `core` accepts and saves, `tree` branches, `live` is what people talk to."""

from miniclaw_sessions.session.core import Services as Services
from miniclaw_sessions.session.core import SessionStatistics as SessionStatistics
from miniclaw_sessions.session.live import Session as Session
