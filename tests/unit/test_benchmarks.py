"""Each benchmark runs at its smallest size."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALLEST = {
    "allocator": "--repeats 1 --models demo --steps 2",
    "compiler": "--rehearse --settings max_autotune",
    "compare": "--seeds 2",
    "contexts": "--vocab-size 512 --sequences 2 --contexts 16 --d-model 8 --rounds 1",
    "counts": "--families 20",
    "demo": "--rounds 1 --cores 1 --target data",
    "density": "",
    "embeddings": "--shape 512x16 --repeats 1",
    "error_rates": "--studies 20",
    "estimate": "",
    "evaluation": "--tasks synthetic --model gpt2-2x32 --seq-len 64 --limit 2",
    "head": "--vocab-size 256 --d-model 16 --tokens 64 --threads 1 --rounds 1",
    "held_out_documents": "--texts 20",
    "many_cells": "--cells 60 --document-cells 60 --documents 20",
    "optimizer": "--shapes 64x8 --device cpu --threads 1 --rounds 1",
    "planning": "--cells 60",
    "seeds": "",
    "track": "--cells 2 --points 3",
    "tracking_beside": "--model gpt2-2x32 --steps 5 --rounds 1",
    "training": ("--device cpu --cases v2048-8x128 --blocks 1 --steps 1 --threads 1"),
    "trends": "--studies 20",
}
ELSEWHERE = {"gpu_proof"}  # tests/unit/tools/rehearsal/test_gpu_proof.py


def test_each_benchmark_has_its_smallest_size():
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert scripts == SMALLEST.keys() | ELSEWHERE


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs_at_its_smallest_size(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *SMALLEST[name].split()],
        cwd=BENCHMARKS.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
