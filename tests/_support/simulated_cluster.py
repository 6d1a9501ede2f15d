"""A cluster in memory that does what a plan says and plays controllers and kubelets, one small move at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from kvferry_contract.config import Role
from kvferry_operator.api.parse import parse
from kvferry_operator.observation.fleet import Cohort, Fleet
from kvferry_operator.observation.observed import Observed
from kvferry_operator.observation.times import timestamp
from kvferry_operator.plan.rollout import Step, next_step
from rendered import SETTINGS

UID = "11111111-2222-3333-4444-555555555555"
Manifest = dict[str, Any]


class SimulatedCluster:
    """`raw` is the one model; set it and call `plan`, `do` and `move`, of which each takes a second.

    bad: revisions of a role, as (role, revision), with the first ordinal whose pods never become ready.
    """

    def __init__(self, raw: Manifest) -> None:
        self.raw = raw
        self.children: dict[tuple[str, str], Manifest] = {}
        self.pods: dict[str, Manifest] = {}
        self.bad: dict[tuple[str, str], int] = {}
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self._clock = 0

    @property
    def observed(self) -> Observed:
        raw = _copied(self.raw)
        raw["metadata"] |= {"uid": UID, "generation": 1}
        return Observed(raw=raw, children=tuple(self.children.values()), pods=tuple(self.pods.values()))

    @property
    def fleet(self) -> Fleet:
        return Fleet.of(self.observed)

    def plan(self) -> Step:
        return next_step(parse(self.observed.raw), self.observed, SETTINGS, self.now)

    def do(self, step: Step) -> bool:
        """Carry a plan out, as the API server would. False if there was nothing to do."""
        before = self._children_as_text()
        for manifest in step.hand_overs:
            live = self.children[manifest["kind"], manifest["metadata"]["name"]]
            live["metadata"]["annotations"] |= manifest["metadata"]["annotations"]
            live["spec"]["replicas"] = manifest["spec"]["replicas"]
        for manifest in step.objects:
            self._apply(manifest)
        for scale in step.scales:
            self.children["StatefulSet", scale.name]["spec"]["replicas"] = scale.replicas
        for ref in step.prune:
            child = self.children.pop((ref.kind.kind, ref.name))
            assert child["metadata"]["uid"] == ref.uid
        for gone in step.restarts.pods:
            assert self.pods[gone.name]["metadata"]["uid"] == gone.uid
            self.delete(gone.name)
        return bool(step.restarts.pods) or before != self._children_as_text()

    def delete(self, pod: str) -> None:
        """From now on it drains."""
        self.pods[pod]["metadata"].setdefault("deletionTimestamp", timestamp(self.now))

    def move(self, random: Random, chance: float = 0.5) -> None:
        """What controllers and kubelets get done in a while: each thing happens, or does not yet."""
        self.now += timedelta(seconds=1)
        for workload in self.workloads():
            self._scale(workload, random, chance)
        for name, pod in list(self.pods.items()):
            if random.random() >= chance:
                continue
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[name]
            else:
                labels = pod["metadata"]["labels"]
                first_bad = self.bad.get((labels["kvferry.io/role"], labels["kvferry.io/revision"]), 1 << 31)
                self.set_ready(pod, int(name.rpartition("-")[2]) < first_bad)

    def settle(self, moves: int = 400) -> None:
        """Plan and move until there is nothing left to do, nor to be waited for."""
        random = Random(0)
        for _ in range(moves):
            step = self.plan()
            changed = self.do(step)
            before = json.dumps(self.pods)
            self.move(random, 1.0)
            if not changed and before == json.dumps(self.pods):
                if step.restarts.again is None:
                    return
                self.now += step.restarts.again
        raise AssertionError(f"not done after {moves} moves: {self.plan().why}")

    def start_router(self, ready: bool = True) -> None:
        """Its Deployment's controller has made what it asks for."""
        for child in self.children.values():
            if child["kind"] == "Deployment":
                replicas = child["spec"]["replicas"]
                child["status"] = {"replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas * ready}

    def workloads(self) -> list[Manifest]:
        return [child for child in self.children.values() if child["kind"] == "StatefulSet"]

    def occupied(self, role: Role) -> int:
        """Groups of a role that exist or are asked for, whatever their revision."""
        return sum(cohort.occupied for cohort in self.fleet.of_role(role))

    def serving(self, role: Role) -> int:
        """Ready groups of a role whose revision has a ready group of every role that it has."""
        ready: dict[tuple[str, Role], int] = {}
        for cohort in self.fleet.cohorts:
            if cohort.declared or cohort.groups:
                ready[cohort.revision, cohort.role] = sum(group.ready for group in cohort.groups)
        halves = {revision for (revision, _), count in ready.items() if not count}
        return sum(count for (revision, each), count in ready.items() if each is role and revision not in halves)

    def by_revision(self, role: Role) -> dict[str, Cohort]:
        return {cohort.revision: cohort for cohort in self.fleet.of_role(role)}

    def set_ready(self, pod: Manifest, ready: bool) -> None:
        waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        before = next(iter(pod["status"].get("conditions", ())), {})
        since = before["lastTransitionTime"] if before.get("status") == str(ready) else timestamp(self.now)
        pod["status"] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": since}],
            "containerStatuses": [
                {"name": "engine", "ready": ready, "state": {"running": {}}} | ({} if ready else waiting)
            ],
        }

    def _children_as_text(self) -> str:
        return json.dumps(list(self.children.values()))

    def _apply(self, manifest: Manifest) -> None:
        key = manifest["kind"], manifest["metadata"]["name"]
        live = self.children.get(key)
        made = _copied(manifest)
        if live is None:
            self._clock += 1
            made["metadata"] |= {
                "uid": f"uid-{self._clock}",
                "creationTimestamp": f"2026-01-01T00:00:{self._clock:06}Z",
            }
            if made["kind"] == "StatefulSet":
                made["spec"].setdefault("replicas", 1)
        else:
            kept = {key: live["metadata"][key] for key in ("uid", "creationTimestamp")}
            made["metadata"] = {**made["metadata"], **kept}
            made["metadata"]["annotations"] = live["metadata"]["annotations"] | made["metadata"]["annotations"]
            if made["kind"] == "StatefulSet":
                made["spec"].setdefault("replicas", live["spec"]["replicas"])
            made |= {"status": live["status"]} if "status" in live else {}
        self.children[key] = made

    def _scale(self, workload: Manifest, random: Random, chance: float) -> None:
        name, replicas = workload["metadata"]["name"], workload["spec"]["replicas"]
        for ordinal in range(replicas):
            if f"{name}-{ordinal}" not in self.pods and random.random() < chance:
                self.pods[f"{name}-{ordinal}"] = self._pod(workload, ordinal)
        for pod in self._pods_of(workload):
            if int(pod["metadata"]["name"].rpartition("-")[2]) >= replicas and random.random() < chance:
                self.delete(pod["metadata"]["name"])

    def _pods_of(self, workload: Manifest) -> Iterator[Manifest]:
        wanted = workload["spec"]["selector"]["matchLabels"].items()
        yield from (pod for pod in self.pods.values() if wanted <= pod["metadata"]["labels"].items())

    def _pod(self, workload: Manifest, ordinal: int) -> Manifest:
        template = workload["spec"]["template"]
        self._clock += 1
        metadata = {
            **_copied(template["metadata"]),
            "name": f"{workload['metadata']['name']}-{ordinal}",
            "uid": f"pod-{self._clock}",
            "creationTimestamp": timestamp(self.now),
            "ownerReferences": [{"kind": "StatefulSet", "uid": workload["metadata"]["uid"], "controller": True}],
        }
        spec = {**template["spec"], "nodeName": "node"}
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _copied(manifest: Any) -> Any:
    """Quicker than a deep copy, and what is not JSON is found out."""
    return json.loads(json.dumps(manifest))
