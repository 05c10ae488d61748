"""The session layer of a chat gateway: conversations that survive restarts, crashes and power cuts."""

from miniclaw_sessions.config import SessionSettings as SessionSettings
from miniclaw_sessions.errors import SessionNotFound as SessionNotFound
from miniclaw_sessions.errors import SessionsError as SessionsError
from miniclaw_sessions.errors import StoreError as StoreError
from miniclaw_sessions.history.context import build_context as build_context
from miniclaw_sessions.history.window import MAX_MESSAGES as MAX_MESSAGES
from miniclaw_sessions.manager import SessionManager as SessionManager
from miniclaw_sessions.persistence.flusher import PERSISTENCE_INTERVAL_SECS as PERSISTENCE_INTERVAL_SECS
from miniclaw_sessions.protocol.keys import SessionKey as SessionKey
from miniclaw_sessions.protocol.messages import Message as Message
from miniclaw_sessions.protocol.messages import Role as Role
from miniclaw_sessions.protocol.messages import ToolCall as ToolCall
from miniclaw_sessions.protocol.messages import Usage as Usage
from miniclaw_sessions.session import Session as Session
from miniclaw_sessions.turn import Turn as Turn
