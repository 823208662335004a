"""``python -m leyden`` is ``leyden``."""

import sys

from leyden.cli import main

sys.exit(main())
