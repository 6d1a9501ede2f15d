"""What an engine counts. All label values are there from the start, at 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvferry_runtime.engine.reference.request import Mode, Stage
from kvferry_runtime.errors import Reason

OUTCOMES = ("stop", "length", "error", "cancelled", "refused")
_NO_FAILURE = "none"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class EngineMetrics:
    """Of one engine, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "kvferry_engine_requests", "Requests that are over, by how they ended", ["outcome"], registry=self.registry
        )
        self._prompts = Counter(
            "kvferry_engine_prompts",
            "Prompts, by how their KV came about, and for recomputed ones why the transfer failed",
            ["mode", "reason"],
            registry=self.registry,
        )
        self._failed_loads = Counter(
            "kvferry_engine_failed_loads", "KV that was awaited and did not come", ["reason"], registry=self.registry
        )
        self._sends = Counter(
            "kvferry_engine_sends", "KV handed over, by how that ended", ["reason"], registry=self.registry
        )
        self.prompt_tokens = Counter(
            "kvferry_engine_computed_prompt_tokens", "Tokens of prompts computed here", registry=self.registry
        )
        self.generated_tokens = Counter(
            "kvferry_engine_generated_tokens", "Tokens generated here", registry=self.registry
        )
        self.first_token_seconds = Histogram(
            "kvferry_engine_first_token_seconds",
            "From arrival to the first token",
            buckets=_SECONDS,
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        for mode in Mode:
            for reason in Reason if mode is Mode.RECOMPUTED else (_NO_FAILURE,):
                self._prompts.labels(mode.value, reason)
        for reason in Reason:
            self._failed_loads.labels(reason.value)
        for reason in (_NO_FAILURE, *Reason):
            self._sends.labels(reason)

    def ended(self, outcome: str) -> None:
        """A request is over. outcome: one of `OUTCOMES`."""
        self._requests.labels(outcome).inc()

    def prompt(self, mode: Mode, why: str) -> None:
        """A prompt's KV is complete."""
        self._prompts.labels(mode.value, why or _NO_FAILURE).inc()

    def load_failed(self, reason: Reason) -> None:
        self._failed_loads.labels(reason.value).inc()

    def sent(self, reason: Reason | None) -> None:
        """A hand-over is over. reason: None if decode has everything."""
        self._sends.labels(_NO_FAILURE if reason is None else reason.value).inc()

    def watch(
        self,
        stages: Callable[[], Mapping[str, int]],
        blocks: Callable[[], tuple[int, int]],
        age_seconds: Callable[[], float],
    ) -> None:
        """Read these when scraped. blocks: total and free."""
        requests = Gauge("kvferry_engine_open_requests", "Requests in each stage", ["stage"], registry=self.registry)
        for stage in Stage:
            if stage is not Stage.OVER:
                requests.labels(stage.value).set_function(partial(_count, stages, stage))
        watch_loop(self.registry, blocks, age_seconds)

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)


def watch_loop(
    registry: CollectorRegistry, blocks: Callable[[], tuple[int, int]], age_seconds: Callable[[], float]
) -> None:
    """Of every stage: read these when scraped. blocks: total and free."""
    total = Gauge("kvferry_engine_kv_blocks", "KV cache in blocks of 16 tokens", registry=registry)
    total.set_function(lambda: blocks()[0])
    free = Gauge("kvferry_engine_kv_blocks_free", "Blocks that no request holds", registry=registry)
    free.set_function(lambda: blocks()[1])
    age = Gauge("kvferry_engine_loop_age_seconds", "Since the engine's loop last turned", registry=registry)
    age.set_function(age_seconds)


def _count(stages: Callable[[], Mapping[str, int]], stage: Stage) -> float:
    return stages()[stage]
