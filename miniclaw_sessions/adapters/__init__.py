"""Sessions under the agent frameworks that people already use: one file each, and each needs its framework's extra.

Every adapter writes canonical messages, so that a conversation that one framework began can be continued by another, or
by this package's own agent. What a framework says that the canonical form has no field for is kept in `extra` under the
framework's name, and comes back to it exactly; of what others said, a framework is given what is legal for a model.

Most of them take a session (a manager) of this process, or one of a client (`miniclaw_sessions.client.connect`), so
that any number of processes share a workspace through the daemon: openai-agents, LangChain, pydantic-ai and LangGraph.
google-adk and Strands need the manager itself, and with it a process that holds the workspace.

What a user of each meets:

- A message, with its images, and a state have at most `sessions.max_message_bytes` bytes (1 MiB); a larger one is
  refused with `InvalidMessage`. LangGraph's values may have any size.
- Sessions expire as all sessions do; a thread of LangGraph whose session expired begins anew.
- A session lives on the event loop of its manager or client. Calls from other threads and loops are brought there;
  whoever blocks that loop while another thread waits for a call waits for ever.
- openai-agents' compaction wrapper clears a session and fills it again: two steps, between which others see it empty.
- There is no `Storage` for Strands' `SnapshotSessionManager`; what google-adk rewinds is rewound for google-adk alone.
"""
