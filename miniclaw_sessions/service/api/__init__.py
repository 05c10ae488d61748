"""What can be done with a workspace, stated once: typed operations with their handlers, over a manager.

The gateway binds the table to HTTP; the client calls the same handlers in its own process, or over HTTP.
"""
