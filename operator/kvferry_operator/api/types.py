"""The spec of a DisaggregatedModel as frozen dataclasses.

A field's name in the object is its name here in camel case (or `metadata["key"]`); its default here is the default in
the CRD, where the empty string, the empty tuple and None mean that the CRD has none. Bounds ride in the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from kvferry_contract import ports
from kvferry_contract.config import FailurePolicy, Integrity, Method, OnFallback, OverlapMode, Scale, TransportKind
from kvferry_operator.api.constraints import (
    DNS_SUBDOMAIN,
    ENV_NAME,
    QUALIFIED_NAME,
    Bytes,
    Decimal,
    Items,
    Open,
    Quantities,
    Range,
    Text,
)
from kvferry_operator.api.quantity import GIB, KIB, MIB, TIB

MAX_REPLICAS = 1000
MAX_STAGES = 64
MAX_LAYERS = 1000
"""Of one stage; far above any model."""

JsonObject = Mapping[str, Any]
Template = Annotated[JsonObject, Open()]
Port = Annotated[int, Range(1, 65535)]
Image = Annotated[str, Text(512, r"^\S+$", "an image reference without spaces")]
ObjectName = Annotated[str, Text(253, DNS_SUBDOMAIN, "a legal object name")]


class Mode(StrEnum):
    DISAGGREGATED = "Disaggregated"
    AGGREGATED = "Aggregated"


class CacheType(StrEnum):
    EMPTY_DIR = "emptyDir"
    PVC = "pvc"
    HOST_PATH = "hostPath"


class EngineType(StrEnum):
    REFERENCE = "reference"
    VLLM = "vllm"
    CUSTOM = "custom"


class PullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class RdmaMode(StrEnum):
    NONE = "none"
    DEVICE_PLUGIN = "devicePlugin"


class ScalingMode(StrEnum):
    STATIC = "Static"
    EXTERNAL = "External"


class RestartPolicy(StrEnum):
    RECREATE_GROUP = "RecreateGroup"
    RECREATE_POD = "RecreatePod"


class BudgetPolicy(StrEnum):
    AUTO = "Auto"
    NONE = "None"


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class PlacementPolicy(StrEnum):
    NONE = "None"
    PREFERRED = "Preferred"
    REQUIRED = "Required"


@dataclass(frozen=True, slots=True)
class SecretKeyRef:
    name: Annotated[str, Text(253, DNS_SUBDOMAIN, "a legal object name", least=1)]
    key: Annotated[str, Text(253, r"^[-._a-zA-Z0-9]+$", "a legal key of a Secret")] = "token"


@dataclass(frozen=True, slots=True)
class CacheSpec:
    type: CacheType = CacheType.EMPTY_DIR
    claim_name: ObjectName = ""
    path: Annotated[str, Text(4096, r"^/.*$", "an absolute path")] = ""
    size_limit: Annotated[int | None, Bytes(MIB, 1024 * TIB)] = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    uri: Annotated[
        str,
        Text(
            1024,
            r"^(file:///[^ ]+|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^ ]*)?|hf://[-A-Za-z0-9_.]+/[-A-Za-z0-9_.]+)$",
            "file:///path, pvc://claim/path or hf://owner/name",
            least=1,
        ),
    ]
    revision: Annotated[str, Text(256, r"^[-A-Za-z0-9_./]+$", "a branch, tag or commit")] = ""
    served_name: Annotated[str, Text(256, r"^[^\s]+$", "a name without spaces")] = ""
    token_secret_ref: SecretKeyRef | None = None
    cache: CacheSpec = CacheSpec()


@dataclass(frozen=True, slots=True)
class EnvVar:
    """As in a pod: `value`, or `value_from` in the form that Kubernetes gives it."""

    name: Annotated[str, Text(256, ENV_NAME, "a legal name of a variable", least=1)]
    value: Annotated[str, Text(32768)] = ""
    value_from: Annotated[JsonObject | None, Open()] = None


EnvList = Annotated[tuple[EnvVar, ...], Items(128, key="name")]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    type: EngineType
    image: Image = ""
    image_pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    args: Annotated[tuple[Annotated[str, Text(8192)], ...], Items(256)] = ()
    env: EnvList = ()
    port: Port = ports.ENGINE


@dataclass(frozen=True, slots=True)
class Resources:
    """Requests and limits by resource name, quantities as text."""

    requests: Annotated[Mapping[str, str], Quantities(32)] = field(default_factory=dict)
    limits: Annotated[Mapping[str, str], Quantities(32)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """layers: of each pipeline stage, in order; empty to spread them evenly."""

    tensor: Annotated[int, Range(1, 64)] = 1
    pipeline: Annotated[int, Range(1, MAX_STAGES)] = 1
    layers: Annotated[tuple[Annotated[int, Range(1, MAX_LAYERS)], ...], Items(MAX_STAGES)] = ()


@dataclass(frozen=True, slots=True)
class Rdma:
    mode: RdmaMode = RdmaMode.NONE
    resource_name: Annotated[str, Text(317, QUALIFIED_NAME, "a resource name with its domain, such as rdma/hca")] = ""
    count: Annotated[int, Range(1, 64)] = 1
    networks: Annotated[
        tuple[Annotated[str, Text(317, r"^[-a-z0-9./@]+$", "the name of a network attachment", least=1)], ...],
        Items(16, unique=True),
    ] = ()


@dataclass(frozen=True, slots=True)
class Rollout:
    max_surge: Annotated[int, Range(0, MAX_REPLICAS)] = 1
    max_unavailable: Annotated[int, Range(0, MAX_REPLICAS)] = 0


@dataclass(frozen=True, slots=True)
class Scaling:
    mode: ScalingMode = ScalingMode.STATIC
    min: Annotated[int | None, Range(0, MAX_REPLICAS)] = None
    max: Annotated[int | None, Range(1, MAX_REPLICAS)] = None


@dataclass(frozen=True, slots=True)
class Restart:
    policy: RestartPolicy = RestartPolicy.RECREATE_GROUP
    max_restarts: Annotated[int, Range(0, 1000)] = 5
    backoff_seconds: Annotated[int, Range(0, 3600)] = 30


@dataclass(frozen=True, slots=True)
class Drain:
    timeout_seconds: Annotated[int, Range(0, 3600)] = 120


@dataclass(frozen=True, slots=True)
class Disruption:
    budget: BudgetPolicy = BudgetPolicy.AUTO


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """Prefill or decode. `replicas` counts groups: one pod of every pipeline stage with the same ordinal."""

    replicas: Annotated[int, Range(0, MAX_REPLICAS)]
    parallelism: Parallelism = Parallelism()
    resources: Resources = field(default_factory=Resources)
    rdma: Rdma = Rdma()
    rollout: Rollout = Rollout()
    scaling: Scaling = Scaling()
    restart: Restart = Restart()
    drain: Drain = Drain()
    disruption: Disruption = Disruption()
    template: Template = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Prefill groups for each decode group."""

    min: Annotated[float | None, Decimal(0, MAX_REPLICAS)] = None
    max: Annotated[float | None, Decimal(0, MAX_REPLICAS)] = None


@dataclass(frozen=True, slots=True)
class RouterService:
    type: ServiceType = ServiceType.CLUSTER_IP
    port: Port = 80


@dataclass(frozen=True, slots=True)
class RouterSpec:
    replicas: Annotated[int, Range(0, 100)] = 1
    resources: Resources = field(default_factory=Resources)
    template: Template = field(default_factory=dict)
    service: RouterService = RouterService()
    min_prompt_tokens: Annotated[int, Range(0, 10_000_000)] = 0


@dataclass(frozen=True, slots=True)
class UcxVar:
    name: Annotated[
        str, Text(256, r"^UCX_[A-Z0-9_]+$", "the name of a UCX variable, such as UCX_IB_GID_INDEX", least=1)
    ]
    value: Annotated[str, Text(4096)]


@dataclass(frozen=True, slots=True)
class Ucx:
    tls: Annotated[str, Text(512, r"^\^?[A-Za-z0-9_:,]+$", "a list of UCX transports, such as rc,tcp")] = ""
    net_devices: Annotated[str, Text(1024, r"^[-A-Za-z0-9_:.,^]+$", "a list of devices, such as mlx5_0:1")] = ""
    env: Annotated[tuple[UcxVar, ...], Items(64, key="name")] = ()


@dataclass(frozen=True, slots=True)
class KeepExact:
    first: Annotated[int, Range(0, 65536)] = 16
    last: Annotated[int, Range(0, 65536)] = 64


@dataclass(frozen=True, slots=True)
class Compression:
    method: Method = Method.NONE
    scale: Scale = Scale.TOKEN_AND_HEAD
    acknowledge_lossy: bool = False
    keep_exact: KeepExact = KeepExact()
    max_relative_error: Annotated[float, Decimal(0, 1)] = 0.05


@dataclass(frozen=True, slots=True)
class Overlap:
    mode: OverlapMode = OverlapMode.AUTO
    inflight_chunks: Annotated[int, Range(1, 256)] = 4
    chunk_bytes: Annotated[int, Bytes(64 * KIB, 64 * MIB)] = 4 * MIB


@dataclass(frozen=True, slots=True)
class Verify:
    required: bool = True
    interval_seconds: Annotated[int, Range(5, 3600)] = 30


@dataclass(frozen=True, slots=True)
class Transfer:
    transport: TransportKind = TransportKind.AUTO
    on_fallback: OnFallback = OnFallback.WARN
    ucx: Ucx = Ucx()
    compression: Compression = Compression()
    overlap: Overlap = Overlap()
    buffer_bytes: Annotated[int, Bytes(MIB, 256 * GIB)] = 256 * MIB
    integrity: Integrity = Integrity.DIGEST
    failure_policy: FailurePolicy = FailurePolicy.RECOMPUTE
    timeout_seconds: Annotated[int, Range(1, 3600)] = 30
    verify: Verify = Verify()


@dataclass(frozen=True, slots=True)
class Placement:
    topology_key: Annotated[str, Text(317, r"^[-A-Za-z0-9_./]+$", "a label of nodes")] = "topology.kubernetes.io/zone"
    policy: PlacementPolicy = PlacementPolicy.NONE


@dataclass(frozen=True, slots=True)
class SidecarSpec:
    image: Image = ""
    resources: Resources = field(default_factory=Resources)
    env: EnvList = ()


@dataclass(frozen=True, slots=True)
class Security:
    network_policy: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    model: ModelSpec
    engine: EngineSpec
    mode: Mode = Mode.DISAGGREGATED
    prefill: RoleSpec | None = None
    decode: RoleSpec
    ratio: Ratio = Ratio()
    router: RouterSpec = field(default_factory=RouterSpec)
    transfer: Transfer = Transfer()
    placement: Placement = Placement()
    sidecar: SidecarSpec = field(default_factory=SidecarSpec)
    security: Security = Security()
    paused: bool = False
    restart_id: Annotated[
        str, Text(63, r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", "lower-case letters, digits and dashes")
    ] = field(default="", metadata={"key": "restartID"})


@dataclass(frozen=True, slots=True)
class DisaggregatedModel:
    """One object. `uid` and `generation` are empty and 0 for a file that was never applied."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec
