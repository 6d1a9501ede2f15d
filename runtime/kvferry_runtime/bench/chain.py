"""The measured chain: producer, its sidecar, the consumer's sidecar, consumer; four processes on loopback addresses."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry_contract import env, ports
from kvferry_contract.config import Method, OverlapMode, Role
from kvferry_runtime.bench import children
from kvferry_runtime.bench.cache import LAYOUT, TOLERANCE
from kvferry_runtime.bench.children import Child
from kvferry_runtime.bench.pods import SIDECAR, Rings, on_loopback, runtime_config, scratch, variables_of
from kvferry_runtime.errors import KvferryError

START_S = 30.0
TIMEOUT_S = 60.0
"""Of a transfer."""
STOP_S = 5.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Measured:
    """seconds: of each transfer. cpu_seconds: of all four processes together, over all of them."""

    raw_bytes: int
    wire_bytes: int
    seconds: tuple[float, ...]
    cpu_seconds: float

    @property
    def goodput(self) -> float:
        """Median, GB/s of raw bytes."""
        return self.raw_bytes / 1e9 / sorted(self.seconds)[len(self.seconds) // 2]

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_seconds / (len(self.seconds) * self.raw_bytes / 1e9)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the four processes hold: open descriptors and resident bytes of each, slots of the two rings by state."""

    descriptors: tuple[int, ...]
    resident_bytes: tuple[int, ...]
    slots: tuple[Mapping[str, int], ...]


class Chain:
    """A running chain. Use `running`."""

    def __init__(self, producer: Child, consumer: Child, pids: tuple[int, ...], hosts: tuple[str, str]) -> None:
        """hosts: addresses of the two sidecars, the producer's first."""
        self._producer = producer
        self._consumer = consumer
        self._pids = pids
        self._hosts = hosts
        self._peer = f"{hosts[0]}:{ports.SIDECAR_PEER}"

    def prepare(self, raw_bytes: int, paged: bool) -> None:
        """Memory for transfers of at most so many bytes on both sides."""
        for end in (self._producer, self._consumer):
            end.ask("memory", tokens=_tokens(raw_bytes), paged=paged)

    def check(self, raw_bytes: int, method: str) -> None:
        """Transfer once and look at every value that arrived.

        Raises:
            KvferryError: a value is further off than the method allows.
        """
        self._consumer.ask("clear")
        self.measure(raw_bytes, 1)
        worst = self._consumer.ask("worst_error", tokens=_tokens(raw_bytes))
        if worst > TOLERANCE[method]:
            raise KvferryError(f"{method}: values are off by {worst:.2g} of their row's largest: no figure is printed")

    def measure(self, raw_bytes: int, count: int) -> Measured:
        """So many transfers, one after the other.

        Raises:
            KvferryError: one failed.
        """
        tokens = _tokens(raw_bytes)
        ids = [secrets.token_hex(16) for _ in range(count)]
        self._producer.ask("offer", ids=ids, tokens=tokens)
        before = self._cpu_seconds()
        answer = self._consumer.ask("fetch", ids=ids, tokens=tokens, peer=self._peer)
        self._producer.ask("sent", count=count)
        cpu = self._cpu_seconds() - before
        return Measured(tokens * LAYOUT.bytes_per_token, answer["wire_bytes"], tuple(answer["seconds"]), cpu)

    def footprint(self) -> Footprint:
        """Of this moment."""
        folders = [Path(f"/proc/{pid}") for pid in self._pids]
        return Footprint(
            descriptors=tuple(len(list((folder / "fd").iterdir())) for folder in folders),
            resident_bytes=tuple(int((folder / "statm").read_text().split()[1]) * _PAGE for folder in folders),
            slots=tuple(_state(host)["ring"] for host in self._hosts),
        )

    def _cpu_seconds(self) -> float:
        """Of all threads of the four processes, in nanosecond steps (the process's own clock ticks every 10 ms)."""
        files = [file for pid in self._pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9


@contextmanager
def running(method: str, stamps: bool, rings: Rings) -> Iterator[Chain]:
    """Start the four processes; stop them and remove every file at the end.

    stamps: leave the payloads alone (slot to slot).

    Raises:
        KvferryError: a process did not start; the message has the end of its log.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        places = on_loopback()
        started: list[Child] = []
        for place, role in zip(places, (Role.PREFILL, Role.DECODE), strict=True):
            host = place.address
            config = runtime_config(role, Method(method), OverlapMode.REQUEST, rings, TIMEOUT_S)
            variables = variables_of(folder, place, config)
            pod = Path(variables[env.RING_DIR])
            sidecar = stack.enter_context(children.running((), SIDECAR, variables, pod / "sidecar.log"))
            _wait_for([sidecar], host, "/healthz")
            arguments = [role.value, str(pod), variables[env.CONFIG], "slots" if stamps else "method"]
            module = ["-m", "kvferry_runtime.bench.end", *arguments]
            end = stack.enter_context(children.running((), module, variables, pod / "end.log"))
            _wait_for([sidecar, end], host, "/readyz")
            started += [sidecar, end]
        pids = tuple(child.pid for child in started)
        yield Chain(started[1], started[3], pids, (places[0].address, places[1].address))


def _wait_for(processes: Sequence[Child], host: str, path: str) -> None:
    """Until the sidecar answers 200 there. processes: those that it takes."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for process in processes:
            process.check()
        connection = http.client.HTTPConnection(host, ports.SIDECAR_HTTP, timeout=2)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)  # a process that starts tells nobody when it listens
    tails = "".join(process.tail() for process in processes)
    raise KvferryError(f"the sidecar at {host} does not answer to {path} within {START_S} s:\n{tails}")


def _state(host: str) -> Any:
    """What the sidecar there says of itself."""
    connection = http.client.HTTPConnection(host, ports.SIDECAR_HTTP, timeout=STOP_S)
    try:
        connection.request("GET", "/v1/state")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _tokens(raw_bytes: int) -> int:
    return max(1, raw_bytes // LAYOUT.bytes_per_token)
