"""python -m planish.bench."""

import sys

from . import main

sys.exit(main())
