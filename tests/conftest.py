import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from finished import HOSTILE, copied, finish_in_hostile_folder, once, small, write
from forks import FOLDER, OWNER, STARTED, kill_started, python_of_workers
from hypothesis import settings
from planned import only
from starts import finish, make_tables
from tiny import tiny_settings
from tiny import tiny_study as tiny_study

from coupled_adam_bench.records.stored import Measurement, measured_cells
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.catalogue.tables import PAPER_COLUMNS
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import parse_study

# Tests run on whole machines and beside each other: a fixed, small number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault(
    "TORCHINDUCTOR_VEC_ISA_OK", "1"
)  # else each process that compiles starts others that try the CPU

# Whoever runs the tests sees what all others see; `make nightly` draws others.
settings.register_profile("same-draws", deadline=None, derandomize=True)
settings.register_profile("other-draws", deadline=None, derandomize=False)
settings.load_profile("same-draws")

ROOT = Path(__file__).parent.parent
PREFIX = "coupled-adam-bench-"
"""The name of the folder of a run of tests begins with it and the run's process."""
# Whole studies come first, so that no worker waits for the other one's last study: those on SLURM,
# which begin with the finished study, beside those that have a study of their own for all of their
# tests. Then come the largest groups, and at the end what is small.
FIRST = (
    "slurm",
    "workflow",
    "unit/training",
    "unit/report",
    "unit/tracking",
    "packages",
    "unit/evaluation",
    "unit/tools",
    "unit/data",
)


def _fast_place() -> Path:
    """Return where the folders of the tests lie: in memory, if there is room and programs may run.

    A file that is written whole waits for its disk, and the tests write tens of thousands.
    """
    usual, memory = Path(tempfile.gettempdir()), Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(memory, os.W_OK):
        return usual
    found = os.statvfs(memory)
    has_room = found.f_bavail * found.f_frsize > 4_000_000_000
    if not has_room or found.f_flag & os.ST_NOEXEC:
        return usual
    for folder in memory.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():  # of a run of tests that was killed
            shutil.rmtree(folder, ignore_errors=True)
    return memory


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if " " in sys.prefix:
        pytest.exit(
            f"{sys.prefix}: PyTorch's compiler and Snakemake's SLURM plugin cannot use an"
            " environment whose path has a space; run the tests in another folder (studies that"
            " use neither run here)",
            returncode=2,
        )
    # What tests start would ignore SIGHUP under nohup, and SIGINT in the background of a script.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # workers inherit it
        folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_fast_place())
        os.environ |= {FOLDER: folder, OWNER: str(os.getpid())}
        config.option.basetemp = config.option.basetemp or f"{folder}/tests"


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.write_line(f"Skipped: {len(skipped)}; pytest -rs lists the reasons.")
    if exitstatus == pytest.ExitCode.TESTS_FAILED and FOLDER in os.environ:
        kept = os.environ.pop(FOLDER)
        terminalreporter.write_line(f"The folders of these tests are kept in {kept}; delete it.")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and FOLDER in os.environ:
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    python = python_of_workers()
    for spec in specs:
        spec.python = python


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def order(item: pytest.Item) -> tuple[int, bool, bool]:
        path = item.path.relative_to(ROOT).as_posix().removeprefix("tests/")
        number = next(
            (number for number, start in enumerate(FIRST) if path.startswith(start)), len(FIRST)
        )
        is_alone = item.get_closest_marker("xdist_group") is None
        # Whoever needs the finished study waits until it is made.
        waits = "finished" in getattr(item, "fixturenames", ())
        return max(1, number), is_alone, is_alone and waits

    items.sort(key=order)
    for item in items:
        if (group := _group(item.path)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def _group(path: Path) -> str | None:
    """Name the tests that one worker runs with those of a file: they share fixtures, and libraries
    that load slowly."""
    folder, *names = path.relative_to(ROOT).with_suffix("").parts
    if folder == "packages":
        return names[0]
    if names.pop(0) != "unit":
        return None
    if names[0] in ("training", "data", "tools"):  # too many for one worker
        return "/".join(names[:2])
    return names[0]


def pytest_collection_finish() -> None:
    """Look for garbage only among what tests make: what was imported is a million objects more."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _leave_no_process() -> Iterator[None]:
    """Kill what a test that fails has left, with its jobs."""
    n_before = len(STARTED)
    yield
    kill_started(n_before)


def other_settings() -> dict[str, Any]:
    """The study of the finished working folder, evaluated under other settings."""
    settings = small(tiny_settings(study="other"))
    settings["evaluation"] = {
        "word_similarity": [],
        "downstream": {"tasks": "synthetic", "limit": 5},
    }
    return settings


class Stored:
    """Writes the records of runs and evaluations, as training and evaluation leave them, into a
    folder of runs."""

    def __init__(self, plan: Plan, runs: Path) -> None:
        self.runs = runs
        self.cells = {
            cell.id: (cell, measurements) for cell, measurements in measured_cells(plan, runs)
        }

    def measurement(self, cell_id: str, stage: str) -> Measurement:
        (found,) = (m for m in self.cells[cell_id][1] if m.stage.name == stage)
        return found

    def run(self, cell_id: str, status: str = "completed", **facts: Any) -> None:
        sha256 = "ab" * 32 if status == "completed" else None
        reason = None if status == "completed" else "loss or gradient not finite in step 60 of 100"
        record = {"cell": cell_id, "status": status, "reason": reason, "model_sha256": sha256}
        write_sealed(self.runs / cell_id / "run.json", record | facts)

    def evaluation(
        self, cell_id: str, stage: str, rows: list[tuple[str, str, Any, str]], /, **changes: Any
    ) -> Path:
        """Write an evaluation of a run that is there; ``changes`` are of the record."""
        measurement = self.measurement(cell_id, stage)
        model_sha256 = measurement.model_sha256(cell_id)
        diverged = model_sha256 is None
        record = {
            "cell": cell_id,
            "stage": stage,
            "status": "diverged" if diverged else "ok",
            "reason": "loss or gradient not finite in step 60 of 100" if diverged else None,
            "version": measurement.stage.version,
            "settings": measurement.settings,
            "model_sha256": model_sha256,
            "results": [
                dict(zip(("task", "metric", "value", "unit"), row, strict=True)) for row in rows
            ],
        }
        path = measurement.path(cell_id, model_sha256)
        write_sealed(path, record | changes)
        return path


@pytest.fixture(scope="session")
def stored() -> type[Stored]:
    return Stored


@pytest.fixture(scope="session")
def results_of() -> Callable[..., StudyResults]:
    """Return the results of a plan whose value of every metric of the tables is ``value(cell,
    metric)``."""

    def results_of(plan: Plan, value: Callable[[Cell, Metric], float]) -> StudyResults:
        rows = (
            (cell, metric.task, metric.name, value(cell, metric), metric.unit)
            for cell in plan.cells.values()
            for metric in map(METRICS.get, PAPER_COLUMNS)
        )
        return StudyResults(layout_of(plan), results_frame(plan, rows))

    return results_of


def source_of(plan: Plan, runs: Path, study: Any = None, study_dir: Path = Path()) -> Any:
    """Return what figures are drawn from, without results where no ``study`` is given."""
    return SimpleNamespace(
        plan=plan,
        runs=runs,
        study=study or SimpleNamespace(layout=layout_of(plan)),
        study_dir=study_dir,
    )


@pytest.fixture(scope="session")
def drawn_from() -> Callable[..., Any]:
    return source_of


@pytest.fixture(scope="session")
def other_study() -> Callable[[], dict[str, Any]]:
    return other_settings


@pytest.fixture
def tiny_plan() -> Plan:
    return make_plan(parse_study(tiny_settings()))


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of :func:`tiny_plan`, prepared once; do not write into it."""
    from prepared import prepared

    plan = make_plan(parse_study(tiny_settings()))
    return prepared(plan, tmp_path_factory.mktemp("data") / only(plan).data_id)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which a small study has run through; tests read it, and change their
    copies."""
    folder = once(
        tmp_path_factory,
        "finished",
        lambda folder: finish_in_hostile_folder(folder, small(tiny_settings())),
    )
    return folder / HOSTILE / "study"


@pytest.fixture(scope="session")
def finished_twice(tmp_path_factory: pytest.TempPathFactory, finished: Path) -> Path:
    """A copy of the finished working folder, where a study ``other`` of its cells has run with
    settings of its own, to its tables."""

    def make(folder: Path) -> None:
        copied(finished, folder / "copy")
        write(folder / "copy", other_settings(), "other.yaml")
        finish(folder / "copy", "evaluate", study="other.yaml")
        make_tables(folder / "copy", "other")

    return once(tmp_path_factory, "finished_twice", make) / "copy"


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished working folder, with its times of files, to change."""
    return copied(finished, tmp_path / "copy")
