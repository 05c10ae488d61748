"""How google-adk takes a turn in a session; see `frameworks.py`. It has an environment of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types

from miniclaw_sessions.adapters.google_adk import MiniclawSessionService
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.files.formats.google import from_google
from tests.adapters.steps import AGENT, CHANNEL, CHAT, Place, Step, Watch
from tests.adapters.turns import Reply, Turn, result_of

NAMES: dict[str, Any] = {"app_name": "app", "user_id": "ada", "session_id": CHAT}


async def with_google_adk(place: Place, turn: Turn, watch: Watch) -> None:
    replies = turn.replies()

    class Service(MiniclawSessionService):
        async def append_event(self, session: Any, event: Event) -> Event:
            appended = await super().append_event(session, event)
            if event.content is not None and not event.partial:
                said = from_google([event.content.model_dump(exclude_none=True)])
                watch.acknowledged(*(message.text for message in said))
            return appended

    class Scripted(BaseLlm):
        async def generate_content_async(
            self,
            llm_request: LlmRequest,
            stream: bool = False,  # noqa: ARG002 - ADK's signature
        ) -> AsyncGenerator[LlmResponse, None]:
            watch.asked(from_google([content.model_dump(exclude_none=True) for content in llm_request.contents]))
            yield LlmResponse(content=types.Content(role="model", parts=_parts(next(replies))))

    def work(label: str) -> dict[str, str]:
        """Works."""
        watch.ran(label)
        return {"output": result_of(label)}

    def key(app_name: str, user_id: str, session_id: str) -> SessionKey:  # noqa: ARG001 - of an app for one chat
        return SessionKey.of(CHANNEL, session_id)

    service = Service(place.holder, agent_name=AGENT, key=key)
    with suppress(AlreadyExistsError):
        await service.create_session(**NAMES)
    agent = LlmAgent(name=AGENT, model=Scripted(model="scripted"), tools=[work])
    runner = Runner(app_name="app", agent=agent, session_service=service)
    picture = [types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")] if turn.picture else []
    question = types.Content(role="user", parts=[types.Part(text=turn.question), *picture])
    events = [event async for event in runner.run_async(user_id="ada", session_id=CHAT, new_message=question)]
    assert events[-1].content.parts[-1].text == turn.answer


def _parts(reply: Reply) -> list[types.Part]:
    thought = [types.Part(text="hm", thought=True, thought_signature=b"sign")] if reply.thinks else []
    calls = [
        types.Part(function_call=types.FunctionCall(id=id_ or None, name="work", args={"label": label}))
        for id_, label in reply.calls
    ]
    return [*thought, types.Part(text=reply.text), *calls]


STEPS: dict[str, Step] = {"google-adk": with_google_adk}
