"""What programs on the `openai` package ask for: its Conversations and Responses, over the same sessions.

Such operations stand in the one table like all others, marked `openai`: query parameters that they do not know are let
through, and errors have the form and the statuses that the package has exceptions for.
"""
