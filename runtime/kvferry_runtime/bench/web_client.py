"""HTTP requests from where a pod is, which the rest of the machine does not reach: a process in the pod's namespace.

`python -m kvferry_runtime.bench.web_client` reads requests from standard input, one JSON object a line, and answers
each on standard output with the body (JSON, or null for an answer that is none) and the seconds that it took.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_SECONDS = 100.0


def fetch(url: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """GET, or POST with a body. status: 0 where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    started = time.monotonic()
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read()
    except OSError as error:
        status, text = 0, json.dumps(str(error)).encode()
    return {"status": status, "seconds": time.monotonic() - started, "body": _parsed(text)}


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps({"result": fetch(request["url"], request.get("body"))}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
