from __future__ import annotations

import pytest

from kvferry_operator.kube import kinds, paths


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (paths.collection(kinds.POD, "a"), "/api/v1/namespaces/a/pods"),
        (paths.collection(kinds.NODE), "/api/v1/nodes"),
        (
            paths.item(kinds.MODEL, "a", "m", "status"),
            "/apis/kvferry.io/v1alpha1/namespaces/a/disaggregatedmodels/m/status",
        ),
        (
            paths.pod_proxy("a", "p", 8080, "/v1/pairs"),
            "/api/v1/namespaces/a/pods/p:8080/proxy/v1/pairs",
        ),
        (paths.item(kinds.POD, "a", "../b?x#y"), "/api/v1/namespaces/a/pods/..%2Fb%3Fx%23y"),
        (paths.schemas("kvferry.io/v1alpha1"), "/openapi/v3/apis/kvferry.io/v1alpha1"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert path == expected


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_cannot_lead_out_of_its_place(name: str) -> None:
    with pytest.raises(ValueError, match="is no name"):
        paths.item(kinds.POD, "a", name)
