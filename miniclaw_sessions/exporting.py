"""Writing a session out in any format, as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.formats.foreign import Format, SessionFacts, Writer
from miniclaw_sessions.history.branch import told
from miniclaw_sessions.history.context import build_context
from miniclaw_sessions.protocol.entries import METADATA, OWN_METADATA, SOURCE, Custom, Entry
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.copying import PARENT_SESSION

CHUNK_BYTES = 65_536


async def export_session(session: Session, form: Format) -> AsyncIterator[bytes]:
    """A session in a format, piece by piece: its whole tree, or its current branch where the format has no tree.

    Raises:
        ImportRefused: the format is only read.
        StoreUnavailable: the store cannot be read.
    """
    facts = session_facts(session, form)
    if form.dump is not None and form.writer is None:
        messages = [message for entry in await session.tree.get_branch() if (message := told(entry)) is not None]
        yield form.dump(build_context(messages), facts)
        return
    if form.writer is None:
        raise ImportRefused(f"a session cannot be written as {form.name}: that format is only read")
    async for chunk in _written(session, form.writer(facts), branch_only=form.branch_only):
        yield chunk


async def _written(session: Session, writer: Writer, *, branch_only: bool) -> AsyncIterator[bytes]:
    chunk = bytearray(writer.begin())
    async for entry in _branch(session) if branch_only else session.tree.read_entries():
        if is_bookkeeping(entry):
            continue
        chunk += writer.feed(entry)
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    chunk += writer.finish()
    yield bytes(chunk)


async def _branch(session: Session) -> AsyncIterator[Entry]:
    for entry in await session.tree.get_branch():
        yield entry


def session_facts(session: Session, form: Format) -> SessionFacts:
    """What a format's writer is told of a session; the header of the file it came from, if that was of this format."""
    metadata = {name: value for name, value in session.metadata.items() if not name.startswith(OWN_METADATA)}
    source = session.metadata.get(SOURCE)
    source = source if isinstance(source, dict) and source.get("format") == form.name else {}
    header = source.get("header")
    return SessionFacts(
        format=form.name,
        source_id=str(source.get("id") or session.session_id),
        title=session.title,
        created_at=session.created_at,
        parent_session=source.get("parent_session") or session.metadata.get(PARENT_SESSION),
        header=header if isinstance(header, dict) else {},
        metadata=metadata,
        session_id=session.session_id,
        channel=session.key.channel,
        chat_id=session.key.chat_id,
        leaf_id=session.leaf_id,
    )


def is_bookkeeping(entry: Entry) -> bool:
    """Whether an entry only says where the session came from: another import will say it again."""
    if not isinstance(entry, Custom) or entry.custom_type != METADATA or not entry.data:
        return False
    return all(name.startswith(OWN_METADATA) for name in entry.data)
