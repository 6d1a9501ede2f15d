"""Which objects are applied, and which are left alone."""

from __future__ import annotations

from typing import Any

import pytest

import builders
import rendered
from kvferry_operator.api.parse import parse
from kvferry_operator.desired.build import build
from kvferry_operator.desired.owner import owned
from kvferry_operator.reconcile import drift
from kvferry_operator.reconcile.apply import Verdict, judge, waves

RAW = builders.raw()
RAW["metadata"] |= {"uid": "model-uid", "generation": 1}
OBJECTS = owned(build(parse(RAW), rendered.SETTINGS), parse(RAW))
(SERVICE, *_) = rendered.of_kind(OBJECTS, "Service")


def live(**metadata: Any) -> dict[str, Any]:
    stored = drift.stamped(SERVICE)
    return {**stored, "metadata": {**stored["metadata"], "uid": "u", **metadata}, "status": {"loadBalancer": {}}}


def owner(**changes: Any) -> list[dict[str, Any]]:
    return [{**SERVICE["metadata"]["ownerReferences"][0], **changes}]


@pytest.mark.parametrize("manifest", OBJECTS, ids=[f"{each['kind']}" for each in OBJECTS])
def test_an_object_as_it_was_applied_costs_nothing(manifest: dict[str, Any]) -> None:
    assert judge(manifest, drift.stamped(manifest), RAW)[0] is Verdict.SAME


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        pytest.param(live(labels={}), Verdict.APPLY, id="somebody took our labels off"),
        pytest.param(live(annotations={}), Verdict.APPLY, id="applied by an older release, or not known how"),
        pytest.param(live(labels={**SERVICE["metadata"]["labels"], "more": "x"}), Verdict.SAME, id="more labels"),
        pytest.param(live(ownerReferences=[]), Verdict.FOREIGN, id="nobody's"),
        pytest.param(live(ownerReferences=owner(uid="x", kind="Deployment")), Verdict.FOREIGN, id="another's"),
        pytest.param(live(ownerReferences=owner(uid="x", name="other")), Verdict.FOREIGN, id="another model's"),
        pytest.param(live(ownerReferences=owner(uid="x")), Verdict.LEAVING, id="of a model of this name before"),
        pytest.param(live(deletionTimestamp="2026-01-01T00:00:00Z"), Verdict.LEAVING, id="being deleted"),
    ],
)
def test_what_is_done_with_an_object_that_is_there(there: dict[str, Any], expected: Verdict) -> None:
    assert judge(SERVICE, there, RAW)[0] is expected


def test_what_the_server_insists_on_is_not_applied_for_ever() -> None:
    changed = {**live(), "spec": {**SERVICE["spec"], "clusterIP": "10.0.0.1"}}
    verdict, why = judge(SERVICE, changed, RAW)
    assert (verdict, why) == (Verdict.APPLY, "spec.clusterIP was changed")
    assert judge(SERVICE, changed, RAW, frozenset({"spec.clusterIP"}))[0] is Verdict.SAME
    assert judge(SERVICE, {**changed, "metadata": live(labels={})["metadata"]}, RAW, frozenset({"spec.clusterIP"}))[
        0
    ] is (Verdict.APPLY), "another difference is"


def test_what_others_refer_to_comes_first() -> None:
    first, last = waves(OBJECTS)
    assert {each["kind"] for each in last} == {"RoleBinding", "StatefulSet", "Deployment"}
    assert sorted(map(id, [*first, *last])) == sorted(map(id, OBJECTS))
