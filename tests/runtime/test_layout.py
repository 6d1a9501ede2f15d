"""Shapes of a pod's KV cache: what is refused, and what both sides must agree on."""

from __future__ import annotations

import pytest

from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, KvDtype, KvLayout, LayerShape

GROUPED = LayerShape(parts=2, heads=8, head_dim=128, dtype=KvDtype.BF16)
LATENT = LayerShape(parts=1, heads=1, head_dim=576, dtype=KvDtype.BF16)
PACKED = LayerShape(parts=1, heads=1, head_dim=132, dtype=KvDtype.UINT8)


@pytest.mark.parametrize(
    ("shape", "rows", "size"),
    [
        (GROUPED, 16, 4096),
        (LATENT, 1, 1152),
        (PACKED, 1, 132),
        (LayerShape(2, 3, 63, KvDtype.FP32), 6, 1512),
        (LayerShape(2, 1, 1, KvDtype.FP16), 2, 4),
    ],
)
def test_rows_and_bytes_of_a_token(shape: LayerShape, rows: int, size: int) -> None:
    assert (shape.rows_per_token, shape.bytes_per_token) == (rows, size)


@pytest.mark.parametrize(
    ("parts", "heads", "head_dim"),
    [(0, 1, 1), (3, 1, 1), (2, 0, 1), (2, MAX_HEADS + 1, 1), (2, 1, 0), (2, 1, MAX_HEAD_DIM + 1), (2, -1, 64)],
)
def test_impossible_layer_shapes_are_refused_with_their_numbers(parts: int, heads: int, head_dim: int) -> None:
    with pytest.raises(LayoutError, match=f"parts={parts} heads={heads} head_dim={head_dim}"):
        LayerShape(parts, heads, head_dim, KvDtype.BF16)


@pytest.mark.parametrize(
    ("total", "first", "held", "message"),
    [
        (4, 0, 5, "layers 0 to 4 do not lie within 0 to 3"),
        (4, 3, 2, "layers 3 to 4 do not lie within 0 to 3"),
        (4, -1, 2, "layers -1 to 0 do not lie within 0 to 3"),
        (4, 0, 0, "holds no layer"),
        (0, 0, 0, "a model of 0 layers"),
        (MAX_LAYERS + 1, 0, 1, f"allowed are 1 to {MAX_LAYERS}"),
    ],
)
def test_impossible_splits_are_refused(total: int, first: int, held: int, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        KvLayout(total, first, (GROUPED,) * held)


def test_layers_go_by_their_global_number() -> None:
    layout = KvLayout(total_layers=10, first_layer=6, shapes=(GROUPED, LATENT, PACKED))
    assert layout.layers == range(6, 9)
    assert [layout.shape(layer) for layer in layout.layers] == [GROUPED, LATENT, PACKED]
    assert layout.bytes_per_token == 4096 + 1152 + 132
    for layer in (0, 5, 9):
        with pytest.raises(LayoutError, match=f"layer {layer} is not held here: this pod holds 6 to 8"):
            layout.shape(layer)


MIXED = [GROUPED, LATENT, LATENT, PACKED, GROUPED]


@pytest.mark.parametrize(("first", "stop"), [(0, 5), (0, 1), (1, 3), (4, 5)])
def test_a_stage_holds_its_part_of_the_model(first: int, stop: int) -> None:
    layout = KvLayout.stage(MIXED, range(first, stop))
    assert (layout.layers, layout.whole) == (range(first, stop), stop - first == 5)
    assert [layout.shape(layer) for layer in layout.layers] == MIXED[first:stop]


@pytest.mark.parametrize("layers", [range(0), range(3, 6), range(5, 7), range(9)], ids=str)
def test_a_stage_outside_of_the_model_is_refused(layers: range) -> None:
    with pytest.raises(LayoutError, match="model of 5 layers"):
        KvLayout.stage(MIXED, layers)


def test_a_part_keeps_global_numbers_and_knows_of_no_others() -> None:
    part = KvLayout.stage(MIXED, range(1, 5)).part(range(2, 4))
    assert (part.layers, part.shapes, part.bytes_per_token) == (range(2, 4), (LATENT, PACKED), 1152 + 132)
    with pytest.raises(LayoutError, match="layer 1 is not held here"):
        part.shape(1)
    assert part.fingerprint() == KvLayout.stage(MIXED, range(5)).fingerprint()


@pytest.mark.parametrize("layers", [range(2), range(4, 6), range(3, 3), range(1, 5, 2)], ids=str)
def test_a_part_of_other_layers_is_refused_with_those_held(layers: range) -> None:
    with pytest.raises(LayoutError, match="this pod holds layers 1 to 4"):
        KvLayout.stage(MIXED, range(1, 5)).part(layers)


def test_stages_of_a_model_of_mixed_kinds_agree_where_the_model_is_known() -> None:
    """Also with a pod that holds everything, whether it says so or not."""
    stages = [KvLayout.stage(MIXED, layers) for layers in (range(1), range(1, 3), range(3, 5), range(5))]
    prints = [*(stage.fingerprint() for stage in stages), KvLayout(5, 0, tuple(MIXED)).fingerprint()]
    assert all(found == prints[0] for found in prints)
    assert KvLayout(5, 1, (LATENT, LATENT)).fingerprint() != prints[0]


def test_a_model_that_lacks_a_kind_held_here_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"2x8x128:bf16 lack some held here: 1x1x576:bf16"):
        KvLayout(2, 1, (LATENT,), frozenset({GROUPED}))


def test_fingerprint_is_the_same_for_all_stages_of_a_uniform_model() -> None:
    stages = [KvLayout(30, 0, (GROUPED,) * 30), KvLayout(30, 0, (GROUPED,) * 7), KvLayout(30, 7, (GROUPED,) * 23)]
    assert len({tuple(sorted(stage.fingerprint().items())) for stage in stages}) == 1


@pytest.mark.parametrize(
    "other",
    [
        KvLayout(4, 0, (GROUPED,) * 3),
        KvLayout(3, 0, (LayerShape(2, 4, 128, KvDtype.BF16),) * 3),
        KvLayout(3, 0, (LayerShape(2, 8, 64, KvDtype.BF16),) * 3),
        KvLayout(3, 0, (LayerShape(1, 8, 128, KvDtype.BF16),) * 3),
        KvLayout(3, 0, (LayerShape(2, 8, 128, KvDtype.FP16),) * 3),
        KvLayout(3, 0, (GROUPED, GROUPED, PACKED)),
    ],
)
def test_fingerprint_differs_with_anything_that_changes_the_bytes(other: KvLayout) -> None:
    assert KvLayout(3, 0, (GROUPED,) * 3).fingerprint() != other.fingerprint()
