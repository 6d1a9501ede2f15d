"""The demo from nothing to a table: start, ask, compare, stop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import yaml

from kvferry_contract import ports
from kvferry_contract.config import Role
from kvferry_operator.demo import model
from kvferry_operator.demo.comparison import Row, compare
from kvferry_operator.demo.errors import DemoFailed
from kvferry_operator.demo.measure import Answer, complete
from kvferry_operator.demo.prompts import PROMPTS, Prompt
from kvferry_operator.local import session, table, transfers
from kvferry_operator.local.request import Changes, Request, checkout, default_models, request
from kvferry_operator.local.supervisor import Supervisor

_START_SECONDS = 240.0
_PROGRESS_SECONDS = 5.0
_SETTLE_SECONDS = 2.0
"""A sidecar closes its record a moment after the last token has left."""
_MAX_TOKENS = 16
_WARM_UP_TOKENS = 4
_ADVICE = session.Advice(
    name="another demo runs; wait for it, or end it with Ctrl-C", port="stop it: the demo has no other addresses"
)
_WARM_UP = "A first request pays for what is loaded and compiled only once, so this one is not counted. " * 8


@dataclass(frozen=True, slots=True)
class Plan:
    """methods: of compression, one deployment each. prefill, decode: groups. stages: pipeline stages of a group of each
    role. models: folder of models; None for the default. traces: where timelines go."""

    methods: tuple[str, ...]
    prefill: int
    decode: int
    stages: Mapping[Role, int]
    models: Path | None
    logs: Path | None
    traces: Path | None = None


def example() -> Path:
    """`examples/smollm2.yaml`: of the checkout, else the copy in the package.

    Raises:
        DemoFailed: neither is there.
    """
    top = checkout()
    path = top / "examples" / "smollm2.yaml" if top else Path(__file__).with_name("smollm2.yaml")
    if not path.is_file():
        raise DemoFailed(f"{path} is missing: reinstall kvferry, or run the demo from a checkout")
    return path


class Demo:
    """One run. `kill` ends all processes at once, for those who cannot wait for an orderly stop."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._began = time.monotonic()
        self._supervisors: list[Supervisor] = []

    def kill(self) -> None:
        for supervisor in self._supervisors:
            supervisor.kill()

    async def run(self) -> list[Row]:
        """One row for each method and prompt.

        Raises:
            InputError: more stages than layers.
            DemoFailed, LocalError: something did not start or did not answer; nothing is left running.
        """
        models = (self._plan.models or default_models()).absolute()
        folder = await model.prepare(models)
        model.check_stages(folder, self._plan.stages)
        raw = yaml.safe_load(example().read_text(encoding="utf-8"))
        common = Changes(models=models, logs=self._plan.logs, decode=1, traces=self._plan.traces)
        aggregated = request(raw, replace(common, name="demo-aggregated", aggregated=True))
        common = replace(common, prefill=self._plan.prefill, decode=self._plan.decode, stages=self._plan.stages)
        apart = [request(raw, replace(common, name=f"demo-{method}", method=method)) for method in self._plan.methods]
        rows: list[Row] = []
        async with aiohttp.ClientSession(trust_env=False) as http, contextlib.AsyncExitStack() as stack:
            # all engines load at the same time, which costs no more in all; then one deployment is asked at a time
            alone, *supervisors = [await self._start(stack, asked) for asked in (aggregated, *apart)]
            await self._ready([alone, *supervisors])
            baseline = await self._ask_aggregated(http, alone, aggregated.served_name)
            for method, asked, supervisor in zip(self._plan.methods, apart, supervisors, strict=True):
                rows += await self._ask_apart(http, supervisor, asked, method, baseline)
        return rows

    async def _start(self, stack: contextlib.AsyncExitStack, asked: Request) -> Supervisor:
        found = asked.model
        self._tell(f"starting {found.name}")
        options = replace(asked.options, advice=_ADVICE)
        supervisor = await stack.enter_async_context(
            session.running(found.namespace, found.name, asked.manifests, options, self._tell)
        )
        self._supervisors.append(supervisor)
        return supervisor

    async def _ready(self, supervisors: Sequence[Supervisor]) -> None:
        """
        Raises:
            DemoFailed: not all pods are ready in time. StartFailed: one refused its settings.
        """
        waiting = asyncio.gather(*(supervisor.wait_ready() for supervisor in supervisors))
        deadline = time.monotonic() + _START_SECONDS
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=_PROGRESS_SECONDS)
                pods = [pod for supervisor in supervisors for pod in supervisor.record.pods]
                if waiting.done():
                    break
                missing = ", ".join(pod.name for pod in pods if not pod.ready)
                if time.monotonic() > deadline:
                    raise DemoFailed(f"not ready after {_START_SECONDS:.0f} s: {missing}; see the logs with --log-dir")
                self._tell(table.progress(pods))
            waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _ask_aggregated(self, http: aiohttp.ClientSession, supervisor: Supervisor, served: str) -> list[Answer]:
        url = f"http://{supervisor.record.pods[0].address}:{ports.ENGINE}"
        await complete(http, url, served, _WARM_UP, _WARM_UP_TOKENS)
        answers = []
        for prompt in PROMPTS:
            answers.append(await complete(http, url, served, prompt.text, _MAX_TOKENS))
            self._tell(f"aggregated engine, prompt {prompt.title}: {answers[-1].prompt_tokens} tokens")
        return answers

    async def _ask_apart(
        self,
        http: aiohttp.ClientSession,
        supervisor: Supervisor,
        asked: Request,
        method: str,
        baseline: Sequence[Answer],
    ) -> list[Row]:
        url = supervisor.record.url
        for _ in range(max(self._plan.prefill, self._plan.decode)):
            await complete(http, url, asked.served_name, _WARM_UP, _WARM_UP_TOKENS)
        rows = []
        for prompt, aggregated in zip(PROMPTS, baseline, strict=True):
            routed = await complete(http, url, asked.served_name, prompt.text, _MAX_TOKENS)
            rows.append(await self._row(http, supervisor, method, prompt, routed, aggregated))
            self._tell(f"compression {method}, prompt {prompt.title}: {routed.prompt_tokens} tokens")
        return rows

    async def _row(
        self,
        http: aiohttp.ClientSession,
        supervisor: Supervisor,
        method: str,
        prompt: Prompt,
        routed: Answer,
        aggregated: Answer,
    ) -> Row:
        transfer = (routed.result.get("transfer") or {}).get("id", "")
        found = await transfers.finished(http, supervisor.record, transfer, _SETTLE_SECONDS)
        return compare(prompt.title, method, routed, aggregated, found)

    def _tell(self, text: str) -> None:
        self._say(f"[{time.monotonic() - self._began:5.1f} s] {text}")
