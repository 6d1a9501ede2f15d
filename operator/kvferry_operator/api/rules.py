"""Rules that span several fields. The CRD states each in CEL, with the same words; tests hold the two together.

Rules on sizes written as quantities are checked here alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvferry_contract import engines, env, paths, ports
from kvferry_contract.config import Method, Scale, TransportKind
from kvferry_operator.api import quantity
from kvferry_operator.api.types import (
    CacheType,
    EngineType,
    EnvVar,
    Mode,
    ModelSpec,
    RdmaMode,
    RoleSpec,
    Spec,
    Transfer,
)
from kvferry_operator.errors import FieldError

LOSSY = frozenset({Method.FP4, Method.SPARSE50, Method.SPARSE75})
"""Methods that can change answers in a way that a person would notice."""
MIN_CHUNKS = 4
"""Fewer slots in a ring leave nothing to overlap."""
MAX_CHUNKS = 65536
ENV_PREFIX = "KVFERRY_"
FREE_ENV = frozenset({env.LOG_LEVEL})
"""Variables with our prefix that are the user's to set."""
_NO_RDMA = re.compile(r"(tcp|self|sm|shm|mm|posix|sysv|cma|knem|xpmem|,)+")


def broken(spec: Spec) -> list[FieldError]:
    """Every rule that `spec` breaks."""
    return [FieldError(path, message) for path, message in _all(spec)]


def _all(spec: Spec) -> Iterator[tuple[str, str]]:
    yield from _roles(spec)
    yield from _model(spec.model)
    yield from _engine(spec)
    if spec.prefill is not None:
        yield from _role(spec.prefill, "spec.prefill")
    yield from _role(spec.decode, "spec.decode")
    if spec.ratio.min is not None and spec.ratio.max is not None and spec.ratio.min > spec.ratio.max:
        yield "spec.ratio.min", "min must not be above max"
    yield from _transfer(spec.transfer)
    yield from _variables(spec.engine.env, "spec.engine.env")
    yield from _variables(spec.sidecar.env, "spec.sidecar.env")


def _roles(spec: Spec) -> Iterator[tuple[str, str]]:
    if spec.mode is Mode.DISAGGREGATED and spec.prefill is None:
        yield "spec.prefill", "prefill is required; to serve without it say so with mode: Aggregated"
    if spec.mode is Mode.AGGREGATED and spec.prefill is not None:
        yield "spec.prefill", "prefill must be left out when mode is Aggregated"
    if spec.prefill is not None and (spec.prefill.replicas == 0) != (spec.decode.replicas == 0):
        yield "spec.decode.replicas", "prefill.replicas and decode.replicas must both be zero or both be positive"


def _model(model: ModelSpec) -> Iterator[tuple[str, str]]:
    cache = model.cache
    if ".." in model.uri.split("/"):
        yield "spec.model.uri", "uri must not have .. in its path"
    if cache.type is CacheType.PVC and not cache.claim_name:
        yield "spec.model.cache.claimName", "claimName is required when type is pvc"
    if cache.type is CacheType.HOST_PATH and not cache.path:
        yield "spec.model.cache.path", "path is required when type is hostPath"
    if cache.type is not CacheType.EMPTY_DIR and cache.size_limit is not None:
        yield "spec.model.cache.sizeLimit", "sizeLimit applies to type emptyDir only"
    if model.uri.startswith("pvc://") and cache.type is not CacheType.EMPTY_DIR:
        yield "spec.model.cache.type", "a pvc:// model brings its own volume; leave cache out"
    if model.uri.startswith(f"file://{paths.MODEL_DIR}/") and cache.type is CacheType.EMPTY_DIR:
        yield (
            "spec.model.cache.type",
            "a file:///models/ model needs a cache of type hostPath or pvc that holds it (an emptyDir starts empty)",
        )
    if model.token_secret_ref is not None and not model.uri.startswith("hf://"):
        yield "spec.model.tokenSecretRef", "tokenSecretRef applies to hf:// models only"


def _engine(spec: Spec) -> Iterator[tuple[str, str]]:
    engine = spec.engine
    if engine.type is EngineType.CUSTOM and not engine.image:
        yield "spec.engine.image", "image is required when type is custom"
    if engine.type is not EngineType.CUSTOM and engine.port != ports.ENGINE:
        yield "spec.engine.port", "port can be changed for type custom only; others listen on 8000"
    staged = spec.decode.parallelism.pipeline > 1 or (spec.prefill and spec.prefill.parallelism.pipeline > 1)
    if engine.type is EngineType.VLLM and staged:
        yield "spec.engine.type", "vllm runs one pipeline stage only; use parallelism.tensor, or engine.type reference"
    if spec.transfer.compression.method not in engines.METHODS[engine.type]:
        yield (
            "spec.transfer.compression.method",
            "sparse50 and sparse75 need an engine that can leave tokens out of its cache: use engine.type reference",
        )


def _role(role: RoleSpec, path: str) -> Iterator[tuple[str, str]]:
    stages, named = role.parallelism.pipeline, len(role.parallelism.layers)
    if named and named != stages:
        message = f"layers has {named} numbers and pipeline is {stages}: give each stage its number of layers"
        yield f"{path}.parallelism.layers", message
    if role.rdma.mode is RdmaMode.DEVICE_PLUGIN and not role.rdma.resource_name:
        yield f"{path}.rdma.resourceName", "resourceName is required when mode is devicePlugin"
    if role.rollout.max_surge + role.rollout.max_unavailable == 0:
        yield f"{path}.rollout.maxSurge", "maxSurge and maxUnavailable must not both be zero"
    if role.scaling.min is not None and role.scaling.max is not None and role.scaling.min > role.scaling.max:
        yield f"{path}.scaling.min", "min must not be above max"


def _transfer(transfer: Transfer) -> Iterator[tuple[str, str]]:
    compression, overlap = transfer.compression, transfer.overlap
    if compression.method in LOSSY and not compression.acknowledge_lossy:
        yield (
            "spec.transfer.compression.method",
            "fp4, sparse50 and sparse75 can change answers; say that you know it with acknowledgeLossy: true",
        )
    if compression.scale is not Scale.TOKEN_AND_HEAD and compression.method is not Method.FP8:
        yield "spec.transfer.compression.scale", "Head and Tensor are scales of method fp8 only"
    if transfer.transport is TransportKind.RDMA and _NO_RDMA.fullmatch(transfer.ucx.tls):
        yield "spec.transfer.ucx.tls", "tls must name a transport over RDMA when transport is rdma"
    if transfer.buffer_bytes < MIN_CHUNKS * overlap.chunk_bytes:
        least = quantity.from_bytes(MIN_CHUNKS * overlap.chunk_bytes)
        yield "spec.transfer.bufferBytes", f"must hold {MIN_CHUNKS} chunks of overlap.chunkBytes, at least {least}"
    if transfer.buffer_bytes > MAX_CHUNKS * overlap.chunk_bytes:
        most = quantity.from_bytes(MAX_CHUNKS * overlap.chunk_bytes)
        yield "spec.transfer.bufferBytes", f"must hold at most {MAX_CHUNKS} chunks of overlap.chunkBytes, {most}"


def _variables(variables: tuple[EnvVar, ...], path: str) -> Iterator[tuple[str, str]]:
    for index, item in enumerate(variables):
        if item.name.startswith(ENV_PREFIX) and item.name not in FREE_ENV:
            yield f"{path}[{index}].name", "names that start with KVFERRY_ are set by kvferry (but KVFERRY_LOG_LEVEL)"
        if item.value and item.value_from is not None:
            yield f"{path}[{index}]", "value and valueFrom exclude each other"
