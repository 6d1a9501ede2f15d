"""Between text and tokens: prompts in, completions out piece by piece, stop strings.

Tokenizers are not safe to share between threads, so the side that encodes (HTTP) and the side that decodes (the
engine's thread) each have their own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvferry_runtime.errors import SettingsError

_CONTEXT_TOKENS = 6
"""Tokens of the prompt's end that the first generated token is decoded with: some tokenizers drop a leading space."""
_INCOMPLETE = "\ufffd"


class PromptError(ValueError):
    """The client's messages cannot be made into a prompt."""


class Tokenizer:
    """Of one thread."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Raises SettingsError: the folder's tokenizer cannot be read."""
        import transformers

        try:
            return cls(transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True))
        except (OSError, ValueError, KeyError) as error:
            raise SettingsError(f"{folder}: the tokenizer cannot be read: {error}") from error

    def copy(self) -> Tokenizer:
        """For another thread."""
        return Tokenizer(copy.deepcopy(self._inner))

    def encode(self, text: str) -> list[int]:
        """A plain prompt, with the special tokens that the model wants around it."""
        return list(self._inner.encode(text))

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Messages by the model's template, ready for the assistant's turn.

        Raises:
            PromptError: the model has no template, or it refuses these messages.
        """
        import jinja2

        if not self._inner.chat_template:
            raise PromptError("this model has no chat template: use /v1/completions")
        try:
            text = self._inner.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise PromptError(f"the model's chat template refuses these messages: {error}") from error
        return list(self._inner.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of these tokens without special ones."""
        text: str = self._inner.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


class TextStream:
    """The text of one completion, as its tokens come. Used by the engine's thread alone."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = StopStrings(stops)
        self._tokens = list(prompt[-_CONTEXT_TOKENS:])
        self._shown = 0
        self._read = len(self._tokens)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._stops.found

    def push(self, token: int) -> str:
        """The text that is certain with this token."""
        self._tokens.append(token)
        return self._stops.push(self._complete(final=False))

    def finish(self) -> str:
        """The rest: what was held back because it might have become something else."""
        return self._stops.push(self._complete(final=True)) + self._stops.finish()

    def _complete(self, *, final: bool) -> str:
        """New text since the last call, up to the last whole character.

        Decoding starts a few tokens early, at `_shown`: how a token reads depends on the one before it.
        """
        before = self._tokenizer.decode(self._tokens[self._shown : self._read])
        after = self._tokenizer.decode(self._tokens[self._shown :])
        if len(after) <= len(before) or (after.endswith(_INCOMPLETE) and not final):
            return ""
        self._shown, self._read = self._read, len(self._tokens)
        return after[len(before) :]


class StopStrings:
    """Finds stop strings in text that comes in pieces; nothing of a stop string is ever let through."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """What can be shown now; after a stop string, nothing any more."""
        if self.found:
            return ""
        self._held += text
        starts = [start for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if starts:
            self.found = True
            shown, self._held = self._held[: min(starts)], ""
            return shown
        kept = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - kept
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """What was held back and did not become a stop string."""
        rest, self._held = self._held, ""
        return rest

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that `stop` could begin with."""
        longest = min(len(stop) - 1, len(self._held))
        return next((size for size in range(longest, 0, -1) if self._held.endswith(stop[:size])), 0)
