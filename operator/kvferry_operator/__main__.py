"""`python -m kvferry_operator` is `kvferry`."""

from __future__ import annotations

import sys

from kvferry_operator.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
