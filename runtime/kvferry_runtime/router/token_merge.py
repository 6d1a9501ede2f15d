"""One completion out of two token streams: each token once, in order, whichever engine is first.

Tokens are matched by index. Texts are matched too, since engines may hand out the text of one token with the next
(half characters, possible stop strings): what was shown of prefill's first token is taken off decode's text as it
comes, and any difference is an error, never delivered.
"""

from __future__ import annotations

from kvferry_runtime.router.choice import (
    AnswerError,
    Json,
    TokenMismatch,
    Tokens,
    chunk_text,
    logprobs_without,
    says_something,
    set_chunk_text,
    set_role,
    take_role,
    tokens,
)
from kvferry_runtime.router.first_token import FirstToken
from kvferry_runtime.router.openai import Api


class TokenMerge:
    """State of one completion. Choices go in as the engines sent them, and come out as the client gets them."""

    def __init__(self, api: Api, stops: tuple[str, ...]) -> None:
        self._api = api
        self._stops = stops
        self._first: FirstToken | None = None
        self._decode_first: int | None = None
        self._decode_next: int | None = None
        self._ahead = ""
        self._role_sent = False
        self._delivered = 0
        self._all_counted = True

    @property
    def delivered(self) -> int | None:
        """Tokens that the client was given; None where the engine does not say."""
        return self._delivered if self._all_counted else None

    @property
    def decode_spoke(self) -> bool:
        """Whether decode has generated something: from then on it does not need prefill any more."""
        return self._decode_next is not None or not self._all_counted

    def needs_first(self, choice: Json) -> bool:
        """Whether prefill's token must be known before this choice of decode's: decode begins with the second."""
        return self._first is None and self._decode_next is None and (tokens(choice).index or 0) > 0

    def offer_first(self, first: FirstToken) -> list[Json]:
        """Take prefill's answer, before the end of decode's; what can be shown of it now.

        Raises:
            TokenMismatch: decode has shown another first token.
        """
        self._first = first
        self._compare()
        return [self._show_first(first)] if not self.decode_spoke and first.may_lead(self._stops) else []

    def check_first(self, first: FirstToken) -> None:
        """Compare prefill's answer after the end of decode's.

        Raises:
            TokenMismatch: decode has shown another first token.
        """
        self._first = first
        self._compare()

    def take(self, choice: Json) -> list[Json]:
        """Take decode's next choice; what the client gets for it.

        Raises:
            TokenMismatch: it differs from what was shown of prefill's first token.
            AnswerError: a token is missing or comes twice.
        """
        found = tokens(choice)
        if self._api is Api.CHAT:
            take_role(choice)
        if found.index is None:
            return self._take_unnumbered(choice, found)
        if not found.ids:
            return self._pass_on(choice)
        led = self._lead_in(found)
        drop = min(self._delivered - found.index, len(found.ids))
        self._decode_next = found.index + len(found.ids)
        self._delivered = max(self._delivered, self._decode_next)
        if drop:
            choice["token_ids"] = list(found.ids[drop:])
            choice["token_index"] = found.index + drop
            choice["logprobs"] = logprobs_without(choice.get("logprobs"), drop)
        self._trim(choice)
        if drop == len(found.ids) and not says_something(self._api, choice):
            return led
        return [*led, self._with_role(choice)]

    def _lead_in(self, found: Tokens) -> list[Json]:
        """Check that decode's tokens follow; show prefill's where decode begins with the second."""
        index = found.index
        if self._decode_next is None:
            if index == 0:
                self._decode_first = found.ids[0]
                self._compare()
                return []
            if index == 1 and self._first is not None and self._first.token_id is not None:
                return [self._show_first(self._first, repeated=False)] if self._delivered == 0 else self._not_repeated()
        if index != self._decode_next:
            expected = "0" if self._decode_next is None else str(self._decode_next)
            raise AnswerError(f"decode sent token {index} where {expected} was expected")
        return []

    def _take_unnumbered(self, choice: Json, found: Tokens) -> list[Json]:
        if found.ids or (chunk_text(self._api, choice) and self._decode_next is None):
            self._all_counted = False
        elif not says_something(self._api, choice):
            return []
        return self._pass_on(choice)

    def _pass_on(self, choice: Json) -> list[Json]:
        self._trim(choice)
        return [self._with_role(choice)] if says_something(self._api, choice) else []

    def _show_first(self, first: FirstToken, *, repeated: bool = True) -> Json:
        """Prefill's token as a streamed choice. repeated: decode will say it again."""
        choice: Json = {"index": 0, "finish_reason": None, "token_ids": [first.token_id], "token_index": 0}
        if first.logprobs is not None:
            choice["logprobs"] = first.logprobs
        set_chunk_text(self._api, choice, first.text)
        self._delivered = 1
        if repeated:
            self._ahead = first.text
        return self._with_role(choice)

    def _not_repeated(self) -> list[Json]:
        self._ahead = ""
        return []

    def _compare(self) -> None:
        if self._first is None or self._first.token_id is None or self._decode_first is None:
            return
        if self._first.token_id != self._decode_first:
            raise TokenMismatch("prefill and decode generated different first tokens")

    def _trim(self, choice: Json) -> None:
        """Take what the client has already seen off the beginning of decode's text."""
        text = chunk_text(self._api, choice)
        if not self._ahead or not text:
            return
        if text.startswith(self._ahead):
            text, self._ahead = text[len(self._ahead) :], ""
        elif self._ahead.startswith(text):
            text, self._ahead = "", self._ahead[len(text) :]
        else:
            raise TokenMismatch("decode's text does not begin with the text of prefill's token")
        set_chunk_text(self._api, choice, text)

    def _with_role(self, choice: Json) -> Json:
        if self._api is Api.CHAT and not self._role_sent:
            self._role_sent = True
            set_role(choice)
        return choice
