"""Which levels of thinking the known models take, by their names; a service lists its models without them.

They are those of the services' own documentation: OpenAI's guide to reasoning, Anthropic's page about effort, Google's
about thinking. `model.thinking_levels` names those of a model that is newer.
"""

from __future__ import annotations

import re

_LOW_TO_HIGH = ("low", "medium", "high")
_DATED = r"(-\d{4}-?\d\d-?\d\d)?"
_LEVELS = (
    (rf"gpt-5(-mini|-nano)?{_DATED}", ("minimal", *_LOW_TO_HIGH)),
    (rf"gpt-5\.1{_DATED}", ("none", *_LOW_TO_HIGH)),
    (rf"gpt-5\.[2-9](-mini|-nano)?{_DATED}", ("none", *_LOW_TO_HIGH, "xhigh")),
    (r"gpt-5(\.1)?-codex(-mini)?|gpt-oss\b.*", _LOW_TO_HIGH),
    (r"gpt-5\.1-codex-max|gpt-5\.[23]-codex", (*_LOW_TO_HIGH, "xhigh")),
    (rf"(o1|o1-pro|o3|o3-mini|o3-pro|o4-mini){_DATED}", _LOW_TO_HIGH),
    (rf"claude-opus-4-5{_DATED}", _LOW_TO_HIGH),
    (rf"claude-(opus|sonnet)-4-6{_DATED}", (*_LOW_TO_HIGH, "max")),
    (rf"claude-opus-(4-[78]|5){_DATED}", (*_LOW_TO_HIGH, "xhigh", "max")),
    (r"gemini-3(\.\d+)?-pro(-preview)?", ("low", "high")),
    (r"gemini-3-flash(-preview)?", ("minimal", *_LOW_TO_HIGH)),
)


def levels_of(model: str) -> tuple[str, ...]:
    """The levels that a model takes, the least first; none where the model is not known, or takes none.

    Args:
        model: its name, perhaps behind that of who makes it, such as `openai/gpt-5`.
    """
    names = (model, re.split("[/:]", model, maxsplit=1)[-1])
    return next((levels for pattern, levels in _LEVELS if any(re.fullmatch(pattern, name) for name in names)), ())
