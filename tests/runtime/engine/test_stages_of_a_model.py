"""A model that is cut into pipeline stages: what each of them reads, and that nothing of the answer depends on it."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_model
from kvferry_contract.split import Split
from kvferry_runtime.engine import demo_model
from kvferry_runtime.engine.reference import fingerprint
from kvferry_runtime.engine.reference import model as models
from kvferry_runtime.engine.reference.chunks import next_span
from kvferry_runtime.engine.reference.kv import RequestKv, blocks_for
from kvferry_runtime.engine.reference.runner import DecodeRow, Runner, check_rows
from kvferry_runtime.engine.reference.stage_model import weight_bytes
from kvferry_runtime.engine.reference.stage_runner import StageRunner, Step
from kvferry_runtime.errors import SettingsError
from tiny_model import prompt_of

SMOLLM2 = Path(__file__).parents[3] / "build" / "models" / "SmolLM2-135M-Instruct"
ROWS = 8
ANSWER = 4


def stages_of(folder: Path, split: Split, dtype: str = "auto") -> list[models.Model]:
    return [models.load(folder, "cpu", dtype, split, stage) for stage in range(split.stages)]


def whole_answer(folder: Path, prompt: list[int], dtype: str = "auto") -> list[np.ndarray]:
    """Logits after the prompt, then of decode steps that always take the likeliest token."""
    runner = Runner(models.load(folder, "cpu", dtype), ROWS)
    kv = RequestKv(runner.model.layout, blocks_for(len(prompt) + ANSWER), runner.model.dtype, runner.model.device)
    start, logits = 0, None
    while logits is None:
        start, logits = runner.prefill(kv, prompt, start, lambda *_: None)
    found = [logits]
    for index in range(ANSWER):
        position = len(prompt) + index
        found += runner.decode([DecodeRow(kv, int(found[-1].argmax()), position, position)])
    return found


def staged_answer(stages: Sequence[models.Model], prompt: list[int]) -> list[np.ndarray]:
    """As `whole_answer`, with each stage's hidden states handed to the next one."""
    runners = [StageRunner(model, ROWS) for model in stages]
    kvs = [RequestKv(model.layout, blocks_for(len(prompt) + ANSWER), model.dtype, model.device) for model in stages]
    found, start = [], 0
    while start < len(prompt):
        span = next_span(start, len(prompt))
        states = torch.tensor([prompt[start : span.stop]])
        for runner, kv in zip(runners, kvs, strict=True):
            states = runner.prefill(kv, states, span, lambda *_: None, None)
        start = span.stop
    found.append(states[0])
    for index in range(ANSWER):
        position = len(prompt) + index
        states = runners[0].padded([int(found[-1].argmax())])
        for runner, kv in zip(runners, kvs, strict=True):
            states = runner.decode([Step(kv, position, position)], states)
        found.append(states[0])
    return found


def equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    models.make_deterministic(1)


@pytest.fixture(scope="session", params=["llama", "llama-tied", "mistral", "qwen2", "qwen3"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, _, tied = request.param.partition("-")
    folder = tmp_path_factory.mktemp("family") / request.param
    return tiny_model.make(folder, layers=5, dtype="bfloat16", family=name, tied=bool(tied))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("llama") / "llama", layers=5)


def test_a_chain_of_stages_computes_the_bits_of_the_whole_model(family: Path) -> None:
    prompt = prompt_of(600)
    assert equal(staged_answer(stages_of(family, Split(3, (1, 3, 1))), prompt), whole_answer(family, prompt))


@pytest.mark.parametrize("split", [Split(2), Split(5)], ids=str)
@pytest.mark.parametrize("dtype", ["auto", "fp16"])
def test_so_it_does_however_it_is_split(llama: Path, split: Split, dtype: str) -> None:
    prompt = prompt_of(1100)
    assert equal(staged_answer(stages_of(llama, split, dtype), prompt), whole_answer(llama, prompt, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("split", [Split(2, (15, 15)), Split(3, (10, 12, 8)), Split(4)], ids=str)
def test_stages_of_a_real_model_compute_its_bits(split: Split) -> None:
    demo_model.prepare(SMOLLM2, print)
    prompt = random.Random(7).choices(range(40_000), k=600)
    assert equal(staged_answer(stages_of(SMOLLM2, split), prompt), whole_answer(SMOLLM2, prompt))


def test_rows_of_a_stage_are_independent(family: Path) -> None:
    assert all(check_rows(model, ROWS) for model in stages_of(family, Split(3)))


def test_each_stage_holds_its_own_layers_and_nothing_else(family: Path) -> None:
    first, middle, last = stages_of(family, Split(3, (2, 2, 1)))
    assert [model.layout.layers for model in (first, middle, last)] == [range(2), range(2, 4), range(4, 5)]
    assert [(model.first, model.last) for model in (first, middle, last)] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    layer = weight_bytes(middle.module.model.layers[0])
    table = tiny_model.VOCABULARY * 96 * 2
    norm, rope = 96 * 2, weight_bytes(middle.module.model.rotary_emb)
    assert weight_bytes(first.module) == 2 * layer + table + rope
    assert weight_bytes(middle.module) == 2 * layer + rope
    assert weight_bytes(last.module) == layer + table + norm + rope


def test_stages_have_the_marks_of_the_whole_model(family: Path) -> None:
    """However prefill and decode are split, they may exchange KV."""
    marks = [
        fingerprint.marks(model, "x", "1", 1)
        for model in (models.load(family, "cpu", "auto"), *stages_of(family, Split(2)), *stages_of(family, Split(5)))
    ]
    assert all(other == marks[0] for other in marks)


def test_only_the_tensors_of_a_stage_are_read(tmp_path: Path) -> None:
    """So a model loads that does not fit as a whole: the weights of other stages may even be damaged."""
    folder = tiny_model.make(tmp_path / "model", layers=4)
    tensors = load_file(folder / "model.safetensors")
    ours, others = {}, {}
    for name, tensor in tensors.items():
        (ours if name.startswith("model.layers.2.") else others)[name] = tensor
    save_file(ours, folder / "ours.safetensors")
    (folder / "others.safetensors").write_bytes(b"no safetensors")
    files = dict.fromkeys(ours, "ours.safetensors") | dict.fromkeys(others, "others.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "model.safetensors").unlink()
    stage = models.load(folder, "cpu", "auto", Split(4), 2)
    assert stage.layout.layers == range(2, 3)
    with pytest.raises(SettingsError, match="damaged or incomplete"):
        models.load(folder, "cpu", "auto", Split(4), 1)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model that a test may spoil."""
    return tiny_model.make(tmp_path / "own", layers=4)


def change_weights(folder: Path, drop: Sequence[str] = (), **add: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if name not in drop}
    save_file(tensors | add, file, metadata={"format": "pt"})


def change_config(folder: Path, **fields: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_a_parameter_without_a_tensor_is_named_by_the_stage_that_lacks_it(own: Path) -> None:
    change_weights(own, drop=["model.layers.3.mlp.up_proj.weight", "lm_head.weight"])
    models.load(own, "cpu", "auto", Split(2), 0)
    with pytest.raises(SettingsError, match=r"lack lm_head.weight, model.layers.3.mlp.up_proj.weight"):
        models.load(own, "cpu", "auto", Split(2), 1)


def test_a_tensor_that_no_parameter_takes_is_named(own: Path) -> None:
    change_weights(own, **{"model.layers.1.self_attn.sinks": torch.ones(6)})
    change_weights(own, **{"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    with pytest.raises(SettingsError, match=r"layers have model.layers.1.self_attn.sinks, which"):
        models.load(own, "cpu", "auto", Split(2), 0)
    models.load(own, "cpu", "auto", Split(2), 1)


def test_a_tensor_of_another_shape_is_named(own: Path) -> None:
    change_weights(own, **{"model.norm.weight": torch.ones(95)})
    with pytest.raises(SettingsError, match=r"model.norm.weight has the shape \[95\].*wants \[96\]"):
        models.load(own, "cpu", "auto", Split(2), 1)


@pytest.mark.parametrize(
    ("fields", "split", "message"),
    [
        ({}, Split(5), "5 pipeline stages for a model of 4 layers"),
        ({}, Split(2, (3, 2)), r"layers \[3, 2\] name 2 stages with 5 layers"),
        ({"model_type": "granite"}, Split(2), "cuts models of type llama, mistral, qwen2, qwen3"),
        ({"quantization_config": {"quant_method": "fp8"}}, Split(2), "quantised"),
    ],
)
def test_what_cannot_be_cut_is_refused(own: Path, fields: dict, split: Split, message: str) -> None:
    change_config(own, **fields)
    with pytest.raises(SettingsError, match=message):
        models.load(own, "cpu", "auto", split, 0)


def test_a_model_saved_under_the_head_s_name_alone_is_tied_too(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path / "tied", layers=2, tied=True)
    table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    change_weights(folder, drop=["model.embed_tokens.weight"], **{"lm_head.weight": table})
    assert equal(staged_answer(stages_of(folder, Split(2)), prompt_of(20)), whole_answer(folder, prompt_of(20)))
