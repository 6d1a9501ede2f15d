"""From a model folder to what answers: the engine, or one later stage of its group. Takes seconds to minutes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract.config import FailurePolicy, Method
from kvferry_contract.split import SplitError
from kvferry_runtime.agent.base import KvAgent
from kvferry_runtime.agent.device.agent import DeviceAgent
from kvferry_runtime.codec.sparse import budget
from kvferry_runtime.engine.reference import capacity, fingerprint, runner
from kvferry_runtime.engine.reference import model as models
from kvferry_runtime.engine.reference.chunks import PREFILL_CHUNK
from kvferry_runtime.engine.reference.core import EngineCore
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.executor import Report, StageExecutor, StagePlace
from kvferry_runtime.engine.reference.gathering import Gathering
from kvferry_runtime.engine.reference.kv import KvPool
from kvferry_runtime.engine.reference.later_stage import LaterStage
from kvferry_runtime.engine.reference.loop import EngineLoop
from kvferry_runtime.engine.reference.messages import Message, Reported
from kvferry_runtime.engine.reference.metrics import EngineMetrics
from kvferry_runtime.engine.reference.model import Model
from kvferry_runtime.engine.reference.pipeline import GroupPipeline, WholePipeline
from kvferry_runtime.engine.reference.settings import EngineSettings
from kvferry_runtime.engine.reference.stage_model import weight_bytes
from kvferry_runtime.engine.reference.stage_runner import StageRunner
from kvferry_runtime.engine.reference.text import Tokenizer
from kvferry_runtime.engine.reference.worker import StageWorker
from kvferry_runtime.engine.stages.ring import StageRing
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.layout import layers_text

Join = Callable[[Mapping[str, str], int], StageRing]
"""Opens the ring of a group. Takes what all stages must share, and the largest activation in bytes."""

CLOSE_SECONDS = 5.0
"""For a running pass, the agent's running copy, and the ring, to end."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What this process computes with, before it knows the others. rows, blocks: as many as it could have itself."""

    model: Model
    place: StagePlace
    rows: int
    blocks: int
    marks: Mapping[str, str]

    @property
    def largest_activation(self) -> int:
        """In bytes, of one pass."""
        itemsize: int = self.model.dtype.itemsize
        return max(PREFILL_CHUNK, self.rows) * self.model.hidden_size * itemsize

    @property
    def ring_marks(self) -> Mapping[str, str]:
        """What all stages of a group must share: stages that were split in other ways skip layers or compute them
        twice, and nothing else would tell."""
        return {**self.marks, "stages.layers": ", ".join(layers_text(layers) for layers in self.place.own)}

    def pool(self, blocks: int, agent: KvAgent | None) -> KvPool:
        gpu = agent.device if isinstance(agent, DeviceAgent) else None
        return KvPool(self.model.layout, blocks, self.model.dtype, self.model.device, gpu)


def load_parts(folder: Path, settings: EngineSettings) -> Parts:
    """Load the layers of this process.

    Raises:
        SettingsError, ModelUnavailable: see `model.load`.
    """
    models.make_deterministic(settings.threads)
    model = models.load(folder, settings.device, settings.dtype, settings.split, settings.stage)
    layers = model.layout.total_layers
    return Parts(
        model=model,
        place=StagePlace(settings.stage, settings.split.ranges(layers), _peers(folder, settings, layers)),
        rows=runner.independent_rows(model, settings.rows),
        blocks=capacity.kv_blocks(model, settings.kv_blocks),
        marks=fingerprint.marks(model, settings.model.served_name, settings.model.revision, settings.threads),
    )


def _peers(folder: Path, settings: EngineSettings, layers: int) -> Sequence[range]:
    try:
        return settings.peer_split.ranges(layers)
    except SplitError as error:
        raise SettingsError(f"{folder}: the role that this one exchanges KV with: {error}") from error


def build_engine(
    folder: Path,
    settings: EngineSettings,
    agent: KvAgent | None,
    ended: Callable[[], None],
    join: Join | None = None,
    leaving: Callable[[int], None] = lambda stage: None,
) -> Engine:
    """The engine of a whole model, or of a group of which this is the first stage; then it waits for the others.

    Args:
        ended: called from the engine's thread when it ends.
        join: where the model is split. leaving: called in the ring's thread when a stage was told to end.

    Raises:
        SettingsError, ModelUnavailable: see `model.load`.
        LayoutError, CodecRefused: the agent cannot carry this model's KV.
        StageUnreachable: the group was not complete in time.
    """
    parts = load_parts(folder, settings)
    tokenizer = Tokenizer.load(folder)
    if join is None:
        engine = _engine(parts, settings, tokenizer, agent, ended, None, parts.rows, parts.blocks)
    else:
        others = Gathering(join(parts.ring_marks, parts.largest_activation), leaving)
        try:
            rows, blocks = others.agree(parts.rows, parts.blocks)
            engine = _engine(parts, settings, tokenizer, agent, ended, others.ring, rows, blocks)
        except BaseException:
            others.ring.close(CLOSE_SECONDS)
            raise
        others.begin(engine.loop.post)
    _say_ready("engine is ready", parts, settings, engine.pool.total)
    return engine


def build_later_stage(
    folder: Path, settings: EngineSettings, agent: KvAgent | None, ended: Callable[[], None], join: Join
) -> LaterStage:
    """A stage behind the first one. ended: called from its thread when it ends.

    Raises:
        SettingsError, ModelUnavailable: see `model.load`.
        LayoutError, CodecRefused: the agent cannot carry this model's KV.
        StageUnreachable: the ring was not complete in time.
    """
    parts = load_parts(folder, settings)
    ring = join(parts.ring_marks, parts.largest_activation)

    def build_executor(report: Report, beat: Callable[[], None]) -> StageExecutor:
        return _executor(parts, settings, parts.rows, parts.pool(parts.blocks, agent), agent, report, beat)

    try:
        worker = StageWorker(ring, build_executor, ended)
        if agent is not None:
            agent.start(parts.model.layout, parts.marks, worker.age)
        worker.start()
    except BaseException:
        ring.close(CLOSE_SECONDS)
        raise
    _say_ready("stage is ready", parts, settings, parts.blocks)
    return LaterStage(worker, ring, agent)


def _engine(
    parts: Parts,
    settings: EngineSettings,
    tokenizer: Tokenizer,
    agent: KvAgent | None,
    ended: Callable[[], None],
    ring: StageRing | None,
    rows: int,
    blocks: int,
) -> Engine:
    pool, metrics = parts.pool(blocks, agent), EngineMetrics()

    def build_core(post: Callable[[Message], None], beat: Callable[[], None]) -> EngineCore:
        executor = _executor(parts, settings, rows, pool, agent, lambda word: post(Reported(word)), beat)
        pipeline = WholePipeline(executor, post) if ring is None else GroupPipeline(executor, ring, post)
        kept = budget.of(settings.transfer) if settings.transfer else None
        return EngineCore(pipeline, settings.failure_policy, kept, metrics)

    loop = EngineLoop(build_core, ended)
    metrics.watch(loop.counts, lambda: (pool.total, pool.free), loop.age)
    if agent is not None:
        agent.start(parts.model.layout, parts.marks, loop.age)
    codec = settings.transfer.method if settings.transfer else Method.NONE
    engine = Engine(parts.model, tokenizer, pool, loop, agent, metrics, settings.role, codec.value, ring)
    loop.start()
    return engine


def _executor(
    parts: Parts,
    settings: EngineSettings,
    rows: int,
    pool: KvPool,
    agent: KvAgent | None,
    report: Report,
    beat: Callable[[], None],
) -> StageExecutor:
    recomputes = settings.failure_policy is not FailurePolicy.FAIL
    return StageExecutor(StageRunner(parts.model, rows), pool, agent, parts.place, recomputes, report, beat)


def _say_ready(text: str, parts: Parts, settings: EngineSettings, blocks: int) -> None:
    layers = parts.place.layers
    _log.info(
        text,
        extra={
            "model": settings.model.served_name,
            "role": settings.role.value,
            "stage": settings.stage,
            "stages": settings.split.stages,
            "device": parts.model.device.type,
            "dtype": str(parts.model.dtype).removeprefix("torch."),
            "threads": settings.threads,
            "rows": parts.rows,
            "kv_blocks": blocks,
            "layers": f"{layers.start} to {layers.stop - 1} of {parts.model.layout.total_layers}",
            "weight_bytes": weight_bytes(parts.model.module),
            "resident_bytes": capacity.resident_bytes(),
        },
    )
