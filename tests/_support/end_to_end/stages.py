"""What is shown of pipeline stages: they answer as one engine does, and a group that loses one is made anew."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import yaml

from end_to_end import client_pod, models
from end_to_end.client_pod import Answer
from end_to_end.errors import StepFailed
from end_to_end.models import NAMESPACE, OUTPUT_TOKENS
from end_to_end.steps import Steps
from end_to_end.tools import Tools
from eventually import eventually

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "pipeline.yaml"
_NAME = "pipeline"
_LONG_PROMPT = [random.Random(7).randrange(100, 49152) for _ in range(900)]
_LONG_ANSWER = 150
_PROMPT_BLOCKS = 30
"""More than the router's own requests take, and fewer than the long prompt does."""
_ENDS_SECONDS = 180.0
_ANEW_SECONDS = 300.0


def run(steps: Steps, tools: Tools, prompts: Sequence[str], alone: Sequence[Answer]) -> None:
    """The model is there at the end. alone: answers of one engine to the prompts.

    Raises:
        StepFailed, AssertionError: the first thing that is not as it should be.
    """
    with steps.step(
        "stages.ready", f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}; kubectl wait --for=condition=Ready"
    ):
        models.apply(tools, yaml.safe_load(EXAMPLE.read_text()))
    with steps.step("stages.exact", "the same prompts through stages: the same tokens as without disaggregation"):
        models.compare(_ask(tools, prompts), alone)
    for role in ("decode", "prefill"):
        with steps.step(f"stages.lost_{role}", f"a stage of {role} is deleted in mid-request: the request ends"):
            before = models.pods(tools)
            ended = _lose_a_stage(tools, role)
        with steps.step(f"stages.anew_{role}", "its group is made anew as a whole, others are not touched"):
            _wait_anew(tools, role, before)
        with steps.step(f"stages.again_{role}", "prompts are answered as before"):
            models.compare(_ask(tools, prompts), alone)
            if ended.status == 200:
                models.compare(
                    [ended],
                    client_pod.ask(tools, NAMESPACE, f"{_NAME}-router", "smollm2", [_LONG_PROMPT], _LONG_ANSWER),
                )


def _ask(tools: Tools, prompts: Sequence[str]) -> list[Answer]:
    answers = client_pod.ask(tools, NAMESPACE, f"{_NAME}-router", "smollm2", prompts, OUTPUT_TOKENS)
    models.all_transferred(answers)
    return answers


def _lose_a_stage(tools: Tools, role: str) -> Answer:
    """What becomes of a long request of which one stage is deleted while it computes."""
    (lost,) = (name for name in _group(models.pods(tools), role) if name.endswith("-s1-0"))
    idle = _free_blocks(tools, lost)
    with _asking(tools) as asked:
        eventually(lambda: idle - _free_blocks(tools, lost) >= _PROMPT_BLOCKS, f"{lost} has the request", _ENDS_SECONDS)
        tools.kubectl("delete", "pod", lost, f"--namespace={NAMESPACE}", "--grace-period=1", "--wait=false")
        answer = asked.result(_ENDS_SECONDS)
    print(f"    ended with {answer.status}: {answer.kvferry.get('mode') or answer.kvferry}")
    if answer.status == 200 and len(answer.tokens) != _LONG_ANSWER:
        raise StepFailed(f"{len(answer.tokens)} tokens of {_LONG_ANSWER}, and no word of a failure: {answer.kvferry}")
    return answer


@contextmanager
def _asking(tools: Tools) -> Iterator[Future[Answer]]:
    with ThreadPoolExecutor(1) as thread:
        host = f"{_NAME}-router"
        yield thread.submit(
            lambda: client_pod.attempt(tools, NAMESPACE, host, "smollm2", [_LONG_PROMPT], _LONG_ANSWER)[0]
        )


def _free_blocks(tools: Tools, pod: str) -> int:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8000/proxy/v1/state"
    return int(json.loads(tools.kubectl("get", "--raw", path))["blocks"]["free"])


def _wait_anew(tools: Tools, role: str, before: dict[str, tuple[str, int]]) -> None:
    old = _group(before, role)

    def made_anew() -> bool:
        now = _group(models.pods(tools), role)
        return now.keys() == old.keys() and all(now[name][0] != uid for name, (uid, _) in old.items())

    eventually(made_anew, f"every pod of the {role} group is another one", _ANEW_SECONDS)
    models.wait_ready(tools, _NAME)
    after = models.pods(tools)
    touched = {name for name, pod in before.items() if name not in old and after.get(name) != pod}
    if touched:
        raise StepFailed(f"pods of other groups were replaced or restarted: {sorted(touched)}")


def _group(pods: dict[str, tuple[str, int]], role: str) -> dict[str, tuple[str, int]]:
    return {name: pod for name, pod in pods.items() if name.startswith(f"{_NAME}-{role}-")}
