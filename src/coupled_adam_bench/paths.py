"""Where every file of a study lies, relative to the working directory."""

from pathlib import Path

RESULTS = Path("results")
MLFLOW_DB = RESULTS / "mlflow.db"


def data_dir(data_id: str) -> Path:
    """Return the folder of token bins, tokenizer, unigram counts and generated evaluation sets."""
    return RESULTS / "data" / data_id


def run_dir(cell_id: str) -> Path:
    """Return the folder of a cell: checkpoints, history, model and evaluations."""
    return RESULTS / "runs" / cell_id


def trunk_dir(trunk_id: str) -> Path:
    """Return the folder of a trunk, the steps that cells share before their decay: history and branches."""
    return RESULTS / "trunks" / trunk_id


def branch_file(trunk_id: str, step: int) -> Path:
    """Return the file that says that a trunk has done ``step`` steps, after which cells leave it."""
    return trunk_dir(trunk_id) / f"branch-{step:08d}.json"


def study_dir(study: str) -> Path:
    """Return the folder of a study: results, tests, tables and report."""
    return RESULTS / study
