"""`bench peers`: NIXL, Mooncake and us in turn, the same bytes over loopback TCP in the same minutes.

One prefill's KV is 32 layers of 8 MiB, as one request. Slot to slot is what the peers do too: from registered memory
of one process into that of another one. Engine to engine is more: copied out of an engine's memory, into another's,
with a digest at both ends.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kvferry_runtime.bench import chain, pods
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.peers import environment
from kvferry_runtime.errors import KvferryError

TIMEOUT_SECONDS = 180.0
_SCRIPTS = {"nixl": "nixl_loopback.py", "mooncake": "mooncake_loopback.py"}
_PACKAGES = {"libibverbs": "libibverbs1", "libnuma": "libnuma1", "librdmacm": "librdmacm1"}
"""Debian packages of libraries that the peers' wheels take from the system."""


@dataclass(frozen=True, slots=True)
class Plan:
    """rounds: in each of them everybody has a turn of `count` transfers."""

    layers: int
    layer_bytes: int
    rounds: int
    count: int

    @property
    def size(self) -> int:
        return self.layers * self.layer_bytes


def figures(plan: Plan, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Measure, then give the figures. A peer that does not start is told of and left out.

    Raises:
        KvferryError: no peer could be measured, or a transfer of ours failed.
    """
    interpreter = environment.python(progress)
    peers: dict[str, list[float]] = {name: [] for name in _SCRIPTS}
    slots: list[float] = []
    engines: list[float] = []
    with chain.running("none", True, pods.RINGS) as bare, chain.running("none", False, pods.RINGS) as whole:
        for ours in (bare, whole):
            ours.prepare(plan.size, paged=False)
        whole.check(plan.size, "none")
        bare.measure(plan.size, 1)
        for number in range(1, plan.rounds + 1):
            progress(f"round {number} of {plan.rounds}: kvferry")
            slots += bare.measure(plan.size, plan.count).seconds
            engines += whole.measure(plan.size, plan.count).seconds
            for name in list(peers):
                progress(f"round {number} of {plan.rounds}: {name}")
                try:
                    peers[name] += _seconds(interpreter, name, plan)
                except KvferryError as error:
                    progress(f"{name} is left out: {error}")
                    del peers[name]
    if not peers:
        raise KvferryError("no peer could be measured: see above what each lacks")
    for name, theirs in peers.items():
        yield _figure(f"transfer.against_{name}", plan, slots, theirs)
        yield _figure(f"transfer.engine_to_engine_against_{name}", plan, engines, theirs)


def _seconds(interpreter: Path, name: str, plan: Plan) -> list[float]:
    """Of each transfer of one run of this peer.

    Raises:
        KvferryError: it does not start, fails, or moves wrong bytes; says which package it lacks, if it is that.
    """
    script = Path(__file__).with_name(_SCRIPTS[name])
    numbers = map(str, (plan.layers, plan.layer_bytes, plan.count))
    try:
        done = subprocess.run(  # noqa: S603
            [str(interpreter), str(script), *numbers],
            env={**os.environ, "UCX_TLS": "tcp,self"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KvferryError(str(error)) from error
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            return [float(seconds) for seconds in json.loads(line)["seconds"]]
    raise KvferryError(explain(done.stderr))


def explain(stderr: str) -> str:
    """Its last words, with the package to install where a system library is missing. Pure."""
    lines = [line for line in stderr.splitlines() if "Error" in line] or stderr.splitlines()[-1:] or ["it says nothing"]
    advice = [
        f"apt-get install {package}"
        for library, package in _PACKAGES.items()
        if f"{library}.so" in lines[-1] and "cannot open shared object file" in lines[-1]
    ]
    return ": ".join([lines[-1].strip(), *advice])


def _figure(name: str, plan: Plan, ours: list[float], theirs: list[float]) -> Figure:
    mine, other = (plan.size / 1e9 / median(seconds) for seconds in (ours, theirs))
    return Figure(name, mine, "GB/s", other, mine / other, len(ours))
