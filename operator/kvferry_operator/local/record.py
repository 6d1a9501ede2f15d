"""What an instance looks like at one moment: what `instance.json` holds and `kvferry local ps` shows. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """Where one container is in its life."""

    WAITING = "waiting"
    """For the containers before it."""
    STARTING = "starting"
    """Runs; its startup probe has not passed yet."""
    RUNNING = "running"
    BACKOFF = "back-off"
    """Ended; waits for its next start."""
    ENDED = "ended"
    """Done (an init container), or stopped."""


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    name: str
    phase: Phase
    ready: bool
    restarts: int
    pid: int
    """0 when it does not run."""
    note: str
    """How it last ended; empty when it never did."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """group: ordinal of its group. stage: its pipeline stage, from 0, of so many `stages`."""

    name: str
    role: str
    address: str
    containers: tuple[ContainerRecord, ...]
    group: int = 0
    stage: int = 0
    stages: int = 1

    @property
    def ready(self) -> bool:
        return all(container.ready for container in self.containers)

    @property
    def restarts(self) -> int:
        return sum(container.restarts for container in self.containers)


@dataclass(frozen=True, slots=True)
class Record:
    """url: where to send requests, empty when there is no router. logs: a folder a pod under it."""

    namespace: str
    name: str
    pid: int
    url: str
    logs: str
    pods: tuple[PodRecord, ...]

    @property
    def ready(self) -> bool:
        return all(pod.ready for pod in self.pods)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """
        Raises:
            ValueError: not what `to_json` writes.
        """
        try:
            raw: dict[str, Any] = json.loads(text)
            pods = tuple(
                PodRecord(
                    **{
                        **pod,
                        "containers": tuple(
                            ContainerRecord(**{**item, "phase": Phase(item["phase"])}) for item in pod["containers"]
                        ),
                    }
                )
                for pod in raw["pods"]
            )
            return cls(**{**raw, "pods": pods})
        except (KeyError, TypeError) as error:
            raise ValueError(f"no record of an instance: {error}") from error
