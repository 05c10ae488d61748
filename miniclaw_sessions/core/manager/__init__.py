"""The sessions of one directory: `manager` is used, `registry` and its `cache` keep them, `expiry` lets them go."""

from miniclaw_sessions.core.manager.manager import SessionManager as SessionManager
from miniclaw_sessions.core.manager.readonly import ReadOnlySessions as ReadOnlySessions
from miniclaw_sessions.core.manager.readonly import open_readonly as open_readonly
from miniclaw_sessions.core.manager.summaries import summarize as summarize
