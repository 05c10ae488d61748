"""The sessions of one directory, in three layers: `held` keeps them, `core` opens and closes, `manager` is used."""

from miniclaw_sessions.manager.core import DEFAULT_WORKSPACE as DEFAULT_WORKSPACE
from miniclaw_sessions.manager.manager import SessionManager as SessionManager
from miniclaw_sessions.manager.manager import summarize as summarize
