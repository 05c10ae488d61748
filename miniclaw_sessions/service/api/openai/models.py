"""`/v1/models`: which models answer here, in OpenAI's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from miniclaw_sessions.service.api.openai.shapes import not_found
from miniclaw_sessions.service.api.operation import operation
from miniclaw_sessions.service.api.service import Nothing
from miniclaw_sessions.service.api.shapes import Reply

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context


class Model(Reply, kw_only=True):
    """A model, and who provides it; when it was made is not known here.

    Attributes:
        takes: the media types of files that it takes in messages, beside texts.
        thinking_levels: the levels of thinking that a session may choose for it, the least first.
    """

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str
    takes: list[str] = []
    thinking_levels: list[str] = []


class ModelList(Reply, kw_only=True):
    """The models; the first one answers unless a request chooses another."""

    object: Literal["list"] = "list"
    data: list[Model]


@operation("GET", "/v1/models", Nothing, ModelList, openai=True)
async def list_models(context: Context, request: Nothing) -> ModelList:
    """The models that a chat may choose, first the one that answers unless it does; none where nothing answers."""
    del request
    return ModelList(data=await _models(context))


async def _models(context: Context) -> list[Model]:
    if context.chats is None:
        return []
    taken, levels = await context.chats.takes(), await context.chats.thinking_levels()
    return [
        Model(id=name, owned_by=owner, takes=sorted(taken.get(name, ())), thinking_levels=list(levels.get(name, ())))
        for name, owner in (await context.chats.models()).items()
    ]


class OneModel(msgspec.Struct, frozen=True):
    """A model, by its name.

    Attributes:
        model_id: its name, as the list of models has it.
    """

    model_id: str


@operation("GET", "/v1/models/{model_id}", OneModel, Model, openai=True)
async def get_model(context: Context, request: OneModel) -> Model:
    """One of the models that a chat may choose."""
    for model in await _models(context):
        if model.id == request.model_id:
            return model
    raise not_found("Model", request.model_id[:300])


OPERATIONS = (list_models, get_model)
