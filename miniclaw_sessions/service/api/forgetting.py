"""Forgetting by rule, everything about one person, and legal holds."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from miniclaw_sessions.service.api.operation import Stream, operation
from miniclaw_sessions.service.api.sessions import ONE, OneSession, session_reply
from miniclaw_sessions.service.api.shapes import Body, Reply, SessionReply

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
Age = Annotated[float, Meta(ge=0, le=1e11)]


class Seen(Body, kw_only=True):
    """A session as a person has seen it, from the reply to a dry run."""

    session_id: str
    entries: int
    incarnation: str | None = None


class Forget(Body, kw_only=True):
    """Which sessions: those of which all is true that is said here; something must be.

    Attributes:
        channel: they are of this channel.
        older_than_s: they were not used for longer than this, in seconds.
        user: this person is their chat, or the author of a message in them.
        only: of these, only those that a person has seen in a dry run and agreed to, and that are still as they were.
        dry_run: delete nothing, and report what would go.
    """

    channel: Text | None = None
    older_than_s: Age | None = None
    user: Text | None = None
    only: list[Seen] | None = None
    dry_run: bool = False


class MeantRow(Reply, kw_only=True):
    """A session that a rule or a person's name means.

    Attributes:
        last_used: when it was used last; of an expired one, when something was said in it last.
        incarnation: which one of its name it is, of those before and after it.
        is_chat: the person is its chat.
        is_linked: the person's chat is, or was, linked with its chat, directly or by way of others.
        messages: how many messages the person is the author of.
        held: why nothing may delete it, where it is under legal hold.
        archived: the archived file, where it has expired.
        problems: what of it cannot be read, where a person was looked for.
    """

    session_id: str
    channel: str
    chat_id: str
    title: str | None
    last_used: datetime
    entries: int
    incarnation: str
    is_chat: bool
    is_linked: bool
    messages: int
    held: str | None
    archived: str | None
    problems: list[str]


class ForgetReply(Reply, kw_only=True):
    """What was deleted, or in a dry run would be.

    Attributes:
        dry_run: nothing was changed.
        sessions: what is gone, or would be.
        held: what is under legal hold, and stays.
        changed: what was used meanwhile, or is not as it was seen, and stays.
        remains: what may still have their words, such as a backup, one sentence each.
    """

    dry_run: bool
    sessions: list[MeantRow]
    held: list[MeantRow]
    changed: list[MeantRow]
    remains: list[str]


class ForgetRequest(msgspec.Struct, frozen=True):
    """Which."""

    body: Forget


@operation(
    "POST",
    "/v1/forget",
    ForgetRequest,
    ForgetReply,
    scope="admin",
    errors=("invalid_search", "invalid_key"),
    reads=True,
    patient=True,
)
async def forget_sessions(context: Context, request: ForgetRequest) -> ForgetReply:
    """Delete all sessions of a channel, of a person, or that were not used for long, those that have expired included.

    Nothing is left of them in store, files, archive and search index; what is under legal hold stays, and so does what
    is used meanwhile. A dry run only reports.

    Raises:
        InvalidSearch: nothing says which sessions are meant.
        ReadOnlyWorkspace: it can only be read; a dry run can be made.
    """
    from miniclaw_sessions.files.transfer import forgetting  # noqa: PLC0415 - not a client's

    asked = request.body
    which = forgetting.Selection(channel=asked.channel, older_than_s=asked.older_than_s, user=asked.user)
    found = [one async for one in forgetting.select_sessions(context.manager, which)]
    changed: list[forgetting.SelectedSession] = []
    if asked.only is not None:
        seen = {one.session_id: forgetting.Seen(one.entries, one.incarnation) for one in asked.only}
        found, changed = await forgetting.compare_with_seen(context.manager, found, seen)
    if asked.dry_run:
        held = [one for one in found if one.held is not None]
        done = forgetting.Forgotten(gone=[one for one in found if one.held is None], held=held)
    else:
        gone = context.also_about.append  # at once: it may be cut off between two of them
        done = await forgetting.forget(context.manager, found, gone)
    return ForgetReply(
        dry_run=asked.dry_run,
        sessions=[MeantRow.of(one) for one in done.gone],
        held=[MeantRow.of(one) for one in done.held],
        changed=[MeantRow.of(one) for one in (*changed, *done.changed)],
        remains=context.without_paths(done.remains),
    )


class Person(Body, kw_only=True):
    """Whose.

    Attributes:
        user: this person is the chat, or the author of a message in it.
        channel: of this channel only.
    """

    user: Text
    channel: Text | None = None


class ExportPerson(msgspec.Struct, frozen=True):
    """Whose; in the body, because a name does not belong into an address, which others log."""

    body: Person


@operation(
    "POST",
    "/v1/export",
    ExportPerson,
    Stream,
    scope="admin",
    media_types=("application/zip",),
    errors=("invalid_key",),
    reads=True,
    patient=True,
)
async def export_person(context: Context, request: ExportPerson) -> Stream:
    """Everything about one person as a ZIP archive: each session to read and whole, expired ones too, and an index."""
    from miniclaw_sessions.files.transfer.forgetting import Selection, select_sessions  # noqa: PLC0415 - not a client's
    from miniclaw_sessions.files.transfer.person import person_archive  # noqa: PLC0415 - same

    asked = request.body
    which = Selection(channel=asked.channel, user=asked.user)
    found = [one async for one in select_sessions(context.manager, which)]
    context.also_about += [one.session_id for one in found]
    return Stream(person_archive(context.manager, asked.user, found), "application/zip", file_name="person.zip")


class Hold(Body, kw_only=True):
    """Why.

    Attributes:
        reason: such as the number of a case.
    """

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]


class HoldRequest(msgspec.Struct, frozen=True):
    """Which session, and why."""

    session_id: str
    body: Hold


@operation("PUT", f"{ONE}/hold", HoldRequest, SessionReply, scope="admin")
async def hold_session(context: Context, request: HoldRequest) -> SessionReply:
    """Put a session under legal hold: nothing deletes it, and it does not expire, until that ends.

    The sessions of chats that are linked with it are held, too: what one of them says may stand in another.
    """
    from miniclaw_sessions.files.transfer.linked import linked_sessions  # noqa: PLC0415 - not a client's

    session = await context.find(request.session_id)
    for one in await linked_sessions(context.manager, session):
        if one is not session and one.journal.legal_hold is None:
            await context.manager.hold(one.session_id, request.body.reason)
            context.also_about.append(one.session_id)
    return session_reply(await context.manager.hold(session.session_id, request.body.reason))


@operation("DELETE", f"{ONE}/hold", OneSession, SessionReply, scope="admin")
async def release_session(context: Context, request: OneSession) -> SessionReply:
    """End the legal hold of a session, and that of each linked session which is held for the same reason.

    Nothing happens to a session without one.
    """
    from miniclaw_sessions.files.transfer.linked import linked_sessions  # noqa: PLC0415 - not a client's

    session = await context.find(request.session_id)
    if (reason := session.journal.legal_hold) is not None:
        for one in await linked_sessions(context.manager, session):
            if one.journal.legal_hold == reason:
                await context.manager.hold(one.session_id, None)
                context.also_about += [one.session_id] if one is not session else []
    return session_reply(session)


OPERATIONS = (forget_sessions, export_person, hold_session, release_session)
