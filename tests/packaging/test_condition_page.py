"""docs/operations.md explains every condition, every reason that the operator can give, and every right that it has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import kvferry_operator.status
from kvferry_operator.status.conditions import Type
from kvferry_operator.status.transfer import REASONS

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
RULES = Path(__file__).parents[2] / "charts" / "kvferry" / "templates" / "_rules.tpl"
FOLDER = Path(next(iter(kvferry_operator.status.__path__)))
SOURCES = sorted(path for path in FOLDER.glob("*.py") if path.name != "conditions.py")
"""Without the types themselves."""

REASON = re.compile(r"[A-Z][a-z]+([A-Z][a-z]+)*|OOMKilled|Err[A-Z]\w+")
NO_REASONS = frozenset(
    {
        # phases
        "Degraded",
        "Invalid",
        "Verifying",
        # what the kubelet and controllers say, read here and never passed on
        "ContainerCreating",
        "False",
        "True",
        "ErrImagePull",
        "PodScheduled",
        "Insufficient",
        "RegistryUnavailable",
        "ReplicaFailure",
        "Unknown",
        # kinds
        "ConfigMap",
        "Secret",
    }
)
"""Words in the sources that look like reasons."""


def words() -> Iterator[str]:
    """Every text in the sources that could be a reason."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and REASON.fullmatch(node.value):
                yield node.value


def section(title: str) -> str:
    """Of the page, from a heading to the next one of its level."""
    _, _, rest = PAGE.read_text().partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """What stands in backticks in the first column of the tables."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def test_every_condition_is_explained_once() -> None:
    assert first_cells(section("Conditions").partition("\n### ")[0]) == [type_.value for type_ in Type]


def test_every_reason_is_explained_once_and_no_other_is() -> None:
    _, _, reasons = section("Conditions").partition("\n### ")
    explained = first_cells(reasons)
    assert sorted(explained) == sorted(set(words()) - NO_REASONS)


def test_what_a_transfer_fails_for_is_explained_once() -> None:
    """The runtime's own reasons, as the router and sidecars say them."""
    assert sorted(first_cells(section("Why a transfer did not complete"))) == sorted(REASONS)


def test_every_right_of_the_operator_is_explained_once() -> None:
    lists = re.findall(r"resources: \[(.+)\]", RULES.read_text())
    resources = {name for each in lists for name in each.split(", ")}
    assert sorted(first_cells(section("Security"))) == sorted(resources)


def test_no_word_is_excluded_in_vain() -> None:
    assert set(words()) >= NO_REASONS
