"""What a stage is told at start about its group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract import env, paths, ports
from kvferry_contract.config import GroupConfig
from kvferry_runtime.engine import stage_hosts
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.transport import shared_key


@dataclass(frozen=True, slots=True)
class RingSettings:
    """stage: of `hosts`, the names of the group's pods by stage. group: identity, the same in every stage.

    host: own address, to listen on. port: of every stage. key: the model's shared key. join_seconds: until the ring is
    complete.
    """

    stage: int
    hosts: tuple[str, ...]
    group: str
    host: str
    key: bytes
    join_seconds: float
    port: int = ports.STAGE

    @property
    def stages(self) -> int:
        return len(self.hosts)

    @property
    def next(self) -> int:
        """The stage to dial."""
        return (self.stage + 1) % self.stages

    @property
    def previous(self) -> int:
        """The stage that dials this one."""
        return (self.stage - 1) % self.stages


def read(
    environment: Mapping[str, str], group: GroupConfig, host: str, join_seconds: float = stage_hosts.WAIT_SECONDS
) -> RingSettings | None:
    """Settings of the ring, None where the model is not split.

    Raises:
        SettingsError: something is missing or wrong; says what to set.
    """
    if group.split.stages == 1:
        return None
    index = environment.get(env.GROUP_INDEX, "")
    if not (index.isascii() and index.isdecimal()):
        raise SettingsError(
            f"{env.GROUP_INDEX}={index!r} is not a number: set it to which group of its role this pod belongs to"
        )
    return RingSettings(
        stage=group.stage,
        hosts=stage_hosts.read(environment, group.split.stages),
        group=f"{group.namespace}/{group.name}/{group.revision}/{group.role.value}/{int(index)}",
        host=host,
        key=shared_key.read(Path(environment.get(env.KEY_FILE, f"{paths.KEY_DIR}/{paths.KEY_FILE}"))),
        join_seconds=join_seconds,
    )
