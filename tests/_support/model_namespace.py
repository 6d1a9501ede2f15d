"""A namespace with DisaggregatedModels in it: written, changed and looked at, as a user and an auditor do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import builders
import control_plane as planes
from audit_log import Request
from eventually import eventually
from kvferry_operator.api import names
from kvferry_operator.kube import kinds, paths
from kvferry_operator.kube.kinds import Kind

Manifest = dict[str, Any]

OPERATOR = "operator"
_KINDS = {kind.kind: kind for kind in (*kinds.CHILDREN, kinds.SECRET, kinds.POD, kinds.EVENT)}


class ModelNamespace:
    """kubeconfig: of an operator's account, which may do everything in this namespace."""

    def __init__(self, plane: planes.ControlPlane, prefix: str = "models") -> None:
        self.plane = plane
        self.name = plane.namespace(prefix)
        self.kubeconfig: Path = plane.service_account_kubeconfig(self.name, OPERATOR)
        binding = {
            "metadata": {"name": OPERATOR},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": self.name}],
        }
        plane.api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}/rolebindings", binding)

    # Models.

    def create(self, changes: Manifest | None = None, name: str = "tiny") -> Manifest:
        """The minimal object with some fields set, by dotted path below spec."""
        raw = builders.raw(changes, name=name)
        raw["metadata"]["namespace"] = self.name
        made: Manifest = self.plane.api.create(paths.collection(kinds.MODEL, self.name), raw)
        return made

    def edit(self, spec: Manifest, name: str = "tiny") -> Manifest:
        """Merge into its spec."""
        edited: Manifest = self.plane.api.merge(paths.item(kinds.MODEL, self.name, name), {"spec": spec})
        return edited

    def model(self, name: str = "tiny") -> Manifest:
        found: Manifest = self.plane.api.get(paths.item(kinds.MODEL, self.name, name))
        return found

    def condition(self, kind: str, name: str = "tiny") -> Manifest:
        """A condition of the model; empty while there is none."""
        return _condition(self.model(name), kind)

    def wait_condition(self, kind: str, status: str, reason: str = "", name: str = "tiny") -> Manifest:
        """Of the object as it is written now: what was said of an earlier one does not count."""

        def look() -> Manifest:
            model = self.model(name)
            told = model.get("status", {})
            found = _condition(model, kind)
            fits = found.get("status") == status and reason in ("", found.get("reason"))
            return found if fits and told.get("observedGeneration") == model["metadata"]["generation"] else {}

        return eventually(look, f"{name}: {kind} is {status} {reason}; is {self.model(name).get('status')}")

    def events(self, name: str = "tiny", reason: str = "") -> list[Manifest]:
        """What was told of a model, or what of it for one reason."""
        listed = self.plane.api.get(f"/apis/{kinds.EVENT.api_version}/namespaces/{self.name}/events")
        about = [each for each in listed["items"] if each["regarding"] == {**each["regarding"], **_about(name)}]
        return [each for each in about if reason in ("", each["reason"])]

    # What belongs to them.

    def objects(self, kind: str, of: str = "tiny") -> list[Manifest]:
        """Objects of a kind that carry the model's label, by name."""
        listed = self.plane.api.get(f"{paths.collection(_KINDS[kind], self.name)}?labelSelector={_selector(of)}")
        return sorted(listed["items"], key=lambda each: str(each["metadata"]["name"]))

    def uids(self, kind: str, of: str = "tiny", role: str = "") -> dict[str, str]:
        """Of those that are not being deleted, by name."""
        return {
            each["metadata"]["name"]: each["metadata"]["uid"]
            for each in self.objects(kind, of)
            if "deletionTimestamp" not in each["metadata"]
            and role in ("", each["metadata"]["labels"].get(names.LABEL_ROLE))
        }

    def children(self, of: str = "tiny") -> dict[tuple[str, str], Manifest]:
        """Everything that the operator made, by kind and name."""
        return {
            (kind.kind, each["metadata"]["name"]): each
            for kind in (*kinds.CHILDREN, kinds.SECRET)
            for each in self.objects(kind.kind, of)
        }

    def wait_children(self, of: str = "tiny") -> dict[tuple[str, str], Manifest]:
        """Once the last one that is applied is there."""
        eventually(lambda: self.objects("Deployment", of), f"the children of {of}")
        return self.children(of)

    def delete(self, kind: str, name: str) -> None:
        self.plane.api.delete(paths.item(_KINDS[kind], self.name, name))

    def path(self, kind: Kind, name: str = "") -> str:
        return paths.item(kind, self.name, name) if name else paths.collection(kind, self.name)

    # What the operator did.

    @property
    def account(self) -> str:
        return f"system:serviceaccount:{self.name}:{OPERATOR}"

    def requests(self, since: int) -> list[Request]:
        """Of the operator, after an audit position."""
        return self.plane.audit(since, self.account)

    def writes(self, since: int) -> list[Request]:
        """Of the operator, those that change something; leases are its own affair."""
        return [each for each in self.requests(since) if each.writes and each.resource != "leases"]

    def wait_quiet(self, seconds: float = 5.0) -> None:
        """Until the operator has written nothing for so long."""

        def quiet() -> bool:
            mark = self.plane.audit_position()
            time.sleep(seconds)  # silence is no event
            return not self.writes(mark)

        eventually(quiet, f"the operator writes nothing for {seconds:g} s")


def _condition(model: Manifest, kind: str) -> Manifest:
    conditions = model.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def _selector(of: str) -> str:
    return f"{names.LABEL_MODEL}%3D{names.base(of)}"


def _about(name: str) -> Manifest:
    return {"kind": names.KIND, "name": name}
