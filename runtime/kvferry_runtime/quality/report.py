"""What was measured, as figures for other tools and as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.quality.drift import Drift

_COLUMNS = ("method", "size", "KL", "top-1", "ppl", "Δppl", "greedy", "same texts")


def figures(exact: Drift, drifts: Mapping[str, Drift]) -> list[Figure]:
    """Six for each method: see `table` for what they are. n: tokens, or greedy texts."""
    found = []
    for name, drift in drifts.items():
        values = (
            ("kl", drift.mean_kl, "nats", None, drift.tokens),
            ("top1", drift.top1, "share", None, drift.tokens),
            ("ppl", drift.perplexity, "ppl", exact.perplexity, drift.tokens),
            ("size", drift.size, "wire/raw", None, drift.greedy_texts),
            ("greedy", drift.equal_tokens / drift.greedy_tokens, "share", None, drift.greedy_tokens),
            ("texts", drift.equal_texts / drift.greedy_texts, "share", None, drift.greedy_texts),
        )
        found += [
            Figure(f"quality.{name}.{key}", value, unit, against, value / against if against else None, count)
            for key, value, unit, against, count in values
        ]
    return found


def table(exact: Drift, drifts: Mapping[str, Drift]) -> str:
    """In Markdown. size: wire for each raw byte. KL in nats a token. top-1: same likeliest token. ppl: perplexity of
    the text that follows, and by how much it is above that of the exact KV. greedy: tokens of greedy texts before
    their first difference."""
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS)]
    rows += [
        (
            name,
            f"{drift.size:.3f}",
            f"{drift.mean_kl:.4f}" if drift.mean_kl else "0",
            f"{drift.top1:.1%}",
            f"{drift.perplexity:.3f}",
            f"{drift.perplexity / exact.perplexity - 1:+.1%}",
            f"{drift.equal_tokens / drift.greedy_tokens:.0%}",
            f"{drift.equal_texts} of {drift.greedy_texts}",
        )
        for name, drift in drifts.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = (" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"| {line} |" for line in lines)
