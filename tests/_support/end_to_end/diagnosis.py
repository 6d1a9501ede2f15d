"""What a person would look at when a step failed."""

from __future__ import annotations

import sys

from end_to_end.errors import StepFailed
from end_to_end.models import NAMESPACE
from end_to_end.story import OPERATOR_NAMESPACE
from end_to_end.tools import Tools

_LOOKS = (
    ("get", "pods", "--all-namespaces", "--output=wide"),
    ("get", "dm", "--all-namespaces", "--output=yaml"),
    ("get", "events", f"--namespace={NAMESPACE}", "--sort-by=.lastTimestamp"),
    ("logs", f"--namespace={OPERATOR_NAMESPACE}", "--selector=app.kubernetes.io/component=operator", "--tail=40"),
    ("logs", f"--namespace={NAMESPACE}", "--selector=kvferry.io/model", "--all-containers", "--prefix", "--tail=20"),
)


def tell(tools: Tools) -> None:
    """Print it all to standard error."""
    for look in _LOOKS:
        print(f"--- kubectl {' '.join(look)}", file=sys.stderr)
        try:
            print(tools.kubectl(*look), file=sys.stderr)
        except StepFailed as error:
            print(error, file=sys.stderr)
