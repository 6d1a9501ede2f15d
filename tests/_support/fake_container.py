"""Stands for a container: serves its health, appends what happens to it to the file named by JOURNAL.

`GET /healthz` is 200; `/readyz` is 200 unless `$TMPDIR/unready` exists; `/v1/state` gives the groups as a router does;
`/env` gives its environment; `/fork` starts a child that outlives it. `--exit N` ends at once with this status.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def groups() -> bytes:
    """What a router that reads its endpoints file says of them. This program runs without site packages."""
    found = json.loads(Path(os.environ["KVFERRY_ENDPOINTS"].removeprefix("file://")).read_text())["groups"]
    states = [{"state": "ready" if group["ready"] else "unready"} for group in found]
    return json.dumps({"groups": states}).encode()


def note(text: str) -> None:
    with Path(os.environ["JOURNAL"]).open("a", encoding="utf-8") as journal:
        journal.write(f"{os.environ['KVFERRY_POD_NAME']} {text}\n")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        unready = Path(os.environ.get("TMPDIR", "/nowhere"), "unready").exists()
        status, body, kind = (503 if self.path == "/readyz" and unready else 200), b"ok", "text/plain"
        if self.path == "/v1/state":
            body, kind = groups(), "application/json"
        if self.path == "/env":
            body = "\n".join(f"{key}={value}" for key, value in os.environ.items()).encode()
        if self.path == "/fork":
            body = str(subprocess.Popen(["sleep", "600"]).pid).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--exit", type=int, default=-1)
    parser.add_argument("--say", default="")
    args = parser.parse_args()
    note(f"{args.name} starts")
    if args.say:
        print(args.say, file=sys.stderr, flush=True)
    if args.exit >= 0:
        return args.exit

    def end(*_: object) -> None:
        note(f"{args.name} stops")
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    HTTPServer((os.environ["KVFERRY_POD_IP"], args.port), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
