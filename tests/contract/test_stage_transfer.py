"""Ids under which the stages of decode load one prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvferry_contract.config import Role
from kvferry_contract.transfer import TransferParams, stage_transfer

IDS = st.text("0123456789abcdef", min_size=32, max_size=32)


@given(IDS)
def test_one_stage_has_the_id_of_the_transfer(transfer_id: str) -> None:
    assert stage_transfer(transfer_id, 0, 1) == transfer_id


@given(st.lists(IDS, min_size=1, max_size=4, unique=True), st.integers(2, 8))
def test_no_two_stages_of_any_transfers_have_the_same_id(transfers: list[str], stages: int) -> None:
    """Nor that of a transfer itself."""
    ids = [stage_transfer(name, stage, stages) for name in transfers for stage in range(stages)]
    assert len({*ids, *transfers}) == len(ids) + len(transfers)
    for name in ids:
        TransferParams.from_dict(TransferParams(name, Role.PREFILL.value, (), 1000).to_dict())


def test_the_ids_never_change() -> None:
    """Both roles compute them, also where one of them is of an older release."""
    assert [stage_transfer("0" * 32, stage, 2) for stage in range(2)] == [
        "26dc4b0932d5dfb4e6f6a3e0e065a75e",
        "e92e6ed940a69ee8038536cafbd613d4",
    ]
