"""Uploaded files in what a model is asked: each id becomes the file itself, before anything else is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from miniclaw_sessions.service.api.openai.files import uploaded_file
from miniclaw_sessions.service.api.openai.shapes import CreateResponse, Document

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

_FIELDS = ("content", "output")


async def with_uploaded(context: Context, given: Sequence[Document]) -> list[Document]:
    """Messages or items with the files that they name by the ids of uploaded ones; other ids are left as they are.

    Args:
        context: whose files they are.
        given: what was sent; it is not changed.
    """
    made = []
    for one in given:
        changed = {}
        for field in _FIELDS:
            if isinstance(parts := one.get(field), list):
                changed[field] = [await uploaded_part(context, part) for part in parts]
        made.append({**one, **changed} if changed else one)
    return made


async def with_own_files(context: Context, body: CreateResponse) -> CreateResponse:
    """A request for a response, with the uploaded files that its input names."""
    if not isinstance(body.input, list):
        return body
    return msgspec.structs.replace(body, input=await with_uploaded(context, body.input))


async def uploaded_part(context: Context, part: Any) -> Any:
    """A part of a message, with the file itself where it names an uploaded one."""
    match part:
        case {"type": "file", "file": {"file_id": str(file_id), **rest}} if rest.get("file_data") is None:
            file = await uploaded_file(context, file_id)
            return part if file is None else {"type": "file", "file": file.fields}
        case {"type": "input_file", "file_id": str(file_id), **rest} if rest.get("file_data") is None:
            file = await uploaded_file(context, file_id)
            return part if file is None else {"type": "input_file", **file.fields}
        case {"type": "input_image", "file_id": str(file_id), **rest} if rest.get("image_url") is None:
            file = await uploaded_file(context, file_id)
            return part if file is None else {**rest, "type": "input_image", "image_url": file.address}
    return part
