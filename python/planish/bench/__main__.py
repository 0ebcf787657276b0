"""python -m planish.bench."""

import sys

from planish.commands.cli import main

sys.exit(main(["bench", *sys.argv[1:]]))
