"""Prefill by a real engine in two stages with a core each, against the same engine in one process on one core."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.pipeline import engines
from kvferry_runtime.bench.pipeline.engines import Group
from kvferry_runtime.bench.pods import on_loopback
from kvferry_runtime.errors import KvferryError

STAGES = 2
_FIRST_ID, _IDS = 20, 200
"""Token ids that any vocabulary has."""


@dataclass(frozen=True, slots=True)
class Plan:
    """model: its folder. tokens: of a prompt. count: prompts for a figure."""

    model: Path
    tokens: int
    count: int


def missing() -> list[str]:
    """What keeps this process from giving each stage a core, each with what to do about it; empty if nothing does."""
    found = []
    if shutil.which(engines.PIN) is None:
        found.append(f"{engines.PIN} is not installed: apt-get install util-linux")
    if (cores := len(os.sched_getaffinity(0))) < STAGES:
        found.append(f"{STAGES} cores are needed, this process may use {cores}")
    return found


def figures(plan: Plan, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Give each prompt to one engine and then to the two, then give the figure. Needs what `missing` checks.

    The one shares its core with the first of the two, which wait meanwhile. So all of it is measured in the same
    minutes, and what else runs on the machine disturbs both.

    Raises:
        KvferryError: an engine did not start or refused a prompt, or the two say another token than the one.
    """
    cores = sorted(os.sched_getaffinity(0))[:STAGES]
    with ExitStack() as stack:
        progress(f"{plan.model.name}: loading in one process")
        one = stack.enter_context(engines.running(plan.model, on_loopback()[:1], cores[:1]))
        progress(f"{plan.model.name}: loading in {STAGES} stages")
        two = stack.enter_context(engines.running(plan.model, on_loopback(), cores))
        _wait_for_both(one, two, _prompt(plan.tokens, seed=0))
        waits = []
        for number in range(1, plan.count + 1):
            progress(f"first token after {plan.tokens}, {number} of {plan.count}")
            waits.append(_wait_for_both(one, two, _prompt(plan.tokens, seed=number)))
    theirs, ours = (median(of_way) for of_way in zip(*waits, strict=True))
    yield Figure("pipeline.prefill_two_stages", ours, "s", theirs, ours / theirs, plan.count)


def _wait_for_both(one: Group, two: Group, prompt: list[int]) -> tuple[float, float]:
    """Seconds until the first token, of each.

    Raises:
        KvferryError: they differ in it.
    """
    theirs, ours = one.first_token(prompt), two.first_token(prompt)
    if ours.text != theirs.text:
        raise KvferryError(f"two stages answer {ours.text!r}, one {theirs.text!r}: no figure is printed")
    return theirs.seconds, ours.seconds


def _prompt(tokens: int, seed: int) -> list[int]:
    """Another one for each seed, so that no prefix of it is known to an engine."""
    chosen = random.Random(seed)  # noqa: S311
    return [_FIRST_ID + chosen.randrange(_IDS) for _ in range(tokens)]
