"""Two pods, each an engine's stand-in and its sidecar: on loopback, or in namespaces at the ends of a limited link."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract import env, ports
from kvferry_contract.config import Method, OverlapMode, Role, RuntimeConfig
from kvferry_contract.split import WHOLE, Split
from kvferry_runtime.bench import children
from kvferry_runtime.bench.children import Child
from kvferry_runtime.bench.layouts import layout
from kvferry_runtime.bench.namespaces import Link
from kvferry_runtime.bench.pods import RINGS, SIDECAR, Place, on_loopback, runtime_config, scratch, variables_of
from kvferry_runtime.errors import KvferryError
from kvferry_runtime.layout import KvLayout

START_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_TIMEOUT_SECONDS = 90.0
"""Of a transfer, also over the slowest link."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How the two pods are told to transfer. layout: a name in `layouts`, of which they hold one stage's layers."""

    layout: str
    method: Method
    overlap: OverlapMode
    split: Split = WHOLE
    stage: int = 0

    def config(self, role: Role) -> RuntimeConfig:
        return runtime_config(role, self.method, self.overlap, RINGS, _TIMEOUT_SECONDS, self.split, self.stage)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One prompt, all times in seconds of one clock.

    asked: decode wanted it. computed: its last layer was through. loaded: every row was in decode's memory.
    """

    raw_bytes: int
    wire_bytes: int
    started: float
    asked: float
    computed: float
    loaded: float

    @property
    def seconds(self) -> float:
        """From asking, or from the end of the computation where that came later: what decode waits for."""
        return self.loaded - max(self.asked, self.computed)

    @property
    def until_loaded(self) -> float:
        """From the beginning of the computation: what a client waits for."""
        return self.loaded - self.started


def places(link: Link | None) -> tuple[Place, Place]:
    """Of prefill and decode: the ends of the link, or two addresses of loopback without one."""
    if link is not None:
        first, second = (Place(end.address, tuple(end.prefix), end.variables) for end in link.ends)
        return first, second
    return on_loopback()


class Pair:
    """A running pair. Use `running`."""

    def __init__(self, producer: Child, consumer: Child, peer: str, held: KvLayout) -> None:
        self._producer = producer
        self._consumer = consumer
        self._peer = peer
        self._layout = held

    def prepare(self, tokens: int) -> None:
        """Memory for prompts of at most so many tokens on both sides."""
        for side in (self._producer, self._consumer):
            side.ask("memory", tokens=tokens)

    def raw_bytes(self, tokens: int) -> int:
        return tokens * self._layout.bytes_per_token

    def move(self, tokens: int) -> Transfer:
        """A prompt whose KV is there already when decode asks for it.

        Raises:
            KvferryError: the transfer failed.
        """
        transfer_id = secrets.token_hex(16)
        computed = self._producer.ask("prefill", transfer_id=transfer_id, tokens=tokens, layer_seconds=0.0)
        asked = self._consumer.ask("fetch", transfer_id=transfer_id, tokens=tokens, peer=self._peer)
        return self._finish(computed, asked)

    def serve(self, tokens: int, compute_seconds: float) -> Transfer:
        """A prompt that decode asks for first, as a router does it, and that then takes so long to compute.

        Raises:
            KvferryError: the transfer failed.
        """
        transfer_id = secrets.token_hex(16)
        asked = self._consumer.ask("fetch", transfer_id=transfer_id, tokens=tokens, peer=self._peer)
        layer_seconds = compute_seconds / len(self._layout.shapes)
        computed = self._producer.ask("prefill", transfer_id=transfer_id, tokens=tokens, layer_seconds=layer_seconds)
        return self._finish(computed, asked)

    def check(self, tokens: int, tolerance: float) -> None:
        """Transfer once and look at every value that arrived.

        Raises:
            KvferryError: a value is further off than `tolerance` (see `RequestKv.worst_error`).
        """
        self._consumer.ask("clear")
        self.move(tokens)
        worst = self._consumer.ask("worst_error", tokens=tokens)
        if worst > tolerance:
            raise KvferryError(f"values are off by {worst:.2g} of their row's largest: no figure is printed")

    def _finish(self, computed: Mapping[str, float], asked: float) -> Transfer:
        loaded = self._consumer.ask("loaded")
        self._producer.ask("sent")
        return Transfer(
            raw_bytes=int(loaded["raw_bytes"]),
            wire_bytes=int(loaded["wire_bytes"]),
            started=computed["started"],
            asked=asked,
            computed=computed["finished"],
            loaded=loaded["finished"],
        )


@contextmanager
def running(setup: Setup, link: Link | None) -> Iterator[Pair]:
    """Start the four processes; stop them and remove every file at the end.

    Raises:
        KvferryError: a process did not start; the message has the end of its log.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        where = places(link)
        started = [_pod(stack, folder, role, place, setup) for role, place in zip(_ROLES, where, strict=True)]
        deadline = time.monotonic() + START_SECONDS
        for sidecar, stand_in in started:
            _wait_until_attached(sidecar, stand_in, deadline)
        (_, producer), (_, consumer) = started
        held = layout(setup.layout, setup.split, setup.stage)
        yield Pair(producer, consumer, f"{where[0].address}:{ports.SIDECAR_PEER}", held)


_ROLES = (Role.PREFILL, Role.DECODE)


def _pod(stack: ExitStack, folder: Path, role: Role, place: Place, setup: Setup) -> tuple[Child, Child]:
    """Its sidecar and its stand-in, started."""
    variables = variables_of(folder, place, setup.config(role))
    pod, config = variables[env.RING_DIR], variables[env.CONFIG]
    stand_in = ["-m", "kvferry_runtime.bench.stand_in", role.value, pod, config, setup.layout]
    sidecar, engine = (folder / f"{role.value}-{name}.log" for name in ("sidecar", "engine"))
    return (
        stack.enter_context(children.running(place.prefix, SIDECAR, variables, sidecar)),
        stack.enter_context(children.running(place.prefix, stand_in, variables, engine)),
    )


def _wait_until_attached(sidecar: Child, stand_in: Child, deadline: float) -> None:
    while not stand_in.ask("attached"):
        sidecar.check()
        if time.monotonic() > deadline:
            raise KvferryError(f"no sidecar took the engine within {START_SECONDS:g} s:\n{sidecar.tail()}")
        time.sleep(_LOOK_SECONDS)  # another process's start sets no event here
