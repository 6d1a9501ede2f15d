"""`bench crossover`: each method against the link's rate, with what `auto` makes of it, also after the rate changed.

`auto` is held against the best fixed method of a rate in turn, each over a link of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from kvferry_contract.config import Method, OverlapMode
from kvferry_runtime.bench import layouts, namespaces, pair
from kvferry_runtime.bench.figures import Figure, in_turn
from kvferry_runtime.bench.link import MAX_LARGE_TOKENS, MEGABYTE, tolerance
from kvferry_runtime.bench.namespaces import Link
from kvferry_runtime.bench.pair import Pair, Transfer
from kvferry_runtime.bench.rate import Rate
from kvferry_runtime.bench.samples import Sample, count, sample, tokens_for, unaided_seconds

ROUNDS = 5
STEP_COUNT = 4
"""Transfers after a step that count, after one in which `auto` sees that the link is another one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """rates: ascending, at least two. methods: fixed ones, `none` among them. seconds: of one transfer with `none`."""

    rates: tuple[Rate, ...]
    methods: tuple[Method, ...]
    seconds: float


def figures(plan: Plan, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Measure and give each figure as soon as it is known. Needs what `namespaces.missing` checks.

    Raises:
        KvferryError: a process did not start, a transfer failed, or wrong bytes arrived.
    """
    goodput: dict[Rate, dict[Method, float]] = {rate: {} for rate in plan.rates}
    with namespaces.linked() as link, namespaces.linked(1) as other:
        for method in plan.methods:
            with _pods(plan, method, link) as pods:
                for rate in plan.rates:
                    progress(f"{method.value} at {rate.text}")
                    found = _at(pods, link, plan, rate)
                    goodput[rate][method] = found.goodput
                    yield from _sized(f"crossover.{rate.text}.{method.value}", found)
        best = {rate: max(found, key=lambda method: found[method]) for rate, found in goodput.items()}
        with _pods(plan, Method.AUTO, other) as auto:
            for rate in plan.rates:
                progress(f"auto at {rate.text}, in turn with {best[rate].value}")
                with _pods(plan, best[rate], link) as fixed:
                    rounds = [(_at(auto, other, plan, rate), _at(fixed, link, plan, rate)) for _ in range(ROUNDS)]
                speeds = ([each.goodput / MEGABYTE for each in side] for side in zip(*rounds, strict=True))
                yield in_turn(f"auto.{rate.text}", "MB/s", *speeds)
                share = median(ours.wire_share for ours, _ in rounds)
                yield Figure(f"auto.{rate.text}.size", share, "wire/raw", None, None, ROUNDS)
            for before, after, name in ((plan.rates[-1], plan.rates[0], "down"), (plan.rates[0], plan.rates[-1], "up")):
                progress(f"auto, the rate goes {name} while it works")
                with _pods(plan, best[after], link) as fixed:
                    yield _step(f"auto.step_{name}", auto, other, fixed, link, plan, before, after)


@contextmanager
def _pods(plan: Plan, method: Method, link: Link) -> Iterator[Pair]:
    with pair.running(pair.Setup(layouts.COMMON, method, OverlapMode.REQUEST), link) as pods:
        pods.prepare(MAX_LARGE_TOKENS)
        link.limit(plan.rates[-1])
        pods.check(64, tolerance(method))
        yield pods


def _at(pods: Pair, link: Link, plan: Plan, rate: Rate) -> Sample:
    link.limit(rate)
    tokens = tokens_for(rate, plan.seconds, pods.raw_bytes(1), MAX_LARGE_TOKENS)
    return sample(partial(pods.move, tokens), count(plan.seconds, 3 * plan.seconds), rate)


def _step(name: str, auto: Pair, other: Link, fixed: Pair, link: Link, plan: Plan, before: Rate, after: Rate) -> Figure:
    """After the rate of `auto`'s link changed; the other pair's had this rate all along."""
    tokens = {rate: tokens_for(rate, plan.seconds, auto.raw_bytes(1), MAX_LARGE_TOKENS) for rate in (before, after)}
    link.limit(after)
    fixed.move(tokens[after])
    other.limit(before)
    auto.move(tokens[before])
    other.limit(after)
    auto.move(tokens[after])
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(STEP_COUNT):
        ours.append(_speed(auto.move(tokens[after]), after))
        theirs.append(_speed(fixed.move(tokens[after]), after))
    return in_turn(name, "MB/s", ours, theirs)


def _speed(transfer: Transfer, rate: Rate) -> float:
    return transfer.raw_bytes / unaided_seconds(transfer, rate) / MEGABYTE


def _sized(name: str, found: Sample) -> Iterator[Figure]:
    yield Figure(name, found.goodput / MEGABYTE, "MB/s", None, None, found.n)
    yield Figure(f"{name}.size", found.wire_share, "wire/raw", None, None, found.n)
