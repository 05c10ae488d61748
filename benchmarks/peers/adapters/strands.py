"""Strands: an `Agent` for each conversation with a `FileSessionManager`, driven by the hooks that the agent fires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from strands import Agent
from strands.hooks import MessageAddedEvent
from strands.models import Model
from strands.session.file_session_manager import FileSessionManager

from benchmarks.peers.adapters.base import Adapter, is_from_user, text_of


class Strands(Adapter):
    """The agent keeps the messages in memory; the session manager has a file for each of them."""

    concurrent: ClassVar[bool] = False

    async def open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._agents: dict[str, Agent] = {}

    async def append(self, session: str, number: int) -> None:
        agent = self._agent(session)
        message: Any = {"role": "user" if is_from_user(number) else "assistant", "content": [{"text": text_of(number)}]}
        agent.messages.append(message)
        await agent.hooks.invoke_callbacks_async(MessageAddedEvent(agent=agent, message=message))

    async def latest(self, session: str, limit: int) -> Sequence[Any]:
        return self._agent(session).messages[-limit:]

    async def reload(self, session: str) -> Sequence[Any]:
        return self._agent(session).messages

    def text(self, message: Any) -> str:
        return str(message["content"][0]["text"])

    def _agent(self, session: str) -> Agent:
        if session not in self._agents:
            manager = FileSessionManager(session, storage_dir=str(self.directory))
            model = SilentModel()
            self._agents[session] = Agent(model=model, session_manager=manager, callback_handler=None, agent_id="agent")
        return self._agents[session]


class SilentModel(Model):
    """An agent needs a model; this one is never asked."""

    def update_config(self, **_: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError
