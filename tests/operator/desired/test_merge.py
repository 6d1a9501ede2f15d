from __future__ import annotations

from typing import Any

import pytest

from kvferry_operator.desired import merge
from kvferry_operator.errors import FieldError


@pytest.mark.parametrize(
    ("base", "top", "merged"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"tolerations": [1]}, {"tolerations": [2]}, {"tolerations": [2]}),
        (
            {"containers": [{"name": "a", "image": "x"}]},
            {"containers": [{"name": "b"}, {"name": "a", "tty": True}]},
            {"containers": [{"name": "a", "image": "x", "tty": True}, {"name": "b"}]},
        ),
        (
            {"initContainers": [{"name": "ours"}]},
            {"initContainers": [{"name": "theirs"}]},
            {"initContainers": [{"name": "theirs"}, {"name": "ours"}]},
        ),
        (
            {"env": [{"name": "A", "valueFrom": {}}]},
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "value": "1"}]},
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]},
            {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]},
        ),
        (
            {"ports": [{"containerPort": 1, "protocol": "TCP"}]},
            {"ports": [{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]},
            {"ports": [{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]},
        ),
        (
            {"readinessProbe": {"httpGet": {"path": "/"}, "periodSeconds": 2}},
            {"readinessProbe": {"exec": {"command": ["true"]}}},
            {"readinessProbe": {"periodSeconds": 2, "exec": {"command": ["true"]}}},
        ),
        (
            {"labels": {"a": "1"}},
            {"labels": {"env": "prod", "ports": "many"}},
            {"labels": {"a": "1", "env": "prod", "ports": "many"}},
        ),
    ],
)
def test_merge(base: dict[str, Any], top: dict[str, Any], merged: dict[str, Any]) -> None:
    once = merge.onto(base, top)
    assert once == merged
    assert merge.onto(once, top) == merged


@pytest.mark.parametrize(
    ("top", "error"),
    [
        ({"containers": {}}, "t.containers: must be a list, found dict"),
        ({"containers": [{}]}, "t.containers[0]: must be an object with name"),
        ({"containers": [{"name": "a"}, {"name": "a"}]}, "t.containers[a]: appears twice"),
        ({"map": 1}, "t.map: must be an object, found int"),
        ({"map": {"$patch": "delete"}}, "t.map.$patch: patch directives are not supported; null removes a value"),
    ],
)
def test_what_does_not_fit_is_reported(top: dict[str, Any], error: str) -> None:
    errors: list[FieldError] = []
    merge.merge_map({"map": {"a": 1}}, top, "t", errors)
    assert list(map(str, errors)) == [error]


def test_filling_keeps_what_is_there() -> None:
    base = {"containers": [{"name": "a", "env": [{"name": "X", "value": "mine"}]}], "n": 1}
    parts = {
        "containers": [{"name": "a", "image": "i", "env": [{"name": "X", "value": "ours"}, {"name": "Y"}]}],
        "n": 2,
        "m": 3,
    }
    assert merge.fill(base, parts) == {
        "containers": [{"name": "a", "env": [{"name": "X", "value": "mine"}, {"name": "Y"}], "image": "i"}],
        "n": 1,
        "m": 3,
    }
