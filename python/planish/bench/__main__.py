"""python -m planish.bench."""

import sys

from planish.cli import main

sys.exit(main(["bench", *sys.argv[1:]]))
