"""NIXL moves one prefill's KV between two processes on loopback: decode reads all layers with one request.

Runs alone, under an interpreter that has NIXL and knows nothing of us: `python nixl_loopback.py LAYERS BYTES COUNT`.
Prints one JSON object: seconds of each transfer, without the first one, after the bytes were compared.
The interface: `_api` of NIXL 1.x (its package for CUDA 13, which does without a GPU), UCX back end. UCX_TLS decides
which lanes it has.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

WAIT_SECONDS = 120.0


def main(layers: int, layer_bytes: int, count: int) -> int:
    context = multiprocessing.get_context("spawn")
    prefill_pipe, decode_pipe = context.Pipe()
    processes = [
        context.Process(target=prefill, args=(prefill_pipe, layers, layer_bytes), daemon=True),
        context.Process(target=decode, args=(decode_pipe, layers, layer_bytes, count), daemon=True),
    ]
    for process in processes:
        process.start()
    processes[1].join(WAIT_SECONDS)
    code = processes[1].exitcode
    for process in processes:
        process.kill()
        process.join()
    return 1 if code is None else code


def prefill(pipe: Connection, layers: int, layer_bytes: int) -> None:
    agent, cache = _agent("prefill"), _values(layers * layer_bytes)
    agent.register_memory([(cache.ctypes.data, cache.nbytes, 0, "")], "DRAM")
    places = agent.get_xfer_descs(_places(cache, layers, layer_bytes), "DRAM")
    pipe.send((agent.get_agent_metadata(), agent.get_serialized_descs(places)))
    pipe.recv()


def decode(pipe: Connection, layers: int, layer_bytes: int, count: int) -> None:
    import numpy

    agent, cache = _agent("decode"), numpy.zeros(layers * layer_bytes, numpy.uint8)
    agent.register_memory([(cache.ctypes.data, cache.nbytes, 0, "")], "DRAM")
    metadata, places = pipe.recv()
    peer, there = agent.add_remote_agent(metadata), agent.deserialize_descs(places)
    here = agent.get_xfer_descs(_places(cache, layers, layer_bytes), "DRAM")
    seconds = []
    for _ in range(count + 1):
        request = agent.initialize_xfer("READ", here, there, peer, b"done")
        started = time.perf_counter()
        state = agent.transfer(request)
        while state not in ("DONE", "ERR"):
            state = agent.check_xfer_state(request)
        seconds.append(time.perf_counter() - started)
        if state == "ERR":
            raise RuntimeError("NIXL reports that the transfer failed")
        agent.release_xfer_handle(request)
    if not numpy.array_equal(cache, _values(layers * layer_bytes)):
        raise RuntimeError("NIXL delivered other bytes than were sent")
    print(json.dumps({"seconds": seconds[1:]}), flush=True)  # noqa: T201
    pipe.send("over")


def _agent(name: str) -> Any:
    from nixl_cu13._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def _values(size: int) -> Any:
    import numpy

    return numpy.random.default_rng(0).integers(0, 255, size, dtype=numpy.uint8)


def _places(cache: Any, layers: int, layer_bytes: int) -> list[tuple[int, int, int]]:
    return [(cache.ctypes.data + layer * layer_bytes, layer_bytes, 0) for layer in range(layers)]


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))
