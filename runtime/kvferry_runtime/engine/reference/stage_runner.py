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
  promises it, so `runner.check_rows` tests it bit for bit on the loaded model at start; where it fails (and for
  mixtures of experts, which regroup rows) passes have one row.
* Sampling looks at one row and at (seed, index of the token) (`sampling`). Threads and device are fixed
  (`model.make_deterministic`) and part of the fingerprint, so P and D agree on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kvferry_runtime.engine.reference import passes
from kvferry_runtime.engine.reference.attention import DecodePass, PrefillPass
from kvferry_runtime.engine.reference.chunks import Span
from kvferry_runtime.engine.reference.kv import RequestKv
from kvferry_runtime.engine.reference.model import Model
from kvferry_runtime.engine.reference.observation import AttentionMass
from kvferry_runtime.engine.reference.passes import Logits

LayerFinal = Callable[[int, int, int], None]
"""Called with (layer, start, stop) as soon as that layer's KV of these tokens is final."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request's next step: its token stands at `position`; of all before it, `kv` holds `cached` tokens."""

    kv: RequestKv
    position: int
    cached: int


class StageRunner:
    """Passes over the layers that are here. rows: of each decode pass.

    Inputs are token ids at the first stage and hidden states at every other one; what comes out is hidden states, or
    logits at the last stage.
    """

    def __init__(self, model: Model, rows: int) -> None:
        self.model = model
        self.rows = rows

    def prefill(
        self, kv: RequestKv, inputs: torch.Tensor, span: Span, layer_final: LayerFinal, observed: AttentionMass | None
    ) -> torch.Tensor | Logits:
        """One chunk of one prompt, with inputs [1, tokens] or [1, tokens, hidden].

        Returns hidden states [1, tokens, hidden], or at the last stage, where the prompt is complete, logits
        [1, vocabulary].
        """
        start, stop = span.start, span.stop
        running = PrefillPass(kv, start, stop, lambda layer: layer_final(layer, start, stop), observed)
        compute = passes.logits if self.model.last and span.complete else passes.hidden_states
        return compute(self.model, inputs, [range(start, stop)], running)

    def decode(self, steps: Sequence[Step], inputs: torch.Tensor) -> torch.Tensor | Logits:
        """One step of at most `rows` requests, with inputs [rows, 1] or [rows, 1, hidden]; the rest of them is padding.

        Returns hidden states [rows, 1, hidden], or at the last stage logits [rows, vocabulary].
        """
        running = DecodePass([step.kv for step in steps], [step.cached for step in steps])
        positions = [[step.position] for step in steps] + [[0]] * (len(inputs) - len(steps))
        compute = passes.logits if self.model.last else passes.hidden_states
        return compute(self.model, inputs, positions, running)

    def padded(self, tokens: Sequence[int]) -> torch.Tensor:
        """Inputs [rows, 1] of a decode pass of the first stage."""
        return torch.tensor([[token] for token in tokens] + [[0]] * (self.rows - len(tokens)))
