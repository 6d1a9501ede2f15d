"""Process 1 of the node: makes its view of the file system in the folder where it is started, then waits and reaps.

Its end is the end of every process, mount, network and packet rule in its namespaces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

READY = "the node's machine is ready"

PRIVATE = ("/run", "/var/lib", "/var/log")
"""Where containerd, CNI and the kubelet write at fixed places: the node has folders of its own there."""

SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets for the whole machine unless it finds it so. It finds it so."""


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def furnish(folder: Path) -> None:
    mount("--make-rshared", "/")  # among the node's processes; unshare has cut it off from the machine
    for target in PRIVATE:
        source = folder / "private" / target.lstrip("/")
        source.mkdir(parents=True)
        mount("--bind", str(source), target)
    for name, value in SYSCTLS.items():
        source = folder / "private" / "sys" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(value + "\n")
        if Path("/proc/sys", name).exists():
            mount("--bind", str(source), f"/proc/sys/{name}")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # of the node's network alone


def reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    furnish(Path.cwd())
    signal.signal(signal.SIGCHLD, reap)
    print(READY, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
