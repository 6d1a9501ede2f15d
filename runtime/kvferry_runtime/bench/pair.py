"""Two pods, each an engine's stand-in and its sidecar: on loopback, or in namespaces at the ends of a limited link."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract import env, ports
from kvferry_contract.config import (
    VERSION,
    FailurePolicy,
    GroupConfig,
    Integrity,
    Method,
    ModelConfig,
    OnFallback,
    OverlapMode,
    Role,
    RuntimeConfig,
    TransferConfig,
    TransportKind,
)
from kvferry_runtime.bench import children
from kvferry_runtime.bench.children import Child
from kvferry_runtime.bench.layouts import layout
from kvferry_runtime.bench.namespaces import Link
from kvferry_runtime.errors import KvferryError

AUTO_METHODS = (Method.NONE, Method.LOSSLESS, Method.INT8, Method.FP8)
"""Among which `auto` may choose here."""
SIDECAR = ("-m", "kvferry_runtime", "sidecar")
START_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_CHUNK_BYTES, _BUFFER_BYTES, _IN_FLIGHT = 4 << 20, 64 << 20, 4


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod runs. prefix: of its commands."""

    address: str
    prefix: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Setup:
    """How the two pods are told to transfer. layout: a name in `layouts`."""

    layout: str
    method: Method
    overlap: OverlapMode


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
    network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(256)}"
    return Place(f"{network}.1", (), {}), Place(f"{network}.2", (), {})


class Pair:
    """A running pair. Use `running`."""

    def __init__(self, producer: Child, consumer: Child, peer: str, layout_name: str) -> None:
        self._producer = producer
        self._consumer = consumer
        self._peer = peer
        self._layout = layout(layout_name)

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
        yield Pair(producer, consumer, f"{where[0].address}:{ports.SIDECAR_PEER}", setup.layout)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for rings and logs, in memory where there is one for it; removed at the end."""
    shared = Path("/dev/shm")  # noqa: S108
    folder = Path(tempfile.mkdtemp(prefix="kvferry-bench-", dir=shared if shared.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_ROLES = (Role.PREFILL, Role.DECODE)


def _pod(stack: ExitStack, folder: Path, role: Role, place: Place, setup: Setup) -> tuple[Child, Child]:
    """Its sidecar and its stand-in, started."""
    variables = variables_of(folder, role, place, setup)
    pod, config = variables[env.RING_DIR], variables[env.CONFIG]
    stand_in = ["-m", "kvferry_runtime.bench.stand_in", role.value, pod, config, setup.layout]
    sidecar, engine = (folder / f"{role.value}-{name}.log" for name in ("sidecar", "engine"))
    return (
        stack.enter_context(children.running(place.prefix, SIDECAR, variables, sidecar)),
        stack.enter_context(children.running(place.prefix, stand_in, variables, engine)),
    )


def variables_of(folder: Path, role: Role, place: Place, setup: Setup) -> dict[str, str]:
    """The environment of this pod's processes; makes its folder, its configuration and the key that both pods share."""
    pod = folder / role.value
    pod.mkdir()
    config, key = pod / "config.json", folder / "key"
    config.write_text(_config(role, setup).to_json())
    if not key.exists():
        key.write_text(secrets.token_hex(32))
    return {
        env.CONFIG: str(config),
        env.ROLE: role.value,
        env.RING_DIR: str(pod),
        env.KEY_FILE: str(key),
        env.POD_IP: place.address,
        env.POD_NAME: f"bench-{role.value}-0",
        env.LOG_LEVEL: "warning",
        **place.variables,
    }


def _wait_until_attached(sidecar: Child, stand_in: Child, deadline: float) -> None:
    while not stand_in.ask("attached"):
        sidecar.check()
        if time.monotonic() > deadline:
            raise KvferryError(f"no sidecar took the engine within {START_SECONDS:g} s:\n{sidecar.tail()}")
        time.sleep(_LOOK_SECONDS)  # another process's start sets no event here


def _config(role: Role, setup: Setup) -> RuntimeConfig:
    transfer = TransferConfig(
        transport=TransportKind.TCP,
        on_fallback=OnFallback.WARN,
        method=setup.method,
        auto_methods=AUTO_METHODS,
        keep_exact_first=0,
        keep_exact_last=0,
        max_relative_error=1.0,
        overlap=setup.overlap,
        inflight_chunks=_IN_FLIGHT,
        chunk_bytes=_CHUNK_BYTES,
        buffer_bytes=_BUFFER_BYTES,
        integrity=Integrity.DIGEST,
        failure_policy=FailurePolicy.FAIL,
        timeout_seconds=90.0,
    )
    group = GroupConfig("bench", "bench", "bench", role, 0, 1, 1)
    return RuntimeConfig(VERSION, ModelConfig("file:///bench", "", "bench", "/bench"), group, transfer, 1.0)
