"""Which session a session of another program becomes here: always the same one, which belongs to no other source.

It is `import_ID`; `import_PROGRAM-ID` if a session of another program has that name; with a hash of the path behind it
if another file of the same program has it. Each session keeps which file it is of (`FOLLOWED`), so that a later look,
or another process, gives the same names even if files came or went in between. A UUID in two places is one session: no
program gives two conversations the same UUID, but people copy files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

import msgspec

from miniclaw_sessions.core.protocol.entries import FOLLOWED, SOURCE
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.errors import ImportRefused, InvalidKey, SessionNotFound
from miniclaw_sessions.files.discovery.program import Program, ProgramSession
from miniclaw_sessions.files.discovery.target import ImportTarget

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class _Holder(msgspec.Struct, frozen=True):
    """The source that has a name: a file of a program; each field is empty if it is not known."""

    program: str = ""
    form: str = ""
    path: str = ""


class Names:
    """Gives the sources of one look after the other their names.

    Args:
        workspace: where the sessions are kept.
    """

    def __init__(self, workspace: ImportTarget) -> None:
        self._workspace = workspace
        self._given: dict[str, _Holder] = {}

    async def name(self, source: ProgramSession, program: Program, own_id: str, present: Collection[str]) -> str:
        """The id of the session that a source is here, or becomes.

        Args:
            source: the source.
            program: its program.
            own_id: its id in that program.
            present: the paths of all sources that exist now (`ProgramSession.shown`).

        Raises:
            ImportRefused: the id makes no name of a session.
            Unreachable: the process that keeps the sessions does not answer.
        """
        digest = hashlib.blake2b(source.shown.encode(), digest_size=4).hexdigest()
        plain, of_program = own_id, f"{source.program}-{own_id}"
        is_unique = bool((source.inner and program.has_unique_ids) or _UUID.fullmatch(own_id))
        found = ""
        holders: dict[str, _Holder | None] = {}
        if not is_unique:  # it may have got its name when another source had the first one
            for name in (plain, of_program, f"{plain}-{digest}", f"{of_program}-{digest}"):
                holder = holders[name] = await self._holder(_session_id(name))
                if holder is not None and holder.path == source.shown:
                    found = name
                    break
        for name in (plain, of_program) if not found else ():
            holder = holders[name] if name in holders else await self._holder(_session_id(name))
            if holder is None or _is_of(holder, source, program, present, is_unique=is_unique):
                found = name
                break
            if _is_program(holder, program):
                found = f"{name}-{digest}"
                break
        session_id = _session_id(found or f"{of_program}-{digest}")
        self._given[session_id] = _Holder(source.program, program.form or program.name, source.shown)
        return session_id

    def refuse(self, session_id: str) -> None:
        """Note that the session of this name belongs to something else."""
        self._given[session_id] = _Holder()

    async def _holder(self, session_id: str) -> _Holder | None:
        """The source that has a name; None if no session has it."""
        if session_id in self._given:
            return self._given[session_id]
        try:
            metadata = (await self._workspace.session(session_id).info()).metadata
        except SessionNotFound:
            return None
        place, about = metadata.get(FOLLOWED), metadata.get(SOURCE)
        place, about = (one if isinstance(one, dict) else {} for one in (place, about))
        return _Holder(*(str(one or "") for one in (place.get("program"), about.get("format"), place.get("path"))))


def _is_program(holder: _Holder, program: Program) -> bool:
    if holder.program:
        return holder.program == program.name
    return holder.form == (program.form or program.name)


def _is_of(
    holder: _Holder, source: ProgramSession, program: Program, present: Collection[str], *, is_unique: bool
) -> bool:
    """Whether the session that has a name is this source's."""
    if holder.path == source.shown:
        return True
    if is_unique:
        return holder.form == (program.form or program.name)  # a copy, from any program with such files
    return _is_program(holder, program) and holder.path not in present  # imported by hand, or moved since


def _session_id(name: str) -> str:
    try:
        return SessionKey.of("import", name).session_id
    except InvalidKey as error:
        raise ImportRefused(f"it names no session that could be made: {error}") from None
