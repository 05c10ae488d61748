"""Sessions under other agent frameworks: one file each, and each needs its framework's extra.

Every adapter writes canonical messages, so a conversation that one framework began can be continued by another, or by
this package's own agent. Fields without a canonical place are kept in `extra` under the framework's name, and come back
exactly. The messages of others reach a framework in a form that is legal for a model.

All of them take a session (a manager) of this process, or one of a client (`miniclaw_sessions.connect`), so that
any number of processes share a workspace through the daemon. What a user of each meets (how large a message may be,
expiry, one event loop, what differs over a client) is in `docs/reference/adapters.md`.
"""
