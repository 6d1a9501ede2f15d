from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_model


@pytest.fixture(scope="session", autouse=True)
def torch_state() -> Iterator[None]:
    """A run sets the number of threads; other tests get back what they had."""
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("quality") / "tiny", dtype="bfloat16")
