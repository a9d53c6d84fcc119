"""A study in miniature: its optimizers, tokens and tables, at a size that takes a minute.

It needs none of the user's text, and writes nothing into the user's results.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from coupled_adam_bench.study.study import Study
from coupled_adam_bench.tools.start import environment

SNAKEFILE = Path(__file__).parents[3] / "Snakefile"
STEPS, ITEMS, LAYERS = 2, 2, 2
LANGUAGE = {
    "kind": "synthetic",
    "n_words": 60,
    "n_tokens": 40_000,
    "document_tokens": 40,
    "n_word_pairs": 40,
    "n_task_items": 10,
}
DATA = {
    "name": "rehearsal",
    "source": LANGUAGE,
    "tokenizer": "word",
    "vocab_size": 64,
    "split": {"val_fraction": 0.05, "test_fraction": 0.05},
}
# Jobs of many cells: importing torch takes longer than the steps.
EXECUTION = {"log_every": 1, "train_cells_per_job": 50, "evaluation_cells_per_job": 50}


def miniature(study: Study) -> dict[str, Any]:
    """Return the miniature as a mapping, which is a study like any other."""
    values: dict[str, Any] = study.model_dump(mode="json", exclude_unset=True)
    values.pop("paths", None)
    values["data"] = DATA
    values["models"] = []
    for number, model in enumerate(study.models, 1):
        # Of another width each, so that tables have as many rows.
        small = {"n_layer": LAYERS, "n_head": 2, "d_model": 8 * number}
        values["models"].append(model.model_dump(mode="json") | small)
    # What depends on the size of a run; all else stays as the study has it.
    values["training"] = values.get("training", {}) | {
        "seq_len": 16,
        "batch_sequences": 4,
        "warmup_steps": 1,
        "warmup_fraction": None,
        "precision": "fp32",
    }
    counts = {study.steps(entry) for block in study.grid for entry in block.tokens}
    steps = {count: STEPS + place for place, count in enumerate(sorted(counts))}
    for block, written in zip(study.grid, values["grid"], strict=True):
        n_seeds = 1 if block.table is None else study.table(block.table).rules.min_seeds
        written["seeds"] = block.seeds[:n_seeds]
        written["tokens"] = [{"steps": steps[study.steps(entry)]} for entry in block.tokens]
    evaluation = values.setdefault("evaluation", {})
    evaluation["word_similarity"] = "synthetic"
    evaluation["test_loss"] = {"windows": study.evaluation.test_loss.windows, "n_batches": ITEMS}
    if study.evaluation.downstream is not None:
        evaluation["downstream"] = {"tasks": "synthetic", "limit": ITEMS}
    return values | {"execution": EXECUTION}


def rehearse(study: Study, cores: int) -> int:
    """Run the miniature by the same Snakefile, and return Snakemake's exit status."""
    with TemporaryDirectory(prefix="rehearsal-") as folder:
        file = Path(folder, "study.yaml")
        file.write_text(yaml.safe_dump(miniature(study), sort_keys=False))
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE)]
        command += ["--directory", folder, "--cores", str(cores), "--configfile", str(file)]
        # Nothing of it goes to the user's server of MLflow.
        variables = environment() | {"MLFLOW_TRACKING_URI": ""}
        return subprocess.run(command, env=variables, check=False).returncode
