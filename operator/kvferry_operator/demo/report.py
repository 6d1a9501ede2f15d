"""The demo's table and what it comes to, for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry_operator.demo.comparison import LOSSLESS, TRANSFERRED, Row
from kvferry_operator.local import table

_HEAD = ("PROMPT", "TOKENS", "TTFT", "AGGREGATED", "RAW", "WIRE", "RATIO", "GOODPUT", "HIDDEN", "LANE", "TOKENS EQUAL")


def lines(rows: Sequence[Row]) -> list[str]:
    """One table a method."""
    found: list[str] = []
    methods = dict.fromkeys(row.method for row in rows)
    for method in methods:
        cells = [_HEAD, *(_cells(row) for row in rows if row.method == method)]
        found += ["", f"compression {method}", *(f"  {line}" for line in table.columns(cells, frozenset(range(1, 9))))]
    return [
        *found,
        "",
        "TTFT: time to the first token through the router; AGGREGATED: the same of one engine that does all.",
        "All engines share this machine's cores, so that the two are no comparison of speed.",
        "RAW, WIRE: bytes of all pipeline stages together; GOODPUT: raw bytes by the time of the busiest sender.",
        "HIDDEN: share of the time on the wire that passed while prefill was still computing.",
        "LANE: the transport and device that UCX says its endpoint uses.",
        "",
        *(verdict(method, [row for row in rows if row.method == method]) for method in methods),
    ]


def verdict(method: str, rows: Sequence[Row]) -> str:
    """What one method comes to, in a sentence."""
    proved = sum(row.mode == TRANSFERRED and row.digests_equal for row in rows)
    equal = sum(row.tokens_equal for row in rows)
    text = f"{method}: {proved} of {len(rows)} KV caches arrived whole, with the same digest at both ends; "
    if method in LOSSLESS:
        return text + f"{equal} of {len(rows)} answers equal, as all must be"
    return text + f"{equal} of {len(rows)} answers equal, which a lossy method does not promise"


def failures(rows: Sequence[Row]) -> list[str]:
    """One line for each row that fails the demo."""
    return [f"compression {row.method}, prompt {row.title}: {row.failure}" for row in rows if row.failure]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.title,
        str(row.prompt_tokens),
        f"{1000 * row.ttft_seconds:.0f} ms",
        f"{1000 * row.aggregated_ttft_seconds:.0f} ms",
        table.size(row.bytes_raw),
        table.size(row.bytes_wire),
        f"{row.ratio:.2f}",
        table.rate(row.goodput_bytes_per_second),
        table.share(row.hidden_share),
        row.lane or "-",
        f"all {row.output_tokens}" if row.first_difference is None else f"differ from token {row.first_difference}",
    )
