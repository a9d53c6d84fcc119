"""Reads a manifest for the exports, of any study and of earlier versions too."""

from pathlib import Path
from typing import Any

from coupled_adam_bench.store.files import read_json

_NEEDED = ("study", "title", "studies", "protocol", "packages", "sha256", "data", "cells")


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest at ``path``; ``ValueError`` for another file."""
    manifest = read_json(path)
    missing = [key for key in _NEEDED if not isinstance(manifest, dict) or key not in manifest]
    if missing:
        raise ValueError(
            f"{path}: not the manifest of a study, since it has no {missing[0]!r}; name"
            " results/STUDY/manifest.json, which the report writes"
        )
    return dict(manifest)
