"""A client's body: what the router must know of it, and what each engine is sent. The rest passes through unread."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from kvferry_contract import transfer
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.router.failure import bad_request

MAX_BODY_BYTES = 16 << 20
BYTES_PER_TOKEN = 4
"""Rule of thumb for text: the router has no tokenizer, and only compares the estimate with a threshold."""

Fields = dict[str, msgspec.Raw]


class Api(StrEnum):
    """The two completion APIs; the value is the path at router and engine."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Message(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None


class _Known(msgspec.Struct):
    """The fields that the router reads; a wrong type is the client's mistake."""

    model: str | None = None
    prompt: str | list[Any] | None = None
    messages: list[_Message] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    echo: bool | str | None = None
    return_token_ids: bool | None = None


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One request, cleaned.

    fields: the body without what clients may not set, values as the client wrote them.
    prompt_tokens: exact for token ids, an estimate for text.
    """

    api: Api
    fields: Mapping[str, msgspec.Raw]
    stream: bool
    include_usage: bool
    return_token_ids: bool
    stops: tuple[str, ...]
    prompt_tokens: int


_known = msgspec.json.Decoder(_Known)
_raw = msgspec.json.Decoder(Fields)
_encoder = msgspec.json.Encoder()


def parse(api: Api, body: bytes, served_name: str) -> ClientRequest:
    """Read and check a client's body.

    Raises:
        RequestFailed: 400 or 404, naming the field and the way out.
    """
    try:
        known, fields = _known.decode(body), _raw.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body cannot be read: {error}") from error
    if known.model not in (None, served_name):
        raise bad_request(f"model {known.model!r} is not served here; this router serves {served_name!r}", status=404)
    for name, count in (("n", known.n), ("best_of", known.best_of)):
        if count not in (None, 1):
            raise bad_request(f"{name} {count} is not supported: one completion a request, send several requests")
    for name, limit in (("max_tokens", known.max_tokens), ("max_completion_tokens", known.max_completion_tokens)):
        if limit is not None and limit < 1:
            raise bad_request(f"{name} {limit} is below 1")
    if known.echo:
        raise bad_request("echo is not supported: the prompt is not sent back")
    fields.pop(transfer.FIELD, None)
    fields.pop(transfer.RESULT_FIELD, None)
    fields["model"] = _encode(served_name)
    if known.seed is None:
        # both engines must draw the same first token, also when decode has to compute the prompt again
        fields["seed"] = _encode(secrets.randbits(31))
    options = known.stream_options
    return ClientRequest(
        api=api,
        fields=fields,
        stream=bool(known.stream),
        include_usage=options is not None and bool(options.include_usage),
        return_token_ids=bool(known.return_token_ids),
        stops=_stops(known.stop),
        prompt_tokens=_prompt_tokens(api, known, fields),
    )


def prefill_body(request: ClientRequest, params: TransferParams) -> bytes:
    """What the prefill engine is sent: the same prompt, one token, not streamed."""
    fields = dict(request.fields)
    for name in ("stream_options", "max_completion_tokens", "min_tokens"):
        fields.pop(name, None)
    fields["stream"] = _encode(False)
    fields["max_tokens"] = _encode(1)
    if request.api is Api.CHAT:
        fields["max_completion_tokens"] = _encode(1)
    return _upstream_body(fields, params)


def decode_body(request: ClientRequest, params: TransferParams | None) -> bytes:
    """What the decode engine is sent; without `params` it computes the prompt itself."""
    fields = dict(request.fields)
    fields.pop("stream_options", None)
    if request.stream:
        fields["stream_options"] = _encode({"include_usage": True})
    return _upstream_body(fields, params)


def _upstream_body(fields: Fields, params: TransferParams | None) -> bytes:
    fields["return_token_ids"] = _encode(True)
    if params is not None:
        fields[transfer.FIELD] = _encode(params.to_dict())
    return _encoder.encode(fields)


def _encode(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _prompt_tokens(api: Api, known: _Known, fields: Fields) -> int:
    if api is Api.CHAT:
        if not known.messages:
            raise bad_request("messages is missing or empty")
        return sum(map(_message_bytes, known.messages)) // BYTES_PER_TOKEN
    prompt = known.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise bad_request(f"prompt holds {len(prompt)} prompts: one a request, send several requests")
        prompt = prompt[0]
        fields["prompt"] = _encode(prompt)
    if isinstance(prompt, str) and prompt:
        return len(prompt.encode()) // BYTES_PER_TOKEN
    if isinstance(prompt, list) and prompt:
        return len(prompt)
    raise bad_request("prompt is missing, empty, or neither a text nor a list of token ids")


def _message_bytes(message: _Message) -> int:
    content = message.content
    if isinstance(content, list):
        return sum(len(text.encode()) for part in content if isinstance(text := part.get("text"), str))
    return len((content or "").encode())
