"""What the same object may be rendered with on another installation: images and the server's version."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from kvferry_operator.api.types import PullPolicy

NATIVE_SIDECARS_SINCE = (1, 29)
"""Before, `restartPolicy` on an init container is dropped, and the pod would wait for the sidecar to end."""
SLEEP_HOOK_SINCE = (1, 30)
"""Before, a `sleep` hook is refused."""
OWN_LABELS_IN_AFFINITY_SINCE = (1, 31)
"""Before, a pod's affinity cannot speak of the pod's own labels (`matchLabelKeys`)."""


def release() -> str:
    """The version of this distribution, which the default images carry as tag."""
    try:
        return version("kvferry")
    except PackageNotFoundError:
        return "0.0.0"


@dataclass(frozen=True, slots=True)
class Images:
    """Used where the object names none.

    engine: the reference engine, with torch. runtime: sidecar and router, without. vllm: upstream's.
    """

    engine: str
    runtime: str
    vllm: str = "docker.io/vllm/vllm-openai:v0.32.0"

    @classmethod
    def of_release(cls, tag: str) -> Images:
        return cls(engine=f"ghcr.io/kvferry/kvferry-engine:{tag}", runtime=f"ghcr.io/kvferry/kvferry-runtime:{tag}")


@dataclass(frozen=True, slots=True)
class Settings:
    """pull_policy: of sidecar, router and connector; the engine's is in the object. server: minor version served."""

    images: Images = field(default_factory=lambda: Images.of_release(release()))
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    server: tuple[int, int] = (1, 34)

    @property
    def native_sidecars(self) -> bool:
        return self.server >= NATIVE_SIDECARS_SINCE

    @property
    def sleep_hook(self) -> bool:
        return self.server >= SLEEP_HOOK_SINCE

    @property
    def own_labels_in_affinity(self) -> bool:
        return self.server >= OWN_LABELS_IN_AFFINITY_SINCE
