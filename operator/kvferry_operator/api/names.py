"""Names, labels and annotations of everything that belongs to a DisaggregatedModel, made in this one place.

An object's name may have 253 characters, dots, and a digit in front; its children are Services (DNS-1035: a letter in
front, no dots, 63 characters) and StatefulSets, whose pods carry the label `<StatefulSet>-<10 characters>`, which
leaves 52. So every child's name starts with `base(name)`: the name itself where that is legal and short enough, else a
legal short form with a hash of the full name. Suffixes are chosen so that none ends in another, hence two objects
never meet in one child name.
"""

from __future__ import annotations

import hashlib
import re

GROUP = "kvferry.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DisaggregatedModel"

LABEL_MODEL = f"{GROUP}/model"
"""`base(name)` of the object; on every child and pod."""
LABEL_ROLE = f"{GROUP}/role"
"""prefill, decode or router; on every pod."""
LABEL_REVISION = f"{GROUP}/revision"
"""What the pod was made from; on pods of prefill and decode."""
LABEL_STAGE = f"{GROUP}/stage"
"""Pipeline stage, from 0; on pods of prefill and decode."""
LABEL_POD_INDEX = "apps.kubernetes.io/pod-index"
"""Ordinal of a StatefulSet's pod; set by Kubernetes."""

APP_NAME = "app.kubernetes.io/name"
APP_INSTANCE = "app.kubernetes.io/instance"
APP_COMPONENT = "app.kubernetes.io/component"
APP_MANAGED_BY = "app.kubernetes.io/managed-by"
APP_PART_OF = "app.kubernetes.io/part-of"
OUR_LABELS = frozenset({APP_NAME, APP_INSTANCE, APP_COMPONENT, APP_MANAGED_BY, APP_PART_OF})

ANNOTATION_MODEL = f"{GROUP}/model"
"""The object's full name, since the label may hold a short form."""
ANNOTATION_GROUPS = f"{GROUP}/groups"
"""On a StatefulSet: the number of groups that the operator leads its role to, or `External` once it has handed
`spec.replicas` over (`scaling`)."""
ANNOTATION_LIVES = f"{GROUP}/lives"
"""On the StatefulSet of a first stage: since when each group is whole, and how often it was made anew."""
ANNOTATION_NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""Secondary networks, read by Multus."""
ANNOTATION_CONTAINER = "kubectl.kubernetes.io/default-container"

MANAGER = "kvferry-operator"
"""Field manager of server-side apply, and value of the managed-by label."""

CONTAINER_ENGINE = "engine"
CONTAINER_SIDECAR = "kvferry-sidecar"
CONTAINER_ROUTER = "router"

BASE_LENGTH = 31
"""52 for a StatefulSet, less the longest suffix `-prefill-<8>-s63`."""
_HASH_LENGTH = 8
_LEGAL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LOOKS_HASHED = re.compile(r".*-[0-9a-f]{8}")


def short_hash(text: str) -> str:
    """Eight hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def base(name: str) -> str:
    """What the names of all children start with; legal in DNS-1035 and as a label value, at most BASE_LENGTH long."""
    # a name that looks like a short form gets a hash too, so that `m-1-<hash of m.1>` cannot pass for `m.1`
    if len(name) <= BASE_LENGTH and _LEGAL.fullmatch(name) and not _LOOKS_HASHED.fullmatch(name):
        return name
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not stem[:1].isalpha():
        stem = f"m-{stem}"
    stem = stem[: BASE_LENGTH - _HASH_LENGTH - 1].rstrip("-")
    return f"{stem}-{short_hash(name)}"


def stage(name: str, role: str, revision: str, index: int) -> str:
    """StatefulSet and headless Service of one role, revision and pipeline stage."""
    return f"{base(name)}-{role}-{revision}-s{index}"


def config(name: str, role: str, revision: str, index: int, content: str) -> str:
    """ConfigMap of one stage. It is immutable, so its name follows the content."""
    return f"{stage(name, role, revision, index)}-{short_hash(content)}"


def router(name: str) -> str:
    """Deployment, Service, ServiceAccount, Role and RoleBinding of the router."""
    return f"{base(name)}-router"


def key(name: str) -> str:
    """Secret with the key that the sidecars of one model share."""
    return f"{base(name)}-key"


def network_policy(name: str) -> str:
    return f"{base(name)}-groups"


def stage_policy(name: str, role: str, revision: str) -> str:
    """NetworkPolicy of the stages of one role and revision."""
    return f"{base(name)}-{role}-{revision}-stages"


def budget(name: str, component: str) -> str:
    """PodDisruptionBudget of prefill, decode or router."""
    return f"{base(name)}-{component}-budget"


def labels(name: str, component: str) -> dict[str, str]:
    """What every child of a model carries; `component` is prefill, decode, router or model (for what they share)."""
    return {
        APP_NAME: "kvferry",
        APP_INSTANCE: base(name),
        APP_COMPONENT: component,
        APP_MANAGED_BY: MANAGER,
        APP_PART_OF: "kvferry",
        LABEL_MODEL: base(name),
    }


def selector(name: str, role: str, revision: str = "", stage_index: int | None = None) -> dict[str, str]:
    """Labels that pick the pods of a role, or of one revision and stage of it."""
    chosen = {LABEL_MODEL: base(name), LABEL_ROLE: role}
    if revision:
        chosen[LABEL_REVISION] = revision
    if stage_index is not None:
        chosen[LABEL_STAGE] = str(stage_index)
    return chosen


def scale_selector(name: str) -> str:
    """`status.selector`: exactly one pod for each decode group, whatever its revision, as an autoscaler wants it."""
    return ",".join(f"{label}={value}" for label, value in selector(name, "decode", stage_index=0).items())
