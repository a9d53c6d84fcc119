"""Paths of the folders and files of studies and runs, relative to the working directory."""

from pathlib import Path

from coupled_adam_bench.store.files import read_json

RESULTS = Path("results")
RUNS = RESULTS / "runs"
GPU_LEASES = RESULTS / ".gpus"
"""The locks of the GPUs that jobs on this machine use."""
GPU_SPEED = RESULTS / "gpu_proof" / "gpu_speed.csv"
"""What the proof on a GPU has measured there, by which ``plan`` estimates time."""
MLFLOW_DB = RESULTS / "mlflow.db"
MLFLOW_ARTIFACTS = RESULTS / "mlflow-artifacts"
"""The folder with the files of MLflow's runs, of which a database keeps the absolute path."""
IMPORT_SUMMARY = "mlflow.json"
"""The file in the folder of a study that says what the last import into MLflow did."""
MANIFEST = "manifest.json"
"""The record behind the numbers of a study, in its folder."""
REPORTED = "report.done"
"""The marker in the folder of a study that what it shows is made."""
NOT_IMPORTED = "not_imported"
"""The key of that summary with the reason why a server did not take the import."""
SHOWN = "shown"
"""The key of that summary with what to type and the address where MLflow then shows the curves."""
IMPORTED_FROM = "results"
"""The key of that summary with the folder whose files a database names; a server has its own
copies."""
HISTORY = "history.jsonl"
WEIGHTS = "model.safetensors"
TUNING = "tuning"
"""The folder of a study with the choice of each tuning."""


def data_dir(data_id: str, results: Path = RESULTS) -> Path:
    """Return the folder of token bins, tokenizer, unigram counts and generated evaluation sets."""
    return results / "data" / data_id


def run_dir(cell_id: str, results: Path = RESULTS) -> Path:
    """Return the folder of a cell's run."""
    return results / RUNS.name / cell_id


def trunk_dir(trunk_id: str, results: Path = RESULTS) -> Path:
    """Return the folder of a trunk, the steps that cells share before their decay: history and
    branches."""
    return results / "trunks" / trunk_id


def branch_file(trunk_id: str, step: int, results: Path = RESULTS) -> Path:
    """Return the file that records that a trunk has reached ``step``, where cells branch off."""
    return trunk_dir(trunk_id, results) / f"branch-{step:08d}.json"


def study_dir(study: str) -> Path:
    """Return the folder of a study: results, tests, tables and report."""
    return RESULTS / study


def plan_file(study: str) -> Path:
    """Return the file with the plan of a study, which every job of its run reads."""
    return study_dir(study) / "plan.json"


def not_imported(study_dir: Path) -> str | None:
    """Return why MLflow lacks something of a study, as its last import noted; ``None`` if
    nothing is noted."""
    try:
        reason: str | None = read_json(study_dir / IMPORT_SUMMARY).get(NOT_IMPORTED)
    except (ValueError, AttributeError):  # there is none, or it is damaged
        return None
    return reason


def shown_in_mlflow(study_dir: Path) -> list[str]:
    """Return what to type and the address to open for a study in MLflow, as its last import noted;
    nothing if it noted none."""
    try:
        return list(read_json(study_dir / IMPORT_SUMMARY).get(SHOWN, []))
    except (ValueError, AttributeError):  # there is none, or it is damaged
        return []


def is_elsewhere(kept: Path, here: Path) -> bool:
    """Tell whether an absolute path that a file has kept is another folder than ``here``."""
    try:
        return not here.samefile(kept)
    except OSError:  # one of them is not there
        return kept != here.resolve()


def imported_elsewhere(study_dir: Path) -> bool:
    """Tell whether the results have been moved or copied since their last import into MLflow's
    database."""
    try:
        kept = read_json(study_dir / IMPORT_SUMMARY).get(IMPORTED_FROM)
    except (ValueError, AttributeError):  # there is none, or it is damaged
        return False
    return kept is not None and is_elsewhere(Path(kept), study_dir.parent)


class RunFiles:
    """The files of a run, which lie in the folder of a cell or a trunk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "run.json"
        """The record of an ended run, written last."""
        self.damaged_record = folder / "run.json.damaged"
        """The record of a run whose model was found damaged: training makes both anew from the
        checkpoints."""
        self.cell = folder / "cell.json"
        """The settings of the cell."""
        self.history = folder / HISTORY
        """The logged steps, one JSON line each."""
        self.checkpoints = folder / "checkpoints"
        self.micro_batch = folder / "micro_batch.json"
        """The size of a micro-batch that did not fit into memory, if that happened."""
        self.model = folder / "model"
        """The folder of the trained model, in the format of transformers."""
        self.weights = self.model / WEIGHTS

    def evaluation(self, stage: str, key: str) -> Path:
        """Return the file of an evaluation; ``key`` is a hash of all that can change its
        numbers."""
        return self.folder / "evaluations" / f"{stage}-{key}.json"
