"""Reminders: what a chat hears later. Their times, where they are kept, and the tool for a model.

`times` reads and computes times, `records` is a reminder as its chat's session keeps it, `agenda` finds what is due in
all chats, `reminders` sets, lists, pauses and deletes. `channels.reminding` says them.
"""
