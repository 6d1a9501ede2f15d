"""A model that does not fit into one process's memory, served by a group of which each stage holds a part."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry_contract.split import Split
from memory_limit import MemoryLimit, memory_limit
from stage_processes import Launch, StageProcess, group, starting

pytestmark = pytest.mark.slow

MIB = 1 << 20
LAYERS = 8
LAYER_PARAMETERS = 1024 * (2 * 1024 + 2 * 256) + 3 * 1024 * 9344 + 2 * 1024
TABLE_PARAMETERS = 260 * 1024
LIMIT = 940 * MIB
"""For one process. Weights take 499 MiB in the file, and 998 MiB in fp32, which are the process's own memory: more than
the limit. Of three stages none has more than 375 MiB, beside about 400 MiB of Python and its libraries."""
SPLIT = Split(3)
BODY = {"prompt": "A ferry that takes what no single boat can carry", "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in bf16, in one file."""
    import torch
    import transformers

    import tiny_model

    folder = tiny_model.make(tmp_path_factory.mktemp("large") / "model", layers=1)
    config = transformers.AutoConfig.from_pretrained(
        folder, hidden_size=1024, intermediate_size=9344, num_hidden_layers=LAYERS, num_attention_heads=8,
        num_key_value_heads=2, head_dim=128, dtype="bfloat16",
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


@contextlib.contextmanager
def limits(stages: int) -> Iterator[list[MemoryLimit]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(memory_limit(f"stage-{stage}", LIMIT)) for stage in range(stages)]


def ready(stage: StageProcess) -> dict[str, int]:
    """What it says of itself when it is ready."""
    [line] = [line for line in stage.log.splitlines() if " is ready" in line and "weight_bytes" in line]
    with contextlib.suppress(ValueError):
        return json.loads(line)
    return {name: int(value) for name, value in re.findall(r"(\w+_bytes)=(\d+)", line)}


def mapped_bytes(stage: StageProcess, file: Path) -> int:
    """How much of a file that the process maps is in memory."""
    found, inside = 0, False
    for line in Path(f"/proc/{stage.process.pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(file))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def weights_of(split: Split, stage: int, itemsize: int) -> int:
    """By the shapes of the model, with the rotary embedding's frequencies."""
    ends = (TABLE_PARAMETERS if stage == 0 else 0) + (TABLE_PARAMETERS + 1024 if stage == split.stages - 1 else 0)
    return (len(split.ranges(LAYERS)[stage]) * LAYER_PARAMETERS + ends) * itemsize


def answer(stages: list[StageProcess]) -> list[int]:
    status, body = stages[0].complete(**BODY)
    assert status == 200, body
    return body["choices"][0]["token_ids"]


def test_a_model_that_does_not_fit_is_served_by_stages_that_do(large: Path, tmp_path: Path) -> None:
    with group(large, Split(1), tmp_path, Launch("fp32")) as [whole]:
        expected = answer([whole])
        assert ready(whole)["weight_bytes"] > LIMIT
    with limits(1) as [limit], starting(large, Split(1), tmp_path, Launch("fp32", [limit])) as [whole]:
        assert whole.process.wait(300) != 0
        assert limit.kills == 1, whole.log
        assert " is ready" not in whole.log
    with limits(SPLIT.stages) as each, group(large, SPLIT, tmp_path, Launch("fp32", each)) as stages:
        assert answer(stages) == expected
        for number, stage in enumerate(stages):
            told = ready(stage)
            assert told["weight_bytes"] == pytest.approx(weights_of(SPLIT, number, 4), abs=4096)
            assert told["weight_bytes"] < told["resident_bytes"]
        assert [limit.kills for limit in each] == [0] * SPLIT.stages


def test_of_a_file_of_weights_each_stage_has_its_own_share_in_memory(large: Path, tmp_path: Path) -> None:
    """Where weights stay as they were saved they are mapped, and nothing else of the file becomes resident."""
    split = Split(2, (5, 3))
    file = large / "model.safetensors"
    with group(large, split, tmp_path) as stages:
        answer(stages)
        for number, stage in enumerate(stages):
            own = weights_of(split, number, 2)
            assert ready(stage)["weight_bytes"] == pytest.approx(own, abs=4096)
            assert 0.95 * own < mapped_bytes(stage, file) < own + MIB
