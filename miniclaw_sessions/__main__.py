"""`python -m miniclaw_sessions` is the command line."""

import sys

from miniclaw_sessions.service.cli import main

if __name__ == "__main__":
    sys.exit(main())
