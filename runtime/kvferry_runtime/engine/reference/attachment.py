"""Whether a pod has been attached to its sidecar, which readiness awaits."""

from __future__ import annotations

from kvferry_runtime.agent.base import KvAgent


class Attachment:
    """Once is enough: when its sidecar restarts, the engine still answers, by the failure policy."""

    def __init__(self) -> None:
        self._seen = False

    def awaited(self, agent: KvAgent | None) -> bool:
        """Whether the agent has not been attached yet. agent: None where there is no sidecar."""
        if agent is not None and not self._seen:
            self._seen = agent.state().attached
            return not self._seen
        return False
