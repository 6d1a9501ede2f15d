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
    assert {rule.message for rule in crd_schema.rules()} == set(CASES)


@pytest.mark.parametrize(("message", "good", "bad", "path"), FLAT)
def test_rule(message: str, good: dict[str, Any], bad: dict[str, Any], path: str) -> None:
    accepted, refused = (crd_schema.defaulted(builders.raw(changes)) for changes in (good, bad))
    assert crd_schema.schema_errors(accepted) == crd_schema.schema_errors(refused) == []
    rules = crd_schema.rules()
    assert [rule.message for rule in rules if rule.broken(accepted["spec"])] == []
    assert message in [rule.message for rule in rules if rule.broken(refused["spec"])]
    parse(accepted)
    with pytest.raises(SpecInvalid) as caught:
        parse(refused)
    assert (path, message) in [(error.path, error.message) for error in caught.value.errors]
