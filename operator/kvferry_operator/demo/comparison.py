"""One prompt served in both ways, side by side. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvferry_operator.demo.measure import Answer
from kvferry_operator.local.transfers import Transfer

LOSSLESS = ("none", "lossless")
"""Methods that may not change an answer by a single token."""
TRANSFERRED = "transferred"


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes and seconds; shares from 0 to 1. first_difference: index of the first token that differs.

    mode: what the decode engine did for the KV cache, transferred or recomputed, with the reason.
    """

    title: str
    method: str
    prompt_tokens: int
    output_tokens: int
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
    title: str, method: str, routed: Answer, aggregated: Answer, sent: Transfer | None, received: Transfer | None
) -> Row:
    """sent, received: what the sidecars of prefill and decode recorded; None when there was no transfer."""
    sent, received = sent or {}, received or {}
    return Row(
        title=title,
        method=method,
        prompt_tokens=routed.prompt_tokens,
        output_tokens=len(routed.tokens),
        ttft_seconds=routed.ttft_seconds,
        aggregated_ttft_seconds=aggregated.ttft_seconds,
        bytes_raw=int(sent.get("bytes_raw", 0)),
        bytes_wire=int(sent.get("bytes_wire", 0)),
        goodput_bytes_per_second=float(sent.get("goodput_bytes_per_s") or 0.0),
        hidden_share=float(sent.get("hidden_share") or 0.0),
        lane=",".join(sent.get("lanes") or ()),
        mode=str(routed.result.get("mode", "unknown")),
        reason=str(routed.result.get("reason") or ""),
        digests_equal=bool(sent.get("digest")) and sent.get("digest") == received.get("digest"),
        first_difference=first_difference(routed.tokens, aggregated.tokens),
    )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs or that only one has; None when both are the same."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))
