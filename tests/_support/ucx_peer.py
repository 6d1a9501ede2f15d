"""A peer in a process of its own: dials, opens the data way, posts traffic, says so on stdout, and then only waits.

python ucx_peer.py KIND PORT SIZE
"""

from __future__ import annotations

import asyncio
import sys

from kvferry_contract.config import TransportKind
from kvferry_runtime.transport.ucx import UcxTransport

SECONDS = 60.0
WINDOW = 4


async def main(kind: str, port: int, size: int) -> None:
    transport = UcxTransport(TransportKind(kind))
    connection = await transport.connect("127.0.0.1", port, SECONDS)
    connection.send_control(connection.data_address())
    await connection.open_data(await connection.receive_control(1 << 14), SECONDS)
    source, target = bytes(size), [bytearray(size) for _ in range(WINDOW)]
    for tag in range(1, WINDOW + 1):
        # Only every second receive of the other side is served.
        if tag % 2:
            connection.send_data(memoryview(source), tag)
        connection.receive_data(memoryview(target[tag - 1]), tag + WINDOW)
    await asyncio.sleep(0)
    print("posted", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
