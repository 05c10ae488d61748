"""What a person at the terminal chooses for a conversation: the model, and how much it thinks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from miniclaw_sessions.agent import model_choice
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.errors import SessionNotFound, SessionsError

if TYPE_CHECKING:
    from miniclaw_sessions.service.client import Client, ClientSession


async def choose_model(client: Client, session: ClientSession, wanted: str) -> str:
    """Change the model to the one that is wanted, if there is one; the sentence for the person."""
    models = await client.models()
    chosen = (await (await _made(client, session)).info()).chosen_model
    name, sentence = model_choice.choose(models, wanted, chosen)
    if name is not None:
        await session.update(provider=models[name], model=name)
    return sentence


async def choose_level(client: Client, session: ClientSession, wanted: str) -> str:
    """Change the level of thinking to the one that is wanted, if the model takes it; the sentence for the person."""
    levels = await client.thinking_levels()
    info = await (await _made(client, session)).info()
    level, sentence = model_choice.choose_level(levels, wanted, info.chosen_model, info.chosen_level)
    if level is not None:
        await session.update(thinking_level=level or None)
    return sentence


async def offered(client: Client, session: ClientSession, command: str) -> Sequence[str]:
    """What `/model` or `/thinking` may be given here; nothing for other commands, or where it cannot be had now."""
    if command not in ("/model", "/thinking"):
        return ()
    with suppress(SessionsError):
        levels = await client.thinking_levels()
        if command == "/model":
            return [*levels]
        chosen = None
        with suppress(SessionNotFound):  # nothing was said yet
            chosen = (await session.info()).chosen_model
        return levels.get(chosen or next(iter(levels), ""), ())
    return ()


async def _made(client: Client, session: ClientSession) -> ClientSession:
    """The session, which may have been said nothing yet."""
    key = SessionKey.parse(session.session_id)
    return await client.get_or_create(key.channel, key.chat_id)
