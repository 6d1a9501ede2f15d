"""What an engine answers that leaves tokens out of its own cache, computed without an engine and without a transfer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvferry_runtime.agent.eviction import Compaction, Eviction
from kvferry_runtime.codec.sparse.budget import SPARSE50, Budget
from kvferry_runtime.engine.reference import model as models
from kvferry_runtime.engine.reference.kv import ObservedKv, RequestKv, blocks_for
from kvferry_runtime.engine.reference.runner import DecodeRow, Runner

HALF = Budget(SPARSE50, 16, 64)
ANSWER = 8


def loaded(folder: Path) -> Runner:
    models.make_deterministic(1)
    return Runner(models.load(folder, "cpu", "auto"), rows=8)


def prefilled(runner: Runner, prompt: list[int]) -> tuple[RequestKv, ObservedKv, int]:
    """Its cache, the same as the agent sees it, and the first token of the answer."""
    kv = RequestKv(runner.model.layout, blocks_for(len(prompt) + ANSWER), runner.model.dtype, runner.model.device)
    shared = kv.share_observed(kv.attention_mass(len(prompt)))
    start, logits = 0, None
    while logits is None:
        start, logits = runner.prefill(kv, prompt, start, lambda *_: None, shared.mass)
    return kv, shared, int(logits.argmax())


def carried(runner: Runner, source: ObservedKv, tokens: int, budget: Budget) -> RequestKv:
    """A cache that holds what a sparse transfer brings, and has room for an answer."""
    model = runner.model
    kv = RequestKv(model.layout, blocks_for(budget.kept(tokens) + ANSWER), model.dtype, model.device)
    eviction = Eviction(budget, model.layout, source, tokens)
    compaction = Compaction(budget, model.layout, kv.share(), tokens)
    slot = np.empty(1 << 20, np.uint8)
    for layer in model.layout.layers:
        for start in range(0, tokens, 200):
            span = (range(layer, layer + 1), start, min(start + 200, tokens))
            compaction.decode(slot[: eviction.encode(*span, slot)], *span)
    compaction.check()
    return kv


def expected(runner: Runner, prompt: list[int], budget: Budget | None) -> list[int]:
    """The greedy answer, computed without an engine."""
    kv, shared, first = prefilled(runner, prompt)
    evicts = budget is not None and budget.evicts(len(prompt))
    kept = budget.kept(len(prompt)) if evicts else len(prompt)
    cache = carried(runner, shared, len(prompt), budget) if evicts else kv
    answer = [first]
    for step in range(ANSWER - 1):
        row = DecodeRow(cache, answer[-1], len(prompt) + step, kept + step)
        answer.append(int(runner.decode([row])[0].argmax()))
    return answer
