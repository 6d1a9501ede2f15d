"""KV of a model in two stages, each with a link of its own to its stage of decode, against all of it over one link."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from kvferry_contract.config import Method, OverlapMode
from kvferry_contract.split import Split
from kvferry_runtime.bench import layouts, namespaces, pair
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.pair import Pair, Transfer
from kvferry_runtime.bench.rate import Rate

STAGES = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """rate: of every link. tokens: of the prompt. count: transfers of it for a figure."""

    rate: Rate
    tokens: int
    count: int


def figures(plan: Plan, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Measure both ways in turn, then give the figure. Needs what `namespaces.missing` checks.

    Raises:
        KvferryError: a process did not start, a transfer failed, or wrong bytes arrived.
    """
    seconds: dict[int, list[float]] = {1: [], STAGES: []}
    with ExitStack() as stack:
        links = [stack.enter_context(namespaces.linked(number)) for number in range(1 + STAGES)]
        for link in links:
            link.limit(plan.rate)
        progress(f"starting the pods of 1 and of {STAGES} stages, links of {plan.rate.text}")
        ways = {1: _pods(stack, plan, links[:1]), STAGES: _pods(stack, plan, links[1:])}
        threads = stack.enter_context(ThreadPoolExecutor(STAGES))
        for number in range(1, plan.count + 1):
            progress(f"KV of {plan.tokens} tokens, {number} of {plan.count}")
            for stages, pods in ways.items():
                moved = list(threads.map(lambda stage: stage.move(plan.tokens), pods))
                seconds[stages].append(until_in_place(moved, plan.rate))
    ours, theirs = median(seconds[STAGES]), median(seconds[1])
    yield Figure("pipeline.kv_two_links", ours, "s", theirs, ours / theirs, plan.count)


def until_in_place(transfers: Sequence[Transfer], rate: Rate) -> float:
    """Seconds from the first stage's asking until the last one has all its KV, each link's bucket empty at first.

    transfers: of one prompt, one for each stage, each over a link of this rate.
    """
    burst, _ = rate.bucket()
    ends = [each.loaded + min(burst, each.wire_bytes) / rate.bytes_per_second for each in transfers]
    return max(ends) - min(each.asked for each in transfers)


def _pods(stack: ExitStack, plan: Plan, links: Sequence[namespaces.Link]) -> list[Pair]:
    """Prefill and decode of each stage, at the ends of its link; they have carried the prompt once, without a fault."""
    split = Split(len(links))
    pods = []
    for stage, link in enumerate(links):
        setup = pair.Setup(layouts.SMALL, Method.NONE, OverlapMode.REQUEST, split, stage)
        pods.append(stack.enter_context(pair.running(setup, link)))
        pods[-1].prepare(plan.tokens)
        pods[-1].check(plan.tokens, tolerance=0.0)
    return pods
