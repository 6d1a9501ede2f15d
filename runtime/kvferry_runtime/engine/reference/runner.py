"""Passes of a whole model, and the test whether its rows are independent: see `stage_runner` for why they must be."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvferry_runtime.engine.reference.chunks import Span, next_span
from kvferry_runtime.engine.reference.kv import RequestKv, blocks_for
from kvferry_runtime.engine.reference.model import Model
from kvferry_runtime.engine.reference.observation import AttentionMass
from kvferry_runtime.engine.reference.passes import Logits
from kvferry_runtime.engine.reference.stage_runner import LayerFinal, StageRunner, Step

_PROBE_TOKENS = 24

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """As `Step`, with the token."""

    kv: RequestKv
    token: int
    position: int
    cached: int


class Runner:
    """Passes of a whole model. rows: of each decode pass."""

    def __init__(self, model: Model, rows: int) -> None:
        self.model = model
        self.rows = rows
        self._stage = StageRunner(model, rows)

    def prefill(
        self,
        kv: RequestKv,
        prompt: Sequence[int],
        start: int,
        layer_final: LayerFinal,
        observed: AttentionMass | None = None,
    ) -> tuple[int, Logits | None]:
        """Compute the chunk of `prompt` that begins at `start`.

        Args:
            observed: takes note of what the prompt's last queries look at.

        Returns:
            Where the next chunk begins, and the logits after the last token once the prompt is complete.
        """
        span = next_span(start, len(prompt))
        found = self._stage.prefill(kv, torch.tensor([prompt[start : span.stop]]), span, layer_final, observed)
        return span.stop, None if isinstance(found, torch.Tensor) else found[0]

    def decode(self, batch: Sequence[DecodeRow]) -> list[Logits]:
        """One step of every request of `batch`, in as many passes as needed; logits in the same order."""
        logits: list[Logits] = []
        for first in range(0, len(batch), self.rows):
            part = batch[first : first + self.rows]
            steps = [Step(row.kv, row.position, row.cached) for row in part]
            logits.extend(self._stage.decode(steps, self._stage.padded([row.token for row in part]))[: len(part)])
        return logits


def build(model: Model, rows: int) -> Runner:
    """A runner with `rows` rows where the model's rows are independent, else with one."""
    return Runner(model, independent_rows(model, rows))


def independent_rows(model: Model, rows: int) -> int:
    """How many rows decode passes have: `rows` where the model's rows are independent, else one."""
    if rows > 1 and (model.mixture_of_experts or not check_rows(model, rows)):
        _log.warning("rows of a batch influence each other here: every request is decoded in a pass of its own")
        return 1
    return rows


def check_rows(model: Model, rows: int) -> bool:
    """Whether a request's results are bit for bit the same in each row, whatever the other rows hold."""
    runner = StageRunner(model, rows)
    probes = _probes(model, rows)
    steps = []
    for probe in probes:
        kv = RequestKv(model.layout, blocks_for(_PROBE_TOKENS + 1), model.dtype, model.device)
        runner.prefill(kv, probe[None], Span(0, _PROBE_TOKENS, complete=False), _ignore, None)
        steps.append(Step(kv, _PROBE_TOKENS, _PROBE_TOKENS))
    last = probes[:, -1:]
    padding = torch.zeros_like(last[:-1])
    alone = [
        _values(runner.decode([step], torch.cat([own[None], padding])))[0]
        for step, own in zip(steps, last, strict=True)
    ]
    together = _values(runner.decode(steps, last))
    turned = _values(runner.decode(steps[::-1], last.flip(0)))[::-1]
    return all(
        np.array_equal(first, other, equal_nan=True)
        for first, *others in zip(alone, together, turned, strict=True)
        for other in others
    )


def _probes(model: Model, rows: int) -> torch.Tensor:
    """Inputs [rows, tokens] or [rows, tokens, hidden], of the size that hidden states usually have."""
    generator = np.random.default_rng(0)
    if model.first:
        return torch.from_numpy(generator.integers(0, model.vocabulary, size=(rows, _PROBE_TOKENS)))
    shape = (rows, _PROBE_TOKENS, model.hidden_size)
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).to(model.dtype)


def _values(found: torch.Tensor | Logits) -> Logits:
    return found.float().cpu().numpy() if isinstance(found, torch.Tensor) else found


def _ignore(layer: int, start: int, stop: int) -> None:
    """Nobody waits for the KV of a probe."""
