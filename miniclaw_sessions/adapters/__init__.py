"""Sessions under the agent frameworks that people already use: one file each, and each needs its framework's extra.

Every adapter writes canonical messages, so that a conversation that one framework began can be continued by another, or
by this package's own agent. What a framework says that the canonical form has no field for is kept in `extra` under the
framework's name, and comes back to it exactly; of what others said, a framework is given what is legal for a model.

All of them take a session (a manager) of this process, or one of a client (`miniclaw_sessions.connect`), so that
any number of processes share a workspace through the daemon. What a user of each meets (how large a message may be,
expiry, one event loop, what differs over a client) is told in `docs/reference/adapters.md`.
"""
