"""Sessions for LangGraph: a checkpoint saver, so that a graph's thread is a session of ours.

    import asyncio

    from langchain_core.language_models import FakeListChatModel
    from langgraph.graph import START, MessagesState, StateGraph

    from miniclaw_sessions import SessionManager
    from miniclaw_sessions.adapters.langgraph import MiniclawSaver

    async def main() -> None:
        model = FakeListChatModel(responses=["Hello Ada!"])

        async def answer(state: MessagesState) -> dict:
            return {"messages": [await model.ainvoke(state["messages"])]}

        async with SessionManager("workspace") as manager:
            builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
            graph = builder.compile(checkpointer=MiniclawSaver(manager, channel="telegram"))
            config = {"configurable": {"thread_id": "123456789"}}
            await graph.ainvoke({"messages": ["I am Ada."]}, config)
            session = await manager.get("telegram", "123456789")
            print([message.text for message in session.messages()])

    asyncio.run(main())

**One conversation.** The graph's channel `messages` (another one: `messages_channel`) and the session's messages are
the same. What the graph says at the end of that list becomes a message of the session, and the checkpoint only refers
to it. What others said in the session (this package's agent, another framework) is there when the graph is loaded the
next time, made legal for a model, each message once. What a graph changes or puts among older messages (an edited
message, a summary in front) is its own view, kept in the checkpoint; what was said stays. With `messages_channel=None`,
and in subgraphs, messages are values like any other. Give the graph what the user says, and do not append it to the
session as well: it would be said twice.

**One tree.** A checkpoint is an entry of the session's tree. `Session.branch` takes the graph back, too: its newest
checkpoint is the newest on the current branch, and after `clear` it begins again. A graph that goes on from an older
checkpoint takes the session back to that one.

**What is written.** A step writes the channels that changed, and of a list of messages only what was added: the same
number of bytes in a long conversation as in a short one. A value larger than an entry may be (`max_message_bytes`)
stands in pieces. What a message entry cannot hold exactly (a tool's artifact that is not JSON) is kept beside it. A
`DeltaChannel` works and is a value like any other: its messages are not those of the session.

**What is read.** Where the checkpoints stand is held in memory, read from the transcript once for each session. Loading
a state costs what the state holds.

Memory for many threads, found by key or by words, is in `adapters.langgraph.store`: `MiniclawStore`.
"""

from miniclaw_sessions.adapters.langgraph.saver import MiniclawSaver
from miniclaw_sessions.adapters.langgraph.store import MiniclawStore

__all__ = ["MiniclawSaver", "MiniclawStore"]
