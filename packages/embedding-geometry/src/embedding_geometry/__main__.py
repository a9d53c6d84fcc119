"""``python -m embedding_geometry``, which is the command ``embedding-geometry``."""

import sys

from embedding_geometry.command import main

if __name__ == "__main__":
    sys.exit(main())
