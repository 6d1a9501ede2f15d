"""`bench transfer`: engine memory to engine memory through both sidecars, against what the machine can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kvferry_runtime.bench import limits
from kvferry_runtime.bench.cache import LAYOUT, TOLERANCE
from kvferry_runtime.bench.chain import Chain, Measured, running
from kvferry_runtime.bench.figures import Figure, format_size
from kvferry_runtime.bench.pods import Rings
from kvferry_runtime.errors import SettingsError

MAX_BYTES = 4 << 30
FRAGMENTED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. sizes: raw bytes, ascending. budget_bytes: to move for each size (at least three transfers)."""

    sizes: tuple[int, ...]
    methods: tuple[str, ...]
    rings: Rings
    budget_bytes: int

    def check(self) -> None:
        """Raises SettingsError."""
        unknown = [method for method in self.methods if method not in TOLERANCE]
        if unknown or not self.methods:
            raise SettingsError(f"method {', '.join(unknown) or '(none given)'}: choose of {', '.join(TOLERANCE)}")
        if "none" not in self.methods:
            raise SettingsError("method none is what the others are compared with: add it")
        for size in self.sizes:
            if size % LAYOUT.bytes_per_token or not 0 < size <= MAX_BYTES:
                raise SettingsError(
                    f"size {format_size(size)}: a multiple of {format_size(LAYOUT.bytes_per_token)} "
                    f"up to {format_size(MAX_BYTES)} is needed"
                )
        if not self.sizes:
            raise SettingsError("no size given")

    def count(self, size: int) -> int:
        return min(40, max(3, self.budget_bytes // size))


def figures(plan: Plan, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Measure and give each figure as soon as it is known.

    Raises:
        SettingsError: the plan is impossible.
        KvferryError: a process did not start, a transfer failed, or wrong bytes arrived.
    """
    plan.check()
    progress("limits of this machine: memcpy, raw TCP")
    limit = limits.measure()
    progress(f"raw TCP is {'one plain stream, for want of iperf3' if limit.iperf3 is None else 'one stream of iperf3'}")
    cores = float(limit.cores)
    yield Figure("transfer.limit.memcpy", limit.memcpy, "GB/s", None, None, 3)
    yield Figure("transfer.limit.raw_tcp", limit.raw_tcp, "GB/s", limit.memcpy, limit.raw_tcp / limit.memcpy, 1)
    yield Figure("transfer.limit.plain_sockets", limit.sockets, "GB/s", limit.memcpy, limit.sockets / limit.memcpy, 1)
    yield Figure("transfer.limit.cpu_bound", limit.chain_bound, "GB/s", cores, limit.chain_bound / cores, 1)
    largest = plan.sizes[-1]
    with _chain(plan, "none", stamps=True) as chain:
        progress(f"slot to slot, {format_size(largest)}")
        chain.prepare(largest, paged=False)
        slots = _measure(chain, plan, largest)
        yield _against("transfer.against_raw_tcp", slots.goodput, "GB/s", limit.raw_tcp, slots)
    best: dict[str, Measured] = {}
    with _chain(plan, "none", stamps=False) as chain:
        chain.prepare(largest, paged=False)
        for size in plan.sizes:
            progress(f"none, {format_size(size)}")
            chain.check(size, "none")
            best["none"] = _measure(chain, plan, size)
            yield _against(f"transfer.{format_size(size)}", best["none"].goodput, "GB/s", limit.raw_tcp, best["none"])
        none = best["none"]
        yield _against("transfer.engine_to_engine", none.goodput, "GB/s", limit.chain_bound, none)
        yield _against("transfer.cpu_s_per_gb", none.cpu_s_per_gb, "s/GB", limit.chain_cost, none)
        fragmented = min(largest, FRAGMENTED_BYTES)
        progress(f"none in shuffled blocks, {format_size(fragmented)}")
        whole = _measure(chain, plan, fragmented)
        chain.prepare(fragmented, paged=True)
        chain.check(fragmented, "none")
        blocks = _measure(chain, plan, fragmented)
        yield _against("transfer.fragmented", blocks.goodput, "GB/s", whole.goodput, blocks)
    for method in plan.methods:
        if method == "none":
            continue
        progress(f"{method}, {format_size(largest)}")
        with _chain(plan, method, stamps=False) as chain:
            chain.prepare(largest, paged=False)
            chain.check(largest, method)
            measured = _measure(chain, plan, largest)
        yield _against(f"transfer.{method}_gain", measured.goodput, "GB/s", none.goodput, measured)
        yield _against(f"transfer.{method}_cpu_s_per_gb", measured.cpu_s_per_gb, "s/GB", none.cpu_s_per_gb, measured)


def _chain(plan: Plan, method: str, stamps: bool) -> AbstractContextManager[Chain]:
    return running(method, stamps, plan.rings)


def _measure(chain: Chain, plan: Plan, size: int) -> Measured:
    """After one transfer that does not count: it opens sessions and warms caches."""
    chain.measure(size, 1)
    return chain.measure(size, plan.count(size))


def _against(name: str, value: float, unit: str, against: float, measured: Measured) -> Figure:
    return Figure(name, value, unit, against, value / against, len(measured.seconds))
