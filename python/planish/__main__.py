"""``python -m planish`` is the planish command."""

from __future__ import annotations

import sys

from planish.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
