"""One forward pass over the layers that are here: tokens or hidden states in, hidden states or logits out.

Where a model is cut into pipeline stages, each stage computes its part with the very shapes that the whole model would
use, so the answer's bits do not depend on how it is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kvferry_runtime.engine.reference import attention
from kvferry_runtime.engine.reference.attention import Pass
from kvferry_runtime.engine.reference.model import Model

Logits = npt.NDArray[np.float32]


def hidden_states(
    model: Model, inputs: torch.Tensor, positions: Sequence[Sequence[int]], running: Pass
) -> torch.Tensor:
    """What the layers that are here make of `inputs`, [rows, tokens, hidden].

    inputs: token ids [rows, tokens] at the first stage, hidden states [rows, tokens, hidden] at every other one.
    positions: [rows, tokens].
    """
    with torch.inference_mode():
        states: torch.Tensor = model.module.base_model(
            **_arguments(model, inputs, positions, running)
        ).last_hidden_state
    return states


def logits(model: Model, inputs: torch.Tensor, positions: Sequence[Sequence[int]], running: Pass) -> Logits:
    """Logits [rows, vocabulary] after the last token of each row, where the head is. Arguments as above."""
    with torch.inference_mode():
        output = model.module(logits_to_keep=1, **_arguments(model, inputs, positions, running))
        found: Logits = output.logits[:, -1].float().cpu().numpy()
    return found


def _arguments(
    model: Model, inputs: torch.Tensor, positions: Sequence[Sequence[int]], running: Pass
) -> dict[str, object]:
    return {
        "input_ids" if model.first else "inputs_embeds": inputs.to(model.device),
        "position_ids": torch.tensor([list(row) for row in positions], device=model.device),
        "use_cache": False,
        attention.ARGUMENT: running,
    }
