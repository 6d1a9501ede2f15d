"""`bench codecs`: each method on host memory against memcpy and against torch, in the same rounds of one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from kvferry_runtime.bench.codec_memory import CodecMemory
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.kv_samples import KvSample
from kvferry_runtime.bench.torch_codecs import one_torch_thread, torch_codec
from kvferry_runtime.codec.base import Codec
from kvferry_runtime.codec.registry import HOST_METHODS, host_codecs
from kvferry_runtime.errors import KvferryError, SettingsError

ROUNDS = 9
_THREADS = 2
_TORCH_CHUNKS, _TORCH_ROUNDS = 4, 3

Step = Callable[[int], object]
"""Something done to the chunk of this number."""


def check_methods(methods: Sequence[str]) -> None:
    """Raises SettingsError."""
    unknown = [method for method in methods if method not in HOST_METHODS]
    if unknown or not methods:
        raise SettingsError(f"method {', '.join(unknown) or '(none given)'}: choose of {', '.join(HOST_METHODS)}")


def figures(sample: KvSample, methods: Sequence[str], progress: Callable[[str], None]) -> Iterator[Figure]:
    """Measure and give each figure as soon as it is known.

    Speeds are GB/s of raw bytes, from the median time of a chunk: what else runs on the machine interrupts few of them.
    Chunks follow each other through the whole sample, so none is in a cache when its turn comes. Everything compared is
    measured in the same rounds.

    Raises:
        SettingsError: an unknown method.
        KvferryError: a method cannot carry the sample, or an exact one changed it.
    """
    check_methods(methods)
    memory = CodecMemory(sample)
    progress(f"{memory.chunks} chunks of {sample.shape.raw_bytes >> 10} KiB: {sample.origin}")
    for method in methods:
        progress(method)
        codec = host_codecs([method])[method]
        yield from _size_and_error(codec, memory)
        yield from _against_memcpy(codec, memory)
        yield from _of_two_threads(codec, memory)
        yield from _against_torch(codec, memory)


def _size_and_error(codec: Codec, memory: CodecMemory) -> Iterator[Figure]:
    for chunk in range(memory.chunks):
        memory.encode(codec, chunk)
        memory.decode(codec, chunk)
    if not codec.lossy and not memory.is_exact():
        raise KvferryError(f"{codec.name} is exact, but other values came back")
    size = sum(memory.lengths) / memory.sources.nbytes
    yield Figure(f"codec.{codec.name}.size", size, "wire/raw", None, None, memory.chunks)
    if codec.lossy:
        yield Figure(f"codec.{codec.name}.error", memory.largest_error(), "of row", None, None, memory.chunks)


def _against_memcpy(codec: Codec, memory: CodecMemory) -> Iterator[Figure]:
    steps = {"memcpy": memory.copy, **_steps(codec, memory)}
    speeds = _speeds(steps, memory, range(memory.chunks), ROUNDS)
    for what in steps:
        if what != "memcpy":
            yield _figure(f"codec.{codec.name}.{what}", speeds[what], speeds["memcpy"], ROUNDS * memory.chunks)


def _steps(codec: Codec, memory: CodecMemory) -> dict[str, Step]:
    """In an order in which each decodes what the one before it left in the slots."""
    return {
        "encode": lambda chunk: memory.encode(codec, chunk),
        "decode": lambda chunk: memory.decode(codec, chunk),
        "encode_shuffled": lambda chunk: memory.encode(codec, chunk, shuffled=True),
        "decode_shuffled": lambda chunk: memory.decode(codec, chunk, shuffled=True),
    }


def _speeds(steps: Mapping[str, Step], memory: CodecMemory, chunks: Sequence[int], rounds: int) -> Mapping[str, float]:
    seconds: dict[str, list[float]] = {what: [] for what in steps}
    for _ in range(rounds):
        for what, step in steps.items():
            seconds[what] += (_timed(step, [chunk]) for chunk in chunks)
    return {what: memory.shape.raw_bytes / 1e9 / median(some) for what, some in seconds.items()}


def _of_two_threads(codec: Codec, memory: CodecMemory) -> Iterator[Figure]:
    """All chunks, shared by two threads, against one thread."""
    chunks, steps = range(memory.chunks), _steps(codec, memory)
    shares = [chunks[start::_THREADS] for start in range(_THREADS)]
    gigabytes = memory.sources.nbytes / 1e9
    with ThreadPoolExecutor(_THREADS) as threads:
        for what in ("encode", "decode"):
            alone, together = [], []
            for _ in range(ROUNDS):
                alone.append(_timed(steps[what], chunks))
                started = time.perf_counter()
                list(threads.map(_timed, [steps[what]] * _THREADS, shares))
                together.append(time.perf_counter() - started)
            name = f"codec.{codec.name}.{what}_two_threads"
            yield _figure(name, gigabytes / median(together), gigabytes / median(alone), ROUNDS)


def _against_torch(codec: Codec, memory: CodecMemory) -> Iterator[Figure]:
    """Nothing for `none`, which torch has no part in."""
    reference = torch_codec(codec.name)
    if reference is None:
        return
    chunks = range(min(_TORCH_CHUNKS, memory.chunks))
    ours, theirs = _steps(codec, memory), _steps(reference, memory)
    with one_torch_thread():
        for what in ("encode", "decode"):
            speeds = _speeds({"ours": ours[what], "torch": theirs[what]}, memory, chunks, _TORCH_ROUNDS)
            name = f"codec.{codec.name}.{what}_against_torch"
            yield _figure(name, speeds["ours"], speeds["torch"], _TORCH_ROUNDS * len(chunks))


def _timed(step: Step, chunks: Sequence[int]) -> float:
    started = time.perf_counter()
    for chunk in chunks:
        step(chunk)
    return time.perf_counter() - started


def _figure(name: str, speed: float, against: float, count: int) -> Figure:
    return Figure(name, speed, "GB/s", against, speed / against, count)
