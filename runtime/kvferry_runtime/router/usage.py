"""One account of a request that two engines worked on.

The prompt is prefill's: to decode the whole prompt looks cached, since it came from there. Completion tokens are those
that the client was given, so that the first one counts once.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def merge_usage(prefill: Json | None, decode: Json | None, delivered: int | None, *, disaggregated: bool) -> Json:
    """The usage that the client is told.

    prefill, decode: each engine's own, if it came. delivered: completion tokens, if the engine numbers them.
    """
    usage = dict(decode or {})
    if disaggregated:
        usage.pop("prompt_tokens_details", None)
        if prefill is not None:
            usage |= {key: prefill[key] for key in ("prompt_tokens", "prompt_tokens_details") if key in prefill}
    if delivered is not None:
        usage["completion_tokens"] = delivered
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return usage | {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _count(usage: Json, key: str) -> int:
    value = usage.get(key)
    return value if type(value) is int else 0
