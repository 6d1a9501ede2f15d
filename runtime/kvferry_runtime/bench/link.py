"""`bench link`: transfers between two network namespaces over a link of limited rate, against iperf3 on that link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from kvferry_contract.config import Method, OverlapMode
from kvferry_runtime.bench import iperf, layouts, namespaces, pair
from kvferry_runtime.bench.cache import TOLERANCE
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.namespaces import Link
from kvferry_runtime.bench.pods import AUTO_METHODS
from kvferry_runtime.bench.rate import Rate
from kvferry_runtime.bench.samples import Sample, count, sample, tokens_for
from kvferry_runtime.errors import KvferryError

MEGABYTE = 1e6
SHORT_PROMPTS = (128, 1024)
"""Tokens; of the layout with the fewest bytes a token, so that fixed costs weigh most."""
MAX_LARGE_TOKENS = 2048
"""256 MiB in the common layout."""


@dataclass(frozen=True, slots=True)
class Plan:
    """rates: ascending. methods: measured beside `none`. seconds: that one large transfer takes about, and iperf3."""

    rates: tuple[Rate, ...]
    methods: tuple[Method, ...]
    seconds: float


def figures(plan: Plan, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Measure and give each figure as soon as it is known. Needs what `namespaces.missing` checks.

    Raises:
        KvferryError: a process did not start, a transfer failed, or wrong bytes arrived.
    """
    with namespaces.linked() as link:
        limits: dict[Rate, float] = {}
        for rate in plan.rates:
            progress(f"iperf3 at {rate.text}")
            link.limit(rate)
            limits[rate] = iperf.goodput(*link.ends, max(1, round(plan.seconds)))
            share = limits[rate] / rate.bytes_per_second
            yield Figure(
                f"link.limit.{rate.text}", limits[rate] / MEGABYTE, "MB/s", rate.bytes_per_second / MEGABYTE, share, 1
            )
        none: dict[Rate, float] = {}
        for rate, found in _large(plan, Method.NONE, link, progress):
            none[rate] = found.goodput
            yield _figure(f"link.{rate.text}", found, limits[rate])
        yield from _short(plan, link, limits, progress)
        for method in plan.methods:
            for rate, found in _large(plan, method, link, progress):
                yield _figure(f"link.{rate.text}.{method.value}_gain", found, none[rate])


def _large(plan: Plan, method: Method, link: Link, progress: Callable[[str], None]) -> Iterator[tuple[Rate, Sample]]:
    """Large transfers at each rate, with KV of the common layout."""
    setup = pair.Setup(layouts.COMMON, method, OverlapMode.REQUEST)
    with pair.running(setup, link) as pods:
        pods.prepare(MAX_LARGE_TOKENS)
        link.limit(plan.rates[-1])
        pods.check(64, tolerance(method))
        for rate in plan.rates:
            progress(f"{method.value} at {rate.text}")
            link.limit(rate)
            tokens = tokens_for(rate, plan.seconds, pods.raw_bytes(1), MAX_LARGE_TOKENS)
            yield rate, sample(partial(pods.move, tokens), count(plan.seconds, 2 * plan.seconds), rate)


def _short(plan: Plan, link: Link, limits: dict[Rate, float], progress: Callable[[str], None]) -> Iterator[Figure]:
    """Prompts of a few tokens with `none` at each rate, then the worst of the rates for each length."""
    setup = pair.Setup(layouts.SMALL, Method.NONE, OverlapMode.REQUEST)
    found: dict[int, list[Figure]] = {tokens: [] for tokens in SHORT_PROMPTS}
    with pair.running(setup, link) as pods:
        pods.prepare(max(SHORT_PROMPTS))
        for rate in plan.rates:
            link.limit(rate)
            for tokens in SHORT_PROMPTS:
                progress(f"{tokens} tokens at {rate.text}")
                seconds = pods.raw_bytes(tokens) / rate.bytes_per_second
                measured = sample(partial(pods.move, tokens), count(seconds, 2 * plan.seconds), rate)
                figure = _figure(f"link.{rate.text}.tokens_{tokens}", measured, limits[rate])
                found[tokens].append(figure)
                yield figure
    for tokens, of_rates in found.items():
        worst = min(of_rates, key=lambda figure: figure.ratio or 0.0)
        yield Figure(f"link.tokens_{tokens}", worst.value, worst.unit, worst.against, worst.ratio, worst.n)


def tolerance(method: Method) -> float:
    """Largest error of a value that this method may make.

    Raises:
        KvferryError: nobody has said.
    """
    if method is Method.AUTO:
        return max(tolerance(allowed) for allowed in AUTO_METHODS)
    if method is Method.LOSSLESS:
        return 0.0
    if method.value not in TOLERANCE:
        raise KvferryError(f"method {method.value} has no tolerance here: choose of {', '.join(TOLERANCE)}, lossless")
    return TOLERANCE[method.value]


def _figure(name: str, found: Sample, against: float) -> Figure:
    return Figure(name, found.goodput / MEGABYTE, "MB/s", against / MEGABYTE, found.goodput / against, found.n)
