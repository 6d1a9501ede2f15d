"""What this machine can do at best, measured in the same run: copies, digests, and one plain TCP stream."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import xxhash

from kvferry_runtime.bench import iperf
from kvferry_runtime.errors import KvferryError

CHUNK_BYTES = 1 << 20
PROBE_BYTES = 256 << 20
RAW_TCP_BYTES = 1 << 30
TIMEOUT_S = 60.0
IPERF_SECONDS = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Speeds in GB/s, costs in CPU seconds for each GB (10^9 bytes).

    iperf3: one stream, None where it is not installed. sockets: one stream of large plain sends. pass_cost: one copy in
    chunks and its digest, as at either end of a transfer. send_cost, receive_cost: of `sockets`. cores: that this
    process may use.
    """

    memcpy: float
    iperf3: float | None
    sockets: float
    pass_cost: float
    send_cost: float
    receive_cost: float
    cores: int

    @property
    def raw_tcp(self) -> float:
        """What transfers are held against."""
        return self.sockets if self.iperf3 is None else self.iperf3

    @property
    def chain_cost(self) -> float:
        """One pass in, send, receive, one pass out."""
        return 2 * self.pass_cost + self.send_cost + self.receive_cost

    @property
    def chain_bound(self) -> float:
        """GB/s of a chain that costs no more than that, with every core busy."""
        return self.cores / self.chain_cost


def measure() -> Limits:
    """Takes a few seconds. Raises KvferryError: a TCP stream broke."""
    source = np.random.default_rng(0).integers(0, 256, PROBE_BYTES, np.uint8)
    target = np.zeros_like(source)
    memcpy = max(PROBE_BYTES / 1e9 / _seconds(source, target) for _ in range(3))
    pass_cost = min(_pass_cost(source, target) for _ in range(3))
    sockets, send_cost, receive_cost = _raw_tcp(source.data)
    here = iperf.Loopback()
    iperf3 = iperf.goodput(here, here, IPERF_SECONDS) / 1e9 if shutil.which("iperf3") else None
    return Limits(memcpy, iperf3, sockets, pass_cost, send_cost, receive_cost, len(os.sched_getaffinity(0)))


def _seconds(source: np.ndarray, target: np.ndarray) -> float:
    started = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - started


def _pass_cost(source: np.ndarray, target: np.ndarray) -> float:
    started = time.process_time()
    for start in range(0, PROBE_BYTES, CHUNK_BYTES):
        chunk = target[start : start + CHUNK_BYTES]
        np.copyto(chunk, source[start : start + CHUNK_BYTES])
        xxhash.xxh3_64_intdigest(chunk.data)
    return (time.process_time() - started) / (PROBE_BYTES / 1e9)


def _raw_tcp(data: memoryview) -> tuple[float, float, float]:
    """One stream to a process of its own; until that has read every byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_S)
        receiver = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "kvferry_runtime.bench.limits", str(listener.getsockname()[1])],
            stdout=subprocess.PIPE,
        )
        try:
            stream, _ = listener.accept()
            with stream:
                stream.settimeout(TIMEOUT_S)
                started, cpu = time.perf_counter(), time.process_time()
                for _ in range(RAW_TCP_BYTES // len(data)):
                    stream.sendall(data)
                stream.shutdown(socket.SHUT_WR)
                stream.recv(1)
                seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            output, _ = receiver.communicate(timeout=TIMEOUT_S)
            received = float(output)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise KvferryError(f"the plain TCP stream broke: {error}") from error
        finally:
            receiver.kill()
            receiver.wait()
    gigabytes = RAW_TCP_BYTES / 1e9
    return gigabytes / seconds, cpu / gigabytes, received / gigabytes


def _receive(port: int) -> float:
    """Read until the end, answer with one byte. Returns the CPU seconds that it took."""
    buffer = bytearray(CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as stream:
        cpu = time.process_time()
        while stream.recv_into(buffer):
            pass
        cpu = time.process_time() - cpu
        stream.sendall(b"\0")
    return cpu


if __name__ == "__main__":
    sys.stdout.write(f"{_receive(int(sys.argv[1]))}\n")
