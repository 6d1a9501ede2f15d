"""The configuration that the operator hands to engine and sidecar, as one JSON file.

The operator writes it with `RuntimeConfig.to_json`, the runtime reads it with `RuntimeConfig.from_json`;
an unknown or missing key is an error, so that a newer operator never drives an older runtime in silence.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from kvferry_contract.split import Split

VERSION = 2


class ConfigError(ValueError):
    """The configuration file is not one that this runtime can read."""


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


class Method(StrEnum):
    """Compression methods, as written in the object. `auto` chooses among those that the object allows."""

    NONE = "none"
    LOSSLESS = "lossless"
    FP8 = "fp8"
    INT8 = "int8"
    K8V4 = "k8v4"
    FP4 = "fp4"
    SPARSE50 = "sparse50"
    SPARSE75 = "sparse75"
    AUTO = "auto"


class Scale(StrEnum):
    """Which values of a chunk share one of fp8's scales, at each layer, and for K and V each."""

    TOKEN_AND_HEAD = "TokenAndHead"  # noqa: S105
    HEAD = "Head"
    TENSOR = "Tensor"


class TransportKind(StrEnum):
    AUTO = "auto"
    RDMA = "rdma"
    TCP = "tcp"
    SHM = "shm"


class OnFallback(StrEnum):
    WARN = "Warn"
    FAIL = "Fail"


class OverlapMode(StrEnum):
    AUTO = "auto"
    LAYERWISE = "layerwise"
    REQUEST = "request"


class Integrity(StrEnum):
    HEADER = "Header"
    DIGEST = "Digest"


class FailurePolicy(StrEnum):
    RECOMPUTE = "Recompute"
    FAIL = "Fail"
    RETRY = "Retry"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`uri` is file://, pvc:// or hf://; `directory` is where the engine finds or caches it."""

    uri: str
    revision: str
    served_name: str
    directory: str


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Which part of the model this pod is. `name` and `revision` are the object's; stage counts from 0.

    split: of this pod's role. peer_split: of the role with which it exchanges KV; its own where there is none.
    """

    namespace: str
    name: str
    revision: str
    role: Role
    stage: int
    split: Split
    peer_split: Split
    tensor: int


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """`spec.transfer` of the object, all values in base units (bytes, seconds, tokens).

    auto_methods: among which `method: auto` may choose; of no meaning with another method.
    scale: of no meaning with another method than fp8.
    """

    transport: TransportKind
    on_fallback: OnFallback
    method: Method
    auto_methods: tuple[Method, ...]
    keep_exact_first: int
    keep_exact_last: int
    max_relative_error: float
    overlap: OverlapMode
    inflight_chunks: int
    chunk_bytes: int
    buffer_bytes: int
    integrity: Integrity
    failure_policy: FailurePolicy
    timeout_seconds: float
    scale: Scale = Scale.TOKEN_AND_HEAD

    @property
    def codec(self) -> str:
        """Name of the codec for `method` and `scale`, as the runtime registers it: `fp8-head`, for example."""
        if self.method is not Method.FP8 or self.scale is Scale.TOKEN_AND_HEAD:
            return self.method.value
        return f"{self.method.value}-{self.scale.value.lower()}"


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    version: int
    model: ModelConfig
    group: GroupConfig
    transfer: TransferConfig
    drain_seconds: float

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, so that equal configurations have equal bytes."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RuntimeConfig:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: not JSON, another version, an unknown, missing or ill-typed key (named by its path).
        """
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"configuration is not JSON: {error}") from error
        if isinstance(raw, dict) and raw.get("version") != VERSION:
            raise ConfigError(
                f"configuration has version {raw.get('version')!r}, this runtime reads {VERSION}: "
                "use operator and runtime images of the same release"
            )
        parsed = _read(cls, raw, "$")
        assert isinstance(parsed, cls)
        return parsed


def _read(kind: type[Any], raw: object, path: str) -> Any:
    """Build the dataclass, enum or scalar `kind` from `raw`, naming the path of what does not fit."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(raw, dict):
            raise ConfigError(f"{path}: expected an object, found {type(raw).__name__}")
        hints = get_type_hints(kind)
        unknown = sorted(set(raw) - set(hints))
        missing = sorted(set(hints) - set(raw))
        if unknown or missing:
            raise ConfigError(f"{path}: unknown keys {unknown}, missing keys {missing}")
        return kind(**{key: _read(hint, raw[key], f"{path}.{key}") for key, hint in hints.items()})
    if get_origin(kind) is tuple:
        if not isinstance(raw, list):
            raise ConfigError(f"{path}: expected a list, found {raw!r}")
        return tuple(_read(get_args(kind)[0], item, f"{path}[{index}]") for index, item in enumerate(raw))
    if issubclass(kind, StrEnum):
        try:
            return kind(str(raw))
        except ValueError:
            raise ConfigError(f"{path}: {raw!r} is not one of {[item.value for item in kind]}") from None
    if kind is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if not isinstance(raw, kind) or (kind is int and isinstance(raw, bool)):
        raise ConfigError(f"{path}: expected {kind.__name__}, found {raw!r}")
    return raw
