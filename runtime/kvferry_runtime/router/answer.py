"""The client's view of an answer: one id, one model name, merged tokens and usage, and what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kvferry_contract.transfer import RESULT_FIELD
from kvferry_runtime.router import sse
from kvferry_runtime.router.choice import (
    AnswerError,
    Json,
    TokenMismatch,
    logprobs_joined,
    only_choice,
    set_whole_text,
    tokens,
    whole_text,
)
from kvferry_runtime.router.first_token import FirstToken
from kvferry_runtime.router.openai import Api, ClientRequest
from kvferry_runtime.router.token_merge import TokenMerge
from kvferry_runtime.router.usage import merge_usage

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Identity:
    """What is the same in every chunk of an answer. result: the router's share of the `kvferry` object."""

    answer_id: str
    created: int
    model: str
    disaggregated: bool
    result: Json


class StreamedAnswer:
    """Builds the events of one streamed answer. What comes in are parsed chunks, what goes out are bytes."""

    def __init__(self, request: ClientRequest, identity: Identity) -> None:
        self._request = request
        self._identity = identity
        self._merge = TokenMerge(request.api, request.stops)
        self._object = "text_completion" if request.api is Api.COMPLETIONS else "chat.completion.chunk"
        self._last: Json | None = None
        self._first: FirstToken | None = None
        self._decode_usage: Json | None = None
        self.engine_result: Json | None = None

    @property
    def decode_spoke(self) -> bool:
        return self._merge.decode_spoke

    @property
    def finished(self) -> bool:
        """Whether decode gave its finish reason."""
        return self._last is not None

    def needs_first(self, chunks: list[Json]) -> bool:
        """Whether prefill's answer must be offered before these chunks of decode's are taken."""
        for chunk in chunks:
            choice = only_choice(chunk) if "choices" in chunk else None
            if choice is not None and choice.get("token_ids"):
                return self._merge.needs_first(choice)
        return False

    def offer_first(self, first: FirstToken) -> bytes:
        """Prefill's answer; what can be sent of it now.

        Raises:
            AnswerError: as `TokenMerge.offer_first`.
        """
        self._first = first
        if self._last is not None:
            self._merge.check_first(first)
            return b""
        return b"".join(self._event(self._chunk(choice)) for choice in self._merge.offer_first(first))

    def take(self, chunk: Json) -> bytes:
        """Decode's next chunk; what can be sent for it. The last choice is kept back for `end`.

        Raises:
            AnswerError: as `TokenMerge.take`, or the chunk is not one.
        """
        if isinstance(usage := chunk.get("usage"), dict):
            self._decode_usage = usage
        if isinstance(result := chunk.get(RESULT_FIELD), dict):
            self.engine_result = result
        choice = only_choice(chunk)
        if choice is None:
            return b""
        if self._last is not None:
            raise AnswerError("decode went on after its finish reason")
        out = b""
        for merged in self._merge.take(choice):
            if merged.get("finish_reason") is not None:
                self._last = self._chunk(merged)
            else:
                out += self._event(self._chunk(merged))
        return out

    def end(self) -> bytes:
        """The last events: finish reason, usage if the client asked for it, and what happened.

        Raises:
            AnswerError: decode gave no finish reason.
        """
        if self._last is None:
            raise AnswerError("the answer ended without a finish reason")
        last, result = self._last, {RESULT_FIELD: (self.engine_result or {}) | self._identity.result}
        if not self._request.include_usage:
            return self._event(last | result) + sse.event(sse.DONE)
        usage = self._chunk(None) | {"usage": self.usage()} | result
        return self._event(last) + self._event(usage) + sse.event(sse.DONE)

    def usage(self) -> Json:
        return merge_usage(
            self._first.usage if self._first else None,
            self._decode_usage,
            self._merge.delivered,
            disaggregated=self._identity.disaggregated,
        )

    def _chunk(self, choice: Json | None) -> Json:
        if choice is not None and not self._request.return_token_ids:
            _strip_tokens(choice)
        return _envelope(self._identity, self._object) | {"choices": [] if choice is None else [choice]}

    def _event(self, chunk: Json) -> bytes:
        return sse.event(_encoder.encode(chunk))


def whole_answer(request: ClientRequest, identity: Identity, body: Json, first: FirstToken | None) -> Json:
    """The body of an answer that is not streamed, out of decode's body and prefill's answer (if it came).

    Raises:
        TokenMismatch: the first tokens differ.
        AnswerError: no choice, or a first token that nobody has.
    """
    choice = only_choice(body)
    if choice is None:
        raise AnswerError("decode answered without a choice")
    ids = _join_first(request.api, choice, first)
    if not request.return_token_ids:
        _strip_tokens(choice)
        body.pop("prompt_token_ids", None)
    kind = "text_completion" if request.api is Api.COMPLETIONS else "chat.completion"
    usage = body.get("usage")
    result = body.get(RESULT_FIELD)
    return {
        **body,
        **_envelope(identity, kind),
        "choices": [choice],
        "usage": merge_usage(
            first.usage if first else None,
            usage if isinstance(usage, dict) else None,
            ids,
            disaggregated=identity.disaggregated,
        ),
        RESULT_FIELD: (result if isinstance(result, dict) else {}) | identity.result,
    }


def _join_first(api: Api, choice: Json, first: FirstToken | None) -> int | None:
    """Check the first token, put it in front where decode did not repeat it; the number of tokens, if known."""
    found = tokens(choice)
    if found.index is None:
        return None
    known = first.token_id if first else None
    if found.index == 0:
        if known is not None and found.ids and found.ids[0] != known:
            raise TokenMismatch("prefill and decode generated different first tokens")
        return len(found.ids)
    if found.index != 1 or first is None or known is None:
        raise AnswerError(f"decode's tokens begin with number {found.index}, and those before it are not known")
    set_whole_text(api, choice, first.text + whole_text(api, choice))
    choice["token_ids"], choice["token_index"] = [known, *found.ids], 0
    if choice.get("logprobs") is not None:
        choice["logprobs"] = logprobs_joined(first.logprobs, choice["logprobs"])
    return 1 + len(found.ids)


def _strip_tokens(choice: Json) -> None:
    for key in ("token_ids", "token_index", "prompt_token_ids"):
        choice.pop(key, None)


def _envelope(identity: Identity, kind: str) -> dict[str, Any]:
    return {"id": identity.answer_id, "object": kind, "created": identity.created, "model": identity.model}
