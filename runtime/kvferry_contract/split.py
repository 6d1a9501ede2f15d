"""Which layers a pipeline stage holds, and which stages of two roles share layers. Pure; used by operator and runtime.

Both roles know both splits from their configuration, so prefill and decode agree without asking each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class SplitError(ValueError):
    """A model cannot be split so."""


@dataclass(frozen=True, slots=True)
class Split:
    """How one role is split. stages: at least 1. layers: how many each stage holds, empty to spread them evenly."""

    stages: int
    layers: tuple[int, ...] = ()

    def ranges(self, total_layers: int) -> tuple[range, ...]:
        """Global numbers of the layers of each stage: contiguous, in order, each layer exactly once.

        Spread evenly, the first stages hold one layer more where there is a remainder: the last stage computes the
        logits as well, which costs as much as some layers, and the first one's embedding costs nothing.

        Raises:
            SplitError: more stages than layers, or numbers of layers that do not fit the model or the stages.
        """
        return tuple(range(start, start + count) for start, count in _starts(self._counts(total_layers)))

    def _counts(self, total_layers: int) -> tuple[int, ...]:
        if self.stages < 1 or self.stages > total_layers:
            raise SplitError(
                f"{self.stages} pipeline stages for a model of {total_layers} layers: "
                f"each stage needs a layer, so choose 1 to {total_layers} stages"
            )
        if not self.layers:
            each, remainder = divmod(total_layers, self.stages)
            return tuple(each + (stage < remainder) for stage in range(self.stages))
        if len(self.layers) != self.stages or min(self.layers) < 1 or sum(self.layers) != total_layers:
            raise SplitError(
                f"layers {list(self.layers)} name {len(self.layers)} stages with {sum(self.layers)} layers in all: "
                f"the role has {self.stages} stages and the model {total_layers} layers, of which each stage needs one"
            )
        return self.layers


WHOLE = Split(1)
"""Not split."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Layers (global numbers) that our stage has in common with stage `peer` of the other role."""

    peer: int
    layers: range


def shared_layers(ours: range, theirs: Sequence[range]) -> tuple[Shared, ...]:
    """With which stages of the other role a stage exchanges KV, and of which layers; by stage, without empty ones."""
    common = (
        Shared(peer, range(max(ours.start, other.start), min(ours.stop, other.stop)))
        for peer, other in enumerate(theirs)
    )
    return tuple(each for each in common if each.layers)


def _starts(counts: Sequence[int]) -> list[tuple[int, int]]:
    starts, start = [], 0
    for count in counts:
        starts.append((start, count))
        start += count
    return starts
