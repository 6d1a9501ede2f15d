from collections.abc import Iterator
from pathlib import Path

import pytest

import reference_engines as engines
import tiny_model
from kvferry_runtime.engine.reference.engine import Engine


@pytest.fixture(scope="session", autouse=True)
def torch_state() -> Iterator[None]:
    """Engines set the number of threads; other tests get back what they had."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("tiny") / "fp32")


@pytest.fixture(scope="session")
def tiny_bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("tiny") / "bf16", dtype="bfloat16")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[Engine]:
    """One engine for the whole model in the module's own `folder`."""
    engine = engines.start(folder)
    yield engine
    engine.close(5)
