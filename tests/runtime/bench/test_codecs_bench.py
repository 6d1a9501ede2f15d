"""`bench codecs` measures every method, on chunks that are what they claim to be, and notices wrong bytes."""

from __future__ import annotations

import numpy as np
import pytest

from kvferry_runtime.__main__ import main
from kvferry_runtime.bench import codecs
from kvferry_runtime.bench.codec_memory import CodecMemory
from kvferry_runtime.bench.kv_samples import BLOCK_TOKENS, KvSample, gaussian
from kvferry_runtime.codec.base import ChunkShape, Payload, Rows
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.codec.registry import HOST_METHODS
from kvferry_runtime.errors import KvferryError, SettingsError
from kvferry_runtime.layout import KvDtype


def small_sample() -> KvSample:
    """Three chunks of two blocks, like those of the large one."""
    shape = ChunkShape(1, 2, 2 * BLOCK_TOKENS, 2, 64, KvDtype.BF16)
    words = gaussian(1 << 20).words.reshape(-1)[: 3 * shape.rows * 64].reshape(3, shape.rows, 64)
    return KvSample("test", shape, words)


def test_every_method_has_its_figures() -> None:
    found = {figure.name: figure for figure in codecs.figures(small_sample(), HOST_METHODS, lambda _: None)}
    for method in HOST_METHODS:
        for what in ("encode", "decode", "encode_shuffled", "decode_two_threads"):
            figure = found[f"codec.{method}.{what}"]
            assert figure.against is not None
            assert figure.ratio == figure.value / figure.against
        assert (f"codec.{method}.encode_against_torch" in found) == (method != "none")
        assert (f"codec.{method}.error" in found) == (method not in ("none", "lossless"))
    assert found["codec.none.size"].value == 1
    assert found["codec.int8.size"].value == 68 / 128
    assert found["codec.k8v4.size"].value == (68 + 32 + 8) / 256
    assert found["codec.lossless.size"].value < 1 / 1.3
    assert 0 < found["codec.int8.error"].value < found["codec.k8v4.error"].value < 0.05


def test_an_exact_method_that_changes_values_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(NoneCodec):
        def decode(self, payload: Payload, shape: ChunkShape, rows: Rows) -> None:
            super().decode(payload, shape, rows)
            rows[0][0, 0] ^= 1

    monkeypatch.setattr(codecs, "host_codecs", lambda _: {"none": Wrong()})
    with pytest.raises(KvferryError, match="none is exact, but other values came back"):
        list(codecs.figures(small_sample(), ["none"], lambda _: None))


def test_shuffled_blocks_are_those_of_the_sample() -> None:
    """Every block is in one chunk, keys among keys; and goes back to where it came from."""
    sample = small_sample()
    memory = CodecMemory(sample)
    seen = []
    codec = NoneCodec()
    for chunk in range(memory.chunks):
        memory.encode(codec, chunk, shuffled=True)
        memory.decode(codec, chunk, shuffled=True)
        seen.append(memory.lengths[chunk])
    assert seen == [sample.shape.raw_bytes] * 3
    assert memory.is_exact()
    assert memory.largest_error() == 0


def test_gaussian_sample() -> None:
    sample = gaussian(2 << 20)
    assert sample.shape.raw_bytes == 1 << 20
    keys, values = np.split((sample.words[0].astype(np.uint32) << 16).view(np.float32), 2)
    assert np.abs(keys[:, 0]).mean() > 10 * np.abs(keys[:, 1]).mean()
    assert np.abs(values).mean() < 0.5 * np.abs(keys[:, 1]).mean()


@pytest.mark.parametrize("text", ["zip", "int8,zip", ""])
def test_unknown_methods(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "codecs", "--method", text]) == 2
    assert "choose of none, int8, fp8" in capsys.readouterr().err
    with pytest.raises(SettingsError):
        codecs.check_methods(text.split(","))


def test_a_folder_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "codecs", "--method", "none", "--model", "/absent"]) == 2
    assert "/absent" in capsys.readouterr().err
