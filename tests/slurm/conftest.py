"""A real SLURM cluster on this machine, for the tests in this folder."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOOLS = ("slurmctld", "slurmd", "munged", "srun")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start two nodes and return the environment variables that lead clients to them.

    Skipped where SLURM is not installed, unless CAB_REQUIRE_TOOLS=1.
    """
    search = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=search) is None]:
        message = f"no SLURM: {', '.join(missing)} missing (Debian: slurm-wlm, munge)"
        if os.environ.get("CAB_REQUIRE_TOOLS") == "1":
            pytest.fail(f"{message}, and CAB_REQUIRE_TOOLS=1")
        pytest.skip(message)
    folder = tmp_path_factory.mktemp("slurm") / "cluster"
    try:
        start = [str(HERE / "slurm-up.sh"), str(folder)]
        up = subprocess.run(start, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
        exports = dict(re.findall(r"(\w+)=(\S+)", up.stdout.removeprefix("export ")))
        found = {
            name: value.replace("$PATH", os.environ["PATH"]) for name, value in exports.items()
        }
        yield os.environ | found
    finally:
        subprocess.run([str(HERE / "slurm-down.sh"), str(folder)], check=False, timeout=60)
