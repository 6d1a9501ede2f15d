"""One prompt served in both ways, side by side. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvferry_operator.demo.measure import Answer
from kvferry_operator.local.transfers import StageTransfer, Transfer, senders_of

LOSSLESS = ("none", "lossless")
"""Methods that may not change an answer by a single token."""
TRANSFERRED = "transferred"


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes and seconds; shares from 0 to 1.

    tokens: of the answer. first_difference: index of the first one that differs.
    mode: what the decode engine did for the KV cache, transferred or recomputed, with the reason.
    """

    title: str
    method: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    ttft_seconds: float
    aggregated_ttft_seconds: float
    bytes_raw: int
    bytes_wire: int
    goodput_bytes_per_second: float
    hidden_share: float
    lane: str
    mode: str
    reason: str
    digests_equal: bool
    first_difference: int | None

    @property
    def output_tokens(self) -> int:
        return len(self.tokens)

    @property
    def tokens_equal(self) -> bool:
        return self.first_difference is None

    @property
    def ratio(self) -> float:
        """Wire bytes as a share of raw bytes."""
        return self.bytes_wire / self.bytes_raw if self.bytes_raw else 0.0

    @property
    def failure(self) -> str:
        """Why this row fails the demo; empty when it does not."""
        if self.mode != TRANSFERRED:
            return f"the KV cache was not transferred ({self.mode}: {self.reason or 'no reason given'})"
        if not self.digests_equal:
            return "the two sidecars have different digests of what was sent"
        if self.method in LOSSLESS and not self.tokens_equal:
            return f"token {self.first_difference} differs, and {self.method} may not change anything"
        return ""

    def to_json(self) -> dict[str, Any]:
        """The demo's line, under the names that other tools read."""
        return {
            "name": "demo",
            "prompt": self.title,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "tokens": list(self.tokens),
            "method": self.method,
            "ttft_s": self.ttft_seconds,
            "aggregated_ttft_s": self.aggregated_ttft_seconds,
            "bytes_raw": self.bytes_raw,
            "bytes_wire": self.bytes_wire,
            "goodput_bytes_per_s": self.goodput_bytes_per_second,
            "hidden_share": self.hidden_share,
            "lane": self.lane,
            "mode": self.mode,
            "digests_equal": self.digests_equal,
            "tokens_equal": self.tokens_equal,
            "first_difference": self.first_difference,
        }


def compare(
    title: str, method: str, routed: Answer, aggregated: Answer, transfers: Sequence[StageTransfer | None]
) -> Row:
    """transfers: what the sidecars recorded, for each stage of decode; None where it loaded nothing."""
    sent = [record for transfer in transfers if transfer for record in transfer.sent if record]
    raw, seconds = _sum(sent, "bytes_raw"), _sum(sent, "wire_seconds")
    return Row(
        title=title,
        method=method,
        prompt_tokens=routed.prompt_tokens,
        tokens=routed.tokens,
        ttft_seconds=routed.ttft_seconds,
        aggregated_ttft_seconds=aggregated.ttft_seconds,
        bytes_raw=int(raw),
        bytes_wire=int(_sum(sent, "bytes_wire")),
        goodput_bytes_per_second=raw / busiest if (busiest := _busiest_seconds(transfers)) > 0 else 0.0,
        hidden_share=_sum(sent, "hidden_seconds") / seconds if seconds > 0 else 0.0,
        lane=",".join(dict.fromkeys(lane for record in sent for lane in record.get("lanes") or ())),
        mode=str(routed.result.get("mode", "unknown")),
        reason=str(routed.result.get("reason") or ""),
        digests_equal=bool(transfers) and all(_same_digests(transfer) for transfer in transfers),
        first_difference=first_difference(routed.tokens, aggregated.tokens),
    )


def _sum(records: Iterable[Transfer], key: str) -> float:
    return sum(float(record.get(key) or 0.0) for record in records)


def _busiest_seconds(transfers: Iterable[StageTransfer | None]) -> float:
    """Time on the wire of the sender that needed longest: stages send side by side, and one after the other to several
    stages of decode."""
    busy: dict[str, float] = {}
    for transfer in filter(None, transfers):
        for sender, record in zip(senders_of(transfer.received), transfer.sent, strict=True):
            busy[sender] = busy.get(sender, 0.0) + float((record or {}).get("wire_seconds") or 0.0)
    return max(busy.values(), default=0.0)


def _same_digests(transfer: StageTransfer | None) -> bool:
    """Whether decode computed the digest of each sender."""
    if transfer is None:
        return False
    theirs = [str((record or {}).get("digest") or "") for record in transfer.sent]
    return all(theirs) and theirs == str(transfer.received.get("digest") or "").split(",")


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs or that only one has; None when both are the same."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))
