"""The daemon keeps up with other programs' sessions (`[follow]`), as `import --discover --follow` does."""

from __future__ import annotations

import os
from pathlib import Path

from miniclaw_sessions.config import FollowSettings
from miniclaw_sessions.files.discovery.follower import Follower, SourceUpdate
from miniclaw_sessions.files.discovery.programs import programs_named
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.client import Client
from miniclaw_sessions.service.client.transport import LocalTransport

log = get_logger(__name__)

AGAIN_S = 60.0
"""The pause before following starts again after an unexpected failure."""


async def keep_up(context: Context, settings: FollowSettings) -> None:
    """Follow the programs of the settings, until cancelled; returns at once where there are none."""
    clock = context.manager.clock
    client = Client(LocalTransport(context))
    while settings.programs:
        programs = programs_named(settings.programs)
        try:
            follower = Follower(client, programs, environ=os.environ, home=Path.home(), clock=clock)
            await follower.follow(_note)
        except Exception as error:  # noqa: BLE001 - another program's file must not end the daemon
            sentence = "other programs' sessions cannot be followed; this starts again after a while"
            log.error(sentence, action="follow.failed", error_type=type(error).__name__)
        await clock.sleep(AGAIN_S)


def _note(kept: SourceUpdate) -> None:
    about = {"program": kept.program, "path": kept.path}
    if kept.problem:
        log.warning(kept.problem, action="follow.unread", **about)
    elif kept.reply is not None:
        counts = {"entries": kept.reply.entries, "messages": kept.reply.messages}
        log.info(
            "taken from another program", action="follow.taken", session_id=kept.reply.session_id, **counts, **about
        )
