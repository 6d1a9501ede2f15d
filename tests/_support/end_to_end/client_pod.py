"""A pod that asks: what it gets has gone through DNS, the router's Service and the network of pods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from end_to_end.tools import Tools

NAME = "client"
_ANSWER_SECONDS = 300.0

_SCRIPT = """\
import json, sys, urllib.request
asked = json.load(sys.stdin)
for body in asked["bodies"]:
    request = urllib.request.Request(
        asked["url"], json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        print(json.dumps({"headers": dict(response.headers), "body": json.load(response)}))
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: ids of the completion. kvferry: what the router says happened to the KV cache."""

    tokens: tuple[int, ...]
    kvferry: dict[str, Any]

    @property
    def mode(self) -> str:
        return str(self.kvferry.get("mode", ""))


def start(tools: Tools, namespace: str, image: str) -> None:
    """Make the pod and wait until it runs. image: one with Python."""
    container = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", "import time; time.sleep(3600)"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }
    tools.kubectl("apply", "--filename=-", stdin=json.dumps(pod))
    tools.kubectl("wait", f"--namespace={namespace}", "--for=condition=Ready", f"pod/{NAME}", "--timeout=60s")


def ask(tools: Tools, namespace: str, host: str, model: str, prompts: Sequence[str], max_tokens: int) -> list[Answer]:
    """Complete each prompt greedily, one after the other. host: DNS name of a router's Service."""
    bodies = [
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "return_token_ids": True,
        }
        for prompt in prompts
    ]
    printed = tools.kubectl(
        "exec",
        f"--namespace={namespace}",
        "--stdin",
        NAME,
        "--",
        "python",
        "-c",
        _SCRIPT,
        stdin=json.dumps({"url": f"http://{host}/v1/completions", "bodies": bodies}),
        seconds=_ANSWER_SECONDS,
    )
    return [_answer(json.loads(line)["body"]) for line in printed.splitlines()]


def _answer(body: dict[str, Any]) -> Answer:
    return Answer(tuple(body["choices"][0]["token_ids"]), body.get("kvferry") or {})
