"""How each framework takes a turn in a session: a user asks, the model calls tools and answers, and all of it is kept.

The models say what a `Turn` tells them to, and each framework is used as its own documentation says: whoever was killed
in the midst of a turn takes it up where the framework can, unless somebody else has gone on behind it. A further
framework is one more step in `STEPS`.

google-adk is not among them: it cannot be installed beside the others (`google_adk_step.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import agent_framework
import agents
import agents.testing
import pydantic_ai
import strands
from anyio import to_thread
from anyio.lowlevel import checkpoint
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer
from openai.types.responses import ResponseReasoningItem
from openai.types.responses.response_reasoning_item import Summary
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model
from strands.session.repository_session_manager import RepositorySessionManager

from miniclaw_sessions.adapters.agent_framework import MiniclawHistoryProvider, from_agent_framework
from miniclaw_sessions.adapters.langchain import MiniclawChatMessageHistory, from_langchain
from miniclaw_sessions.adapters.langgraph import MiniclawSaver
from miniclaw_sessions.adapters.llama_index import MiniclawChatStore, from_llama_index
from miniclaw_sessions.adapters.openai_agents import MiniclawSession
from miniclaw_sessions.adapters.pydantic_ai import load_messages, save
from miniclaw_sessions.adapters.strands import MiniclawSessionRepository
from miniclaw_sessions.adapters.strands_messages import from_strands
from miniclaw_sessions.agent.providers.pydantic_ai_messages import from_model_messages
from miniclaw_sessions.files.formats.openai_items import from_items
from tests.adapters.steps import AGENT, CHANNEL, CHAT, PICTURE, Place, Step, Watch, with_our_own_agent
from tests.adapters.turns import Reply, Turn, result_of

# --- openai-agents ---------------------------------------------------------------------------------------------------


async def with_openai_agents(place: Place, turn: Turn, watch: Watch) -> None:
    class Memory(MiniclawSession):
        async def add_items(self, items: list[Any]) -> None:
            await super().add_items(items)
            watch.acknowledged(*(message.text for message in from_items(items)))

    class Watched(agents.testing.ScriptedModel):
        async def get_response(self, system_instructions: str | None, input: Any, *rest: Any, **named: Any) -> Any:  # noqa: A002 - the framework's name
            items = [{"role": "user", "content": input}] if isinstance(input, str) else [dict(item) for item in input]
            watch.asked(from_items(items))
            return await super().get_response(system_instructions, input, *rest, **named)

    @agents.function_tool(name_override="work")
    def work(label: str) -> str:
        """Works."""
        watch.ran(label)
        return result_of(label)

    agent = agents.Agent(name=AGENT, model=Watched(_items(reply) for reply in turn.replies()), tools=[work])
    question: Any = [{"type": "input_text", "text": turn.question}]
    url = f"data:image/png;base64,{PICTURE}"
    question.append({"type": "input_image", "image_url": url, "detail": "auto"})
    asked: Any = [{"role": "user", "content": question}] if turn.picture else turn.question
    result = await agents.Runner.run(agent, asked, session=Memory(place.chat))
    assert result.final_output == turn.answer


def _items(reply: Reply) -> Any:
    calls = [
        agents.testing.function_call("work", {"label": label}, call_id=id_, item_id=f"fc_{label.replace('.', '_')}")
        for id_, label in reply.calls
    ]
    said = agents.testing.assistant_message(reply.text, item_id=f"msg_{reply.text.replace(' ', '_').replace('.', '_')}")
    thought = [ResponseReasoningItem(id="rs_1", type="reasoning", summary=[Summary(text="hm", type="summary_text")])]
    return [*(thought if reply.thinks else []), said, *calls]


# --- pydantic-ai -----------------------------------------------------------------------------------------------------


async def with_pydantic_ai(place: Place, turn: Turn, watch: Watch) -> None:
    replies = turn.replies()

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        watch.asked(from_model_messages(messages))
        said = next(replies)
        parts: list[Any] = [ThinkingPart("hm", signature="c2ln")] if said.thinks else []
        calls = [ToolCallPart("work", {"label": label}, id_) for id_, label in said.calls]
        return ModelResponse(parts=[*parts, TextPart(said.text), *calls])

    agent = pydantic_ai.Agent(FunctionModel(reply))

    @agent.tool_plain
    def work(label: str) -> str:
        watch.ran(label)
        return result_of(label)

    shown: Any = [turn.question, pydantic_ai.BinaryContent(b"\x89PNG", media_type="image/png")]
    history = await load_messages(place.chat)
    result = await agent.run(shown if turn.picture else turn.question, message_history=history)
    assert result.output == turn.answer
    await save(place.chat, result.new_messages())
    watch.acknowledged(*(message.text for message in from_model_messages(result.new_messages())))


# --- LangChain and LangGraph -----------------------------------------------------------------------------------------


async def with_langchain(place: Place, turn: Turn, watch: Watch) -> None:
    history = MiniclawChatMessageHistory(place.chat)

    async def add(message: BaseMessage) -> None:
        await history.aadd_messages([message])
        watch.acknowledged(message.text)

    await add(_human(turn))
    for reply in turn.replies():
        watch.asked(from_langchain(await history.aget_messages()))
        await add(_ai(reply))
        for id_, label in reply.calls:
            watch.ran(label)
            await add(ToolMessage(result_of(label), tool_call_id=id_, name="work"))


async def with_langgraph(place: Place, turn: Turn, watch: Watch) -> None:
    class Saver(MiniclawSaver):
        async def aput(self, config: Any, checkpoint: Any, *rest: Any) -> Any:
            stored = await super().aput(config, checkpoint, *rest)
            watch.acknowledged(*(message.text for message in checkpoint["channel_values"].get("messages", ())))
            return stored

    saver = Saver(place.holder, channel=CHANNEL)
    config: Any = {"configurable": {"thread_id": CHAT}}
    replies = turn.replies()

    async def ask(state: MessagesState) -> dict[str, Any]:
        watch.asked(from_langchain(state["messages"]))
        return {"messages": [_ai(next(replies))]}

    async def work(call: dict[str, Any]) -> dict[str, Any]:
        label = call["args"]["label"]
        watch.ran(label)
        await checkpoint()
        return {"messages": [ToolMessage(result_of(label), tool_call_id=call["id"], name="work")]}

    def after(state: MessagesState) -> Any:
        return [Send("work", call) for call in cast("AIMessage", state["messages"][-1]).tool_calls] or END

    builder = StateGraph(MessagesState).add_node("ask", ask).add_node("work", cast("Any", work))
    builder.add_edge(START, "ask").add_conditional_edges("ask", after, ["work", END]).add_edge("work", "ask")
    graph = builder.compile(checkpointer=saver)

    left = await graph.aget_state(config)
    newest = left.values["messages"][-1] if left.values.get("messages") else None
    if "work" in left.next and isinstance(newest, AIMessage) and newest.tool_calls:  # nobody has gone on behind it
        replies = iter([Reply(turn.resumed, [])])
        await graph.ainvoke(None, config, durability="sync")
        replies = turn.replies()
    state = await graph.ainvoke({"messages": [_human(turn)]}, config, durability="sync")
    assert state["messages"][-1].text == turn.answer


def _human(turn: Turn) -> HumanMessage:
    picture = {"type": "image", "base64": PICTURE, "mime_type": "image/png"}
    shown: list[Any] = [{"type": "text", "text": turn.question}, picture]
    return HumanMessage(shown if turn.picture else turn.question)


def _ai(reply: Reply) -> AIMessage:
    thinking: list[Any] = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": reply.text}]
    calls = [{"name": "work", "args": {"label": label}, "id": id_, "type": "tool_call"} for id_, label in reply.calls]
    return AIMessage(thinking if reply.thinks else reply.text, tool_calls=calls)


# --- Strands ---------------------------------------------------------------------------------------------------------


async def with_strands(place: Place, turn: Turn, watch: Watch) -> None:
    class Repository(MiniclawSessionRepository):
        def create_message(self, session_id: str, agent_id: str, session_message: Any, **rest: Any) -> None:
            super().create_message(session_id, agent_id, session_message, **rest)
            watch.acknowledged(*(message.text for message in from_strands(session_message.to_dict()["message"])))

    class Scripted(Model):
        stateful = False

        def get_config(self) -> Any:
            return {}

        def update_config(self, **config: Any) -> None:
            """There is nothing to configure."""

        async def structured_output(self, *_: Any, **__: Any) -> Any:
            yield {}

        async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
            written = [strands.types.session.encode_bytes_values(message) for message in messages]
            watch.asked([said for message in written for said in from_strands(message)])
            for event in _streamed(next(replies)):
                yield event

    @strands.tool
    async def work(label: str) -> str:
        """Works."""
        watch.ran(label)
        await asyncio.sleep(0)
        return result_of(label)

    replies = turn.replies()
    repository = Repository(place.holder, channel=CHANNEL)

    def run() -> None:
        agent = strands.Agent(
            model=Scripted(),
            agent_id=AGENT,
            messages=repository.history(CHAT, AGENT),
            session_manager=RepositorySessionManager(session_id=CHAT, session_repository=repository),
            conversation_manager=NullConversationManager(),
            tools=[work],
            callback_handler=None,
        )
        picture = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}
        shown: Any = [{"text": turn.question}, picture]
        said = agent(shown if turn.picture else turn.question)
        assert f"{said}".strip() == turn.answer

    await to_thread.run_sync(run)


def _streamed(reply: Reply) -> Iterator[Any]:
    yield {"messageStart": {"role": "assistant"}}
    if reply.thinks:
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"reasoningContent": {"text": "hm"}}}}
        yield {"contentBlockDelta": {"delta": {"reasoningContent": {"signature": "c2ln"}}}}
        yield {"contentBlockStop": {}}
    yield {"contentBlockStart": {"start": {}}}
    yield {"contentBlockDelta": {"delta": {"text": reply.text}}}
    yield {"contentBlockStop": {}}
    for id_, label in reply.calls:
        yield {"contentBlockStart": {"start": {"toolUse": {"name": "work", "toolUseId": id_}}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": f'{{"label": "{label}"}}'}}}}
        yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "tool_use" if reply.calls else "end_turn"}}


# --- Microsoft Agent Framework ---------------------------------------------------------------------------------------


class Layers(
    agent_framework.FunctionInvocationLayer[Any],
    agent_framework.ChatMiddlewareLayer[Any],
    agent_framework.BaseChatClient[Any],
):
    """What the framework's own clients are made of."""


async def with_agent_framework(place: Place, turn: Turn, watch: Watch) -> None:
    class History(MiniclawHistoryProvider):
        async def save_messages(self, session_id: str | None, messages: Any, **rest: Any) -> None:
            await super().save_messages(session_id, messages, **rest)
            watch.acknowledged(*(message.text for message in from_agent_framework(messages)))

    class Scripted(Layers):
        async def _inner_get_response(self, *, messages: Any, **_: Any) -> agent_framework.ChatResponse:
            watch.asked(from_agent_framework(messages))
            return agent_framework.ChatResponse(messages=[_framework_message(next(replies))])

    async def work(label: str) -> str:
        watch.ran(label)
        await asyncio.sleep(0)
        return result_of(label)

    replies = turn.replies()
    agent = agent_framework.Agent(
        client=cast("Any", Scripted()),
        name=AGENT,
        tools=[work],
        context_providers=[History(place.holder, channel=CHANNEL)],
        require_per_service_call_history_persistence=turn.resumes != "close",  # else when the run has ended
    )
    picture = agent_framework.Content.from_uri(f"data:image/png;base64,{PICTURE}")
    shown: list[Any] = [turn.question, *([picture] if turn.picture else [])]
    session = agent.create_session(session_id=CHAT)
    said = await agent.run(agent_framework.Message("user", shown), session=session)
    assert said.text.endswith(turn.answer)


def _framework_message(reply: Reply) -> agent_framework.Message:
    new = agent_framework.Content
    calls = [new.from_function_call(id_, "work", arguments={"label": label}) for id_, label in reply.calls]
    thought = [new.from_text_reasoning(text="hm", protected_data="c2ln")] if reply.thinks else []
    return agent_framework.Message("assistant", [*thought, new.from_text(reply.text), *calls])


# --- LlamaIndex ------------------------------------------------------------------------------------------------------


async def with_llama_index(place: Place, turn: Turn, watch: Watch) -> None:
    class Store(MiniclawChatStore):
        async def async_add_message(self, key: str, message: ChatMessage) -> None:
            await super().async_add_message(key, message)
            watch.acknowledged(*(one.text for one in from_llama_index([message])))

    def reply(messages: Any, **_: Any) -> ChatMessage:
        watch.asked(from_llama_index(messages))
        return _index_message(next(replies))

    async def work(label: str) -> str:
        """Works."""
        watch.ran(label)
        await asyncio.sleep(0)
        return result_of(label)

    replies = turn.replies()
    store = cast("Any", Store)(place.holder, channel=CHANNEL)
    memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key=CHAT, token_limit=10**7)
    model = MockFunctionCallingLLM(response_generator=reply, is_chat_model=True)
    agent = FunctionAgent(name=AGENT, llm=model, tools=[work], streaming=False)
    picture = ImageBlock(image=PICTURE.encode(), image_mimetype="image/png")
    shown = ChatMessage(role="user", blocks=[TextBlock(text=turn.question), *([picture] if turn.picture else [])])
    said: Any = await agent.run(user_msg=shown, memory=memory)
    assert said.response.content == turn.answer


def _index_message(reply: Reply) -> ChatMessage:
    thought = [ThinkingBlock(content="hm")] if reply.thinks else []
    calls = [
        ToolCallBlock(tool_call_id=id_, tool_name="work", tool_kwargs={"label": label}) for id_, label in reply.calls
    ]
    return ChatMessage(role="assistant", blocks=[*thought, TextBlock(text=reply.text), *calls])


STEPS: dict[str, Step] = {
    "our own": with_our_own_agent,
    "openai-agents": with_openai_agents,
    "pydantic-ai": with_pydantic_ai,
    "langchain": with_langchain,
    "langgraph": with_langgraph,
    "strands": with_strands,
    "agent-framework": with_agent_framework,
    "llama-index": with_llama_index,
}
