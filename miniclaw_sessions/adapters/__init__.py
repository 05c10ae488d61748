"""Sessions under the agent frameworks that people already use: one file each, and each needs its framework's extra.

Every adapter writes canonical messages, so that a conversation that one framework began can be continued by another, or
by this package's own agent. What a framework says that the canonical form has no field for is kept in `extra` under the
framework's name, and comes back to it exactly; of what others said, a framework is given what is legal for a model.
"""
