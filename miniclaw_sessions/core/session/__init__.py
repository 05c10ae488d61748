"""One live conversation: `session` is what people talk to, `journal` what saves it, `tree` its transcript."""

from miniclaw_sessions.core.session.home import Home as Home
from miniclaw_sessions.core.session.journal import Journal as Journal
from miniclaw_sessions.core.session.journal import SessionStatistics as SessionStatistics
from miniclaw_sessions.core.session.owner import Owner as Owner
from miniclaw_sessions.core.session.owner import guarded as guarded
from miniclaw_sessions.core.session.session import Session as Session
