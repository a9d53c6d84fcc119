"""Entry point of ``python -m coupled_adam_bench``."""

import sys

from coupled_adam_bench.cli import main

sys.exit(main())
