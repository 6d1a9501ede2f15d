"""`bench crossover`: each method against the link's rate, with what `auto` makes of it, also after the rate changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from kvferry_contract.config import Method, OverlapMode
from kvferry_runtime.bench import layouts, namespaces, pair
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.link import MAX_LARGE_TOKENS, MEGABYTE, tolerance
from kvferry_runtime.bench.namespaces import Link
from kvferry_runtime.bench.pair import Pair
from kvferry_runtime.bench.rate import Rate
from kvferry_runtime.bench.samples import Sample, count, sample, tokens_for, unaided_seconds

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
    fixed: dict[Rate, dict[Method, Sample]] = {rate: {} for rate in plan.rates}
    with namespaces.linked() as link:
        for method in plan.methods:
            with _pods(plan, method, link) as pods:
                for rate in plan.rates:
                    progress(f"{method.value} at {rate.text}")
                    found = fixed[rate][method] = _at(pods, link, plan, rate)
                    yield Figure(
                        f"crossover.{rate.text}.{method.value}", found.goodput / MEGABYTE, "MB/s", None, None, found.n
                    )
                    yield Figure(
                        f"crossover.{rate.text}.{method.value}.size", found.wire_share, "wire/raw", None, None, found.n
                    )
        best = {rate: max(sample.goodput for sample in methods.values()) for rate, methods in fixed.items()}
        with _pods(plan, Method.AUTO, link) as pods:
            for rate in plan.rates:
                progress(f"auto at {rate.text}")
                found = _at(pods, link, plan, rate)
                yield _against_best(f"auto.{rate.text}", found.goodput, best[rate], found.n)
                yield Figure(f"auto.{rate.text}.size", found.wire_share, "wire/raw", None, None, found.n)
            for before, after, name in ((plan.rates[-1], plan.rates[0], "down"), (plan.rates[0], plan.rates[-1], "up")):
                progress(f"auto, the rate goes {name} while it works")
                yield _against_best(
                    f"auto.step_{name}", _step(pods, link, plan, before, after), best[after], STEP_COUNT
                )


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


def _step(pods: Pair, link: Link, plan: Plan, before: Rate, after: Rate) -> float:
    """Bytes per second, median of the transfers after the step."""
    link.limit(before)
    pods.move(tokens_for(before, plan.seconds, pods.raw_bytes(1), MAX_LARGE_TOKENS))
    link.limit(after)
    tokens = tokens_for(after, plan.seconds, pods.raw_bytes(1), MAX_LARGE_TOKENS)
    pods.move(tokens)
    moved = [pods.move(tokens) for _ in range(STEP_COUNT)]
    return median(transfer.raw_bytes / unaided_seconds(transfer, after) for transfer in moved)


def _against_best(name: str, goodput: float, best: float, n: int) -> Figure:
    return Figure(name, goodput / MEGABYTE, "MB/s", best / MEGABYTE, goodput / best, n)
