"""`bench transfer`: engine memory to engine memory through both sidecars, against what the machine can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kvferry_runtime.bench import bare_chain, limits
from kvferry_runtime.bench.bare_chain import BareChain
from kvferry_runtime.bench.cache import LAYOUT, TOLERANCE
from kvferry_runtime.bench.chain import Chain, Measured, running
from kvferry_runtime.bench.figures import Figure, format_size, in_turn
from kvferry_runtime.bench.pods import Rings
from kvferry_runtime.errors import SettingsError

MAX_BYTES = 4 << 30
FRAGMENTED_BYTES = 64 << 20
BARE_BYTES = 1 << 30
ROUNDS = 3
"""Of what is compared with each other; odd, so that a median is one of them."""


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
    yield from _slot_to_slot(plan, limit.raw_tcp, progress)
    with _chain(plan, "none", stamps=False) as none:
        yield from _engine_to_engine(none, plan, limit, progress)
        yield from _fragmented(none, plan, progress)
        for method in plan.methods:
            if method != "none":
                yield from _gain(none, method, plan, progress)


def _slot_to_slot(plan: Plan, raw_tcp: float, progress: Callable[[str], None]) -> Iterator[Figure]:
    largest = plan.sizes[-1]
    progress(f"slot to slot, {format_size(largest)}")
    with _chain(plan, "none", stamps=True) as chain:
        chain.prepare(largest, paged=False)
        slots = _measure(chain, plan, largest)
    yield _against("transfer.against_raw_tcp", slots.goodput, "GB/s", raw_tcp, slots)


def _engine_to_engine(
    chain: Chain, plan: Plan, limit: limits.Limits, progress: Callable[[str], None]
) -> Iterator[Figure]:
    largest = plan.sizes[-1]
    chain.prepare(largest, paged=False)
    for size in plan.sizes[:-1]:
        progress(f"none, {format_size(size)}")
        chain.check(size, "none")
        yield _sized(_measure(chain, plan, size), limit)
    progress(f"none, {format_size(largest)}, in turn with processes that only copy, digest and send")
    chain.check(largest, "none")
    ours: list[Measured] = []
    bare: list[BareChain] = []
    for _ in range(ROUNDS):
        bare.append(_bare(plan, largest))
        ours.append(_measure(chain, plan, largest))
    none = sorted(ours, key=lambda one: one.goodput)[ROUNDS // 2]
    unsafe = sorted(bare, key=lambda one: one.goodput)[ROUNDS // 2]
    yield _sized(none, limit)
    yield _against("transfer.engine_to_engine", none.goodput, "GB/s", limit.chain_bound, none)
    yield _against("transfer.cpu_s_per_gb", none.cpu_s_per_gb, "s/GB", limit.chain_cost, none)
    # of the cores' time, while the chain runs: what is left of it is spent waiting for each other
    yield _against("transfer.cores_busy", none.goodput * none.cpu_s_per_gb, "cores", float(limit.cores), none)
    for name, value, unit, against in (
        ("bare_chain", unsafe.goodput, "GB/s", limit.chain_bound),
        ("bare_chain_cpu_s_per_gb", unsafe.cpu_s_per_gb, "s/GB", limit.chain_cost),
    ):
        yield Figure(f"transfer.limit.{name}", value, unit, against, value / against, ROUNDS)
    # the same four stages, but at what they cost side by side, where each takes caches and cores from the others
    together = limit.cores / unsafe.cpu_s_per_gb
    yield Figure(
        "transfer.limit.cpu_bound_together", together, "GB/s", limit.chain_bound, together / limit.chain_bound, ROUNDS
    )
    yield _against("transfer.against_cpu_bound_together", none.goodput, "GB/s", together, none)
    yield in_turn("transfer.against_bare_chain", "GB/s", [one.goodput for one in ours], [one.goodput for one in bare])


def _fragmented(chain: Chain, plan: Plan, progress: Callable[[str], None]) -> Iterator[Figure]:
    size = min(plan.sizes[-1], FRAGMENTED_BYTES)
    progress(f"none in shuffled blocks, {format_size(size)}")
    whole: list[Measured] = []
    blocks: list[Measured] = []
    for _ in range(ROUNDS):
        chain.prepare(size, paged=False)
        whole.append(_measure(chain, plan, size))
        chain.prepare(size, paged=True)
        chain.check(size, "none")
        blocks.append(_measure(chain, plan, size))
    yield in_turn("transfer.fragmented", "GB/s", [one.goodput for one in blocks], [one.goodput for one in whole])


def _gain(none: Chain, method: str, plan: Plan, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Against `none` in turn: on a machine that others use too, two runs one after the other say little."""
    largest = plan.sizes[-1]
    progress(f"{method}, {format_size(largest)}, in turn with none")
    none.prepare(largest, paged=False)
    exact: list[Measured] = []
    coded: list[Measured] = []
    with _chain(plan, method, stamps=False) as chain:
        chain.prepare(largest, paged=False)
        chain.check(largest, method)
        for _ in range(ROUNDS):
            exact.append(_measure(none, plan, largest))
            coded.append(_measure(chain, plan, largest))
    yield in_turn(f"transfer.{method}_gain", "GB/s", [one.goodput for one in coded], [one.goodput for one in exact])
    yield in_turn(
        f"transfer.{method}_cpu_s_per_gb",
        "s/GB",
        [one.cpu_s_per_gb for one in coded],
        [one.cpu_s_per_gb for one in exact],
    )


def _bare(plan: Plan, size: int) -> BareChain:
    """As many slots as a session has: posted are twice the chunks in flight."""
    chunk = min(plan.rings.chunk_bytes, size)
    memory = size // chunk * chunk
    return bare_chain.measure(chunk, 2 * plan.rings.inflight_chunks, memory, max(1, BARE_BYTES // memory))


def _sized(measured: Measured, limit: limits.Limits) -> Figure:
    size = format_size(measured.raw_bytes)
    return _against(f"transfer.{size}", measured.goodput, "GB/s", limit.raw_tcp, measured)


def _chain(plan: Plan, method: str, stamps: bool) -> AbstractContextManager[Chain]:
    return running(method, stamps, plan.rings)


def _measure(chain: Chain, plan: Plan, size: int) -> Measured:
    """After one transfer that does not count: it opens sessions and warms caches."""
    chain.measure(size, 1)
    return chain.measure(size, plan.count(size))


def _against(name: str, value: float, unit: str, against: float, measured: Measured) -> Figure:
    return Figure(name, value, unit, against, value / against, len(measured.seconds))
