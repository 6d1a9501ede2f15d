from __future__ import annotations

import pytest

import builders
from kvferry_operator.api import defaults

HOST = {"type": "hostPath", "path": "/m"}


@pytest.mark.parametrize(
    ("model", "name", "directory", "revision"),
    [
        ({"uri": "hf://Meta-Org/Llama-3.2-3B"}, "Meta-Org/Llama-3.2-3B", "/models", "main"),
        ({"uri": "hf://a/b", "revision": "v2"}, "a/b", "/models", "v2"),
        ({"uri": "file:///models/Smol", "cache": HOST}, "Smol", "/models/Smol", ""),
        ({"uri": "file:///baked/in/"}, "in", "/baked/in", ""),
        ({"uri": "pvc://claim/a/b"}, "b", "/models/a/b", ""),
        ({"uri": "pvc://claim"}, "claim", "/models", ""),
        ({"uri": "hf://a/b", "servedName": "mine"}, "mine", "/models", "main"),
    ],
)
def test_what_follows_from_the_model(model: dict[str, object], name: str, directory: str, revision: str) -> None:
    built = builders.model({"model": model})
    assert defaults.served_name(built) == name
    assert defaults.model_directory(built.spec) == directory
    assert defaults.model_revision(built.spec) == revision


@pytest.mark.parametrize("drain", [0, 1, 120, 3600])
def test_a_pod_has_longer_to_end_than_to_drain(drain: int) -> None:
    assert defaults.grace_seconds(drain) > drain
