"""``python -m planish.demo``."""

from __future__ import annotations

import sys

from planish.demo.command import main

if __name__ == "__main__":
    sys.exit(main())
