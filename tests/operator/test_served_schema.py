"""An old CRD is noticed by the fields that it lacks."""

from __future__ import annotations

import copy

import crd_schema
from kvferry_operator.served_schema import known, lacking


def test_our_own_crd_lacks_nothing() -> None:
    assert lacking(crd_schema.schema()) == ()


def test_fields_that_an_old_crd_does_not_know_are_named() -> None:
    old = copy.deepcopy(crd_schema.schema())
    spec = old["properties"]["spec"]["properties"]
    del spec["ratio"]
    del spec["transfer"]["properties"]["verify"]["properties"]["intervalSeconds"]
    del spec["engine"]["properties"]["env"]["items"]["properties"]["valueFrom"]
    assert lacking(old) == ("spec.engine.env.valueFrom", "spec.ratio", "spec.transfer.verify.intervalSeconds")


def test_a_schema_of_anything_else_lacks_everything() -> None:
    assert "spec.model" in lacking({})


def test_a_status_is_cut_down_to_what_an_old_crd_knows() -> None:
    old = copy.deepcopy(crd_schema.schema())
    status = old["properties"]["status"]["properties"]
    del status["summary"], status["roles"]["items"]["properties"]["revision"]
    written = {"phase": "Ready", "summary": {"decode": "1/1"}, "roles": [{"name": "decode", "revision": "r"}]}
    assert known({"status": written}, old) == {"status": {"phase": "Ready", "roles": [{"name": "decode"}]}}
    assert known({"status": written}, crd_schema.schema()) == {"status": written}
