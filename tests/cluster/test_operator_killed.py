"""An operator that is killed at any step of a pass leaves nothing that the next one doubles or loses."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import background_kubelet
import control_plane as planes
import killed_operator
import operator_process
from model_namespace import ModelNamespace

pytestmark = pytest.mark.slow

MOMENTS = ("load:1", "parse:1", "plan:1", "apply:1", "apply:2", "apply:9", "status:1", "write:1", "write:2", "write:4")
"""Among them: before the Secret is made, in the middle of the children, between Events, and before status."""


@pytest.fixture(scope="module", autouse=True)
def nodes(control_plane: planes.ControlPlane) -> Iterator[None]:
    """Pods become ready."""
    with background_kubelet.playing(control_plane.api.access, {"killed": {}}):
        yield


def test_whatever_the_step_the_next_operator_finishes_the_work(control_plane: planes.ControlPlane) -> None:
    spaces = {moment: ModelNamespace(control_plane, "killed") for moment in MOMENTS}
    with contextlib.ExitStack() as stack:
        operators = {}
        for moment, space in spaces.items():
            space.create({"transfer.verify.required": False})
            command = (sys.executable, str(Path(killed_operator.__file__)), moment)
            running = operator_process.running(space.kubeconfig, space.name, command=command)
            operators[moment] = stack.enter_context(running)
        for moment, operator in operators.items():
            assert operator.wait_end(600) == -signal.SIGKILL, f"{moment}: {operator.lines}"
    keys = {moment: space.uids("Secret") for moment, space in spaces.items()}

    with operator_process.running(control_plane.kubeconfig, *(space.name for space in spaces.values())) as operator:
        operator.wait_ready()
        kinds = set()
        for moment, space in spaces.items():
            space.wait_condition("Ready", "True")
            children = space.children()
            kinds.add(tuple(sorted(Counter(kind for kind, _ in children).items())))
            assert keys[moment] in ({}, space.uids("Secret")), f"{moment}: the key was made a second time"
            assert len(space.uids("Pod")) == 3, moment
            told = Counter((event["action"], event["reason"], event["note"]) for event in _events(space))
            assert told and max(told.values()) == 1, f"{moment}: told twice: {told}"
        assert len(kinds) == 1, f"not everybody has the same children: {kinds}"
        assert operator.stop() == 0


def _events(space: ModelNamespace) -> list[dict[str, str]]:
    listed = space.plane.api.get(f"/apis/events.k8s.io/v1/namespaces/{space.name}/events")
    return [event for event in listed["items"] if event["regarding"]["kind"] == "DisaggregatedModel"]
