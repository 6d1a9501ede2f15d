"""How long decode will have to wait for a prompt's KV after the forward pass is over. Pure.

A transfer is a pipeline of three stages, encode, wire and decode, each of which works on another chunk at a time. It
takes as long as its slowest stage takes for everything, and one chunk's time in the two others. Layer by layer it
begins when the first layer is computed, and cannot end before the last layer, which is computed last, is through.
(The model of "crossover" in published work on compressed transfers, with what a message costs besides its bytes.)
"""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_runtime.auto.speeds import MethodSpeed

MESSAGE_SECONDS = 150e-6
"""What a message costs besides its bytes: a turn of the agent's and the sidecar's loop. Charged to the encoder, which
waits meanwhile; the wire does not, as several messages are under way."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is still to be sent of one prompt.

    raw_bytes: in all layers. exact_bytes: the part of them that lossy methods may not touch. layers: in
    which they are. chunk_bytes: of the largest chunk. compute_seconds: until the forward pass is over, 0 when it is.
    tail_seconds: the part of it after the last of these layers, when the pass goes on with layers that go elsewhere.
    """

    raw_bytes: int
    exact_bytes: int
    layers: int
    chunk_bytes: int
    compute_seconds: float
    tail_seconds: float = 0.0


def exposed_seconds(
    job: Job, bytes_per_second: float, method: MethodSpeed, exact: MethodSpeed, layerwise: bool
) -> float:
    """Seconds from the end of the forward pass until everything is in place at decode.

    bytes_per_second: on the wire. exact: what carries the bytes that `method` may not touch.
    """
    if job.raw_bytes <= 0:
        return 0.0
    untouched = min(job.raw_bytes, job.exact_bytes) if method.method != exact.method else 0
    rest = job.raw_bytes - untouched
    chunks = _chunks(job, layerwise)
    encode = untouched / exact.encode + rest / method.encode + chunks * MESSAGE_SECONDS
    decode = untouched / exact.decode + rest / method.decode
    wire = (untouched * exact.ratio + rest * method.ratio) / bytes_per_second
    slowest = max(encode, decode, wire)
    others = (encode + decode + wire - slowest) / chunks
    if not layerwise:
        return slowest + others
    first_layer = (job.compute_seconds - job.tail_seconds) / job.layers
    last_layer = slowest / job.layers + others - job.tail_seconds
    return max(0.0, last_layer, first_layer + slowest + others - job.compute_seconds)


def _chunks(job: Job, layerwise: bool) -> int:
    if layerwise:
        return job.layers * max(1, -(-job.raw_bytes // (job.layers * job.chunk_bytes)))
    return max(1, -(-job.raw_bytes // job.chunk_bytes))
