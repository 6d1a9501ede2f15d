"""The unit that is rendered: one pipeline stage of one role at one revision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvferry_contract.config import Role
from kvferry_operator.api import names
from kvferry_operator.api.types import DisaggregatedModel, Mode, RdmaMode, RoleSpec
from kvferry_operator.desired.settings import Settings

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """role: prefill or decode, as in the object; `spec` is that role's part of it. index: from 0."""

    model: DisaggregatedModel
    role: Role
    spec: RoleSpec
    index: int
    revision: str
    settings: Settings

    @property
    def name(self) -> str:
        return names.stage(self.model.name, self.role.value, self.revision, self.index)

    @property
    def path(self) -> str:
        """Where the role stands in the object."""
        return f"spec.{self.role}"

    @property
    def runs_as(self) -> Role:
        """What engine and sidecar are told: decode does prefill's work too where there is no prefill."""
        return Role.AGGREGATED if self.model.spec.mode is Mode.AGGREGATED else self.role

    @property
    def transfers(self) -> bool:
        """Whether there is anybody to exchange KV with, hence a sidecar."""
        return self.model.spec.mode is Mode.DISAGGREGATED

    @property
    def is_split(self) -> bool:
        """Whether a group is several pods, which speak with each other."""
        return self.spec.parallelism.pipeline > 1

    @property
    def uses_rdma(self) -> bool:
        return self.transfers and self.spec.rdma.mode is RdmaMode.DEVICE_PLUGIN

    @property
    def selector(self) -> dict[str, str]:
        return names.selector(self.model.name, self.role.value, self.revision, self.index)

    @property
    def labels(self) -> dict[str, str]:
        return names.labels(self.model.name, self.role.value) | self.selector


def roles(model: DisaggregatedModel) -> tuple[tuple[Role, RoleSpec], ...]:
    """The roles that the object has, prefill first."""
    decode = (Role.DECODE, model.spec.decode)
    return (decode,) if model.spec.prefill is None else ((Role.PREFILL, model.spec.prefill), decode)


def has_stages(model: DisaggregatedModel) -> bool:
    """Whether a group of any role is several pods."""
    return any(spec.parallelism.pipeline > 1 for _, spec in roles(model))


def shares_key(model: DisaggregatedModel) -> bool:
    """Whether any two pods of a model speak with each other: about KV, or as stages of one group."""
    return model.spec.mode is Mode.DISAGGREGATED or has_stages(model)


def metadata(model: DisaggregatedModel, name: str, labels: dict[str, str]) -> Manifest:
    """Of a child; the annotation tells the object's full name where labels can hold only a short form."""
    return {
        "name": name,
        "namespace": model.namespace,
        "labels": labels,
        "annotations": {names.ANNOTATION_MODEL: model.name},
    }
