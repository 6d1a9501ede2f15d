"""`lossless`: every bit comes back, host and reference write the same bytes, and no payload is misread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_rows import Elements, decoded, encoded, flat_shape, outlier_rows, round_trip
from kvferry_runtime.codec.base import Codec
from kvferry_runtime.codec.lossless.format import GROUP, Sections
from kvferry_runtime.codec.lossless.reference import ReferenceLossless
from kvferry_runtime.codec.registry import host_codecs
from kvferry_runtime.codec.rows import element_dtype
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import KvDtype, LayerShape

HOST, REFERENCE = host_codecs(["lossless"])["lossless"], ReferenceLossless()
BOTH = [pytest.param(HOST, id="host"), pytest.param(REFERENCE, id="reference")]
SPLIT = [KvDtype.BF16, KvDtype.FP32]
SPECIAL = (0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF, 0x7F7F)
"""bf16 words: both zeros, subnormals, infinities, NaN with several payloads, the largest number."""
SEEDS = st.integers(0, 2**32 - 1)


def words(count: int, head_dim: int, dtype: KvDtype, seed: int, strange: float) -> Elements:
    """Rows with close exponents, but for a share `strange` of special words and of any words."""
    generator = np.random.default_rng(seed)
    shape = (count, head_dim)
    found = generator.integers(0, 1 << 16, shape).astype(np.uint32) & 0x807F
    found |= generator.integers(113, 129, shape).astype(np.uint32) << 7
    found = np.where(generator.random(shape) < strange, generator.choice(SPECIAL, shape), found)
    found = np.where(generator.random(shape) < strange, generator.integers(0, 1 << 16, shape), found)
    if dtype is KvDtype.FP32:
        found = found << 16 | generator.integers(0, 1 << 16, shape)
    return found.astype(element_dtype(dtype))


def with_two_escapes(count: int, head_dim: int, dtype: KvDtype) -> Elements:
    """A zero in the first group, a subnormal in the last."""
    rows = words(count, head_dim, dtype, seed=3, strange=0)
    rows[0, 7], rows[-1, -1] = 0, 1
    return rows


@pytest.mark.parametrize("dtype", KvDtype)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 5), head_dim=st.integers(1, 300))
def test_any_bits_come_back_and_both_write_the_same(
    dtype: KvDtype, data: st.DataObject, count: int, head_dim: int
) -> None:
    size = count * head_dim * dtype.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    rows = np.frombuffer(raw, element_dtype(dtype)).reshape(count, head_dim)
    payload = encoded(HOST, [rows], dtype)
    assert payload == encoded(REFERENCE, [rows], dtype)
    assert len(payload) <= size
    for codec in (HOST, REFERENCE):
        assert decoded(codec, payload, count, head_dim, dtype).tobytes() == raw


@pytest.mark.parametrize("dtype", SPLIT)
@settings(max_examples=80, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 40), head_dim=st.integers(1, 140), strange=st.sampled_from([0, 0.001, 0.05, 1]))
def test_rows_with_escapes(dtype: KvDtype, seed: int, count: int, head_dim: int, strange: float) -> None:
    rows = words(count, head_dim, dtype, seed, strange)
    payload = encoded(HOST, [rows], dtype)
    assert payload == encoded(REFERENCE, [rows], dtype)
    for codec in (HOST, REFERENCE):
        assert (decoded(codec, payload, count, head_dim, dtype) == rows).all()


@pytest.mark.parametrize("head_dim", [1, 64, 256])
def test_every_bf16_pattern(head_dim: int) -> None:
    """NaN payloads among them, each next to others that fit in its window."""
    patterns = np.arange(65536, dtype=np.uint16).reshape(-1, head_dim)
    payload = encoded(HOST, [patterns], KvDtype.BF16)
    assert len(payload) < patterns.nbytes
    assert payload == encoded(REFERENCE, [patterns], KvDtype.BF16)
    assert (decoded(HOST, payload, *patterns.shape, KvDtype.BF16) == patterns).all()


@pytest.mark.parametrize("dtype", SPLIT)
def test_millions_of_values(dtype: KvDtype) -> None:
    for seed, strange in enumerate((0.0, 0.002, 0.1, 1.0)):
        rows = words(1 << 13, 128, dtype, seed, strange)
        assert (round_trip(HOST, rows, dtype) == rows).all()


def test_size() -> None:
    """At least 1.3 times smaller for what looks like KV; never larger than raw; exact widths never matter."""
    for head_dim in (1, 63, 64, 80, 128, 576):
        rows = outlier_rows(2 * GROUP, head_dim, KvDtype.BF16)
        assert len(encoded(HOST, [rows], KvDtype.BF16)) <= rows.nbytes / 1.3
    full = words(1000, 128, KvDtype.BF16, 0, strange=0)
    assert len(encoded(HOST, [full], KvDtype.BF16)) == full.size * 3 // 2 + 2 * full.size // GROUP
    single = words(1000, 128, KvDtype.FP32, 0, strange=0)
    assert len(encoded(HOST, [single], KvDtype.FP32)) == single.size * 7 // 2 + 2 * single.size // GROUP
    zeros = np.zeros((GROUP, 64), np.uint16)
    assert len(encoded(HOST, [zeros], KvDtype.BF16)) < zeros.nbytes * 0.76


@pytest.mark.parametrize("codec", BOTH)
def test_what_does_not_shrink_is_raw(codec: Codec) -> None:
    """Case 29: caches of odd widths and packed bytes; and noise, and rows too few for their tables."""
    noise = np.random.default_rng(1)
    for dtype, shape in (
        (KvDtype.UINT8, (4 * 16, 132)), (KvDtype.UINT8, (4 * 16 * 2, 64 + 4)), (KvDtype.FP16, (64, 128)),
        (KvDtype.BF16, (64, 128)), (KvDtype.FP32, (64, 128)), (KvDtype.BF16, (1, 1)), (KvDtype.BF16, (1, 3)),
    ):  # fmt: skip
        rows = noise.integers(0, 2 ** (8 * dtype.itemsize), shape, np.uint64).astype(element_dtype(dtype))
        assert codec.supports(LayerShape(1, 1, shape[1], dtype)) is None
        payload = encoded(codec, [rows], dtype)
        assert payload == rows.tobytes()
        assert (decoded(codec, payload, *shape, dtype) == rows).all()


@pytest.mark.parametrize("dtype", SPLIT)
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 60), max_size=8), sinks=st.lists(st.integers(0, 60), max_size=8), seed=SEEDS)
def test_groups_may_cross_blocks(dtype: KvDtype, cuts: list[int], sinks: list[int], seed: int) -> None:
    rows = words(60, 33, dtype, seed, strange=0.01)
    blocks = [block.copy() for block in np.split(rows, sorted(cuts))]
    payload = encoded(HOST, blocks, dtype)
    assert payload == encoded(REFERENCE, [rows], dtype)
    pieces = [np.zeros_like(block) for block in np.split(rows, sorted(sinks))]
    HOST.decode(np.frombuffer(payload, np.uint8), flat_shape(60, 33, dtype), pieces)
    assert (np.concatenate(pieces) == rows).all()


def test_bf16_keeps_range_and_zeros() -> None:
    """Case 31."""
    rows = np.tile(np.array([[0x47C3, 0x7F62, 0x0DA2, 0x8000, 0x0001, 0x8001, 0x7FC1, 0xFF80]], np.uint16), (64, 16))
    assert (round_trip(HOST, rows, KvDtype.BF16) == rows).all()


def damaged(payload: bytes, dtype: KvDtype, count: int, head_dim: int) -> None:
    """Both implementations must agree on what it is, and write nothing beside the rows."""
    outcomes = []
    for codec in (HOST, REFERENCE):
        room = np.full((count + 2, head_dim), 0xA5, element_dtype(dtype))
        try:
            codec.decode(np.frombuffer(payload, np.uint8), flat_shape(count, head_dim, dtype), [room[1:-1]])
            outcomes.append(room.tobytes())
        except CorruptPayload:
            outcomes.append(b"")
        assert (room[[0, -1]] == 0xA5).all()
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize("dtype", SPLIT)
def test_payloads_of_any_other_length_are_refused(codec: Codec, dtype: KvDtype) -> None:
    rows = with_two_escapes(7, 50, dtype)
    good = encoded(codec, [rows], dtype)
    for length in range(rows.nbytes + 20):
        if length in (len(good), rows.nbytes):
            continue
        with pytest.raises(CorruptPayload, match=r"^lossless: "):
            decoded(codec, (good + bytes(rows.nbytes))[:length], 7, 50, dtype)


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize("dtype", [KvDtype.FP16, KvDtype.UINT8])
def test_what_is_always_raw_has_one_length(codec: Codec, dtype: KvDtype) -> None:
    for length in (0, 599, 601):
        with pytest.raises(CorruptPayload, match=f"not {length}$"):
            decoded(codec, bytes(length), 600 // dtype.itemsize // 10, 10, dtype)


@pytest.mark.parametrize("dtype", SPLIT)
def test_flipped_bits(dtype: KvDtype) -> None:
    """All those of bases, counts and escapes, and some of what cannot be wrong."""
    good = encoded(HOST, [with_two_escapes(6, 50, dtype)], dtype)
    tables = Sections.of(flat_shape(6, 50, dtype)).bases * 8
    for bit in (*range(0, tables, 31), *range(tables, len(good) * 8)):
        payload = bytearray(good)
        payload[bit // 8] ^= 1 << bit % 8
        damaged(bytes(payload), dtype, 6, 50)


@pytest.mark.parametrize("dtype", SPLIT)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_hostile_payloads(dtype: KvDtype, data: st.DataObject) -> None:
    """Any bytes of a length that is possible, and good tables with any escapes."""
    shape = flat_shape(9, 40, dtype)
    sections = Sections.of(shape)
    escapes = data.draw(st.integers(0, (shape.raw_bytes - sections.escapes) // 2))
    payload = bytearray(np.random.default_rng(data.draw(SEEDS)).bytes(sections.escapes + 2 * escapes))
    if data.draw(st.booleans()):
        payload[sections.bases : sections.escapes] = bytes([100, 240, min(escapes, 255), max(0, escapes - 255) % 256])
    damaged(bytes(payload), dtype, 9, 40)


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize(
    ("what", "table", "escape"),
    [
        ("a base above 240", [241, 0, 1, 0], [5, 3]),
        ("an escape too many", [100, 100, 0, 0], [5, 3]),
        ("an escape too few", [100, 100, 2, 0], [5, 3]),
        ("an escape behind the last value", [100, 100, 0, 1], [44, 3]),
    ],
)
def test_impossible_tables_are_refused_before_anything_is_written(
    codec: Codec, what: str, table: list[int], escape: list[int]
) -> None:
    """300 values are a group of 256 and one of 44."""
    shape = flat_shape(6, 50, KvDtype.BF16)
    good = bytes(450) + bytes([100, 100, 0, 1, 43, 3])
    decoded(codec, good, 6, 50, KvDtype.BF16)
    rows = np.full((6, 50), 0xA5A5, np.uint16)
    with pytest.raises(CorruptPayload, match="a base above 240, an escape outside of its group, or groups that have"):
        codec.decode(np.frombuffer(bytes(450) + bytes([*table, *escape]), np.uint8), shape, [rows])
        pytest.fail(what)
    assert (rows == 0xA5A5).all()


@pytest.mark.parametrize("codec", BOTH)
def test_golden_bytes(codec: Codec) -> None:
    """Frozen: other versions of this software read these."""
    numbers = [0x3F80, 0xBF80, 0x4049, 0xC2FE, 0x3DCD, 0x0000, 0x3F01, 0xBE7F, 0x4100, 0x3F7F, 0x3FFF]
    bf16 = np.array([numbers], np.uint16)
    golden = bytes.fromhex("0080 49fe 4d00 01ff 007f 7f  8969 ca8f 950a  76 01 0500")
    assert encoded(codec, [bf16], KvDtype.BF16) == golden
    assert (decoded(codec, golden, 1, 11, KvDtype.BF16) == bf16).all()
