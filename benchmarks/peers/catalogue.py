"""The compared stores: how each is installed, and its facts."""

from __future__ import annotations

import msgspec


class Peer(msgspec.Struct, frozen=True):
    """One store.

    Attributes:
        name: how it is called in every table.
        short: how it is called in the picture.
        adapter: `module:Class` below `benchmarks.peers.adapters`.
        package: the distribution whose version is reported.
        requirement: what to install into its environment, one word for each; None: it is here already.
        calls: how its calls are made.
        storage: how it stores, with its default settings, and what it does about power cuts.
    """

    name: str
    short: str
    adapter: str
    package: str
    requirement: str | None
    calls: str
    storage: str

    @property
    def is_ours(self) -> bool:
        """Whether it is one of ours."""
        return self.package == OURS

    @property
    def is_bare(self) -> bool:
        """Whether it is the loop that everything else is held against."""
        return self.requirement is None and not self.is_ours


OURS = "miniclaw-sessions"

PEERS = (
    Peer(
        f"{OURS} sqlite:",
        "ours, sqlite:",
        "ours:SQLite",
        OURS,
        None,
        "async",
        "One SQLite file, WAL, synchronous=FULL; all appends that wait share one commit. The newest 50 messages "
        "of each session are in memory.",
    ),
    Peer(
        f"{OURS} jsonl:",
        "ours, jsonl:",
        "ours:JSONLines",
        OURS,
        None,
        "async",
        "A JSON Lines file for each session, fsynced; appends that wait for the same file share one "
        "sync. Memory as above.",
    ),
    Peer(
        "openai-agents SQLiteSession",
        "openai-agents",
        "openai_agents:OpenAIAgents",
        "openai-agents",
        "openai-agents==0.24.0",
        "async",
        "One SQLite file, WAL, synchronous=FULL; a commit in a worker thread for each append. Every turn reads "
        "the file.",
    ),
    Peer(
        "agno SqliteDb",
        "agno",
        "agno:Agno",
        "agno",
        "agno[sqlite]==3.1.10",
        "sync",
        "One SQLite file through SQLAlchemy, WAL, synchronous=FULL; a commit and a row for each run. Every turn "
        "reads the file.",
    ),
    Peer(
        "langgraph AsyncSqliteSaver",
        "langgraph",
        "langgraph:LangGraph",
        "langgraph-checkpoint-sqlite",
        "langgraph-checkpoint-sqlite==3.1.2",
        "async",
        "One SQLite file, WAL, synchronous=FULL; each checkpoint is the whole state, and all of them are kept. "
        "Every turn reads the newest.",
    ),
    Peer(
        "google-adk SqliteSessionService",
        "google-adk",
        "google_adk:GoogleADK",
        "google-adk",
        "google-adk==2.13.0",
        "async",
        "One SQLite file with a rollback journal, synchronous=FULL; a connection and a commit for each call. "
        "Every turn reads the file.",
    ),
    Peer(
        "strands FileSessionManager",
        "strands",
        "strands:Strands",
        "strands-agents",
        "strands-agents==1.62.0",
        "sync",
        "A file for each message, written beside and renamed, not synced. The agent holds all messages in memory.",
    ),
    Peer(
        "nanobot SessionManager",
        "nanobot",
        "nanobot:Nanobot",
        "nanobot-ai",
        "nanobot-ai==0.3.5",
        "sync",
        "A file for each session, rewritten whole, renamed, and synced only at a clean end. 128 sessions in memory.",
    ),
    Peer(
        "bare append and fsync",
        "bare loop",
        "bare:BareLoop",
        "python",
        None,
        "sync",
        "A file of JSON lines for each session: write and fdatasync, nothing else. Every read reads the file's end.",
    ),
)

ON_A_SERVER = (
    Peer(
        "openai-agents SQLAlchemySession",
        "openai-agents",
        "openai_agents_postgresql:OpenAIAgentsOnPostgreSQL",
        "openai-agents",
        "openai-agents[sqlalchemy]==0.24.0 asyncpg==0.32.0",
        "async",
        "PostgreSQL through SQLAlchemy and asyncpg; a transaction for each append, 15 connections at the most.",
    ),
    Peer(
        "langgraph AsyncPostgresSaver",
        "langgraph",
        "langgraph_postgresql:LangGraphOnPostgreSQL",
        "langgraph-checkpoint-postgres",
        "langgraph-checkpoint-postgres==3.2.0 psycopg[binary,pool]==3.3.9 langchain-core",
        "async",
        "PostgreSQL through psycopg, one connection; each checkpoint is the whole state, and all of them are kept.",
    ),
    Peer(
        "agno AsyncPostgresDb",
        "agno",
        "agno_postgresql:AgnoOnPostgreSQL",
        "agno",
        "agno==3.1.10 sqlalchemy[asyncio]==2.1.9 psycopg[binary]==3.3.9",
        "async",
        "PostgreSQL through SQLAlchemy and psycopg; a transaction and a row for each run, 15 connections at the most.",
    ),
)
"""Their stores on a PostgreSQL server, measured by `python -m benchmarks postgresql`."""
