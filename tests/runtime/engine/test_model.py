"""Which folders are served, which are refused, and what identifies a model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

import tiny_model
from kvferry_contract.config import ModelConfig
from kvferry_runtime.engine.reference import capacity, fingerprint
from kvferry_runtime.engine.reference import model as models
from kvferry_runtime.engine.reference.source import resolve
from kvferry_runtime.errors import ModelUnavailable, SettingsError
from kvferry_runtime.layout import KvDtype


def config(uri: str, directory: str = "/models") -> ModelConfig:
    return ModelConfig(uri=uri, revision="", served_name="x", directory=directory)


@pytest.fixture
def own(tiny: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tiny, tmp_path / "own"))


def change_config(folder: Path, **fields: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_uris_become_folders(tiny: Path) -> None:
    assert resolve(config(f"file://{tiny}")) == tiny
    assert resolve(config(f"pvc://claim/{tiny.name}", directory=str(tiny.parent))) == tiny
    assert resolve(config("pvc://claim", directory=str(tiny))) == tiny


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("file:///nowhere/model", "no folder /nowhere/model"),
        ("file:///proc", "no Hugging Face model folder, it has no config.json, no tokenizer.json"),
        ("pvc://claim/../../etc", "may not leave the claim"),
        ("s3://bucket/model", "scheme 's3' is not file, pvc or hf"),
        ("model", "expected file:///path"),
        ("hf://name-alone", "hf://organisation/name"),
    ],
)
def test_uris_that_lead_nowhere(uri: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        resolve(config(uri))


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match="hf://nobody/nothing could not be fetched"):
        resolve(config("hf://nobody/nothing", directory=str(tmp_path)))


class ReadTimeout(Exception):
    """Of an HTTP client in the middle of a download."""


UNREACHABLE = (
    "Got: ConnectError: [Errno -2] Name or service not known\nAn error happened while trying to locate the files on "
    "the Hub. Please check your internet connection and try again."
)


@pytest.mark.parametrize(
    ("error", "cause", "reason"),
    [
        (LocalEntryNotFoundError(UNREACHABLE), OSError("Name or service not known"), "Name or service not known"),
        (LocalEntryNotFoundError(UNREACHABLE), TimeoutError(), "TimeoutError"),
        (OSError("401 Client Error.\n\nRepository Not Found."), None, "401 Client Error. Repository Not Found"),
        (ReadTimeout("The read operation timed out"), None, "The read operation timed out"),
    ],
)
def test_a_failed_fetch_is_one_clean_line(
    error: Exception, cause: Exception | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error from cause

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ModelUnavailable) as raised:
        resolve(config("hf://nobody/nothing", directory=str(tmp_path)))
    assert str(raised.value) == (
        f"hf://nobody/nothing could not be fetched into {tmp_path} ({reason}): check the name, the network, "
        "and the token (spec.model.tokenSecretRef) if the model is not public; "
        "in local mode, --set-model PATH serves a folder instead"
    )


def test_a_model_is_described(tiny_bf16: Path) -> None:
    model = models.load(tiny_bf16, "cpu", "auto")
    shape = model.layout.shapes[0]
    assert (shape.parts, shape.heads, shape.head_dim, shape.dtype) == (2, 2, 16, KvDtype.BF16)
    assert len(model.layout.shapes) == 3
    assert (model.vocabulary, model.max_positions) == (tiny_model.VOCABULARY, 4096)
    assert model.end_tokens == {tiny_model.END_TOKEN}
    assert models.load(tiny_bf16, "cpu", "fp32").layout.shapes[0].dtype is KvDtype.FP32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "sliding_attention"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "'dynamic' depends on the batch",
        ),
        ({"model_type": "unheard-of"}, "cannot load it as a causal language model"),
        ({"model_type": "vit"}, "cannot load it as a causal language model"),
    ],
)
def test_models_that_would_be_computed_wrongly_are_refused(own: Path, fields: dict, message: str) -> None:
    change_config(own, **fields)
    with pytest.raises(SettingsError, match=message):
        models.load(own, "cpu", "auto")


def test_broken_weights_are_told(own: Path) -> None:
    weights = own / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(SettingsError, match="damaged or incomplete"):
        models.load(own, "cpu", "auto")


def test_a_gpu_that_is_not_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SettingsError, match="no GPU"):
        models.load(tiny, "cuda", "auto")


def test_the_fingerprint_tells_models_apart(tiny: Path, tiny_bf16: Path, tmp_path: Path) -> None:
    def marks(folder: Path, threads: int = 1, dtype: str = "auto") -> dict[str, str]:
        return dict(fingerprint.marks(models.load(folder, "cpu", dtype), "x", "1", threads))

    def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
        return {key for key in one | other if one.get(key) != other.get(key)}

    base = marks(tiny)
    copy = Path(shutil.copytree(tiny, tmp_path / "copy"))
    assert differing(base, marks(copy)) == set()
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert differing(base, marks(copy)) == {"model.tokenizer"}
    assert differing(base, marks(tiny, threads=2)) == {"engine.threads"}
    assert differing(base, marks(tiny, dtype="bf16")) == {"engine.dtype"}
    assert differing(base, marks(tiny_model.make(tmp_path / "seed", seed=1))) == {"model.weights"}
    assert "model.config" in differing(base, marks(tiny_model.make(tmp_path / "layers", layers=2)))
    assert len(base) < 32 and all(len(value) < 256 for value in base.values())


def test_the_cache_is_as_large_as_wanted_or_as_memory_allows(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.load(tiny, "cpu", "auto")
    block_bytes = 16 * model.layout.bytes_per_token
    assert capacity.kv_blocks(model, 7) == 7
    monkeypatch.setattr(capacity, "free_host_bytes", lambda: 400 * block_bytes)
    assert capacity.kv_blocks(model, None) == 100
    monkeypatch.setattr(capacity, "free_host_bytes", lambda: 1 << 40)
    assert capacity.kv_blocks(model, None) == capacity.FULL_CONTEXTS * 256
    monkeypatch.setattr(capacity, "free_host_bytes", lambda: block_bytes)
    with pytest.raises(SettingsError, match="more memory"):
        capacity.kv_blocks(model, None)


def test_weights_that_are_loaded_leave_less_of_a_limit(tmp_path: Path) -> None:
    """A cache that is sized by the whole limit would have the engine killed once it fills up."""
    file = tmp_path / "memory.max"
    file.write_text(str(100 << 30))
    before = capacity.free_host_bytes(_meminfo(tmp_path), [str(file)])
    weights = np.ones(16 << 20, np.float32)
    after = capacity.free_host_bytes(_meminfo(tmp_path), [str(file)])
    assert before < 100 << 30
    assert before - after == pytest.approx(weights.nbytes, rel=0.25)
    file.write_text("1000")
    assert capacity.free_host_bytes(_meminfo(tmp_path), [str(file)]) == 0
    file.write_text("max")
    assert capacity.free_host_bytes(_meminfo(tmp_path), [str(file), str(tmp_path / "none")]) == 200 << 30


def _meminfo(folder: Path) -> str:
    """Of a machine with 200 GiB to spare."""
    file = folder / "meminfo"
    file.write_text(f"MemTotal: {400 << 20} kB\nMemAvailable: {200 << 20} kB\n")
    return str(file)
