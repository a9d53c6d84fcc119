"""The commit that this package's source belongs to."""

import subprocess
from pathlib import Path


def git_revision() -> str | None:
    """Return the commit, with ``-dirty`` if tracked files were changed, or ``None`` outside a git repository."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout

    try:
        # An installed copy may be in an ignored folder of another repository.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()
    except (OSError, subprocess.CalledProcessError):
        return None
