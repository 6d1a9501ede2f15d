"""Warns of models that are accepted and rendered, but that no pod would serve yet."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kvferry_operator.api.types import DisaggregatedModel, EngineType
from kvferry_operator.desired.engine import VLLM_NOT_SERVED


def warn(models: Iterable[DisaggregatedModel]) -> None:
    """One line on standard error for each such model."""
    for model in models:
        if model.spec.engine.type is EngineType.VLLM:
            print(f"warning: {model.name}: {VLLM_NOT_SERVED}", file=sys.stderr)  # noqa: T201
