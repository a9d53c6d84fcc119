"""What `compare` takes from an empty folder on: wall time, and the CPU seconds of all its jobs.

Run: python benchmarks/compare.py. The cores share the CPU seconds of the jobs that train, and all
else is one job after the other. So on an idle machine the wall time is near the seconds that are
printed last.
"""

import argparse
import resource
import tempfile
import time
from contextlib import chdir
from pathlib import Path

from coupled_adam_bench import compare

OPTIMIZERS = ["adamw", {"name": "adamw", "beta2": 0.999}]
CORES = 2


def cpu_seconds() -> float:
    """Return the CPU seconds of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def training_seconds(logs: Path) -> float:
    """Return the CPU seconds of the jobs that train, of which Snakemake keeps a table each."""
    seconds = 0.0
    for file in logs.glob("*.train.tsv"):
        names, values = (line.split("\t") for line in file.read_text().splitlines())
        seconds += float(dict(zip(names, values, strict=True))["cpu_time"])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        started = time.perf_counter()
        found = compare(OPTIMIZERS, seeds, cores=CORES)
        wall, cpu = time.perf_counter() - started, cpu_seconds()
        training = training_seconds(found.study.parent / "logs")
    print(found)
    print(
        f"{len(OPTIMIZERS)} optimizers, {seeds} seeds: {wall:.0f} s, {cpu:.0f} CPU s, of which"
        f" training {training:.0f}; {cpu - training + training / CORES:.0f} s on {CORES} idle cores"
    )


if __name__ == "__main__":
    main()
