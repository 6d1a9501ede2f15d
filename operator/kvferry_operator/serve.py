"""`kvferry-operator`: the process around `act`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from kvferry_operator import logs, options
from kvferry_operator.act import act
from kvferry_operator.desired.settings import release
from kvferry_operator.errors import OperatorError
from kvferry_operator.health import Health, listening
from kvferry_operator.kube.client import connect
from kvferry_operator.metrics import Metrics
from kvferry_operator.options import Options
from kvferry_operator.reconcile.steps import Trace, log_step

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT: 0. 1 when it cannot go on and should be started anew, 2 for wrong flags."""
    chosen = options.parse(arguments)
    logs.setup(chosen.log_format, chosen.log_level)
    try:
        asyncio.run(serve(chosen))
    except OperatorError as error:
        logger.error("the operator ends: %s", error)
        return 1
    except Exception:
        # of kopf: a watch that cannot go on
        logger.exception("the operator ends")
        return 1
    return 0


async def serve(chosen: Options, trace: Trace = log_step) -> None:
    """Act on the cluster until a signal says to stop.

    Raises:
        OperatorError: no way to log in, a port that is taken, a lease that was lost.
        Exception: a watch broke in a way that only a new process mends.
    """
    stop = asyncio.Event()

    def take_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)

    take_signals()
    metrics = Metrics()
    health = Health(chosen.resync_seconds)
    async with connect(chosen.kubeconfig) as cluster, listening(chosen.http_port, health, metrics) as port:
        logger.info("kvferry-operator %s listens on port %d", release(), port, extra={"port": port})
        acting = asyncio.create_task(act(chosen, cluster, metrics, health, trace, take_signals))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((acting, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            acting.cancel()
            await asyncio.gather(stopping, acting, return_exceptions=True)
        if not acting.cancelled():
            acting.result()
        logger.info("kvferry-operator stops")


if __name__ == "__main__":
    sys.exit(main())
