"""The operator as a process of its own account, with the rules of the chart, and what it asks of the API server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

import control_plane as planes
import helm_chart
from audit_log import Request

QUIET_SECONDS = 10.0
SETTLE_SECONDS = 600.0


def install(plane: planes.ControlPlane, namespace: str) -> None:
    """Service account and permissions as the chart gives them."""
    plane.kubectl("create", "namespace", namespace)
    chart = helm_chart.Chart(helm_chart.helm())
    wanted = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    for item in chart.objects():
        if item["kind"] in wanted:
            plane.kubectl("apply", "-f", "-", stdin=json.dumps(item))


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
            self._process.wait(120)
            self._process = None

    @property
    def memory(self) -> int:
        """Resident bytes."""
        assert self._process is not None
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def requests(self, since: int) -> list[Request]:
        """What it asked of the API server about its models, without what it hears of all of them at once."""
        asked = self._plane.audit(since, self.user)
        return [item for item in asked if item.resource not in ("", "leases") and item.verb not in ("list", "watch")]

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
