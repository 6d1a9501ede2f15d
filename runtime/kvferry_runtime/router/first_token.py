"""Prefill's answer: the first token, and what only prefill knows of the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvferry_runtime.router.choice import AnswerError, Json, only_choice, tokens, whole_text
from kvferry_runtime.router.openai import Api

_INCOMPLETE = "\ufffd"


@dataclass(frozen=True, slots=True)
class FirstToken:
    """token_id: None where the engine does not number its tokens. usage: prefill's own, as it came."""

    token_id: int | None
    text: str
    finish_reason: str | None
    logprobs: Any
    usage: Json | None

    def may_lead(self, stops: tuple[str, ...]) -> bool:
        """Whether the text can be shown before decode has spoken.

        Not where decode could still change it: half of a character, the beginning of a stop string, the end of the
        answer, or an engine whose tokens cannot be told apart.
        """
        if self.token_id is None or not self.text or self.text.endswith(_INCOMPLETE) or self.finish_reason == "stop":
            return False
        return not any(_overlaps(self.text, stop) for stop in stops)


def read_first_token(api: Api, body: Json) -> FirstToken:
    """Read prefill's body.

    Raises:
        AnswerError: no choice, or tokens that are none.
    """
    choice = only_choice(body)
    if choice is None:
        raise AnswerError("prefill answered without a choice")
    found = tokens(choice)
    usage = body.get("usage")
    reason = choice.get("finish_reason")
    return FirstToken(
        token_id=found.ids[0] if found.ids and found.index == 0 else None,
        text=whole_text(api, choice),
        finish_reason=reason if isinstance(reason, str) else None,
        logprobs=choice.get("logprobs"),
        usage=usage if isinstance(usage, dict) else None,
    )


def _overlaps(text: str, stop: str) -> bool:
    """Whether `stop` occurs in `text` or may have begun at its end."""
    return stop in text or any(text.endswith(stop[:length]) for length in range(1, len(stop)))
