"""What tokens are worth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kv_rows import FLOAT_DTYPES, Elements, outlier_rows, rows_of
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.codec.sparse.host_scores import from_keys
from kvferry_runtime.codec.sparse.reference import key_scores
from kvferry_runtime.codec.sparse.scores import from_attention
from kvferry_runtime.codec.sparse.selection import select
from kvferry_runtime.codec.torch_rows import float_tensor
from kvferry_runtime.errors import CodecRefused
from kvferry_runtime.layout import KvDtype, LayerShape

TOLERANCE = 2e-6


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


def both(rows: Elements, heads: int, dtype: KvDtype) -> tuple[np.ndarray, np.ndarray]:
    """Ours and the oracle's."""
    head_dim = rows.shape[1]
    expected = key_scores(float_tensor(rows.copy(), dtype).reshape(-1, heads, head_dim)).numpy()
    return from_keys([rows], LayerShape(2, heads, head_dim, dtype)), expected


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 1), (3, 64), (8, 128), (2, 33)])
def test_the_scores_are_those_of_the_oracle(dtype: KvDtype, heads: int, head_dim: int) -> None:
    """But for the last bits of fp32: so are the tokens that are kept, but for those whose scores are as close."""
    rows = outlier_rows(500 * heads, head_dim, dtype, seed=7)
    rows[: 3 * heads] = 0
    ours, expected = both(rows, heads, dtype)
    assert np.abs(ours - expected).max() < TOLERANCE
    kept, others = select(ours, 250, 16, 64), select(expected, 250, 16, 64)
    bound = np.sort(expected[16:-64])[-(250 - 80)]
    assert (np.abs(expected[kept != others] - bound) < TOLERANCE).all()


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_the_bits_are(data: st.DataObject) -> None:
    """Cases 27 and 28: NaN, infinities, subnormals and the largest values beside each other, in one row or alone."""
    dtype = data.draw(st.sampled_from(FLOAT_DTYPES))
    heads, tokens, head_dim = (data.draw(st.integers(1, most)) for most in (3, 12, 20))
    bits = st.integers(0, 2 ** (8 * dtype.itemsize) - 1)
    rows = data.draw(arrays(element_dtype(dtype), (tokens * heads, head_dim), elements=bits))
    ours, expected = both(rows, heads, dtype)
    # opposite keys leave a mean of nothing but rounding, whose direction says nothing
    assert np.isfinite(ours).all()
    assert (np.abs(ours) <= 1 + TOLERANCE).all()
    if tokens == 1:
        assert np.abs(ours - expected).max() < TOLERANCE


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
