"""Where the kept tokens of one load lie, and whether all of them came. Pure.

Decode's memory holds the kept tokens alone, one behind the other: the token of rank r within a chunk lies at the
chunk's `before` + r. Each chunk says its `before`, so that chunks may come in any order, but none of it is believed
before the end: then the chunks of each layer must follow each other without a gap and give the number that both sides
computed from the prompt's length.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_runtime.errors import CorruptPayload


@dataclass(frozen=True, slots=True)
class Placed:
    """One chunk's share of one layer. The token range is half-open."""

    token_start: int
    token_stop: int
    before: int
    count: int


class Placement:
    """tokens: of the whole prompt. kept: of each layer. layers: those held here, by global number."""

    def __init__(self, tokens: int, kept: int, layers: range) -> None:
        self.tokens = tokens
        self.kept = kept
        self._placed: dict[int, dict[int, Placed]] = {layer: {} for layer in layers}

    def admit(self, layer: int, part: Placed) -> None:
        """Note that this share is about to be written; the same one again (a resent chunk) takes its place.

        Raises:
            CorruptPayload: it would lie outside of the kept tokens, or can only be wrong; it must not be written.
        """
        behind = self.kept - part.before - part.count
        if part.before > part.token_start or not 0 <= behind <= self.tokens - part.token_stop:
            raise CorruptPayload(
                f"layer {layer}, tokens {part.token_start} to {part.token_stop} of {self.tokens}: {part.before} kept "
                f"before and {part.count} within do not fit to {self.kept} in all"
            )
        self._placed[layer][part.token_start] = part

    def check(self) -> None:
        """Raises CorruptPayload: in some layer the shares do not follow each other, or are not all tokens."""
        for layer, shares in self._placed.items():
            position = count = 0
            for share in sorted(shares.values(), key=lambda share: share.token_start):
                if share.token_start != position or share.before != count:
                    raise CorruptPayload(
                        f"layer {layer}: tokens from {share.token_start} on follow {share.before} kept ones, "
                        f"up to {position} there were {count}"
                    )
                position, count = share.token_stop, count + share.count
            if (position, count) != (self.tokens, self.kept):
                raise CorruptPayload(
                    f"layer {layer}: {count} kept of {position} tokens, expected were {self.kept} of {self.tokens}"
                )
