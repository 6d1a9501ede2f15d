"""The one error that a client sees: an HTTP status before the answer began, an error event after."""

from __future__ import annotations

from typing import Any

from kvferry_runtime.errors import KvferryError
from kvferry_runtime.router.reasons import FailureReason


class RequestFailed(KvferryError):
    """A request that gets no (whole) answer.

    status: HTTP status. detail: what an engine said in its own `error` object, passed on as it is.
    retry_after: seconds after which trying again makes sense.
    """

    def __init__(
        self,
        reason: FailureReason,
        status: int,
        message: str,
        *,
        detail: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.retry_after = retry_after
        self._detail = detail

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape."""
        if self._detail is not None:
            return {"error": self._detail}
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "code": self.reason.value}}


def bad_request(message: str, status: int = 400) -> RequestFailed:
    return RequestFailed(FailureReason.BAD_REQUEST, status, message)
