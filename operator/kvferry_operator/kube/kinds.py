"""The kinds of objects that the operator deals with."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_operator.api import names


@dataclass(frozen=True, slots=True)
class Kind:
    """api_version: group and version, as in a manifest. plural: as in a path."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        """Empty for the core group."""
        group, _, _ = self.api_version.rpartition("/")
        return group

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


MODEL = Kind(names.API_VERSION, names.KIND, "disaggregatedmodels")
POD = Kind("v1", "Pod", "pods")
SECRET = Kind("v1", "Secret", "secrets")
NODE = Kind("v1", "Node", "nodes")
EVENT = Kind("events.k8s.io/v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")

CHILDREN = (
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("v1", "Service", "services"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    STATEFUL_SET,
    DEPLOYMENT,
)
"""What `desired.build` makes, in the order in which it is applied. The Secret with the key is not among them: nobody
but the pods reads it."""


OPTIONAL = tuple(kind for kind in CHILDREN if kind.group in ("networking.k8s.io", "policy"))
"""Of these a model can do without: a cluster whose API server has them switched off is served all the same."""


def of(manifest: dict[str, object]) -> Kind:
    """The kind of a manifest that the operator made.

    Raises:
        KeyError: another kind.
    """
    return _BY_NAME[str(manifest["apiVersion"]), str(manifest["kind"])]


_BY_NAME = {(kind.api_version, kind.kind): kind for kind in (*CHILDREN, SECRET, MODEL, EVENT, LEASE)}
