"""A pod that asks: what it gets has gone through DNS, the router's Service and the network of pods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from end_to_end.errors import StepFailed
from end_to_end.tools import Tools

NAME = "client"
ANSWER_SECONDS = 1800.0

_SCRIPT = """\
import json, sys, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
asked = json.load(sys.stdin)
def answer(body):
    request = urllib.request.Request(
        asked["url"], json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=900) as response:
            status, content = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, content = error.code, error.read()
    return {"status": status, "body": json.loads(content)}
with ThreadPoolExecutor(asked["at_once"]) as threads:
    for found in threads.map(answer, asked["bodies"]):
        print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: ids of the completion; none of a request that failed. kvferry: what the router says of the KV cache, or
    of the failure."""

    status: int
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
    tools.kubectl(
        "wait", f"--namespace={namespace}", "--for=condition=Ready", f"pod/{NAME}", "--timeout=300s", seconds=310
    )


def ask(
    tools: Tools, namespace: str, host: str, model: str, prompts: Sequence[str | list[int]], max_tokens: int
) -> list[Answer]:
    """Complete each prompt, text or tokens, greedily, one after the other; all are answered with 200.

    host: DNS name of a router's Service.

    Raises:
        StepFailed: another answer, or none.
    """
    answers = attempt(tools, namespace, host, model, prompts, max_tokens, at_once=1)
    for answer in answers:
        if answer.status != 200:
            raise StepFailed(f"{host} answers with {answer.status}: {answer.kvferry}")
    return answers


def attempt(
    tools: Tools,
    namespace: str,
    host: str,
    model: str,
    prompts: Sequence[str | list[int]],
    max_tokens: int,
    at_once: int,
) -> list[Answer]:
    """The same with so many of them at once, whatever the answers are, which come in the order of the prompts."""
    bodies = [
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
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
        stdin=json.dumps({"url": f"http://{host}/v1/completions", "bodies": bodies, "at_once": at_once}),
        seconds=ANSWER_SECONDS,
    )
    return [_answer(**json.loads(line)) for line in printed.splitlines()]


def _answer(status: int, body: dict[str, Any]) -> Answer:
    choices = body.get("choices") or [{}]
    return Answer(status, tuple(choices[0].get("token_ids") or ()), body.get("kvferry") or body.get("error") or {})
