"""Random, truncated and hostile bytes on the real peer port: closed, counted, no large allocation, still serving."""

from __future__ import annotations

import asyncio
import pickle
import random
import struct
import tracemalloc
import zlib

from kvferry_contract.config import Role, TransportKind
from kvferry_runtime.ring.messages import Loaded
from kvferry_runtime.transport.ucx import UcxTransport
from kvferry_runtime.wire.frames import encode_frame
from kvferry_runtime.wire.handshake import Refusal
from kvferry_runtime.wire.messages import Hello, Nack, Ping, encode
from scripted_agent import Prompt
from sidecar_pods import Pod, World, transfer_id, until


class _Marker:
    made = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return setattr, (_Marker, "made", True)


def summed(body: bytes) -> bytes:
    """With the checksum that a message has."""
    return body + struct.pack("<I", zlib.crc32(body))


def hostile() -> list[bytes]:
    """Whole inputs of one connection each."""
    generator = random.Random(7)
    hello = encode_frame(encode(Hello(1, b"b" * 16, b"n" * 16, "ns/x", {"model": "m"}, ["none"], 4096, 8, True)))
    frames = [hello, encode_frame(encode(Ping(b"b" * 16, 1, 0, 0))), encode_frame(encode(Nack("0" * 32, 0, [1])))]
    inputs = [
        pickle.dumps(_Marker()),
        encode_frame(summed(pickle.dumps(_Marker()))),
        struct.pack("<4sHHI", b"KVFC", 1, 0, 2**32 - 1),
        struct.pack("<4sHHQ", b"KVFC", 1, 0, 2**62),
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        encode_frame(summed(b"\xdd" + struct.pack(">I", 2**31))),
        hello + hello,
        frames[1],
    ]
    inputs += [generator.randbytes(generator.randrange(1, 4000)) for _ in range(40)]
    for _ in range(60):
        frame = bytearray(generator.choice(frames))
        frame[generator.randrange(len(frame))] ^= 1 << generator.randrange(8)
        inputs.append(bytes(frame[: generator.randrange(1, len(frame) + 1)]))
    return inputs


async def throw(pod: Pod, data: bytes) -> None:
    """Send, end our side, and read until the other one closes too."""
    reader, writer = await asyncio.open_connection(*pod.core.address)
    try:
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(10):
            while await reader.read(1 << 16):
                pass
    except ConnectionError:
        pass
    finally:
        writer.close()


def refused(pod: Pod) -> float:
    return sum(pod.metric("rejected_connections_total", reason=refusal.value) for refusal in Refusal)


async def test_hostile_bytes(pods: World) -> None:
    """Case 47."""
    prefill = await pods.pod(Role.PREFILL, transport=UcxTransport(TransportKind.TCP), tick=0.2)
    decode = await pods.pod(Role.DECODE, transport=UcxTransport(TransportKind.TCP), tick=0.2)
    inputs = hostile()
    tracemalloc.start()
    for start in range(0, len(inputs), 16):
        await asyncio.gather(*(throw(prefill, data) for data in inputs[start : start + 16]))
    await until(lambda: refused(prefill) == len(inputs))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    assert not _Marker.made
    assert prefill.core.state()["sessions"] == []
    prefill.agent.send(transfer_id(1), Prompt(100, range(4)))
    decode.agent.fetch(transfer_id(1), [prefill.peer], 100)
    assert isinstance(await decode.agent.end(transfer_id(1)), Loaded)
