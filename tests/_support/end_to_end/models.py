"""Models on the cluster: applied, compared, looked at, removed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from end_to_end.client_pod import Answer
from end_to_end.errors import StepFailed
from end_to_end.tools import Tools

NAMESPACE = "models"
OUTPUT_TOKENS = 24
_READY_SECONDS = 900
_GONE_SECONDS = 600


def apply(tools: Tools, model: dict[str, Any]) -> None:
    """Until it is Ready."""
    tools.kubectl("apply", f"--namespace={NAMESPACE}", "--filename=-", stdin=json.dumps(model))
    wait_ready(tools, model["metadata"]["name"])


def wait_ready(tools: Tools, name: str) -> None:
    tools.kubectl(
        "wait",
        f"--namespace={NAMESPACE}",
        "--for=condition=Ready",
        f"dm/{name}",
        f"--timeout={_READY_SECONDS}s",
        seconds=_READY_SECONDS + 10.0,
    )


def all_transferred(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.mode != "transferred":
            raise StepFailed(f"the KV cache of an answer was not transferred: {answer.kvferry}")
        if len(answer.tokens) != OUTPUT_TOKENS:
            raise StepFailed(f"{len(answer.tokens)} tokens, expected {OUTPUT_TOKENS}")


def compare(travelled: Sequence[Answer], alone: Sequence[Answer]) -> None:
    """Token for token: an exact cache that has travelled, and one that never had to."""
    for index, (one, other) in enumerate(zip(travelled, alone, strict=True)):
        if one.tokens != other.tokens:
            raise StepFailed(f"prompt {index}: {one.tokens} disaggregated, {other.tokens} aggregated")
    print(f"    {sum(len(answer.tokens) for answer in alone)} tokens equal")


def delete(tools: Tools, name: str) -> None:
    """With its pods: three models at once are more than two cores take."""
    tools.kubectl(
        "delete",
        "dm",
        name,
        f"--namespace={NAMESPACE}",
        "--cascade=foreground",
        f"--timeout={_GONE_SECONDS}s",
        seconds=_GONE_SECONDS + 10.0,
    )


def pods(tools: Tools) -> dict[str, tuple[str, int]]:
    """Name → uid and restarts, of the models' pods."""
    listed = tools.get("pods", f"--namespace={NAMESPACE}", "--selector=kvferry.io/model")["items"]
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(container["restartCount"] for container in pod["status"].get("containerStatuses", ())),
        )
        for pod in listed
    }
