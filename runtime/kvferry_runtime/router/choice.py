"""Where text, tokens and log probabilities lie in the one choice of an answer, in each API, streamed or whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvferry_runtime.router.openai import Api

Json = dict[str, Any]


class AnswerError(ValueError):
    """An engine's answer has not the shape of the OpenAI API, or its tokens have a gap."""


class TokenMismatch(AnswerError):
    """Prefill and decode disagree about what was generated: one of them is wrong."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """ids of the tokens in one chunk, and the index of the first in the completion (None: not numbered)."""

    ids: tuple[int, ...]
    index: int | None


def only_choice(chunk: Json) -> Json | None:
    """The chunk's choice; None for a chunk without one (usage).

    Raises:
        AnswerError: not a list of objects, or more than one choice.
    """
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) > 1 or not all(isinstance(item, dict) for item in choices):
        raise AnswerError("expected a list of at most one choice")
    return choices[0] if choices else None


def tokens(choice: Json) -> Tokens:
    """The tokens of a choice.

    Raises:
        AnswerError: ids or index are no integers.
    """
    ids, index = choice.get("token_ids"), choice.get("token_index")
    if ids is None:
        return Tokens((), None)
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        raise AnswerError("token_ids is not a list of integers")
    if index is not None and (type(index) is not int or index < 0):
        raise AnswerError(f"token_index {index!r} is not a natural number")
    return Tokens(tuple(ids), index)


def chunk_text(api: Api, choice: Json) -> str:
    """Text of a streamed choice; empty where there is none."""
    text = choice.get("text") if api is Api.COMPLETIONS else _delta(choice).get("content")
    return text if isinstance(text, str) else ""


def set_chunk_text(api: Api, choice: Json, text: str) -> None:
    if api is Api.COMPLETIONS:
        choice["text"] = text
    else:
        _delta(choice)["content"] = text


def take_role(choice: Json) -> None:
    """Drop the role from a streamed chat choice: the router sends it once, with the first token."""
    _delta(choice).pop("role", None)


def set_role(choice: Json) -> None:
    _delta(choice)["role"] = "assistant"


def says_something(api: Api, choice: Json) -> bool:
    """Whether a streamed choice without tokens holds anything to show: text, tool calls, reasoning, the end."""
    if choice.get("finish_reason") is not None or chunk_text(api, choice):
        return True
    return api is Api.CHAT and any(value for value in _delta(choice).values())


def whole_text(api: Api, choice: Json) -> str:
    """Text of a whole choice; empty where there is none."""
    text = choice.get("text") if api is Api.COMPLETIONS else _message(choice).get("content")
    return text if isinstance(text, str) else ""


def set_whole_text(api: Api, choice: Json, text: str) -> None:
    if api is Api.COMPLETIONS:
        choice["text"] = text
    else:
        _message(choice)["content"] = text


def logprobs_without(logprobs: Any, drop: int) -> Any:
    """`logprobs` without its first `drop` tokens: one list a key in both APIs."""
    if not isinstance(logprobs, dict):
        return logprobs
    return {key: value[drop:] if isinstance(value, list) else value for key, value in logprobs.items()}


def logprobs_joined(first: Any, rest: Any) -> Any:
    if not isinstance(first, dict) or not isinstance(rest, dict):
        return rest
    return {
        key: first[key] + value if isinstance(value, list) and isinstance(first.get(key), list) else value
        for key, value in rest.items()
    }


def _delta(choice: Json) -> Json:
    delta = choice.setdefault("delta", {})
    if not isinstance(delta, dict):
        raise AnswerError("delta is not an object")
    return delta


def _message(choice: Json) -> Json:
    message = choice.setdefault("message", {})
    if not isinstance(message, dict):
        raise AnswerError("message is not an object")
    return message
