"""What a stranger may send to a port: pickles, noise, claims of much to come, good frames cut short or damaged."""

from __future__ import annotations

import asyncio
import gzip
import os
import pickle
import random
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from kvferry_runtime.wire.frames import encode_frame
from kvferry_runtime.wire.messages import Hello, Nack, Ping, encode

SECONDS = 45.0
BOMB_BYTES = 128 << 20
"""What the compressed body unpacks to."""


@dataclass
class Marker:
    """Whoever unpickles it makes this folder."""

    path: Path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def summed(body: bytes) -> bytes:
    """With the checksum that a message has."""
    return body + struct.pack("<I", zlib.crc32(body))


def frames(marker: Marker) -> list[bytes]:
    """For the peer port: whole inputs of one connection each."""
    generator = random.Random(7)
    hello = encode_frame(encode(Hello(1, b"b" * 16, b"n" * 16, "ns/x", {"model": "m"}, ["none"], 4096, 8, True)))
    good = [hello, encode_frame(encode(Ping(b"b" * 16, 1, 0, 0))), encode_frame(encode(Nack("0" * 32, 0, [1])))]
    inputs = [
        pickle.dumps(marker),
        encode_frame(summed(pickle.dumps(marker))),
        struct.pack("<4sHHI", b"KVFC", 1, 0, 2**32 - 1),
        struct.pack("<4sHHQ", b"KVFC", 1, 0, 2**62),
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        encode_frame(summed(b"\xdd" + struct.pack(">I", 2**31))),
        hello + hello,
        good[1],
    ]
    inputs += [generator.randbytes(generator.randrange(1, 4000)) for _ in range(40)]
    for _ in range(60):
        frame = bytearray(generator.choice(good))
        frame[generator.randrange(len(frame))] ^= 1 << generator.randrange(8)
        inputs.append(bytes(frame[: generator.randrange(1, len(frame) + 1)]))
    return inputs


def bodies(marker: Marker) -> list[bytes]:
    """Whole HTTP requests to the completions API, each of which is the client's mistake and must be answered so."""
    texts = {
        "": [pickle.dumps(marker), b"", b"[" * 50_000, b'{"prompt": 1e999}', b'{"prompt": "\xff"}', b"null"],
        "Content-Encoding: gzip\r\n": [b"no gzip", gzip.compress(b" " * BOMB_BYTES, 1)],
        "Content-Encoding: deflate\r\n": [zlib.compress(b" " * BOMB_BYTES, 1)],
    }
    return [
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s"
        % (headers.encode(), len(text), text)
        for headers, some in texts.items()
        for text in some
    ]


def broken_requests(marker: Marker) -> list[bytes]:
    """For a port that speaks HTTP: requests that are none, or that promise more than comes."""
    generator = random.Random(8)
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    inputs = [
        pickle.dumps(marker),
        post + b"Content-Length: %d\r\n\r\n{" % 2**62,
        post + b"Content-Length: -1\r\n\r\n{",
        post + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n{" % 2**62,
        post + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz\r\n",
        b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 100_000,
        b"GET /healthz HTTP/1.1\r\nX-A: " + b"b" * (1 << 20),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        encode_frame(encode(Ping(b"b" * 16, 1, 0, 0))),
    ]
    inputs += [generator.randbytes(generator.randrange(1, 4000)) for _ in range(20)]
    request = post + b"Content-Length: 14\r\n\r\n" + b'{"prompt": ""}'
    for _ in range(20):
        damaged = bytearray(request)
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        inputs.append(bytes(damaged[: generator.randrange(1, len(damaged))]))
    return inputs


async def throw(address: tuple[str, int], data: bytes, *, end: bool = True) -> bytes:
    """Send, end our side if `end`, and read until the other one closes too; what it said."""
    reader, writer = await asyncio.open_connection(*address)
    said = b""
    try:
        async with asyncio.timeout(SECONDS):
            writer.write(data)
            if end:
                writer.write_eof()
            while part := await reader.read(1 << 16):
                said += part
    except ConnectionError:
        pass
    finally:
        writer.close()
    return said
