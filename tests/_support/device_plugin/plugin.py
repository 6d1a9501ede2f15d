"""A device plugin that offers devices which exist only in the kubelet's books.

    python -m device_plugin.plugin --resource rdma/hca --count 8

It registers on the kubelet's socket, and again whenever a kubelet has started anew, which removes every socket beside
its own. A container that gets devices finds their names in DEVICES; nothing is mounted.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from device_plugin import messages

FOLDER = Path("/var/lib/kubelet/device-plugins")
DEVICES = "KVFERRY_TEST_DEVICES"
TOLD = "told a kubelet of all devices"
"""Printed once for each."""

_KUBELET = FOLDER / "kubelet.sock"
_LOOK_SECONDS = 0.2
_CALL_SECONDS = 10.0
_STREAMS = 4
"""Threads: one for the stream to the kubelet, the others for its calls."""


class Plugin(grpc.GenericRpcHandler):
    """The service that the kubelet calls. `gone` ends the streams."""

    def __init__(self, devices: list[str]) -> None:
        self.gone = threading.Event()
        self._devices = devices

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        match details.method.rpartition("/")[2]:
            case "GetDevicePluginOptions":  # all of them at their defaults
                return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")
            case "ListAndWatch":
                return grpc.unary_stream_rpc_method_handler(self._list)
            case "Allocate":
                return grpc.unary_unary_rpc_method_handler(self._allocate)
        return None

    def _list(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield messages.devices(self._devices)
        print(TOLD, flush=True)
        while context.is_active() and not self.gone.wait(_LOOK_SECONDS):
            pass  # the devices never change

    def _allocate(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        return messages.allocated([{DEVICES: ",".join(names)} for names in messages.requested(request)])


@contextlib.contextmanager
def serving(plugin: Plugin, socket: Path) -> Iterator[None]:
    """Listen on `socket`, which replaces one of an earlier plugin."""
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(_STREAMS), handlers=(plugin,))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield
    finally:
        plugin.gone.set()
        server.stop(None).wait(_CALL_SECONDS)


def register(socket: Path, resource: str) -> None:
    with grpc.insecure_channel(f"unix://{_KUBELET}") as channel:
        call = channel.unary_unary(f"/{messages.VERSION}.Registration/Register")
        call(messages.register_request(socket.name, resource), timeout=_CALL_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resource", required=True)
    parser.add_argument("--count", required=True, type=int)
    arguments = parser.parse_args()
    socket = FOLDER / f"{arguments.resource.replace('/', '-')}.sock"
    devices = [f"{socket.stem}-{number}" for number in range(arguments.count)]
    while True:
        with serving(Plugin(devices), socket), contextlib.suppress(grpc.RpcError, FileNotFoundError):
            register(socket, arguments.resource)
            print(f"registered {arguments.count} {arguments.resource}", flush=True)
            while socket.exists():
                time.sleep(_LOOK_SECONDS)  # a kubelet that starts removes it, and tells plugins in no other way
        time.sleep(_LOOK_SECONDS)  # the kubelet is starting


if __name__ == "__main__":
    main()
