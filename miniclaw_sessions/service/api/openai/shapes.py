"""The shapes of conversations. What a body has more than these is let through: newer clients send more."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.service.api.shapes import Reply

MAX_ITEMS_PER_REQUEST = 20
MAX_PAGE = 100
"""Items of a page; also where a client does not say how many it wants: it asks for fewer pages then."""

MAX_METADATA = 16
Item = dict[str, Any]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=MAX_METADATA)
]


class Conversation(Reply, kw_only=True):
    """A session, as a conversation; its `id` is the session's."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(Reply, kw_only=True):
    """What is left of a conversation."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ItemList(Reply, kw_only=True):
    """Some items; `last_id` is the `after` of the page that follows, where there are more."""

    object: Literal["list"] = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool
    data: list[Item]

    @classmethod
    def holding(cls, items: list[Item], *, has_more: bool = False) -> ItemList:
        """A list of these items."""
        first_id, last_id = (items[0]["id"], items[-1]["id"]) if items else (None, None)
        return cls(first_id=first_id, last_id=last_id, has_more=has_more, data=items)


class CreateConversation(msgspec.Struct, kw_only=True):
    """What a new conversation begins with."""

    items: Annotated[list[Item], Meta(max_length=MAX_ITEMS_PER_REQUEST)] | None = None
    metadata: Metadata | None = None


class UpdateConversation(msgspec.Struct, kw_only=True):
    """All of the metadata that it has from here on; null is none."""

    metadata: Metadata | None


class CreateItems(msgspec.Struct, kw_only=True):
    """What is to be added, all of it or nothing."""

    items: Annotated[list[Item], Meta(min_length=1, max_length=MAX_ITEMS_PER_REQUEST)]
