"""A load of kept tokens is believed only when every layer adds up."""

import random

import pytest

from kvferry_runtime.codec.sparse.placement import Placed, Placement
from kvferry_runtime.errors import CorruptPayload

PARTS = (Placed(0, 40, 0, 30), Placed(40, 70, 30, 0), Placed(70, 100, 30, 20))


def filled(parts: tuple[Placed, ...], kept: int = 50, layers: range = range(3, 5)) -> Placement:
    placement = Placement(100, kept, layers)
    for layer in layers:
        for part in random.Random(layer).sample(parts, k=len(parts)):
            placement.admit(layer, part)
    return placement


def test_chunks_in_any_order_and_twice_make_a_load() -> None:
    placement = filled(PARTS)
    placement.admit(4, PARTS[1])
    placement.check()


@pytest.mark.parametrize(
    "parts",
    [
        PARTS[:2],
        PARTS[1:],
        (PARTS[0], PARTS[2]),
        (PARTS[0], Placed(40, 70, 29, 1), PARTS[2]),
        (PARTS[0], Placed(40, 70, 30, 1), PARTS[2]),
        (PARTS[0], PARTS[1], Placed(70, 100, 30, 19)),
        (),
    ],
    ids=["end missing", "start missing", "hole", "overlap", "one too many", "one too few", "nothing"],
)
def test_a_load_that_does_not_add_up_fails(parts: tuple[Placed, ...]) -> None:
    with pytest.raises(CorruptPayload):
        filled(parts).check()


def test_one_layer_that_does_not_add_up_is_enough() -> None:
    placement = filled(PARTS[:2])
    placement.admit(3, PARTS[2])
    with pytest.raises(CorruptPayload, match="layer 4"):
        placement.check()


@pytest.mark.parametrize(
    "part",
    [Placed(0, 40, 1, 30), Placed(90, 100, 45, 6), Placed(0, 100, 0, 51), Placed(80, 100, 10, 0), Placed(9, 10, 10, 0)],
)
def test_what_can_only_be_wrong_is_never_written(part: Placed) -> None:
    with pytest.raises(CorruptPayload):
        Placement(100, 50, range(1)).admit(0, part)
