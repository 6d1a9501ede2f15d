"""The OpenAI API as far as this engine speaks it: a body into what is asked, events into what is answered. Pure.

Beyond OpenAI's own fields: `prompt` may be a list of token ids; `top_k`, `stop_token_ids`, `ignore_eos`;
`return_token_ids` adds `token_ids` and `token_index` to choices; `kv_transfer_params` comes from the router; the body
of an answer, or its last chunk, has `kvferry`: how the prompt's KV came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvferry_contract import transfer
from kvferry_contract.transfer import TransferParams, TransferParamsError

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_TOP_K = 1 << 20
MAX_TEMPERATURE = 100.0
COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions where the client gives none and as many fit, as at OpenAI."""
CHAT_TOKENS = 512
"""The same for chat. Room for all of them is reserved, so it is not the rest of the context."""

Json = dict[str, Any]

_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None, 0),
    "echo": (None, False),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
}
"""Fields that change an answer and that this engine does not implement, with the values that change nothing."""


class BadRequest(ValueError):
    """The client's mistake. status: of HTTP."""

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Api(StrEnum):
    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, checked.

    prompt: a text, token ids, or the messages of a chat.
    max_tokens: None if the client gave none; then as many of `default_tokens` as fit.
    """

    api: Api
    prompt: str | list[int] | list[dict[str, str]]
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool
    transfer: TransferParams | None

    @property
    def default_tokens(self) -> int:
        return CHAT_TOKENS if self.api is Api.CHAT else COMPLETION_TOKENS


def parse(api: Api, body: object, served_name: str) -> Asked:
    """Read and check a body.

    Raises:
        BadRequest: names the field, the value and what is allowed.
    """
    if not isinstance(body, dict):
        raise BadRequest(f"the body is not an object but {type(body).__name__}")
    if body.get("model") not in (None, served_name):
        raise BadRequest(f"model {body['model']!r} is not served here, {served_name!r} is", 404, "model_not_found")
    for name, harmless in _UNSUPPORTED.items():
        if name in body and body[name] not in harmless:
            raise BadRequest(f"{name} {body[name]!r} is not supported by this engine: leave it out", code="unsupported")
    fields = _Fields(body)
    limit = fields.whole("max_tokens", None, 1, 1 << 30)
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options is not an object")
    return Asked(
        api=api,
        prompt=_messages(body.get("messages")) if api is Api.CHAT else _prompt(body.get("prompt")),
        max_tokens=fields.whole("max_completion_tokens", limit, 1, 1 << 30) if api is Api.CHAT else limit,
        temperature=fields.number("temperature", 1.0, 0.0, MAX_TEMPERATURE),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        top_k=max(0, fields.whole("top_k", 0, -1, MAX_TOP_K)),
        seed=fields.whole("seed", None, -(1 << 63), (1 << 63) - 1),
        stops=_stops(body.get("stop")),
        stop_token_ids=_token_ids("stop_token_ids", body.get("stop_token_ids") or []),
        ignore_eos=fields.flag("ignore_eos"),
        stream=fields.flag("stream"),
        include_usage=_Fields(options).flag("include_usage"),
        return_token_ids=fields.flag("return_token_ids"),
        transfer=_transfer(body.get(transfer.FIELD)),
    )


class _Fields:
    """Scalar fields of a body; null reads as missing."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def flag(self, name: str) -> bool:
        value = self._body.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise BadRequest(f"{name} {value!r} is not true or false")
        return value

    def whole(self, name: str, default: Any, least: int, most: int) -> Any:
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise BadRequest(f"{name} {value!r} is not a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise BadRequest(f"{name} {value!r} is not a number from {least} to {most}")
        return float(value)


def _prompt(prompt: object) -> str | list[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return _text("prompt", prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        return prompt
    if isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list):
        raise BadRequest(f"prompt holds {len(prompt)} prompts: send one a request")
    raise BadRequest("prompt is missing, empty, or neither a text nor a list of token ids")


def _messages(messages: object) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages is missing, empty or not a list")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _message(path: str, message: object) -> dict[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequest(f"{path} is not an object with a role")
    content = message.get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content if _is_text_part(part)]
        if len(texts) < len(content):
            raise BadRequest(f"{path}.content has parts that are no text: this engine reads text only")
        content = "".join(texts)
    if not isinstance(content, str):
        raise BadRequest(f"{path}.content is neither a text nor a list of text parts")
    return {"role": _text(f"{path}.role", message["role"]), "content": _text(f"{path}.content", content)}


def _text(path: str, text: str) -> str:
    """JSON can escape half of a surrogate pair, which is no character: no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{path} has half of a surrogate pair at character {error.start}") from error
    return text


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _stops(stop: object) -> tuple[str, ...]:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(item, str) and 0 < len(item) <= MAX_STOP_CHARACTERS for item in stops)
    ):
        raise BadRequest(
            f"stop is not a text or a list of at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARACTERS} characters"
        )
    return tuple(stops)


def _token_ids(name: str, value: object) -> frozenset[int]:
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        raise BadRequest(f"{name} is not a list of token ids")
    return frozenset(value)


def _transfer(raw: object) -> TransferParams | None:
    if raw is None:
        return None
    try:
        return TransferParams.from_dict(raw)
    except TransferParamsError as error:
        raise BadRequest(str(error)) from error
