"""What we tell people to apply is accepted by what we ship."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import crd_schema
from kvferry_operator.api.parse import parse


@pytest.mark.parametrize("example", crd_schema.EXAMPLES, ids=lambda path: path.stem)
def test_example_is_accepted(example: Path) -> None:
    raw = yaml.safe_load(example.read_text())
    stored = crd_schema.defaulted(raw)
    assert crd_schema.schema_errors(stored) == []
    assert [rule.message for rule in crd_schema.rules() if rule.broken(stored["spec"])] == []
    assert parse(stored).spec == parse(raw).spec


def test_unknown_fields_are_refused() -> None:
    raw = yaml.safe_load(crd_schema.EXAMPLES[0].read_text())
    raw["spec"]["transfer"] = {"compresion": {"method": "fp8"}}
    assert any("compresion" in error for error in crd_schema.schema_errors(raw))
