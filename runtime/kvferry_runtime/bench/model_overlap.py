"""`bench overlap --model`: the same with a real model, whose forward pass takes the processor too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from kvferry_contract.config import OverlapMode
from kvferry_runtime.bench import model_pair, namespaces
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.model_pair import Served
from kvferry_runtime.bench.overlap import LONG_TOKENS, SHORT_TOKENS, Plan


def figures(plan: Plan, model: Path, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Measure, then give the figures.

    Raises:
        KvferryError: a process did not start, or a transfer failed.
    """
    found: dict[tuple[OverlapMode, int], Served] = {}
    with namespaces.linked() if plan.rate is not None else nullcontext() as link:
        if link is not None and plan.rate is not None:
            link.limit(plan.rate)
        for mode in (OverlapMode.REQUEST, OverlapMode.LAYERWISE, OverlapMode.AUTO):
            progress(f"{model.name}, overlap {mode.value}: loading")
            with model_pair.running(model, mode, link) as pods:
                for tokens in (LONG_TOKENS, SHORT_TOKENS):
                    progress(f"{model.name}, overlap {mode.value}: {tokens} tokens")
                    pods.serve(tokens)
                    served = [pods.serve(tokens) for _ in range(plan.count)]
                    found[mode, tokens] = Served(
                        median(item.first_token for item in served), median(item.hidden_share for item in served)
                    )
    hidden = found[OverlapMode.LAYERWISE, LONG_TOKENS].hidden_share
    yield Figure("overlap.model.hidden_share", hidden, "share", None, None, plan.count)
    for name, mode, tokens in (
        ("first_token", OverlapMode.LAYERWISE, LONG_TOKENS),
        ("auto_first_token", OverlapMode.AUTO, LONG_TOKENS),
        ("short_prompt", OverlapMode.AUTO, SHORT_TOKENS),
    ):
        ours, apart = found[mode, tokens].first_token, found[OverlapMode.REQUEST, tokens].first_token
        yield Figure(f"overlap.model.{name}", ours, "s", apart, apart / ours, plan.count)
