from __future__ import annotations

import dataclasses

import pytest

import builders
import rendered
from kvferry_operator.desired.build import build
from kvferry_operator.desired.owner import owned


def test_every_child_is_deleted_with_the_object() -> None:
    model = dataclasses.replace(builders.model(), uid="u-1")
    objects = build(model, rendered.SETTINGS)
    for child, bare in zip(owned(objects, model), objects, strict=True):
        (reference,) = child["metadata"]["ownerReferences"]
        assert reference == {
            "apiVersion": "kvferry.io/v1alpha1",
            "kind": "DisaggregatedModel",
            "name": "tiny",
            "uid": "u-1",
            "controller": True,
        }
        assert "ownerReferences" not in bare["metadata"]


def test_an_object_that_was_never_applied_owns_nothing() -> None:
    with pytest.raises(ValueError, match="no uid"):
        owned((), builders.model())
