"""Reads JSON files of users; it imports nothing heavy."""

import json
from pathlib import Path
from typing import Any

from embedding_geometry.user_files import check_no_pointer


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a user's file; raise ``ValueError`` for anything else."""
    check_no_pointer(file)
    try:
        values = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not valid JSON ({error}); fetch it again") from None
    if not isinstance(values, dict):
        raise ValueError(
            f"{file}: a JSON object is expected, not a {type(values).__name__}; fetch it again"
        )
    return values
