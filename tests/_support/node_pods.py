"""Pods for tests on a real node: a Python program in the test image, made, waited for and looked into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cluster_node import python_image
from control_plane import ControlPlane
from eventually import eventually

Manifest = dict[str, Any]

WAIT = "import time; time.sleep(3600)"
"""A program that does nothing for as long as a test may take."""


def container(name: str, program: str = WAIT, **fields: Any) -> Manifest:
    """One that runs a Python program. fields: further ones of the container."""
    image = {"image": python_image.IMAGE, "imagePullPolicy": "Never", "args": ["-u", "-c", program]}
    return {"name": name, **image, **fields}


@dataclass(frozen=True)
class Pods:
    """The pods of one namespace."""

    plane: ControlPlane
    namespace: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def create(self, name: str, *containers: Manifest, **spec: Any) -> None:
        """spec: further fields of it."""
        labels = {"app": name}
        whole = {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec}
        self.plane.api.create(self.path, {"metadata": {"name": name, "labels": labels}, "spec": whole})

    def get(self, name: str) -> Manifest:
        found: Manifest = self.plane.api.get(f"{self.path}/{name}")
        return found

    def condition(self, name: str, kind: str) -> Manifest:
        """Empty when it has none of this kind."""
        conditions = self.get(name)["status"].get("conditions", [])
        return next((found for found in conditions if found["type"] == kind), {})

    def wait_until_ready(self, name: str) -> None:
        eventually(lambda: self.condition(name, "Ready").get("status") == "True", f"pod {name} is ready", 300.0)

    def delete_all(self) -> None:
        """Returns when none is left."""
        self.plane.api.delete(self.path)
        eventually(lambda: not self.plane.api.get(self.path)["items"], f"no pod is left in {self.namespace}")

    def ran(self, name: str, program: str, container: str = "") -> str:
        """What a Python program prints inside the pod.

        Raises:
            AssertionError: it failed; with its traceback.
        """
        where = ["--container", container] if container else []
        command = [python_image.PYTHON, "-c", program]
        return self.plane.kubectl("exec", "--namespace", self.namespace, name, *where, "--", *command)

    def logs(self, name: str, container: str) -> str:
        return self.plane.kubectl("logs", "--namespace", self.namespace, name, "--container", container)
