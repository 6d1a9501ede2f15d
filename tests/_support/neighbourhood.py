"""One operator for several namespaces: each but one gets trouble of its own, and the last must never notice."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import background_kubelet
import control_plane as planes
import operator_process
import pod_behaviours
from background_kubelet import Steer
from model_namespace import ModelNamespace
from operator_process import OperatorProcess

RESYNC_SECONDS = 1
UNVERIFIED = {"transfer.verify.required": False}
"""Changes of the minimal object that is Ready without a router that runs."""


class Neighbourhood:
    """Made by `settled`. steer: the stand-in of the kubelet, which makes every pod ready by itself."""

    def __init__(
        self, operator: OperatorProcess, steer: Steer, quiet: ModelNamespace, empty: list[ModelNamespace]
    ) -> None:
        self.operator = operator
        self.steer = steer
        self._quiet = quiet
        self._empty = empty

    @contextlib.contextmanager
    def trouble(self) -> Iterator[ModelNamespace]:
        """A namespace that nobody has used. The neighbour has the same pods and workloads before and after."""
        before = self._running()
        yield self._empty.pop()
        self.steer(lambda pod: pod_behaviours.READY)
        assert self._running() == before
        assert self._quiet.condition("Ready")["status"] == "True"
        assert self.operator.exit_code is None
        assert not [line for line in self.operator.lines if "nobody foresaw" in str(line.get("msg"))]

    def _running(self) -> tuple[dict[str, str], dict[str, str]]:
        return self._quiet.uids("Pod"), self._quiet.uids("StatefulSet")


@contextlib.contextmanager
def settled(plane: planes.ControlPlane, troubles: int) -> Iterator[Neighbourhood]:
    """troubles: namespaces for tests."""
    quiet, *empty = (ModelNamespace(plane, "neighbour") for _ in range(troubles + 1))
    names = [space.name for space in (quiet, *empty)]
    flags = [f"--resync-seconds={RESYNC_SECONDS}"]
    with (
        background_kubelet.playing(plane.api.access, {"neighbourhood": {}}) as steer,
        operator_process.running(plane.kubeconfig, *names, flags=flags) as operator,
    ):
        operator.wait_ready()
        quiet.create(UNVERIFIED)
        quiet.wait_condition("Ready", "True")
        yield Neighbourhood(operator, steer, quiet, empty)


def told_once(models: ModelNamespace, reason: str, name: str = "tiny") -> dict[str, Any]:
    """The Event with that reason, of which resyncs and retries make no second one."""
    # that no second one comes is no event: only time shows it
    time.sleep(3.5 * RESYNC_SECONDS)
    (event,) = models.events(name, reason)
    return event
