"""Objects of others that have our names or our labels are neither taken, nor changed, nor counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import control_plane as planes
import foreign_objects
import neighbourhood
import pod_behaviours
from eventually import eventually
from foreign_objects import foreign
from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from model_namespace import ModelNamespace
from neighbourhood import RESYNC_SECONDS, UNVERIFIED, Neighbourhood, told_once

Manifest = dict[str, Any]

BUDGETS = {**UNVERIFIED, "prefill.replicas": 2, "router.replicas": 2}
KINDS = {kind.kind: kind for kind in foreign_objects.KINDS}


@pytest.fixture(scope="module")
def around(control_plane: planes.ControlPlane) -> Iterator[Neighbourhood]:
    with neighbourhood.settled(control_plane, troubles=2) as around:
        yield around


@pytest.fixture
def models(around: Neighbourhood) -> Iterator[ModelNamespace]:
    with around.trouble() as models:
        yield models


def test_foreign_objects_with_our_names_are_left_alone(models: ModelNamespace) -> None:
    models.create(BUDGETS)
    places = sorted(models.wait_children())
    assert {kind for kind, _ in places} == set(KINDS)
    models.plane.kubectl("delete", "dm", "tiny", "-n", models.name)
    eventually(lambda: not models.children(), "the names are free")
    theirs = {place: models.plane.api.create(models.path(KINDS[place[0]]), foreign(*place)) for place in places}

    models.create(BUDGETS)
    stalled = models.wait_condition("Stalled", "True", "NameConflict")
    assert "is not ours: delete or rename it, or give this object another name" in stalled["message"]
    told = told_once(models, "NameConflict")
    assert told["type"] == "Warning" and told["note"].endswith(stalled["message"])
    for (kind, name), made in theirs.items():
        now = models.plane.api.get(models.path(KINDS[kind], name))
        assert now["metadata"]["uid"] == made["metadata"]["uid"]
        assert untouched(now), (kind, name)
    assert models.children() == {}

    # the key's Secret as well: the operator may not look into it, and so cannot tell whose it is
    for kind, name in sorted(theirs, key=lambda place: place[0] != "Secret"):
        models.delete(kind, name)
    models.wait_condition("Ready", "True")
    assert set(models.children()) == set(places)


def test_foreign_objects_with_our_labels_are_neither_removed_nor_counted(
    models: ModelNamespace, around: Neighbourhood
) -> None:
    """Case 6."""
    models.create(UNVERIFIED)
    models.wait_condition("Ready", "True")
    models.wait_quiet()
    before = models.model()["status"]
    labels = models.objects("StatefulSet")[0]["metadata"]["labels"]
    boss = models.plane.api.create(models.path(KINDS["ConfigMap"]), foreign("ConfigMap", "boss"))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "boss", "uid": boss["metadata"]["uid"]}
    made = []
    for kind in foreign_objects.KINDS:
        for name, owners in (("nobodys", []), ("somebodys", [{**owner, "controller": True}])):
            metadata = {"labels": labels, "ownerReferences": owners}
            made.append((kind, models.plane.api.create(models.path(kind), foreign(kind.kind, name, metadata))))
    around.steer(lambda pod: pod_behaviours.UNREADY if pod["metadata"]["name"] == "stray" else pod_behaviours.READY)
    pod = {"metadata": {"name": "stray", "labels": labels}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    made.append((kinds.POD, models.plane.api.create(models.path(kinds.POD), pod)))

    time.sleep(3.5 * RESYNC_SECONDS)
    for kind, each in made:
        now = models.plane.api.get(models.path(kind, each["metadata"]["name"]))
        assert now["metadata"]["uid"] == each["metadata"]["uid"] and "deletionTimestamp" not in now["metadata"]
        assert untouched(now), (kind, each["metadata"]["name"])
    assert models.model()["status"] == before


def untouched(manifest: Manifest) -> bool:
    """Whether none of the operator's field managers ever wrote it."""
    entries = manifest["metadata"].get("managedFields", ())
    return not any(entry["manager"].startswith(names.MANAGER) for entry in entries)
