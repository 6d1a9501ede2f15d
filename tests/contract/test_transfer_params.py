from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_contract.transfer import TransferParams, TransferParamsError

GOOD: dict[str, Any] = {
    "transfer_id": "0" * 31 + "f",
    "role": "decode",
    "peers": ["10.0.0.1:7400", "[fd00::1]:7400"],
    "deadline_ms": 30000,
}


def test_what_the_router_writes_reads_back() -> None:
    params = TransferParams.from_dict(GOOD)
    assert params.to_dict() == GOOD
    assert TransferParams.from_dict(params.to_dict()) == params


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"transfer_id": "../../etc"}, "transfer_id"),
        ({"transfer_id": "F" * 32}, "transfer_id"),
        ({"role": "both"}, "role"),
        ({"peers": []}, "peers"),
        ({"role": "prefill"}, "peers"),
        ({"peers": ["host"]}, "peers"),
        ({"peers": ["host:99999"]}, "peers"),
        ({"peers": ["h:1"] * 65}, "peers"),
        ({"peers": ["h" * 251 + ":1"]}, "peers"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"deadline_ms": True}, "deadline_ms"),
        ({"deadline_ms": 10**9}, "deadline_ms"),
        ({"engine": "x"}, "unknown keys"),
    ],
)
def test_anything_else_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(TransferParamsError) as caught:
        TransferParams.from_dict(GOOD | change)
    assert named in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner, max_size=5),
    max_leaves=8,
)


@given(JSON)
def test_no_input_raises_anything_else(raw: object) -> None:
    with contextlib.suppress(TransferParamsError):
        TransferParams.from_dict(raw)
