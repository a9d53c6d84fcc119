"""How often Python looks for garbage: objects that only refer to each other."""

import contextlib
import gc
from collections.abc import Iterator

_NEW_OBJECTS = 50_000


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
