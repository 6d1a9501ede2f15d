"""Each CEL rule lets a good object through and stops a bad one, and the code's own check agrees, in the same words."""

from __future__ import annotations

from typing import Any

import pytest

import builders
import crd_schema
from kvferry_operator.api.parse import parse
from kvferry_operator.errors import SpecInvalid
from rule_cases import CASES, FLAT


def test_every_rule_has_a_case() -> None:
    rules = crd_schema.rules()
    refused = [crd_schema.defaulted(builders.raw(bad))["spec"] for _, _, bad, _ in FLAT]
    said = {message for rule in rules if rule.told for spec in refused for message in rule.broken(spec)}
    assert {rule.message for rule in rules if not rule.told} | said == set(CASES)
    assert all(any(map(rule.broken, refused)) for rule in rules if rule.told)


@pytest.mark.parametrize(("message", "good", "bad", "path"), FLAT)
def test_rule(message: str, good: dict[str, Any], bad: dict[str, Any], path: str) -> None:
    accepted, refused = (crd_schema.defaulted(builders.raw(changes)) for changes in (good, bad))
    assert crd_schema.schema_errors(accepted) == crd_schema.schema_errors(refused) == []
    rules = crd_schema.rules()
    assert [rule.message for rule in rules if rule.broken(accepted["spec"])] == []
    assert message in [said for rule in rules for said in rule.broken(refused["spec"])]
    parse(accepted)
    with pytest.raises(SpecInvalid) as caught:
        parse(refused)
    assert (path, message) in [(error.path, error.message) for error in caught.value.errors]
