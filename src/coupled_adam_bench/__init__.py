"""Reproduce *Better Embeddings with Coupled Adam* (ACL 2025) and test other embedding optimizers the same way."""

from typing import TYPE_CHECKING

__version__: str

if not TYPE_CHECKING:  # for which it would give the package attributes of any name

    def __getattr__(name: str) -> str:
        """Return ``__version__`` from the metadata of the installation, which is read when it is asked for."""
        if name == "__version__":
            from importlib.metadata import version

            return version("coupled-adam-bench")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
