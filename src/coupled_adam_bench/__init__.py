"""Reproduce *Better Embeddings with Coupled Adam* (ACL 2025) and test other embedding optimizers
the same way."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coupled_adam_bench.tools.compare import compare as compare

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Return :func:`compare`, which is imported when it is first asked for: no command waits for
    it."""
    if name == "compare":
        from coupled_adam_bench.tools.compare import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
