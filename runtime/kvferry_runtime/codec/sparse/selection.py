"""Which tokens of a layer are kept, from their scores. Pure and deterministic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]
"""[tokens] of one layer: the higher, the more a token matters."""

Mask = npt.NDArray[np.bool_]
"""[tokens] of one layer: True for those that are kept."""


def select(scores: Scores, keep: int, first: int, last: int) -> Mask:
    """Keep the `first` and the `last` tokens and of the others the best, `keep` in all.

    Ties go to the earlier token, and a score that is no number counts least. Fewer tokens than `keep` are kept whole.
    Where `keep` is less than the protected tokens, exactly those are kept.
    """
    tokens = len(scores)
    mask = np.zeros(tokens, np.bool_)
    mask[:first] = True
    mask[max(0, tokens - last) :] = True
    open_places = min(keep, tokens) - int(mask.sum())
    if open_places > 0:
        candidates = np.flatnonzero(~mask)
        # a stable sort of the negated scores: NaN goes last, equal scores stay in the order of their positions
        best = np.argsort(-scores[candidates], kind="stable")[:open_places]
        mask[candidates[best]] = True
    return mask
