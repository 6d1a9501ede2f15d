"""What the router is told, and that it understands it."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

import builders
import rendered
from kvferry_operator.api import names
from kvferry_operator.desired.build import build
from kvferry_runtime.router import command


def told(changes: dict[str, Any]) -> argparse.Namespace:
    """The router's arguments as its own command reads them."""
    (deployment,) = rendered.of_kind(build(builders.model(changes), rendered.SETTINGS), "Deployment")
    container = rendered.containers(deployment["spec"]["template"])[names.CONTAINER_ROUTER]
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(required=True))
    return parser.parse_args([*container["command"][1:], *container["args"]])


@pytest.mark.parametrize(
    ("changes", "transport", "interval"),
    [
        ({}, "auto", 30.0),
        ({"transfer.transport": "rdma"}, "rdma", 30.0),
        ({"transfer.transport": "tcp", "transfer.verify.intervalSeconds": 5}, "tcp", 5.0),
        ({"transfer.verify.required": False}, "auto", 30.0),
    ],
)
def test_it_knows_what_to_prove_and_how_often(changes: dict[str, Any], transport: str, interval: float) -> None:
    args = told(changes)
    assert (args.transport, args.verify_interval_seconds) == (transport, interval)


@pytest.mark.parametrize("changes", [{}, {"engine.type": "vllm"}])
def test_every_container_says_in_the_pods_status_why_it_ended(changes: dict[str, Any]) -> None:
    objects = build(builders.model(changes), rendered.SETTINGS)
    templates = [item["spec"]["template"] for item in objects if item["kind"] in ("StatefulSet", "Deployment")]
    assert len(templates) == 3
    for template in templates:
        for container in rendered.containers(template).values():
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
