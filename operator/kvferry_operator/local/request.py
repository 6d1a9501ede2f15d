"""From what a user asks for to what a session needs: the changed object, its children, the model's folder."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvferry_contract import paths
from kvferry_contract.config import Role
from kvferry_operator.api import defaults
from kvferry_operator.api.parse import parse
from kvferry_operator.api.rules import LOSSY
from kvferry_operator.api.types import CacheType, DisaggregatedModel, EngineType, Mode
from kvferry_operator.desired.build import build
from kvferry_operator.desired.engine import VLLM_NOT_SERVED
from kvferry_operator.desired.settings import Settings
from kvferry_operator.errors import InputError
from kvferry_operator.local import folders
from kvferry_operator.local.errors import Unsupported
from kvferry_operator.local.pods import Manifest
from kvferry_operator.local.session import Advice, Options


@dataclass(frozen=True, slots=True)
class Changes:
    """What the command line says beside the file. Empty and None leave the object as it is.

    name: another name, for a second instance. model: a model's folder on this machine. models: the folder that
    stands for the volume at /models. method: compression. prefill, decode: numbers of groups. stages: pipeline stages
    of a group, by role. aggregated: one engine does all, and requests go to it without a router. traces: where
    timelines go.
    """

    name: str = ""
    model: Path | None = None
    models: Path | None = None
    logs: Path | None = None
    method: str = ""
    prefill: int | None = None
    decode: int | None = None
    stages: Mapping[Role, int] = field(default_factory=dict)
    aggregated: bool = False
    traces: Path | None = None


@dataclass(frozen=True, slots=True)
class Request:
    model: DisaggregatedModel
    manifests: tuple[Manifest, ...]
    options: Options

    @property
    def served_name(self) -> str:
        """What clients put in `model`."""
        return defaults.served_name(self.model)


def request(raw: Mapping[str, Any], changes: Changes) -> Request:
    """
    raw: the object as it was read.

    Raises:
        SpecInvalid: it is refused, with the changes or without them.
        Unsupported: its engine cannot be served. InputError: a folder that was named cannot be used.
    """
    parse(raw)
    model = parse(changed(raw, changes))
    if model.spec.engine.type is EngineType.VLLM:
        raise Unsupported(f"{model.name}: {VLLM_NOT_SERVED}; use type reference")
    if changes.model is not None and not changes.model.is_dir():
        raise InputError(f"--set-model {changes.model}: no such folder")
    models = changes.models or (changes.model.absolute().parent if changes.model else _models(model))
    if models is not None and model.spec.model.uri.startswith("hf://"):
        folders.make("--model-dir", models)
    options = Options(
        models=models.absolute() if models else None,
        logs=changes.logs,
        traces=changes.traces,
        model_path=_checked_path(model),
        model_uri=model.spec.model.uri,
        advice=Advice(
            name=f"stop it with `kvferry local down {model.name}`, or run a second one with --name NAME",
            port="stop it, or run under other addresses with --name NAME",
        ),
    )
    return Request(model, build(model, Settings()), options)


def changed(raw: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """The object with the changes in it. Pure."""
    result: dict[str, Any] = copy.deepcopy(dict(raw))
    spec = result["spec"]
    if changes.name:
        result["metadata"]["name"] = changes.name
    if changes.model is not None:
        folder = changes.model.absolute()
        kept = {key: value for key, value in spec["model"].items() if key == "servedName"}
        cache = {"type": CacheType.HOST_PATH.value, "path": str(folder.parent)}
        spec["model"] = {"uri": f"file://{paths.MODEL_DIR}/{folder.name}", "cache": cache, **kept}
    if changes.method:
        compression = spec.setdefault("transfer", {}).setdefault("compression", {})
        compression["method"] = changes.method
        if changes.method in LOSSY:
            compression["acknowledgeLossy"] = True  # who names it in this very command knows
    if changes.aggregated:
        spec.pop("prefill", None)
        spec["mode"] = Mode.AGGREGATED.value
        spec["router"] = {"replicas": 0}
    for role, count in (("prefill", changes.prefill), ("decode", changes.decode)):
        if count is not None:
            spec.setdefault(role, {})["replicas"] = count
    for role, count in changes.stages.items():
        spec.setdefault(role, {}).setdefault("parallelism", {})["pipeline"] = count
    return result


def checkout() -> Path | None:
    """The folder of the project's sources, when this code runs from there."""
    top = Path(__file__).parents[3]
    return top if (top / "examples").is_dir() and (top / "pyproject.toml").is_file() else None


def default_models() -> Path:
    """What stands for the model volume unless the user says: `build/models` of a checkout, else the user's cache."""
    top = checkout()
    if top is not None:
        return top / "build" / "models"
    cache = os.environ.get("XDG_CACHE_HOME", "") or str(Path("~/.cache").expanduser())
    return Path(cache) / "kvferry" / "models"


def _models(model: DisaggregatedModel) -> Path | None:
    """A node's folder that is here too stands for itself."""
    cache = model.spec.model.cache
    if cache.type is CacheType.HOST_PATH and Path(cache.path).is_dir():
        return None
    return default_models()


def _checked_path(model: DisaggregatedModel) -> str:
    """The model's folder in the container; empty when it is downloaded, or an engine of another make reads it."""
    uri = model.spec.model.uri
    if uri.startswith("hf://") or model.spec.engine.type is EngineType.CUSTOM:
        return ""
    return defaults.model_directory(model.spec)
