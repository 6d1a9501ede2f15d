"""The measured chain: producer, its sidecar, the consumer's sidecar, consumer; four processes on loopback addresses."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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
from kvferry_runtime.bench.cache import LAYOUT, TOLERANCE
from kvferry_runtime.errors import KvferryError

START_S = 30.0
ANSWER_S = 120.0
STOP_S = 5.0
_LOG_TAIL = 1500
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Rings:
    """What both sidecars are told. Sizes in bytes."""

    transport: TransportKind
    chunk_bytes: int
    inflight_chunks: int
    buffer_bytes: int


RINGS = Rings(TransportKind.TCP, chunk_bytes=4 << 20, inflight_chunks=4, buffer_bytes=64 << 20)
"""What is measured unless something else is asked for. TCP, since that is what raw TCP can be compared with."""


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

    def __init__(
        self, producer: EndProcess, consumer: EndProcess, pids: tuple[int, ...], hosts: tuple[str, str]
    ) -> None:
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


class EndProcess:
    """`kvferry_runtime.bench.end` as a child."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, **arguments: Any) -> Any:
        """Raises KvferryError: it answered with an error, died, or did not answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
            line = self._process.stdout.readline() if ready else ""
        except BrokenPipeError:
            line = ""
        if not line:
            raise KvferryError(f"an end of the chain does not answer to {op!r}:\n{_tail(self._log)}")
        answer = json.loads(line)
        if "error" in answer:
            raise KvferryError(f"{op}: {answer['error']}\n{_tail(self._log)}")
        return answer["result"]


@contextmanager
def running(method: str, stamps: bool, rings: Rings) -> Iterator[Chain]:
    """Start the four processes; stop them and remove every file at the end.

    stamps: leave the payloads alone (slot to slot).

    Raises:
        KvferryError: a process did not start; the message has the end of its log.
    """
    with ExitStack() as stack:
        shared = Path("/dev/shm")  # noqa: S108
        folder = Path(tempfile.mkdtemp(prefix="kvferry-bench-", dir=shared if shared.is_dir() else None))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(256)}"
        (folder / "key").write_text(secrets.token_hex(32))
        pids: list[int] = []
        ends: list[EndProcess] = []
        for number, role in enumerate((Role.PREFILL, Role.DECODE), start=1):
            pod = folder / role.value
            pod.mkdir()
            config = _config(role, Method(method), rings)
            (pod / "config.json").write_text(config.to_json())
            variables = {
                env.CONFIG: str(pod / "config.json"),
                env.ROLE: role.value,
                env.RING_DIR: str(pod),
                env.KEY_FILE: str(folder / "key"),
                env.POD_IP: f"{network}.{number}",
                env.POD_NAME: f"bench-{role.value}-0",
                env.LOG_LEVEL: "warning",
            }
            sidecar_log, end_log = pod / "sidecar.log", pod / "end.log"
            sidecar = stack.enter_context(_child(["-m", "kvferry_runtime", "sidecar"], variables, sidecar_log))
            _wait_for({sidecar: sidecar_log}, f"{network}.{number}", "/healthz")
            arguments = [role.value, str(pod), str(pod / "config.json"), "slots" if stamps else "method"]
            end = stack.enter_context(_child(["-m", "kvferry_runtime.bench.end", *arguments], variables, end_log))
            ends.append(EndProcess(end, end_log))
            _wait_for({sidecar: sidecar_log, end: end_log}, f"{network}.{number}", "/readyz")
            pids += [sidecar.pid, end.pid]
        yield Chain(ends[0], ends[1], tuple(pids), (f"{network}.1", f"{network}.2"))


@contextmanager
def _child(arguments: list[str], variables: dict[str, str], log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as file:
        process = _start(arguments, variables, file)
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _start(arguments: list[str], variables: dict[str, str], log: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603
        [sys.executable, *arguments],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )


def _wait_for(logs: dict[subprocess.Popen[str], Path], host: str, path: str) -> None:
    """Until the sidecar answers 200 there. logs: of the processes that it takes."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for process, log in logs.items():
            if process.poll() is not None:
                raise KvferryError(f"{log.stem} exited with {process.returncode}:\n{_tail(log)}")
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
    tails = "".join(_tail(log) for log in logs.values())
    raise KvferryError(f"the sidecar at {host} does not answer to {path} within {START_S} s:\n{tails}")


def _state(host: str) -> Any:
    """What the sidecar there says of itself."""
    connection = http.client.HTTPConnection(host, ports.SIDECAR_HTTP, timeout=STOP_S)
    try:
        connection.request("GET", "/v1/state")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG_TAIL:]


def _tokens(raw_bytes: int) -> int:
    return max(1, raw_bytes // LAYOUT.bytes_per_token)


def _config(role: Role, method: Method, rings: Rings) -> RuntimeConfig:
    transfer = TransferConfig(
        transport=rings.transport,
        on_fallback=OnFallback.WARN,
        method=method,
        auto_methods=(Method.NONE, Method.LOSSLESS, Method.INT8, Method.FP8, Method.K8V4),
        keep_exact_first=0,
        keep_exact_last=0,
        max_relative_error=1.0,
        overlap=OverlapMode.REQUEST,
        inflight_chunks=rings.inflight_chunks,
        chunk_bytes=rings.chunk_bytes,
        buffer_bytes=rings.buffer_bytes,
        integrity=Integrity.DIGEST,
        failure_policy=FailurePolicy.FAIL,
        timeout_seconds=60.0,
    )
    group = GroupConfig("bench", "bench", "bench", role, 0, 1, 1)
    return RuntimeConfig(VERSION, ModelConfig("file:///bench", "", "bench", "/bench"), group, transfer, 1.0)
