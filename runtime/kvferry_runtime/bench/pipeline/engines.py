"""Engines of one group, a process on a core of its own for each pipeline stage, that serve a real model over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from kvferry_contract import env, ports
from kvferry_contract.config import Method, OverlapMode, Role
from kvferry_contract.split import Split
from kvferry_runtime.bench import children, web_client
from kvferry_runtime.bench.children import Child
from kvferry_runtime.bench.pods import RINGS, Place, runtime_config, scratch, variables_of
from kvferry_runtime.errors import KvferryError

PIN = "taskset"
"""The program that starts an engine on its core (util-linux)."""
START_SECONDS = 180.0
_LOOK_SECONDS = 0.2
_TRANSFER_SECONDS = 30.0
"""Of no meaning here: an aggregated engine moves no KV."""


@dataclass(frozen=True, slots=True)
class Answer:
    """seconds: from the request to the end of the answer."""

    text: str
    seconds: float


class Group:
    """Running engines that answer at their first stage. Use `running`."""

    def __init__(self, stages: Sequence[Child], address: str) -> None:
        self._stages = stages
        self._url = f"http://{address}:{ports.ENGINE}"

    def first_token(self, prompt: Sequence[int]) -> Answer:
        """The likeliest token after these, and the wait for it.

        Raises:
            KvferryError: the engine refused the request, or a stage is gone.
        """
        body = {"prompt": list(prompt), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        answer = web_client.fetch(f"{self._url}/v1/completions", body)
        if answer["status"] != HTTPStatus.OK:
            self._check()
            raise KvferryError(f"the engine at {self._url} answered {answer['status']}: {answer['body']}")
        return Answer(answer["body"]["choices"][0]["text"], answer["seconds"])

    def wait_until_ready(self, deadline: float) -> None:
        """deadline: on the monotonic clock. Raises KvferryError: a stage ended, or they are not ready by then."""
        while web_client.fetch(f"{self._url}/readyz", None)["status"] != HTTPStatus.OK:
            self._check()
            if time.monotonic() > deadline:
                tails = "".join(stage.tail() for stage in self._stages)
                raise KvferryError(f"{len(self._stages)} stages are not ready within {START_SECONDS:g} s:\n{tails}")
            time.sleep(_LOOK_SECONDS)  # another process's start sets no event here

    def _check(self) -> None:
        for stage in self._stages:
            stage.check()


@contextmanager
def running(model: Path, places: Sequence[Place], cores: Sequence[int]) -> Iterator[Group]:
    """Start a stage at each place, on its core, and wait until they can answer; stop them at the end.

    Raises:
        KvferryError: one did not start; the message has the end of its log.
    """
    hosts = ",".join(place.address for place in places)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        stages = [
            _stage(stack, folder, model, replace(place, prefix=(PIN, "--cpu-list", str(core))), hosts, stage)
            for stage, (place, core) in enumerate(zip(places, cores, strict=True))
        ]
        group = Group(stages, places[0].address)
        group.wait_until_ready(time.monotonic() + START_SECONDS)
        yield group


def _stage(stack: ExitStack, folder: Path, model: Path, place: Place, hosts: str, stage: int) -> Child:
    split = Split(hosts.count(",") + 1)
    config = runtime_config(Role.AGGREGATED, Method.NONE, OverlapMode.REQUEST, RINGS, _TRANSFER_SECONDS, split, stage)
    variables = variables_of(folder, place, config) | {env.STAGE_HOSTS: hosts, env.GROUP_INDEX: "0"}
    command = ("-m", "kvferry_runtime", "engine", "--model", str(model))
    return stack.enter_context(
        children.running(place.prefix, command, variables, folder / f"stage-{stage}-of-{split.stages}.log")
    )
