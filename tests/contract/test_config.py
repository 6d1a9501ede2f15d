from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvferry_contract.config import (
    VERSION,
    ConfigError,
    FailurePolicy,
    GroupConfig,
    Integrity,
    Method,
    ModelConfig,
    OnFallback,
    OverlapMode,
    Role,
    RuntimeConfig,
    Scale,
    TransferConfig,
    TransportKind,
)
from kvferry_contract.split import Split

CONFIG = RuntimeConfig(
    version=VERSION,
    model=ModelConfig(uri="file:///models/m", revision="", served_name="m", directory="/models"),
    group=GroupConfig(namespace="ns", name="m", revision="ab12", role=Role.DECODE, stage=0,
                      split=Split(1), peer_split=Split(2, (3, 4)), tensor=1),
    transfer=TransferConfig(
        transport=TransportKind.AUTO, on_fallback=OnFallback.WARN, method=Method.FP8,
        auto_methods=(Method.NONE, Method.LOSSLESS), keep_exact_first=16,
        keep_exact_last=64, max_relative_error=0.05, overlap=OverlapMode.AUTO, inflight_chunks=8, chunk_bytes=1 << 20,
        buffer_bytes=256 << 20, integrity=Integrity.DIGEST, failure_policy=FailurePolicy.RECOMPUTE, timeout_seconds=30,
    ),
    drain_seconds=120,
)  # fmt: skip


def test_a_configuration_reads_back_and_has_one_form() -> None:
    text = CONFIG.to_json()
    assert RuntimeConfig.from_json(text) == CONFIG
    assert (
        RuntimeConfig.from_json(json.dumps(json.loads(text), indent=2)).to_json()
        == RuntimeConfig.from_json(text).to_json()
    )


@pytest.mark.parametrize(
    ("method", "scale", "codec"),
    [
        (Method.FP8, Scale.TOKEN_AND_HEAD, "fp8"),
        (Method.FP8, Scale.HEAD, "fp8-head"),
        (Method.FP8, Scale.TENSOR, "fp8-tensor"),
        (Method.INT8, Scale.TOKEN_AND_HEAD, "int8"),
        (Method.INT8, Scale.TENSOR, "int8"),
    ],
)
def test_the_scale_of_fp8_names_the_codec(method: Method, scale: Scale, codec: str) -> None:
    assert replace(CONFIG.transfer, method=method, scale=scale).codec == codec


def edited(path: str, value: Any) -> str:
    raw = json.loads(CONFIG.to_json())
    place = raw
    *parents, last = path.split(".")
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("not json", "not JSON"),
        ("[]", "$: expected an object"),
        (edited("version", 99), "version 99"),
        (edited("transfer.method", "zip"), "$.transfer.method: 'zip'"),
        (edited("transfer.chunk_bytes", "1Mi"), "$.transfer.chunk_bytes: expected int"),
        (edited("transfer.auto_methods", "none"), "$.transfer.auto_methods: expected a list"),
        (edited("transfer.auto_methods", ["none", "zip"]), "$.transfer.auto_methods[1]: 'zip'"),
        (edited("transfer.chunk_bytes", True), "$.transfer.chunk_bytes: expected int"),
        (edited("group.stage", ...), "missing keys ['stage']"),
        (edited("group.colour", "red"), "unknown keys ['colour']"),
    ],
)
def test_what_does_not_fit_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RuntimeConfig.from_json(text)
    assert named in str(caught.value)
