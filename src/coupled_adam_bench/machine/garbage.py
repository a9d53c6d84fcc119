"""How often Python looks for garbage: objects that only refer to each other."""

import atexit
import contextlib
import gc
from collections.abc import Iterator

_NEW_OBJECTS = 50_000


def not_collected_at_exit() -> None:
    """Let this process end without a look at all of its objects, which after torch takes up to a second.

    The system frees their memory.
    """
    atexit.register(gc.freeze)


@contextlib.contextmanager
def collected_among_new_objects() -> Iterator[None]:
    """Let each look for garbage pass over the objects that are there now: after imports, these are a million."""
    frozen_before = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()


@contextlib.contextmanager
def rarely_collected() -> Iterator[None]:
    """Look for garbage after 50,000 new objects, far more rarely than usual, as long as this is entered.

    Imports make many objects and hardly any garbage: to look at all of them again and again is a tenth to a fifth of
    their CPU time. It is not for work with tensors, of which few objects hold much memory.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
