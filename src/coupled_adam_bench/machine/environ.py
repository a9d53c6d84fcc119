"""Variables of the environment, set for a while."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
