"""Mooncake's transfer engine moves one prefill's KV between two processes on loopback: prefill writes all layers with
one request.

Runs alone, under an interpreter that has Mooncake and knows nothing of us:
`python mooncake_loopback.py LAYERS BYTES COUNT`. Prints one JSON object: seconds of each transfer, without the first
one, after the bytes were compared. The interface: mooncake.engine.TransferEngine 0.3, protocol tcp.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

WAIT_SECONDS = 120.0
HOST = "127.0.0.1"


def main(layers: int, layer_bytes: int, count: int) -> int:
    context = multiprocessing.get_context("spawn")
    prefill_pipe, decode_pipe = context.Pipe()
    processes = [
        context.Process(target=decode, args=(decode_pipe, layers, layer_bytes), daemon=True),
        context.Process(target=prefill, args=(prefill_pipe, layers, layer_bytes, count), daemon=True),
    ]
    for process in processes:
        process.start()
    processes[1].join(WAIT_SECONDS)
    code = processes[1].exitcode
    for process in processes:
        process.kill()
        process.join()
    return 1 if code is None else code


def decode(pipe: Connection, layers: int, layer_bytes: int) -> None:
    import numpy

    engine, cache = _engine(), numpy.zeros(layers * layer_bytes, numpy.uint8)
    _register(engine, cache)
    pipe.send((f"{HOST}:{engine.get_rpc_port()}", cache.ctypes.data))
    pipe.recv()
    pipe.send(bool(numpy.array_equal(cache, _values(layers * layer_bytes))))
    pipe.recv()


def prefill(pipe: Connection, layers: int, layer_bytes: int, count: int) -> None:
    engine, cache = _engine(), _values(layers * layer_bytes)
    _register(engine, cache)
    peer, there = pipe.recv()
    here = cache.ctypes.data
    steps = [layer * layer_bytes for layer in range(layers)]
    seconds = []
    for _ in range(count + 1):
        started = time.perf_counter()
        status = engine.batch_transfer_sync_write(
            peer, [here + step for step in steps], [there + step for step in steps], [layer_bytes] * layers
        )
        seconds.append(time.perf_counter() - started)
        if status != 0:
            raise RuntimeError(f"Mooncake reports status {status}")
    pipe.send("over")
    if not pipe.recv():
        raise RuntimeError("Mooncake delivered other bytes than were sent")
    print(json.dumps({"seconds": seconds[1:]}), flush=True)  # noqa: T201


def _engine() -> Any:
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "") != 0:
        raise RuntimeError("Mooncake's engine cannot be initialised with TCP")
    return engine


def _register(engine: Any, cache: Any) -> None:
    if engine.register_memory(cache.ctypes.data, cache.nbytes) != 0:
        raise RuntimeError("Mooncake cannot register the memory")


def _values(size: int) -> Any:
    import numpy

    return numpy.random.default_rng(0).integers(0, 255, size, dtype=numpy.uint8)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))
