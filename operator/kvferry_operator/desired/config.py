"""The configuration file that engine and sidecar read, in an immutable ConfigMap."""

from __future__ import annotations

from kvferry_contract import paths
from kvferry_contract.config import VERSION, GroupConfig, Method, ModelConfig, RuntimeConfig, TransferConfig
from kvferry_contract.split import Split
from kvferry_operator.api import defaults, names
from kvferry_operator.api.rules import LOSSY
from kvferry_operator.api.types import Compression, RoleSpec
from kvferry_operator.desired.stage import Manifest, Stage, metadata, roles


def runtime_config(stage: Stage) -> RuntimeConfig:
    model, spec = stage.model, stage.model.spec
    transfer = spec.transfer
    return RuntimeConfig(
        version=VERSION,
        model=ModelConfig(
            uri=spec.model.uri,
            revision=defaults.model_revision(spec),
            served_name=defaults.served_name(model),
            directory=paths.MODEL_DIR,
        ),
        group=GroupConfig(
            namespace=model.namespace,
            name=model.name,
            revision=stage.revision,
            role=stage.runs_as,
            stage=stage.index,
            split=_split(stage.spec),
            peer_split=_split(_peer(stage)),
            tensor=stage.spec.parallelism.tensor,
        ),
        transfer=TransferConfig(
            transport=transfer.transport,
            on_fallback=transfer.on_fallback,
            method=transfer.compression.method,
            auto_methods=auto_methods(transfer.compression),
            keep_exact_first=transfer.compression.keep_exact.first,
            keep_exact_last=transfer.compression.keep_exact.last,
            max_relative_error=transfer.compression.max_relative_error,
            overlap=transfer.overlap.mode,
            inflight_chunks=transfer.overlap.inflight_chunks,
            chunk_bytes=transfer.overlap.chunk_bytes,
            buffer_bytes=transfer.buffer_bytes,
            integrity=transfer.integrity,
            failure_policy=transfer.failure_policy,
            timeout_seconds=float(transfer.timeout_seconds),
            scale=transfer.compression.scale,
        ),
        drain_seconds=float(stage.spec.drain.timeout_seconds),
    )


def _split(role: RoleSpec) -> Split:
    return Split(role.parallelism.pipeline, role.parallelism.layers)


def _peer(stage: Stage) -> RoleSpec:
    """The role with which this one exchanges KV; itself where there is no other."""
    return next((spec for role, spec in roles(stage.model) if role is not stage.role), stage.spec)


def auto_methods(compression: Compression) -> tuple[Method, ...]:
    """Among which `method: auto` may choose: methods that can change answers only where the object says so.

    Sparse methods never: which tokens are left out is a matter of the whole prompt, not of the state of a link.
    """
    whole = [method for method in Method if method not in (Method.AUTO, Method.SPARSE50, Method.SPARSE75)]
    return tuple(method for method in whole if compression.acknowledge_lossy or method not in LOSSY)


def config_map(stage: Stage) -> Manifest:
    """Named after its content, so that a value outside the revision (the drain) reaches new pods by a new object."""
    content = runtime_config(stage).to_json()
    name = names.config(stage.model.name, stage.role.value, stage.revision, stage.index, content)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(stage.model, name, stage.labels),
        "immutable": True,
        "data": {paths.CONFIG_FILE: content},
    }
