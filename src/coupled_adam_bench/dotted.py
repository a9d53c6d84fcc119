"""A user's own code, named in a study by its dotted path: where its file lies, and what it names. Light."""

import difflib
import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


def is_installed(package: str) -> bool:
    """Tell whether a package or module can be imported, from the working directory too, as ``python -m`` does."""
    return (importlib.util.find_spec(package) or PathFinder.find_spec(package, [str(Path.cwd())])) is not None


def find_module(name: str) -> Path | None:
    """Return the file of a module without importing anything; ``None`` if there is none, or it has no source file.

    Installed packages are searched, and the working directory.
    """
    places: list[str] | None = [str(Path.cwd()), *sys.path]
    file: Path | None = None
    prefix = ""
    for part in name.split("."):
        prefix = f"{prefix}.{part}" if prefix else part
        spec = PathFinder.find_spec(prefix, places)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        places = list(locations) if locations is not None else []
        file = Path(spec.origin) if spec.origin is not None and spec.has_location else None
    return file


def import_object(path: str) -> Any:
    """Import and return what ``module.name`` names; ``ValueError`` that begins with ``path:`` if there is nothing."""
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything
        raise ValueError(
            f"path: cannot import {module_name!r} ({type(error).__name__}: {error}); "
            "correct the path, or install the package where the study runs"
        ) from error
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, vars(module), n=1)
        raise ValueError(f"path: {module_name!r} has no {name!r}{f'; did you mean {close[0]!r}?' if close else ''}")
    return getattr(module, name)
