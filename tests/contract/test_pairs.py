"""The router's report, as the operator reads it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvferry_contract import pairs
from kvferry_contract.pairs import Pair, PairsError, PairState, Report, SidecarFacts

PAIR = Pair(
    prefill="m-prefill-0", decode="m-decode-0", revision="ab12", state=PairState.VERIFIED, reason="", message="",
    changed_unix=1.5, transfer_id="t1", bytes_raw=4096, bytes_wire=2048, chunks=4, codec="fp8", lanes=("tcp:eth0",),
)  # fmt: skip
FACTS = SidecarFacts(
    pod="m-prefill-0", role="prefill", fingerprint="ab", memlock_bytes=None, devices=("mlx5_0",), lanes=(), sent=3,
    bytes_raw=1, bytes_wire=1, wire_seconds=0.5, hidden_seconds=0.25, max_relative_error=None,
)  # fmt: skip
REPORT = Report(started_unix=1.0, pairs=(PAIR,), sidecars=(FACTS,), routed={"disaggregated": 7})


def test_a_report_reads_back() -> None:
    failed = replace(PAIR, state=PairState.FAILED, reason="fell_back")
    limited = replace(FACTS, memlock_bytes=65536, max_relative_error=0.01)
    for report in (REPORT, replace(REPORT, pairs=(PAIR, failed), sidecars=(limited,)), Report(0.0, (), (), {})):
        assert pairs.load(pairs.dump(report)) == report


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"pairs": [{}]},
        {"pairs": [{**json.loads(pairs.dump(REPORT))["pairs"][0], "state": "well"}]},
        {"pairs": [{**json.loads(pairs.dump(REPORT))["pairs"][0], "bytes_raw": "4096"}]},
        {"pairs": [{**json.loads(pairs.dump(REPORT))["pairs"][0], "chunks": True}]},
        {"pairs": [{**json.loads(pairs.dump(REPORT))["pairs"][0], "lanes": [1]}]},
        {"sidecars": [{**json.loads(pairs.dump(REPORT))["sidecars"][0], "memlock_bytes": 0.5}]},
        {"sidecars": [{"pod": "a", "what": 1}]},
        {"routed": {"disaggregated": "many"}},
        {"routed": None},
    ],
)
def test_what_is_no_report_is_an_error(change: dict[str, object]) -> None:
    with pytest.raises(PairsError):
        pairs.load(json.dumps(json.loads(pairs.dump(REPORT)) | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_what_is_no_json_object_is_an_error(text: str) -> None:
    with pytest.raises(PairsError):
        pairs.load(text)
