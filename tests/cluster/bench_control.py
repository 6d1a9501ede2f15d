"""How fast the operator makes children, and that it is silent when nothing changes. No container is ever started.

    python tests/cluster/bench_control.py --objects 500 --json build/bench/control.jsonl
    python tests/cluster/bench_control.py --objects 500 --burst kubectl

Times are read from the API server's audit log: from the answer to an object's creation to the answer that made the
last of its children; of a burst from the answer to its last creation, and as `own_delay` from each object's own.
Renewals of the operator's Lease, one each two seconds, are not counted as requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import control_plane as planes
import crd_schema
import installed_operator
import kubelet_stand_in
from audit_log import Request
from installed_operator import Operator
from kvferry_operator.kube.client import connect

NAMESPACE = "models"
MODELS = f"/apis/kvferry.io/v1alpha1/namespaces/{NAMESPACE}/disaggregatedmodels"
WARM_UP = 50
"""Memory is read at this many objects too, for its growth."""
STEADY_SECONDS = 60.0
CLIENTS = 32
NODES = {f"node-{number}": {"rdma/hca": "100"} for number in range(1, 11)}


def manifest(number: int) -> dict[str, Any]:
    """A model as a user writes it; verification needs real routers, so it is not required."""
    return {
        "apiVersion": "kvferry.io/v1alpha1",
        "kind": "DisaggregatedModel",
        "metadata": {"name": f"model-{number:04}", "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": "hf://models/m"},  # no volume, without which no pod would be scheduled
            "engine": {"type": "reference"},
            "prefill": {"replicas": 1},
            "decode": {"replicas": 1},
            "transfer": {"verify": {"required": False}},
        },
    }


@dataclass(frozen=True)
class Figure:
    """As design section 8 wants them: one JSON object a line."""

    name: str
    value: float
    unit: str
    n: int

    def line(self) -> str:
        value = float(f"{self.value:.4g}")
        return json.dumps(
            {"name": self.name, "value": value, "unit": self.unit, "against": None, "ratio": None, "n": self.n}
        )


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def apply(plane: planes.ControlPlane, numbers: Iterable[int], rate: float) -> None:
    """Create objects, `rate` a second."""
    start = time.monotonic()
    for turn, number in enumerate(numbers):
        await asyncio.sleep(max(0.0, start + turn / rate - time.monotonic()))
        await asyncio.to_thread(plane.api.create, MODELS, manifest(number))


async def apply_file(plane: planes.ControlPlane, numbers: Iterable[int]) -> None:
    """Create objects as a person does who has a file of them: one after another, as fast as they are taken."""
    documents = "\n---\n".join(json.dumps(manifest(number)) for number in numbers)
    await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", stdin=documents)


async def apply_at_once(plane: planes.ControlPlane, numbers: Iterable[int]) -> None:
    """Create objects as many do who know nothing of each other, `CLIENTS` at a time."""
    clients = asyncio.Semaphore(CLIENTS)
    async with connect(plane.kubeconfig) as cluster:

        async def one(number: int) -> None:
            async with clients:
                await cluster.create(manifest(number))

        await asyncio.gather(*map(one, numbers))


BURSTS = {"kubectl": apply_file, "clients": apply_at_once}


def births(requests: list[Request], operator: str, models: set[str]) -> tuple[dict[str, float], dict[str, float]]:
    """When each model was created, and when the last of its children was, by the operator."""
    created: dict[str, float] = {}
    last: dict[str, float] = {}
    for request in requests:
        if request.resource == "disaggregatedmodels" and request.user != operator and request.code == 201:
            created[request.name] = request.answered
        elif request.user == operator and request.code == 201 and request.resource != "events":
            model = "-".join(request.name.split("-")[:2])
            if model in models:
                last[model] = max(last.get(model, 0.0), request.answered)
    missing = models - last.keys()
    assert not missing, f"no children of {sorted(missing)[:5]}"
    return created, last


Measurement = Callable[[planes.ControlPlane, Operator], Awaitable[list[Figure]]]


async def measure(plane: planes.ControlPlane, log: Path, measurement: Measurement) -> list[Figure]:
    account = ("kvferry-system", "kvferry-operator")
    installed_operator.install(plane, account[0])
    plane.kubectl("create", "namespace", NAMESPACE)
    operator = Operator(plane, account, log)
    try:
        async with kubelet_stand_in.playing(plane.api.access, NODES):
            operator.start()
            await operator.quiet("start")
            return await measurement(plane, operator)
    finally:
        operator.stop()


async def burst(plane: planes.ControlPlane, operator: Operator, objects: int, way: str) -> list[Figure]:
    """All objects at one blow."""
    say(f"{objects} objects at once, by {way}")
    mark = plane.audit_position()
    await BURSTS[way](plane, range(objects))
    await told(plane)
    await operator.quiet(f"{objects} objects")
    models = {manifest(number)["metadata"]["name"] for number in range(objects)}
    created, last = births(plane.audit(mark), operator.user, models)
    first_apply, last_apply = min(created.values()), max(created.values())
    cuts = quantiles([max(0.0, moment - last_apply) for moment in last.values()], n=100)
    own = quantiles((last[model] - created[model] for model in models), n=100)
    return [
        Figure("control.burst_applied_in_s", last_apply - first_apply, "s", objects),
        Figure("control.burst_children_after_p50_s", cuts[49], "s", objects),
        Figure("control.burst_children_after_p99_s", cuts[98], "s", objects),
        Figure("control.burst_own_delay_p50_s", own[49], "s", objects),
        Figure("control.burst_own_delay_p99_s", own[98], "s", objects),
        Figure("control.burst_models_per_s", objects / (max(last.values()) - first_apply), "1/s", objects),
        Figure("control.burst_requests_a_model", len(operator.requests(mark)) / objects, "requests", objects),
    ]


async def steady_rate(plane: planes.ControlPlane, operator: Operator, objects: int, rate: float) -> list[Figure]:
    """Objects one by one, then a time without any, then a restart."""
    empty = operator.memory
    say(f"{WARM_UP} objects, then {objects - WARM_UP} more, {rate:g} a second")
    await apply(plane, range(WARM_UP), rate)
    await operator.quiet(f"{WARM_UP} objects")
    small = operator.memory
    mark = plane.audit_position()
    await apply(plane, range(WARM_UP, objects), rate)
    await operator.quiet(f"{objects} objects")
    models = {manifest(number)["metadata"]["name"] for number in range(WARM_UP, objects)}
    created, last = births(plane.audit(mark), operator.user, models)
    cuts = quantiles((last[model] - created[model] for model in models), n=100)
    asked = len(operator.requests(mark)) / len(models)

    say(f"steady for {STEADY_SECONDS:.0f} s")
    pods = pod_uids(plane)
    mark = plane.audit_position()
    await asyncio.sleep(STEADY_SECONDS)
    steady = operator.writes(mark)
    large = operator.memory

    say("restart")
    operator.stop()
    mark = plane.audit_position()
    operator.start()
    await asyncio.sleep(STEADY_SECONDS / 2)
    restart = operator.writes(mark)
    for write in (steady + restart)[:5]:
        say(f"a write: {write}")
    return [
        Figure("control.apply_to_children_p50_s", cuts[49], "s", len(models)),
        Figure("control.apply_to_children_p99_s", cuts[98], "s", len(models)),
        Figure("control.requests_a_model", asked, "requests", len(models)),
        Figure("control.steady_writes", len(steady), "requests", 1),
        Figure("control.restart_writes", len(restart), "requests", 1),
        Figure("control.restart_pods_replaced", len(pods - pod_uids(plane)), "pods", len(pods)),
        Figure("control.memory_bytes", large, "bytes", 1),
        Figure("control.memory_bytes_empty", empty, "bytes", 1),
        Figure(f"control.memory_bytes_{WARM_UP}", small, "bytes", 1),
        Figure("control.memory_bytes_restarted", operator.memory, "bytes", 1),
    ]


async def told(plane: planes.ControlPlane) -> None:
    """Until each object has a status: children come before any is told of, with a pause between."""
    deadline = time.monotonic() + installed_operator.SETTLE_SECONDS
    while not all("status" in each for each in plane.api.get(MODELS)["items"]):
        assert time.monotonic() < deadline, "an object still has no status"
        await asyncio.sleep(1.0)


def pod_uids(plane: planes.ControlPlane) -> set[str]:
    return {pod["metadata"]["uid"] for pod in plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=500)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--rate", type=float, default=3.0, help="objects created each second (default: 3)")
    ways.add_argument("--burst", choices=BURSTS, help="all at one blow: a file by kubectl, or many clients; only that")
    parser.add_argument("--json", type=Path, help="write one figure a line")
    parser.add_argument("--log", type=Path, default=Path("build/bench/control.log"), help="the operator's log")
    args = parser.parse_args()
    args.log.parent.mkdir(parents=True, exist_ok=True)
    args.log.unlink(missing_ok=True)
    measurement: Measurement = partial(steady_rate, objects=args.objects, rate=args.rate)
    if args.burst:
        measurement = partial(burst, objects=args.objects, way=args.burst)
    with planes.start(manifests=[crd_schema.crd()]) as plane:
        figures = asyncio.run(measure(plane, args.log, measurement))
    for figure in figures:
        print(f"{figure.name:36} {figure.value:14.4g} {figure.unit}  (n={figure.n})")
    if args.json:
        args.json.write_text("".join(figure.line() + "\n" for figure in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
