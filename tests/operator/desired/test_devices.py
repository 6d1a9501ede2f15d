from __future__ import annotations

from typing import Any

import pytest

from kvferry_operator.api.types import Resources
from kvferry_operator.desired import devices


@pytest.mark.parametrize(
    ("name", "extended"),
    [
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("nvidia.com/gpu", True),
        ("rdma/hca", True),
        ("x.kubernetes.io/y", False),
    ],
)
def test_extended_resources(name: str, extended: bool) -> None:
    assert devices.is_extended(name) is extended


@pytest.mark.parametrize(("requests", "limits"), [({"nvidia.com/gpu": "2"}, {}), ({}, {"nvidia.com/gpu": "2"})])
def test_one_side_of_a_device_is_enough(requests: dict[str, str], limits: dict[str, str]) -> None:
    found = devices.requirements(Resources(requests=requests, limits=limits))
    assert found == {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}


def test_cpu_and_memory_stay_as_given() -> None:
    resources = Resources(requests={"cpu": "1"}, limits={"memory": "1Gi"})
    assert devices.requirements(resources) == {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}


@pytest.mark.parametrize(
    ("resources", "errors"),
    [
        ({"requests": {"a/b": 1}, "limits": {"a/b": 1}}, []),
        ({"requests": {"a/b": 1}, "limits": {"a/b": "2"}}, ["r.requests.a/b"]),
        ({"requests": {"a/b": 1}}, ["r.requests.a/b"]),
        ({"limits": {"a/b": "0.5"}}, ["r.limits.a/b"]),
        ({"limits": {"a/b": "-1"}}, ["r.limits.a/b"]),
        ({"limits": {"a/b": []}}, ["r.limits.a/b"]),
        ({"limits": []}, []),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, []),
    ],
)
def test_what_the_server_would_refuse(resources: dict[str, Any], errors: list[str]) -> None:
    """Case 14."""
    assert [error.path for error in devices.extended_errors(resources, "r")] == errors
