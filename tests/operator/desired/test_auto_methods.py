"""Among which methods `auto` may choose follows from what the object says of changed answers."""

from __future__ import annotations

import pytest

from kvferry_contract.config import Method
from kvferry_operator.api.types import Compression
from kvferry_operator.desired.config import auto_methods


@pytest.mark.parametrize("acknowledged", [False, True])
def test_methods_that_can_change_answers_need_a_word(acknowledged: bool) -> None:
    """Sparse ones are never chosen, whatever the object says."""
    allowed = auto_methods(Compression(method=Method.AUTO, acknowledge_lossy=acknowledged))
    assert {Method.NONE, Method.LOSSLESS, Method.INT8, Method.FP8} <= set(allowed)
    assert (Method.FP4 in allowed) is acknowledged
    assert not {Method.SPARSE50, Method.SPARSE75, Method.AUTO} & set(allowed)
