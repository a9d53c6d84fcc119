"""CPU seconds of the demo from an empty folder on, of all its processes.

    python benchmarks/demo.py [--against CHECKOUT] [--rounds 2] [--cores 2]

CHECKOUT is another clone, with a ``.venv`` of its own. Both run in turns, and the last line is the
ratio of their medians. Other work on a machine changes CPU seconds less than wall time, and adds to
them, too. The import into MLflow beside the jobs is not counted, since Snakemake does not wait for
its end. The beginning of the SHA-256 of ``results.csv`` tells whether the numbers are the same.
"""

import argparse
import hashlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parents[1]


def cpu_seconds() -> float:
    """Return the CPU seconds of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_demo(checkout: Path, cores: int, target: str) -> float:
    """Run the demo of a clone in an empty folder, print what that took, and return the CPU
    seconds."""
    python = sys.executable if checkout == HERE else checkout / ".venv" / "bin" / "python"
    command = [str(python), "-m", "snakemake", "--snakefile", str(checkout / "Snakefile")]
    with tempfile.TemporaryDirectory() as folder:
        before, started = cpu_seconds(), time.perf_counter()
        subprocess.run(
            [*command, "--cores", str(cores), target],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        cpu, wall = cpu_seconds() - before, time.perf_counter() - started
        results = Path(folder) / "results" / "demo" / "results.csv"
        same = "-"
        if results.is_file():
            same = hashlib.sha256(results.read_bytes()).hexdigest()[:12]
    print(f"{checkout.name}: {cpu:.1f} CPU s, {wall:.0f} s, results.csv {same}", flush=True)
    return cpu


def main() -> None:
    """Run the demo of each clone in turns."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--against", type=Path, help="another clone, to run in turns with this")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--target", default="all", help="a part of the demo, such as `data`")
    arguments = options.parse_args()
    others = [arguments.against.resolve()] if arguments.against else []
    checkouts = [*others, HERE]
    seconds: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
    for _ in range(arguments.rounds):
        for checkout in checkouts:
            seconds[checkout].append(run_demo(checkout, arguments.cores, arguments.target))
    if others:
        other, ours = (statistics.median(seconds[checkout]) for checkout in checkouts)
        print(f"ratio {ours / other:.3f}")


if __name__ == "__main__":
    main()
