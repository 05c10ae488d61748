"""The session layer of a chat gateway: conversations that survive restarts, crashes and power cuts.

Everything below is imported from here: `from miniclaw_sessions import SessionManager, Message`. What a name stands for
is loaded when it is first used, so that this import costs nothing and a program pays for what it uses.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # the same names as in _MODULES below, for editors and type checkers
    from miniclaw_sessions.agent.agent import Agent as Agent
    from miniclaw_sessions.agent.assistant import AgentSession as AgentSession
    from miniclaw_sessions.agent.tools import Tool as Tool
    from miniclaw_sessions.config import MAX_MESSAGES as MAX_MESSAGES
    from miniclaw_sessions.config import PERSISTENCE_INTERVAL_SECS as PERSISTENCE_INTERVAL_SECS
    from miniclaw_sessions.config import SessionSettings as SessionSettings
    from miniclaw_sessions.core.history.branch import Branch as Branch
    from miniclaw_sessions.core.history.context import build_context as build_context
    from miniclaw_sessions.core.history.transcript import TreeNode as TreeNode
    from miniclaw_sessions.core.manager import SessionManager as SessionManager
    from miniclaw_sessions.core.persistence.checking import CheckReport as CheckReport
    from miniclaw_sessions.core.protocol.entries import BranchSummary as BranchSummary
    from miniclaw_sessions.core.protocol.entries import Compaction as Compaction
    from miniclaw_sessions.core.protocol.entries import Custom as Custom
    from miniclaw_sessions.core.protocol.entries import Entry as Entry
    from miniclaw_sessions.core.protocol.entries import Label as Label
    from miniclaw_sessions.core.protocol.entries import MessageEntry as MessageEntry
    from miniclaw_sessions.core.protocol.keys import SessionKey as SessionKey
    from miniclaw_sessions.core.protocol.messages import ImagePart as ImagePart
    from miniclaw_sessions.core.protocol.messages import Message as Message
    from miniclaw_sessions.core.protocol.messages import OtherPart as OtherPart
    from miniclaw_sessions.core.protocol.messages import Role as Role
    from miniclaw_sessions.core.protocol.messages import TextPart as TextPart
    from miniclaw_sessions.core.protocol.messages import ThinkingPart as ThinkingPart
    from miniclaw_sessions.core.protocol.messages import ToolCall as ToolCall
    from miniclaw_sessions.core.protocol.messages import Usage as Usage
    from miniclaw_sessions.core.session import Session as Session
    from miniclaw_sessions.core.session.compacting import CompactionOutcome as CompactionOutcome
    from miniclaw_sessions.core.session.session import SessionContext as SessionContext
    from miniclaw_sessions.core.session.turn import Turn as Turn
    from miniclaw_sessions.core.stores.base import Store as Store
    from miniclaw_sessions.errors import AgentError as AgentError
    from miniclaw_sessions.errors import ConfigError as ConfigError
    from miniclaw_sessions.errors import ContextOverflow as ContextOverflow
    from miniclaw_sessions.errors import DirectoryInUse as DirectoryInUse
    from miniclaw_sessions.errors import DuplicateMessage as DuplicateMessage
    from miniclaw_sessions.errors import EntryNotFound as EntryNotFound
    from miniclaw_sessions.errors import ImportRefused as ImportRefused
    from miniclaw_sessions.errors import InvalidKey as InvalidKey
    from miniclaw_sessions.errors import InvalidMessage as InvalidMessage
    from miniclaw_sessions.errors import IterationLimit as IterationLimit
    from miniclaw_sessions.errors import LeafMoved as LeafMoved
    from miniclaw_sessions.errors import ManagerClosed as ManagerClosed
    from miniclaw_sessions.errors import ModelError as ModelError
    from miniclaw_sessions.errors import NothingToResume as NothingToResume
    from miniclaw_sessions.errors import SchemaTooNew as SchemaTooNew
    from miniclaw_sessions.errors import SessionDeleted as SessionDeleted
    from miniclaw_sessions.errors import SessionExists as SessionExists
    from miniclaw_sessions.errors import SessionLimit as SessionLimit
    from miniclaw_sessions.errors import SessionNotFound as SessionNotFound
    from miniclaw_sessions.errors import SessionsError as SessionsError
    from miniclaw_sessions.errors import StoreConflict as StoreConflict
    from miniclaw_sessions.errors import StoreCorrupt as StoreCorrupt
    from miniclaw_sessions.errors import StoreError as StoreError
    from miniclaw_sessions.errors import StoreFull as StoreFull
    from miniclaw_sessions.errors import StoreUnavailable as StoreUnavailable
    from miniclaw_sessions.errors import TurnInProgress as TurnInProgress
    from miniclaw_sessions.errors import UnsafeCompaction as UnsafeCompaction
    from miniclaw_sessions.files.transfer.exporting import export_session as export_session
    from miniclaw_sessions.files.transfer.importing import import_file as import_file
    from miniclaw_sessions.files.transfer.incoming import ImportReport as ImportReport
    from miniclaw_sessions.service.client import connect as connect
    from miniclaw_sessions.statistics import Health as Health
    from miniclaw_sessions.statistics import ManagerStatistics as ManagerStatistics
    from miniclaw_sessions.statistics import SessionSummary as SessionSummary

_MODULES = {
    # sessions
    "SessionManager": "core.manager",
    "Session": "core.session",
    "Turn": "core.session.turn",
    "SessionKey": "core.protocol.keys",
    "SessionSettings": "config",
    "build_context": "core.history.context",
    # what is said
    **dict.fromkeys(("Message", "Role", "ToolCall", "Usage"), "core.protocol.messages"),
    **dict.fromkeys(("TextPart", "ImagePart", "ThinkingPart", "OtherPart"), "core.protocol.messages"),
    # what is logged
    **dict.fromkeys(
        ("Entry", "MessageEntry", "Compaction", "BranchSummary", "Label", "Custom"), "core.protocol.entries"
    ),
    # files of other programs, and our exports
    "import_file": "files.transfer.importing",
    "export_session": "files.transfer.exporting",
    # what calls return
    "SessionContext": "core.session.session",
    "Branch": "core.history.branch",
    "TreeNode": "core.history.transcript",
    "CompactionOutcome": "core.session.compacting",
    "ImportReport": "files.transfer.incoming",
    "CheckReport": "core.persistence.checking",
    **dict.fromkeys(("Health", "ManagerStatistics", "SessionSummary"), "statistics"),
    # another process's sessions
    "connect": "service.client",
    # agents, and what they are made of
    "Agent": "agent.agent",
    "AgentSession": "agent.assistant",
    "Tool": "agent.tools",
    "Store": "core.stores.base",
    # what goes wrong
    **dict.fromkeys(("SessionsError", "ConfigError", "DirectoryInUse", "SchemaTooNew", "ManagerClosed"), "errors"),
    **dict.fromkeys(("SessionNotFound", "EntryNotFound", "SessionLimit", "SessionExists", "SessionDeleted"), "errors"),
    **dict.fromkeys(("InvalidKey", "InvalidMessage", "DuplicateMessage", "UnsafeCompaction", "LeafMoved"), "errors"),
    **dict.fromkeys(("TurnInProgress", "NothingToResume", "ImportRefused"), "errors"),
    **dict.fromkeys(("StoreError", "StoreUnavailable", "StoreFull", "StoreConflict", "StoreCorrupt"), "errors"),
    **dict.fromkeys(("AgentError", "ModelError", "ContextOverflow", "IterationLimit"), "errors"),
    # the defaults of window and flush
    "MAX_MESSAGES": "config",
    "PERSISTENCE_INTERVAL_SECS": "config",
}

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604 - the table's keys are text


def __getattr__(name: str) -> Any:
    """Load what a public name stands for, once."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    storey = f"{__name__}.{_MODULES[name].partition('.')[0]}"
    try:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != storey:
            raise
        from miniclaw_sessions.errors import ConfigError  # noqa: PLC0415 - importing this package must stay light

        sentence = "which this installation lacks: install the whole package, `pip install .` in a checkout"
        raise ConfigError(f"{name} is in {storey}, {sentence}") from None
    if isinstance(value, type) and not hasattr(value, "__struct_fields__"):
        value.__module__ = (
            __name__  # so a traceback says what to import; msgspec looks up a struct's types in its module
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


_STOREYS = {"protocol": "core", "stores": "core", "formats": "files", "transfer": "files"}
_STOREYS |= {"providers": "agent", "client": "service", "cli": "service"}
"""The rooms that plug-ins, programs and installed commands name, and the storey of each."""

_MOVED = {"formats.tree": "files.formats.json_lines", "formats.images": "core.protocol.images"}
"""Modules of a codec's kit that lie elsewhere now: by the names that codecs of other packages import."""


class _ShortNames:
    """Finds a room by its name without the storey: `miniclaw_sessions.stores.base` is `...core.stores.base`, itself.

    It stands before the finder of files, which would load the file once more under the short name.
    """

    @staticmethod
    def find_spec(name: str, *_others: object) -> ModuleSpec | None:
        """What loads a module by its short name; None for all other names."""
        package, _, module = name.partition(".")
        is_short = module.partition(".")[0] in _STOREYS or module.removeprefix("files.") in _MOVED
        if package != __name__ or not is_short:
            return None
        return ModuleSpec(name, _ShortNames)  # type: ignore[arg-type]  # the class itself is the loader

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Let the import system make one; it is replaced."""

    @staticmethod
    def exec_module(module: Any) -> None:
        """Put the module itself in the place of the new one."""
        name = module.__name__.partition(".")[2]
        place = _MOVED.get(name.removeprefix("files.")) or f"{_STOREYS[name.partition('.')[0]]}.{name}"
        sys.modules[module.__name__] = import_module(f"{__name__}.{place}")


sys.meta_path.insert(0, _ShortNames)
