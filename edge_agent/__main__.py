"""Makes `python -m edge_agent` run the command `headwater`."""

from __future__ import annotations

import sys

from edge_agent.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
