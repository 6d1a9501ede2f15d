"""How fast the operator makes children, and that it is silent when nothing changes. No container is ever started.

    python tests/cluster/bench_control.py --objects 500 --json build/bench/control.jsonl

Times are read from the API server's audit log: from the answer to an object's creation to the answer that made the
last of its children. Renewals of the operator's Lease, one each two seconds, are not counted as writes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil

import control_plane as planes
import crd_schema
import helm_chart
import kubelet_stand_in
from audit_log import Request

NAMESPACE = "models"
WARM_UP = 50
"""Memory is read at this many objects too, for its growth."""
QUIET_SECONDS = 10.0
SETTLE_SECONDS = 600.0
STEADY_SECONDS = 60.0
NODES = {f"node-{number}": {"rdma/hca": "100"} for number in range(1, 11)}


def manifest(number: int) -> dict[str, Any]:
    """A model as a user writes it; verification needs real routers, so it is not required."""
    return {
        "apiVersion": "kvferry.io/v1alpha1",
        "kind": "DisaggregatedModel",
        "metadata": {"name": f"model-{number:04}", "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": "pvc://models/m"},
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


class Operator:
    """The operator as a process, under its own service account."""

    def __init__(self, plane: planes.ControlPlane, account: tuple[str, str], log: Path) -> None:
        self._plane = plane
        self._account = account
        self._log = log
        self.user = "system:serviceaccount:{}:{}".format(*account)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        kubeconfig = self._plane.service_account_kubeconfig(*self._account)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    Path(sys.executable).with_name("kvferry-operator"),
                    f"--lease-namespace={self._account[0]}",
                    "--http-port=0",
                    "--log-level=warning",
                ],
                env=os.environ | {"KUBECONFIG": str(kubeconfig)},
                stdout=output,
                stderr=output,
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
            self._process = None

    @property
    def memory(self) -> int:
        """Resident bytes."""
        assert self._process is not None
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def requests(self, since: int) -> list[Request]:
        """What it asked of the API server, without the renewals of its Lease."""
        return [item for item in self._plane.audit(since, self.user) if item.resource != "leases"]

    def writes(self, since: int) -> list[Request]:
        return [item for item in self.requests(since) if item.writes]

    async def quiet(self, what: str) -> None:
        """Until it has written nothing for `QUIET_SECONDS`."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            mark = self._plane.audit_position()
            await asyncio.sleep(QUIET_SECONDS)
            if not self.writes(mark):
                return
        raise AssertionError(f"{what}: the operator still writes after {SETTLE_SECONDS:.0f} s, see {self._log}")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def apply(plane: planes.ControlPlane, numbers: Iterable[int], rate: float) -> None:
    """Create objects, `rate` a second."""
    path = f"/apis/kvferry.io/v1alpha1/namespaces/{NAMESPACE}/disaggregatedmodels"
    start = time.monotonic()
    for turn, number in enumerate(numbers):
        await asyncio.sleep(max(0.0, start + turn / rate - time.monotonic()))
        await asyncio.to_thread(plane.api.create, path, manifest(number))


def delays(requests: list[Request], operator: str, models: set[str]) -> list[float]:
    """Seconds from each model's creation to that of its last child by the operator."""
    created: dict[str, float] = {}
    last: dict[str, float] = {}
    for request in requests:
        if request.resource == "disaggregatedmodels" and request.verb == "create":
            created[request.name] = request.answered
        elif request.user == operator and request.code == 201 and request.resource != "events":
            model = "-".join(request.name.split("-")[:2])
            if model in models:
                last[model] = max(last.get(model, 0.0), request.answered)
    missing = models - last.keys()
    assert not missing, f"no children of {sorted(missing)[:5]}"
    return sorted(last[model] - created[model] for model in models)


async def measure(plane: planes.ControlPlane, objects: int, rate: float, log: Path) -> list[Figure]:
    account = ("kvferry-system", "kvferry-operator")
    install(plane, account[0])
    plane.kubectl("create", "namespace", NAMESPACE)
    operator = Operator(plane, account, log)
    try:
        async with kubelet_stand_in.playing(plane.api.access, NODES):
            return await _measure(plane, operator, objects, rate)
    finally:
        operator.stop()


async def _measure(plane: planes.ControlPlane, operator: Operator, objects: int, rate: float) -> list[Figure]:
    operator.start()
    await operator.quiet("start")
    empty = operator.memory
    say(f"{WARM_UP} objects, then {objects - WARM_UP} more, {rate:g} a second")
    await apply(plane, range(WARM_UP), rate)
    await operator.quiet(f"{WARM_UP} objects")
    small = operator.memory
    mark = plane.audit_position()
    await apply(plane, range(WARM_UP, objects), rate)
    await operator.quiet(f"{objects} objects")
    models = {manifest(number)["metadata"]["name"] for number in range(WARM_UP, objects)}
    waited = delays(plane.audit(mark), operator.user, models)
    cuts = quantiles(waited, n=100)

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
        Figure("control.apply_to_children_p50_s", cuts[49], "s", len(waited)),
        Figure("control.apply_to_children_p99_s", cuts[98], "s", len(waited)),
        Figure("control.steady_writes", len(steady), "requests", 1),
        Figure("control.restart_writes", len(restart), "requests", 1),
        Figure("control.restart_pods_replaced", len(pods - pod_uids(plane)), "pods", len(pods)),
        Figure("control.memory_bytes", large, "bytes", 1),
        Figure("control.memory_bytes_empty", empty, "bytes", 1),
        Figure(f"control.memory_bytes_{WARM_UP}", small, "bytes", 1),
        Figure("control.memory_bytes_restarted", operator.memory, "bytes", 1),
    ]


def install(plane: planes.ControlPlane, namespace: str) -> None:
    """Service account and permissions as the chart gives them."""
    plane.kubectl("create", "namespace", namespace)
    chart = helm_chart.Chart(helm_chart.helm())
    wanted = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    for item in chart.objects():
        if item["kind"] in wanted:
            plane.kubectl("apply", "-f", "-", stdin=json.dumps(item))


def pod_uids(plane: planes.ControlPlane) -> set[str]:
    return {pod["metadata"]["uid"] for pod in plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=500)
    parser.add_argument("--rate", type=float, default=3.0, help="objects created each second (default: 3)")
    parser.add_argument("--json", type=Path, help="write one figure a line")
    parser.add_argument("--log", type=Path, default=Path("build/bench/control.log"), help="the operator's log")
    args = parser.parse_args()
    args.log.parent.mkdir(parents=True, exist_ok=True)
    args.log.unlink(missing_ok=True)
    with planes.start(manifests=[crd_schema.crd()]) as plane:
        figures = asyncio.run(measure(plane, args.objects, args.rate, args.log))
    for figure in figures:
        print(f"{figure.name:36} {figure.value:14.4g} {figure.unit}  (n={figure.n})")
    if args.json:
        args.json.write_text("".join(figure.line() + "\n" for figure in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
