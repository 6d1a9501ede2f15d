"""Forward passes whose result for one request depends on that request alone.

An answer must not depend on which requests shared its batch, nor on whether its prompt was computed here or its KV
came from another pod; else "token for token equal" would mean nothing. It is ensured so:

* Prefill computes one request at a time, in chunks that begin at multiples of `PREFILL_CHUNK` from position 0. The
  shapes of all its operations follow from the prompt's length, in every role.
* Decode always computes the same number of rows. Fewer requests leave padding rows, more take several passes: no
  operation ever has another shape because of the neighbours, so no library picks another kernel or order of sums.
* Attention is computed for each request alone, over its own cache (`attention`).
* Rows of one pass must not depend on their place in it or on their neighbours. Elementwise kernels treat the elements
  left over after the last whole vector in another way (seen: silu in fp32), so passes have one row or a multiple of 8,
  and nothing is left over. Matrix products of the usual libraries keep rows apart at a fixed shape, but nobody
  promises it, so `check_rows` tests it bit for bit on the loaded model at start; where it fails (and for mixtures of
  experts, which regroup rows) passes have one row.
* Sampling looks at one row and at (seed, index of the token) (`sampling`). Threads and device are fixed
  (`model.make_deterministic`) and part of the fingerprint, so P and D agree on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvferry_runtime.engine.reference import attention
from kvferry_runtime.engine.reference.attention import DecodePass, Pass, PrefillPass
from kvferry_runtime.engine.reference.kv import RequestKv, blocks_for
from kvferry_runtime.engine.reference.model import Model
from kvferry_runtime.engine.reference.observation import AttentionMass

PREFILL_CHUNK = 512
"""Tokens of one prefill pass: long enough for matrix products at full speed, short enough that decode steps of other
requests come between. Part of the definition of an answer's bits: never a setting."""

_PROBE_TOKENS = 24

_log = logging.getLogger(__name__)

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One request's next step: `token` stands at `position`; of all before it, `kv` holds `cached` tokens."""

    kv: RequestKv
    token: int
    position: int
    cached: int


class Runner:
    """rows: of each decode pass."""

    def __init__(self, model: Model, rows: int) -> None:
        self.model = model
        self.rows = rows

    def prefill(
        self,
        kv: RequestKv,
        prompt: Sequence[int],
        start: int,
        layer_final: Callable[[int, int, int], None],
        observed: AttentionMass | None = None,
    ) -> tuple[int, Logits | None]:
        """Compute the chunk of `prompt` that begins at `start`.

        Args:
            layer_final: called with (layer, start, stop) as soon as that layer's KV of the chunk is final.
            observed: takes note of what the prompt's last queries look at.

        Returns:
            Where the next chunk begins, and the logits after the last token once the prompt is complete.
        """
        stop = min(start + PREFILL_CHUNK, len(prompt))
        running = PrefillPass(kv, start, stop, lambda layer: layer_final(layer, start, stop), observed)
        logits = self._forward([prompt[start:stop]], [range(start, stop)], running)
        return stop, logits[0] if stop == len(prompt) else None

    def decode(self, batch: Sequence[DecodeRow]) -> list[Logits]:
        """One step of every request of `batch`, in as many passes as needed; logits in the same order."""
        logits: list[Logits] = []
        for first in range(0, len(batch), self.rows):
            part = batch[first : first + self.rows]
            padding = self.rows - len(part)
            running = DecodePass([row.kv for row in part], [row.cached for row in part])
            tokens = [[row.token] for row in part] + [[0]] * padding
            positions = [[row.position] for row in part] + [[0]] * padding
            logits.extend(self._forward(tokens, positions, running)[: len(part)])
        return logits

    def _forward(self, tokens: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], running: Pass) -> Logits:
        """Logits [rows, vocabulary] of the last position of each row."""
        device = self.model.device
        with torch.inference_mode():
            output = self.model.module(
                input_ids=torch.tensor(tokens, device=device),
                position_ids=torch.tensor([list(row) for row in positions], device=device),
                use_cache=False,
                logits_to_keep=1,
                **{attention.ARGUMENT: running},
            )
            found: Logits = output.logits[:, -1].float().cpu().numpy()
        return found


def build(model: Model, rows: int) -> Runner:
    """A runner with `rows` rows where the model's rows are independent, else with one."""
    if rows > 1 and (model.mixture_of_experts or not check_rows(model, rows)):
        _log.warning("rows of a batch influence each other here: every request is decoded in a pass of its own")
        rows = 1
    return Runner(model, rows)


def check_rows(model: Model, rows: int) -> bool:
    """Whether a request's logits are bit for bit the same in each row, whatever the other rows hold."""
    runner = Runner(model, rows)
    generator = np.random.default_rng(0)
    prompts = generator.integers(0, model.vocabulary, size=(rows, _PROBE_TOKENS)).tolist()
    caches = [RequestKv(model.layout, blocks_for(_PROBE_TOKENS + 1), model.dtype, model.device) for _ in range(rows)]
    for kv, prompt in zip(caches, prompts, strict=True):
        runner.prefill(kv, prompt, 0, _ignore)
    step = [DecodeRow(kv, prompt[-1], _PROBE_TOKENS, _PROBE_TOKENS) for kv, prompt in zip(caches, prompts, strict=True)]
    alone = [runner.decode([row])[0] for row in step]
    together = runner.decode(step)
    turned = runner.decode(step[::-1])[::-1]
    return all(
        np.array_equal(first, other, equal_nan=True)
        for first, *others in zip(alone, together, turned, strict=True)
        for other in others
    )


def _ignore(layer: int, start: int, stop: int) -> None:
    """Nobody waits for the KV of a probe."""
