"""Trains and measures the cells of some seeds without Snakemake, on a machine lent for minutes.

``python tests/gpu/by_commands.py results/STUDY/plan.json SEED...`` needs the plan and the data
beside it, which ``snakemake data`` makes at home. It ends with ``numbers.tar.gz``: all of the cells
but weights and checkpoints. Unpacked at home, it lets the study go on to its report.
"""

import subprocess
import sys
import tarfile
from pathlib import Path

from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.study.plan import read_plan

plan_file, *seeds = sys.argv[1:]
cells = [cell for cell in read_plan(Path(plan_file)).cells.values() if str(cell.seed) in seeds]
for command in ("train", "evaluate"):
    named = ["--plan", plan_file, "--cells", *(cell.id for cell in cells)]
    subprocess.run([sys.executable, "-m", "coupled_adam_bench", command, *named], check=True)
with tarfile.open("numbers.tar.gz", "w:gz") as archive:
    for folder in [run_of(cell.id).folder for cell in cells]:
        for file in [*folder.glob("*.json*"), *folder.glob("evaluations/*")]:
            archive.add(file)
