"""A machine inside the machine: own mounts, network and process ids, joined to this one by a single cable.

Everything that the node starts, mounts or configures lives in these namespaces and ends with their first process,
which is in the care of the janitor: it goes with this process, however that ends. Only the cable's end, the cgroups
and the scratch folder are outside, each under a name of its own.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cluster_processes
from cluster_node import addresses, cable, cgroups, init
from cluster_node.errors import NodeBusy, NodeFailed
from cluster_processes import CannotRun, Processes
from kvferry_operator.local import state
from kvferry_operator.local.errors import AlreadyRunning

FOLDERS = cluster_processes.folders(Path("/var/tmp"))
"""Not /tmp, which may be in memory: images are large."""

_FIRST = "machine"
_LEADER = "leader"
_NAMESPACES = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_START_SECONDS = 120.0
_RUN_SECONDS = 600.0


class Machine:
    """leader: the process outside whose namespaces they are. folder: scratch, at the same path inside and outside."""

    def __init__(self, leader: int, folder: Path) -> None:
        self.folder = folder
        spaces = f"/proc/{leader}/ns"
        self._enter = ("nsenter", f"--mount={spaces}/mnt", f"--net={spaces}/net", f"--pid={spaces}/pid_for_children")

    def run(self, *command: str, source: Path = Path("/dev/null")) -> str:
        """Run a program to its end and return what it printed. source: its standard input.

        Raises:
            NodeFailed: it failed, or took more than 10 minutes.
        """
        with source.open("rb") as standard_input:
            try:
                done = subprocess.run(
                    self.inside(*command), stdin=standard_input, capture_output=True, text=True, timeout=_RUN_SECONDS
                )
            except subprocess.TimeoutExpired:
                raise NodeFailed(f"{' '.join(command)} took more than {_RUN_SECONDS:.0f} s") from None
        if done.returncode != 0:
            raise NodeFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a program there."""
        return [*self._enter, "--", *command]


class Owned(Machine):
    """The machine as its owner has it, who may start programs that go on."""

    def __init__(self, leader: int, processes: Processes) -> None:
        super().__init__(leader, processes.folder)
        self._processes = processes

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a program that goes on, with its output in `folder/name.log`. It dies with whom `kill` kills."""
        self._processes.start(name, self.inside("setpriv", "--pdeathsig", "KILL", *command))

    def kill(self, name: str) -> None:
        self._processes.kill(name)

    def wait_until(self, name: str, ready: Callable[[], bool], seconds: float) -> None:
        """Poll `ready()` until it is true.

        Raises:
            NodeFailed: the program ended, or the time is over.
        """
        try:
            self._processes.wait_until(name, ready, seconds)
        except CannotRun as error:
            raise NodeFailed(str(error)) from None


@contextlib.contextmanager
def started() -> Iterator[Owned]:
    """The namespaces, with the cable in place: `addresses.HOST` is an address of this machine from here on.

    Raises:
        NodeBusy: there is one already.
        NodeFailed: this machine does not let us.
    """
    with contextlib.ExitStack() as held:
        processes = _claimed(held)
        _remove_traces()
        leader = processes.start(_FIRST, ["unshare", *_NAMESPACES, sys.executable, "-I", init.__file__])
        try:
            _wait_for_first(processes)
            cable.plug(leader)
            cgroups.make()
            (processes.folder / _LEADER).write_text(str(leader))
            yield Owned(leader, processes)
        finally:
            processes.kill(_FIRST)
            _remove_traces()


def running() -> Machine:
    """The one that another process has started, for images to be loaded into.

    Raises:
        NodeFailed: there is none.
    """
    folder = FOLDERS / addresses.NAME
    if not state.held(folder) or not (folder / _LEADER).exists():
        raise NodeFailed("this machine has no node: start one with `make cluster NODE=1`")
    return Machine(int((folder / _LEADER).read_text()), folder)


def _claimed(held: contextlib.ExitStack) -> Processes:
    try:
        return held.enter_context(cluster_processes.custody_of(addresses.NAME, FOLDERS.parent))
    except AlreadyRunning:
        owner = state.owner_of(FOLDERS / addresses.NAME)
        whose = f"process {owner.pid}" if owner else "another process"
        raise NodeBusy(f"{whose} has a node on this machine, and there can be one: end that first") from None


def _remove_traces() -> None:
    """Of this node, or of one that was killed together with its janitor."""
    cable.unplug()
    cgroups.remove()


def _wait_for_first(processes: Processes) -> None:
    """Until the first process has made its view of the file system, in the folder in which it was started."""
    try:
        processes.wait_until(_FIRST, lambda: init.READY in processes.tail(_FIRST), _START_SECONDS)
    except CannotRun as error:
        raise NodeFailed(f"this machine does not allow the node's namespaces and mounts: {error}") from None
