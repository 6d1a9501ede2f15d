"""What is shown of pipeline stages: they answer as one engine does, and a group that loses one is made anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from end_to_end import client_pod, losses, models
from end_to_end.client_pod import Answer
from end_to_end.losses import Loss
from end_to_end.models import NAMESPACE, OUTPUT_TOKENS
from end_to_end.steps import Steps
from end_to_end.tools import Tools

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "pipeline.yaml"
_NAME = "pipeline"


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
        with steps.step(f"stages.lost_{role}", f"a stage of {role} is deleted in mid-request: every request ends"):
            loss = losses.lose_a_stage(tools, _NAME, role)
        with steps.step(f"stages.anew_{role}", "its group is made anew as a whole, others are not touched"):
            losses.wait_anew(tools, _NAME, role, loss.before)
        with steps.step(f"stages.again_{role}", "prompts are answered as before"):
            models.compare(_ask(tools, prompts), alone)
            _compare_answered(tools, loss)


def _ask(tools: Tools, prompts: Sequence[str]) -> list[Answer]:
    answers = client_pod.ask(tools, NAMESPACE, f"{_NAME}-router", "smollm2", prompts, OUTPUT_TOKENS)
    models.all_transferred(answers)
    return answers


def _compare_answered(tools: Tools, loss: Loss) -> None:
    """What was answered in spite of the loss, with what a whole model says."""
    answered = [index for index, answer in enumerate(loss.answers) if answer.status == 200]
    if not answered:
        return
    prompts = [loss.prompts[index] for index in answered]
    anew = client_pod.ask(tools, NAMESPACE, f"{_NAME}-router", "smollm2", prompts, loss.answer_tokens)
    models.compare([loss.answers[index] for index in answered], anew)
