"""The Python binding of UCX, loaded: contexts, workers and endpoints. The only module that imports it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kvferry_contract.config import TransportKind
from kvferry_runtime.errors import TransportUnavailable
from kvferry_runtime.transport.ucx_settings import PREFIX, context_options


class UcxLibrary:
    """The binding, loaded.

    It writes UCX variables into the environment when it is imported; they are taken out again, for all of them are
    decided here and child processes shall inherit only what a person set.
    """

    def __init__(self) -> None:
        before = frozenset(os.environ)
        try:
            from ucxx._lib import libucxx
            from ucxx._lib.arr import Array
        except (ImportError, OSError) as error:
            raise TransportUnavailable(
                f"UCX cannot be loaded ({error}): install the extra, pip install 'kvferry[sidecar]'"
            ) from error
        for name in os.environ.keys() - before:
            if name.startswith(PREFIX):
                del os.environ[name]
        self.array = Array
        self.tag = libucxx.UCXXTag
        self.errors: tuple[type[Exception], ...] = (libucxx.UCXError, RuntimeError)
        self.truncated: type[Exception] = libucxx.UCXMessageTruncatedError
        self._binding = libucxx

    def context(self, kind: TransportKind, environment: Mapping[str, str]) -> Any:
        options = context_options(kind, environment)
        features = (self._binding.Feature.TAG, self._binding.Feature.WAKEUP)
        try:
            return self._binding.UCXContext(options, features)
        except self.errors as error:
            user = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
            raise TransportUnavailable(
                f"UCX finds nothing usable for transport {kind.value}: {error}; our options {options}, "
                f"from the environment {user}; check devices and UCX_ variables, or choose transport auto"
            ) from error

    def worker(self, context: Any) -> Any:
        try:
            worker = self._binding.UCXWorker(context, False, False)
            worker.init_blocking_progress_mode()
        except self.errors as error:
            raise TransportUnavailable(
                f"UCX cannot make a worker ({error}): check the limit of open files and /dev/shm"
            ) from error
        return worker

    def endpoint(self, worker: Any, address: bytes) -> Any:
        return worker.create_endpoint_from_worker_address(self._binding.UCXAddress.create_from_buffer(address), True)
