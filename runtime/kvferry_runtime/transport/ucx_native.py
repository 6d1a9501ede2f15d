"""What the Python binding of UCX does not offer, called on the libraries that it has loaded."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvferry_runtime.errors import TransportUnavailable
from kvferry_runtime.transport.base import Lane

MAX_LANES = 64
_TRANSPORTS_FIELD = 1 << 3
_CANCELING_SIZE = "_ZNK4ucxx8Endpoint16getCancelingSizeEv"


class _TransportEntry(ctypes.Structure):
    _fields_ = (("transport", ctypes.c_char_p), ("device", ctypes.c_char_p))


class _EndpointAttributes(ctypes.Structure):
    """`ucp_ep_attr_t`: fields outside the mask are left alone, so that later versions may add some at the end."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_address", ctypes.c_char * 128),
        ("remote_address", ctypes.c_char * 128),
        ("entries", ctypes.POINTER(_TransportEntry)),
        ("count", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
        ("user_data", ctypes.c_void_p),
    )


def endpoint_lanes(endpoint: int) -> tuple[Lane, ...]:
    """The lanes of this endpoint (its UCX handle), asked of UCX; empty when it cannot say.

    The context's list of transports would not do: it names what might be used.
    """
    entries = (_TransportEntry * MAX_LANES)()
    attributes = _EndpointAttributes(
        field_mask=_TRANSPORTS_FIELD, entries=entries, count=MAX_LANES, entry_size=ctypes.sizeof(_TransportEntry)
    )
    if _library("libucp.so").ucp_ep_query(ctypes.c_void_p(endpoint), ctypes.byref(attributes)):
        return ()
    named = entries[: attributes.count]
    lanes = (Lane(entry.transport.decode(), entry.device.decode()) for entry in named if entry.transport)
    return tuple(dict.fromkeys(lanes))


def forget_cancelled(endpoint: int) -> None:
    """Let this endpoint (a pointer to the binding's object) drop the requests that were cancelled and are complete.

    The binding keeps them until somebody asks for their number, which it never does without a progress thread. Each
    keeps the endpoint, hence the worker with its sockets and event descriptors, alive for ever.
    """
    function = getattr(_library("libucxx.so"), _CANCELING_SIZE)
    function.restype = ctypes.c_size_t
    function(ctypes.c_void_p(endpoint))


class _MessageInfo(ctypes.Structure):
    """`ucp_tag_recv_info_t`."""

    _fields_ = (("sender_tag", ctypes.c_uint64), ("length", ctypes.c_size_t))


def holds_messages(worker: Any) -> bool:
    """Whether messages for which no receive was posted lie in this worker, an object of the binding.

    Its destructor would receive each of them first. The bytes of a large one are still with the peer, and never come
    once the endpoint is closed: then the destructor waits for ever, and with it the thread that let the worker go.
    """
    probe = _library("libucp.so").ucp_tag_probe_nb
    probe.restype = ctypes.c_void_p
    every_tag = ctypes.c_uint64(0)
    keep = ctypes.c_int(0)
    found = probe(ctypes.c_void_p(worker.handle), every_tag, every_tag, keep, ctypes.byref(_MessageInfo()))
    return found is not None


def destroy_worker(worker: Any, dependents: Iterable[Any]) -> None:
    """Destroy what is behind this worker, an object of the binding, with all requests that it has, finished or not.

    Afterwards UCX touches none of their buffers. dependents: the endpoint and the requests, objects of the binding too.
    None of them may be used again, and all are kept alive on purpose (some KiB, and five descriptors of UCX for the
    whole process): their destructors would go to the worker once more, to cancel what is not there any longer, and wait
    for ever for a lock in freed memory.
    """
    for kept in (worker, *dependents):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    descriptor: int = worker.epoll_file_descriptor
    _library("libucp.so").ucp_worker_destroy(ctypes.c_void_p(worker.handle))
    os.close(descriptor)


@functools.cache
def _library(name: str) -> Any:
    """A library that is already loaded into this process, wherever it came from."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = (line.split(maxsplit=5)[5] for line in maps if "/" in line)
    path = next((path for path in paths if Path(path).name.startswith(name)), None)
    if path is None:
        raise TransportUnavailable(f"{name} is not loaded: import the UCX binding first")
    return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
