"""Losing one stage of a group: its pod is deleted while the group computes, and the group is made anew as a whole."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from end_to_end import client_pod, models
from end_to_end.client_pod import Answer
from end_to_end.errors import StepFailed
from end_to_end.models import NAMESPACE, OUTPUT_TOKENS
from end_to_end.tools import Tools
from eventually import eventually
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.reasons import RouteReason

Pods = dict[str, tuple[str, int]]
"""As `models.pods` gives them."""

TRIES = 3
_PROMPT_BLOCKS = 30
"""More than the router's own requests take, and fewer than any prompt here does."""
_BEGINS_SECONDS = 600.0
_ANEW_SECONDS = 900.0
_PEER_WENT = frozenset(
    {Reason.PEER_LOST, Reason.PEER_UNREACHABLE, Reason.ENGINE_LOST, Reason.DRAINING, Reason.CANCELLED}
)
"""What decode may hear when prefill goes in mid-transfer: of that stage, or of another one that gives up with it."""

_TELLING = ("route_reason", "mode", "reason", "code")
"""Fields that say how a request ended: the first three of an answer, the last of a failure."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked at once while a stage goes. Some of it must be left when the pod has gone, seconds later: prefill
    computes one prompt after the other, decode one token after the other."""

    prompts: int
    prompt_tokens: int
    answer_tokens: int


LOADS = {"decode": Load(1, 900, 150), "prefill": Load(4, 3000, OUTPUT_TOKENS)}


@dataclass(frozen=True, slots=True)
class Loss:
    """A stage that was deleted while it computed. before: the pods until then. answers: one of each prompt."""

    before: Pods
    prompts: Sequence[list[int]]
    answers: Sequence[Answer]
    answer_tokens: int


def lose_a_stage(tools: Tools, model: str, role: str) -> Loss:
    """Delete the last stage of the only group of `role` while it computes.

    A machine may be done with its part of every request before the pod has gone, or before anybody sees that it has
    begun. Then the group is awaited, and the same is done under twice the load, `TRIES` times in all.

    Raises:
        StepFailed: a request did not end as it should, or none has met the loss.
        AssertionError: the group did not come back.
    """
    for number in range(TRIES):
        before, prompts = models.pods(tools), _prompts(role, LOADS[role].prompts << number)
        answers, deleted = _ask_and_delete(tools, model, role, prompts)
        print(f"    ended with {_outcomes(answers)}")
        for answer in answers:
            check(role, answer)
        if any(met_the_loss(role, answer) for answer in answers):
            return Loss(before, prompts, answers, LOADS[role].answer_tokens)
        if deleted:
            wait_anew(tools, model, role, before)
    raise StepFailed(
        f"{TRIES} times a stage of {role} was to be lost, and its part of all requests was done before it had gone, of "
        f"{len(prompts)} at once the last time: this machine is too fast for {LOADS[role]}, ask for more"
    )


def check(role: str, answer: Answer) -> None:
    """Whether a request may end so under `failurePolicy: Recompute`, met by the loss or not: no other group could
    decode, but decode computes a prompt itself.

    Raises:
        StepFailed: it may not.
    """
    if answer.status == 200:
        wanted = LOADS[role].answer_tokens
        if len(answer.tokens) != wanted:
            raise StepFailed(f"{len(answer.tokens)} tokens of {wanted}, and no word of a failure: {answer.kvferry}")
    elif role != "decode":
        raise StepFailed(f"decode is there, but the request failed with {answer.status}: {answer.kvferry}")
    elif answer.status < 500 or not answer.kvferry.get("message"):
        raise StepFailed(f"a loss that is told as {answer.status}: {answer.kvferry}")


def met_the_loss(role: str, answer: Answer) -> bool:
    """Whether this request was still with the stage when that went, by what its answer says."""
    if role == "decode":
        return answer.status >= 500
    recomputed = answer.mode == "recomputed" and answer.kvferry.get("reason") in _PEER_WENT
    return recomputed or answer.kvferry.get("route_reason") == RouteReason.PREFILL_FAILED


def wait_anew(tools: Tools, model: str, role: str, before: Pods) -> None:
    """Until every pod of the group is another one than before, and the model is ready.

    Raises:
        StepFailed: pods of other groups are not those of before.
        AssertionError: not in time.
    """
    old = _group(before, model, role)

    def made_anew() -> bool:
        now = _group(models.pods(tools), model, role)
        return now.keys() == old.keys() and all(now[name][0] != uid for name, (uid, _) in old.items())

    eventually(made_anew, f"every pod of the {role} group is another one", _ANEW_SECONDS)
    models.wait_ready(tools, model)
    after = models.pods(tools)
    touched = {name for name, pod in before.items() if name not in old and after.get(name) != pod}
    if touched:
        raise StepFailed(f"pods of other groups were replaced or restarted: {sorted(touched)}")


def _ask_and_delete(tools: Tools, model: str, role: str, prompts: Sequence[list[int]]) -> tuple[list[Answer], bool]:
    """The stage goes as soon as it is seen to have blocks for a prompt. Gives whether it does."""
    (lost,) = (name for name in _group(models.pods(tools), model, role) if name.endswith("-s1-0"))
    idle = _free_blocks(tools, lost)
    tokens = LOADS[role].answer_tokens
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(
            client_pod.attempt, tools, NAMESPACE, f"{model}-router", "smollm2", prompts, tokens, at_once=len(prompts)
        )
        eventually(
            lambda: asked.done() or idle - _free_blocks(tools, lost) >= _PROMPT_BLOCKS,
            f"{lost} has a request",
            _BEGINS_SECONDS,
        )
        if asked.done():
            return asked.result(), False
        # A forced deletion (0) is slower: the kubelet learns nothing of it but that the pod is no more, and gives its
        # containers the whole grace of the template, in which the group finishes what is open.
        tools.kubectl("delete", "pod", lost, f"--namespace={NAMESPACE}", "--grace-period=1", "--wait=false")
        return asked.result(), True  # `attempt` has a deadline of its own


def _free_blocks(tools: Tools, pod: str) -> int:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8000/proxy/v1/state"
    return int(json.loads(tools.kubectl("get", "--raw", path))["blocks"]["free"])


def _prompts(role: str, count: int) -> list[list[int]]:
    dice = random.Random(7)
    return [[dice.randrange(100, 49152) for _ in range(LOADS[role].prompt_tokens)] for _ in range(count)]


def _group(pods: Pods, model: str, role: str) -> Pods:
    return {name: pod for name, pod in pods.items() if name.startswith(f"{model}-{role}-")}


def _outcomes(answers: Sequence[Answer]) -> str:
    """For people: how they ended, and how many of them in each way."""
    told = Counter(
        " ".join([str(answer.status), *(str(answer.kvferry.get(key) or "") for key in _TELLING)]).strip()
        for answer in answers
    )
    return ", ".join(f"{count} × {outcome}" for outcome, count in told.items())
