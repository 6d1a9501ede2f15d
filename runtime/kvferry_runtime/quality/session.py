"""One run: load the model, cut the windows, measure each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvferry_runtime.engine.reference import model as models
from kvferry_runtime.engine.reference import runner, source
from kvferry_runtime.engine.reference.settings import ROWS
from kvferry_runtime.engine.reference.text import Tokenizer
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.quality import methods, text
from kvferry_runtime.quality.carriage import Exact
from kvferry_runtime.quality.drift import Drift
from kvferry_runtime.quality.measure import Measurement


@dataclass(frozen=True, slots=True)
class Plan:
    """context, following: tokens of a window. methods: names, none for all. text: None for Python's reference."""

    model: Path
    text: Path | None
    windows: int
    context: int
    following: int
    methods: tuple[str, ...]
    exact: Exact
    seed: int
    device: str
    dtype: str
    threads: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """conditions: under which it was measured, for people. exact: of the KV as it was computed."""

    conditions: str
    exact: Drift
    drifts: Mapping[str, Drift]


def run(plan: Plan, say: Callable[[str], None]) -> Outcome:
    """Measure. say: called with what was done, for people who wait.

    Raises:
        SettingsError: no model in the folder, an unknown method, a text too short, windows too long for the model.
        KvferryError: the model cannot be loaded, or a method cannot carry its KV.
    """
    source.checked(plan.model, str(plan.model))
    chosen = methods.chosen(plan.methods, plan.exact)
    content = text.load(plan.text)
    say(f"loading {plan.model}")
    models.make_deterministic(plan.threads)
    model = models.load(plan.model, plan.device, plan.dtype)
    rows = next(rows for rows in ROWS if rows > len(chosen))  # one for each method, and one for the exact KV
    measurement = Measurement(model, runner.build(model, rows), chosen, plan.context, plan.following)
    if measurement.window_tokens > model.max_positions:
        raise SettingsError(
            f"--context {plan.context} and --next {plan.following}: the model takes {model.max_positions} tokens in all"
        )
    tokens = Tokenizer.load(plan.model).encode(content.content)
    windows = text.windows(tokens, plan.windows, measurement.window_tokens, plan.seed)
    for number, window in enumerate(windows, 1):
        started = time.monotonic()
        measurement.add(window)
        say(f"window {number} of {len(windows)} took {time.monotonic() - started:.0f} s")
    conditions = (
        f"{plan.model.name}, {str(model.dtype).removeprefix('torch.')} on {model.device.type}; {content.origin}; "
        f"{plan.windows} windows of {plan.context} + {plan.following} tokens, seed {plan.seed}; first "
        f"{plan.exact.first} and last {plan.exact.last} tokens exact; perplexity of the exact KV "
        f"{measurement.exact.perplexity:.3f}"
    )
    return Outcome(conditions, measurement.exact, measurement.drifts)
