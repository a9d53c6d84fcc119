"""Coupled Adam Bench: reproduces the paper, and tests embedding optimizers the same way."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "compare"]


def __getattr__(name: str) -> Any:
    """Import ``compare`` when it is asked for, so that the package itself loads nothing."""
    if name != "compare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from coupled_adam_bench.tools.compare import compare

    return compare
