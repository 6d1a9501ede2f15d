"""`kvferry-runtime router`: its arguments."""

from __future__ import annotations

import argparse
import os

from kvferry_contract import env, ports
from kvferry_contract.config import FailurePolicy, TransportKind
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.router.settings import RouterSettings

EXAMPLES = """examples:
  kvferry-runtime router --endpoints kubernetes://default/smollm2 --served-name smollm2
  kvferry-runtime router --endpoints file:///tmp/endpoints.json --served-name smollm2 --port 9000
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `router` to `kvferry-runtime`."""
    parser = subparsers.add_parser(
        "router",
        help="serve the OpenAI-compatible API in front of the model's groups",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--endpoints",
        default=os.environ.get(env.ENDPOINTS, ""),
        metavar="URI",
        help=f"where the groups are found: file:///path or kubernetes://namespace/model (default: ${env.ENDPOINTS})",
    )
    parser.add_argument("--served-name", required=True, metavar="NAME", help="the model's name in the API")
    parser.add_argument(
        "--host",
        default=os.environ.get(env.POD_IP, "127.0.0.1"),
        help=f"address to listen on (default: ${env.POD_IP}, else 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=ports.ROUTER,
        metavar="N",
        help=f"port to listen on, 0 for any free one (default: {ports.ROUTER})",
    )
    parser.add_argument(
        "--min-prompt-tokens",
        type=int,
        default=0,
        metavar="N",
        help="prompts with fewer tokens go to a decode group alone (default: 0, no limit)",
    )
    parser.add_argument(
        "--failure-policy",
        choices=[policy.value for policy in FailurePolicy],
        default=FailurePolicy.RECOMPUTE.value,
        help="what happens to a request whose transfer or prefill fails (default: Recompute)",
    )
    parser.add_argument(
        "--timeout-seconds", type=float, default=30.0, metavar="S", help="deadline of one transfer (default: 30)"
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=20.0,
        metavar="S",
        help="time that running requests get after SIGTERM (default: 20)",
    )
    parser.add_argument(
        "--disaggregation",
        choices=("on", "off"),
        default="on",
        help="off: every request goes to a decode group alone, prefill groups stay idle (default: on)",
    )
    parser.add_argument(
        "--verify-interval-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="each group takes part in a canary request within this time, which proves that KV crosses "
        "(default: 30; 0: none are sent)",
    )
    parser.add_argument(
        "--transport",
        choices=[kind.value for kind in TransportKind],
        default=TransportKind.AUTO.value,
        help="what the KV should travel by; a canary on other lanes is reported as failed (default: auto)",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. 0 after a clean stop.

    Raises:
        SettingsError: an argument is outside its limits, or the address cannot be listened on.
    """
    if not args.endpoints:
        raise SettingsError(
            f"no endpoints: give --endpoints or set {env.ENDPOINTS}, to file:///path or kubernetes://namespace/model"
        )
    settings = RouterSettings(
        served_name=args.served_name,
        endpoints=args.endpoints,
        host=args.host,
        port=args.port,
        min_prompt_tokens=args.min_prompt_tokens,
        failure_policy=FailurePolicy(args.failure_policy),
        timeout_seconds=args.timeout_seconds,
        drain_seconds=args.drain_seconds,
        disaggregation=args.disaggregation == "on",
        verify_interval_seconds=args.verify_interval_seconds,
        transport=TransportKind(args.transport),
    )
    from kvferry_runtime.router.process import serve

    return serve(settings)
