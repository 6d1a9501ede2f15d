"""`auto` against every fixed method, in simulated time, at link rates from 100 Mbit/s to 25 Gbit/s and after a step."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_contract.config import OverlapMode
from kvferry_runtime.auto.goodput import NEWEST
from kvferry_runtime.auto.speeds import MethodSpeed
from simulated_link import WINDOW, Link, Wire, Work, automatic, automatic_layerwise, fixed

MBIT = 1e6 / 8
RATES = [100 * MBIT, 250 * MBIT, 500 * MBIT, 1000 * MBIT, 2500 * MBIT, 10_000 * MBIT, 25_000 * MBIT]
MIB = 1 << 20
SLACK_SECONDS = 2e-3
"""Two negligible waits: one for the method, one for going layer by layer."""

PROOF = Work(16 * MIB, 30, MIB, 0.0)
"""What the router's proof of the pair sent before."""

COMPILED = {
    "none": MethodSpeed("none", 1.0, 6.2e9, 6.2e9),
    "lossless": MethodSpeed("lossless", 0.75, 5.0e9, 4.7e9),
    "int8": MethodSpeed("int8", 0.53, 5.4e9, 5.1e9),
    "fp8": MethodSpeed("fp8", 0.53, 2.5e9, 3.1e9),
    "k8v4": MethodSpeed("k8v4", 0.42, 2.0e9, 2.5e9),
    "fp4": MethodSpeed("fp4", 0.29, 1.3e9, 2.0e9),
}
EAGER = {
    "none": MethodSpeed("none", 1.0, 6.2e9, 6.2e9),
    "int8": MethodSpeed("int8", 0.53, 0.21e9, 0.35e9),
    "fp8": MethodSpeed("fp8", 0.53, 0.18e9, 0.18e9),
}
SLOW_LOSSLESS = {
    "none": MethodSpeed("none", 1.0, 12e9, 12e9),
    "lossless": MethodSpeed("lossless", 0.7, 0.2e9, 0.5e9),
    "int8": MethodSpeed("int8", 0.53, 9e9, 9e9),
}
TABLES = [COMPILED, EAGER, SLOW_LOSSLESS]
SIZES = [2 * MIB, 16 * MIB, 128 * MIB]
COMPUTE = [0.0, 0.05, 0.5]


def best_fixed(link: Link, work: Work, methods: dict[str, MethodSpeed], repeats: int) -> list[float]:
    """The shortest time of each of the `repeats` transfers, over all methods and both ways."""
    runs = []
    for method, layerwise in itertools.product(methods, (False, True)):
        wire = Wire(link)
        runs.append([wire.transfer(work, methods, layerwise, fixed(method)) for _ in range(repeats)])
    return [min(times) for times in zip(*runs, strict=True)]


def with_auto(wire: Wire, work: Work, methods: dict[str, MethodSpeed]) -> float:
    layerwise = automatic_layerwise(wire, work, methods)
    overlap = OverlapMode.LAYERWISE if layerwise else OverlapMode.REQUEST
    return wire.transfer(work, methods, layerwise, automatic(methods, overlap, work.tokens))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("methods", TABLES)
def test_within_five_percent_at_each_rate(
    rate: float, compute: float, size: int, methods: dict[str, MethodSpeed]
) -> None:
    link, work = Link(rate, rate, 0.0), Work(size, 30, MIB, compute)
    wire = Wire(link)
    with_auto(wire, PROOF, methods)
    [best] = best_fixed(link, work, methods, 1)
    assert with_auto(wire, work, methods) <= max(1.05 * best, best + SLACK_SECONDS)


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(RATES[::2], 2)))
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("methods", TABLES)
def test_within_five_percent_of_the_next_request_after_a_step(
    before: float, after: float, compute: float, methods: dict[str, MethodSpeed]
) -> None:
    """The rate steps in the middle of one request; the one after it is chosen for by the new rate."""
    work = Work(64 * MIB, 30, MIB, compute)
    wire = Wire(Link(before, before, 0.0))
    with_auto(wire, work, methods)
    wire.link = Link(before, after, wire.now + max(compute / 2, work.raw_bytes / before / 8))
    with_auto(wire, work, methods)
    [best] = best_fixed(Link(after, after, 0.0), work, methods, 1)
    assert with_auto(wire, work, methods) <= max(1.05 * best, best + SLACK_SECONDS)


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(RATES[::2], 2)))
@pytest.mark.parametrize("methods", TABLES)
def test_a_step_within_a_long_request_costs_no_more_than_what_was_under_way(
    before: float, after: float, methods: dict[str, MethodSpeed]
) -> None:
    """What was encoded for the old rate is sent, and three samples show the new one."""
    work = Work(256 * MIB, 30, MIB, 0.0)
    wire = Wire(Link(before, before, 0.0))
    with_auto(wire, PROOF, methods)
    begun = wire.now
    wire.link = Link(before, after, begun + work.raw_bytes / before / 4)
    took = with_auto(wire, work, methods)
    fixed_times = []
    for method, layerwise in itertools.product(methods, (False, True)):
        other = Wire(wire.link)
        other.now = begun
        fixed_times.append(other.transfer(work, methods, layerwise, fixed(method)))
    under_way = (WINDOW + NEWEST) * MIB
    slowest = max(under_way / min(before, after), under_way / min(speed.encode for speed in methods.values()))
    assert took <= 1.05 * min(fixed_times) + slowest


@given(
    rate=st.sampled_from(RATES),
    size=st.integers(MIB // 4, 64 * MIB),
    compute=st.floats(0, 1),
    ratios=st.lists(st.floats(0.2, 0.99), max_size=5),
    speeds=st.lists(st.floats(0.1e9, 20e9), min_size=10, max_size=10),
)
def test_within_five_percent_whatever_the_methods_cost(
    rate: float, size: int, compute: float, ratios: list[float], speeds: list[float]
) -> None:
    names = ["lossless", "int8", "fp8", "k8v4", "fp4"]
    methods = {"none": MethodSpeed("none", 1.0, 20e9, 20e9)} | {
        name: MethodSpeed(name, ratio, speeds[2 * number], speeds[2 * number + 1])
        for number, (name, ratio) in enumerate(zip(names, ratios, strict=False))
    }
    link, work = Link(rate, rate, 0.0), Work(size, 30, MIB, compute)
    wire = Wire(link)
    with_auto(wire, PROOF, methods)
    [best] = best_fixed(link, work, methods, 1)
    assert with_auto(wire, work, methods) <= max(1.05 * best, best + SLACK_SECONDS)
