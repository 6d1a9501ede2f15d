"""One entry: an object and the installation's settings in, all objects that serve it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvferry_contract.config import Role
from kvferry_operator.api.types import DisaggregatedModel, ScalingMode
from kvferry_operator.desired import config, network, placement, role, router
from kvferry_operator.desired.revision import revision
from kvferry_operator.desired.settings import Settings
from kvferry_operator.desired.stage import Manifest, Stage, roles
from kvferry_operator.errors import FieldError, SpecInvalid


@dataclass(frozen=True, slots=True)
class Groups:
    """How many groups each role gets; None leaves the number out, for an autoscaler that owns it."""

    prefill: int | None
    decode: int | None

    @classmethod
    def asked_for(cls, model: DisaggregatedModel) -> Groups:
        """What the object says."""
        counts = {
            name.value: None if spec.scaling.mode is ScalingMode.EXTERNAL else spec.replicas
            for name, spec in roles(model)
        }
        return cls(prefill=counts.get("prefill", 0), decode=counts["decode"])

    def of(self, name: Role) -> int | None:
        return self.prefill if name is Role.PREFILL else self.decode


def build(model: DisaggregatedModel, settings: Settings, groups: Groups | None = None) -> tuple[Manifest, ...]:
    """Every object of a model except the Secret with its key, in the order in which they should be applied.

    The Secret (`names.key`) has a random value, which whoever applies the objects makes once. Owner references are
    laid on by `owner.owned`.

    groups: numbers other than the object's own, as a rollout or a ratio wants them.

    Raises:
        SpecInvalid: a template or resources that clash with what kvferry needs; holds every clash.
    """
    counts = groups or Groups.asked_for(model)
    stages = _stages(model, settings)
    errors: list[FieldError] = []
    workloads = []
    for stage in stages:
        template, clashes = role.pod_template(stage)
        errors += [*role.typed_resource_errors(stage), *clashes]
        workloads.append(role.stateful_set(stage, template, counts.of(stage.role)))
    router_template, clashes = router.pod_template(model, settings)
    errors += clashes
    if errors:
        # stages of a role share its template, and would each report the same clash
        raise SpecInvalid(dict.fromkeys(errors))
    policies = []
    if model.spec.security.network_policy:
        policies = [network.network_policy(model), *network.stage_policies(stages)]
    by_role: Mapping[str, int | None] = {name.value: counts.of(name) for name, _ in roles(model)}
    return (
        *router.access(model),
        *(config.config_map(stage) for stage in stages),
        *policies,
        *(network.headless_service(stage) for stage in stages),
        network.router_service(model),
        *placement.budgets(model, by_role),
        *workloads,
        router.deployment(model, router_template),
    )


def _stages(model: DisaggregatedModel, settings: Settings) -> tuple[Stage, ...]:
    current = revision(model, settings)
    return tuple(
        Stage(model=model, role=name, spec=spec, index=index, revision=current, settings=settings)
        for name, spec in roles(model)
        for index in range(spec.parallelism.pipeline)
    )
