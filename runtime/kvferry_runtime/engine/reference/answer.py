"""Events of a request as the OpenAI API's answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvferry_contract.transfer import RESULT_FIELD
from kvferry_runtime.engine.reference.openai import Api, Asked, Json
from kvferry_runtime.engine.reference.request import Delta, Failed, Finished, FinishReason


@dataclass(slots=True)
class Answer:
    """Builds the bodies of one request. identity: the answer's id. created: Unix time. codec: of a loaded transfer."""

    asked: Asked
    model: str
    identity: str
    created: int
    prompt_tokens: int
    codec: str
    _deltas: list[Delta] = field(default_factory=list)

    def chunk(self, delta: Delta) -> Json:
        """One streamed chunk."""
        self._deltas.append(delta)
        return self._envelope([self._streamed_choice([delta], None)])

    def last_chunks(self, end: Finished) -> list[Json]:
        """The end of a stream: the finish reason, then the usage if it was asked for; the last one says how it went."""
        chunks = [self._envelope([self._streamed_choice([], end.reason)])]
        if self.asked.include_usage:
            chunks.append(self._envelope([]) | {"usage": self._usage(end)})
        chunks[-1][RESULT_FIELD] = self._result(end)
        return chunks

    def add(self, delta: Delta) -> None:
        """Collect for `body`."""
        self._deltas.append(delta)

    def body(self, end: Finished) -> Json:
        """The whole answer at once."""
        text = "".join(delta.text for delta in self._deltas)
        content: Json = {"text": text}
        if self.asked.api is Api.CHAT:
            content = {"message": {"role": "assistant", "content": text}}
        choice = self._choice(content, self._deltas, end.reason)
        envelope = self._envelope([choice]) | {"usage": self._usage(end), RESULT_FIELD: self._result(end)}
        if self.asked.api is Api.CHAT:
            envelope["object"] = "chat.completion"
        return envelope

    def _streamed_choice(self, deltas: Sequence[Delta], reason: FinishReason | None) -> Json:
        text = "".join(delta.text for delta in deltas)
        if self.asked.api is Api.COMPLETIONS:
            return self._choice({"text": text}, deltas, reason)
        content: Json = {"content": text} if deltas else {}
        if deltas and deltas[0].index == 0:
            content = {"role": "assistant"} | content
        return self._choice({"delta": content}, deltas, reason)

    def _choice(self, content: Json, deltas: Sequence[Delta], reason: FinishReason | None) -> Json:
        choice: Json = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        if self.asked.return_token_ids and deltas:
            choice["token_ids"] = [delta.token for delta in deltas]
            choice["token_index"] = deltas[0].index
        return choice

    def _envelope(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self.asked.api is Api.CHAT else "text_completion"
        return {"id": self.identity, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _usage(self, end: Finished) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self._deltas),
            "total_tokens": self.prompt_tokens + len(self._deltas),
            "prompt_tokens_details": {"cached_tokens": end.cached_tokens},
        }

    def _result(self, end: Finished) -> Json:
        transfer = None
        if end.transfer is not None and self.asked.transfer is not None:
            transfer = {
                "id": self.asked.transfer.transfer_id,
                "chunks": end.transfer.chunks,
                "bytes_raw": end.transfer.raw_bytes,
                "bytes_wire": end.transfer.wire_bytes,
                # a short prompt lies within keepExact as a whole, and nothing of it is compressed
                "codec": self.codec if end.transfer.wire_bytes < end.transfer.raw_bytes else "none",
            }
        return {"mode": end.mode, "reason": end.why, "transfer": transfer}


def error_body(message: str, kind: str, code: str) -> Json:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "code": code}}


def failure_body(failed: Failed) -> Json:
    return error_body(failed.message, failed.kind, failed.code)
