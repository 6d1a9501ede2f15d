"""What tokens are worth."""

import numpy as np
import pytest

from kv_rows import FLOAT_DTYPES, rows_of
from kvferry_runtime.codec.sparse.scores import from_attention, from_keys
from kvferry_runtime.errors import CodecRefused
from kvferry_runtime.layout import KvDtype, LayerShape


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_a_key_that_points_elsewhere_is_worth_most(dtype: KvDtype) -> None:
    generator = np.random.default_rng(3)
    keys = np.ones((50, 2, 16)) + 0.01 * generator.standard_normal((50, 2, 16))
    keys[17] *= -1
    keys[23, 1] *= -1
    scores = from_keys([rows_of(keys.reshape(100, 16), dtype)], LayerShape(2, 2, 16, dtype))
    assert scores.shape == (50,)
    assert np.argsort(-scores)[:2].tolist() == [17, 23]


def test_keys_in_blocks_are_worth_what_they_are_worth_in_one_piece() -> None:
    keys = rows_of(np.random.default_rng(4).standard_normal((96, 16)), KvDtype.BF16)
    shape = LayerShape(2, 2, 16, KvDtype.BF16)
    assert np.array_equal(from_keys([keys[:32], keys[32:40], keys[40:]], shape), from_keys([keys], shape))


@pytest.mark.parametrize("strange", [0.0, np.nan, np.inf, 3e38, 1e-40])
def test_strange_keys_spoil_nobody_elses_score(strange: float) -> None:
    keys = np.random.default_rng(5).standard_normal((40, 16)) + 1
    keys[7] = strange
    scores = from_keys([rows_of(keys, KvDtype.BF16)], LayerShape(2, 1, 16, KvDtype.BF16))
    assert np.isfinite(scores).all()
    assert len(set(scores.tolist())) > 30


def test_opaque_bytes_cannot_be_scored() -> None:
    """Case 29: a layer of packed rows is refused by name."""
    with pytest.raises(CodecRefused, match="uint8"):
        from_keys([np.zeros((4, 8), np.uint8)], LayerShape(2, 1, 8, KvDtype.UINT8))


def test_attention_of_every_head_counts_alike_and_neighbours_share_it() -> None:
    mass = np.zeros((2, 30), np.float32)
    mass[0, 10] = 40
    mass[1, 20] = 20
    scores = from_attention(mass)
    assert np.allclose(scores[8:13], 4)
    assert np.allclose(scores[18:23], 2)
    assert not scores[:8].any()
    assert not scores[23:].any()
