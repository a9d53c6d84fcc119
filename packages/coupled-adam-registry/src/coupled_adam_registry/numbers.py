"""Checks that the numbers of a bundle follow from its results, and that none was left out."""

import math
from pathlib import Path

from pandas import DataFrame
from pandas.testing import assert_frame_equal

from coupled_adam_bench.records import stored
from coupled_adam_bench.report import contents
from coupled_adam_bench.results import collect, groups, tidy
from coupled_adam_bench.results.choices import choice_record, tried_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics import declared
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan.tuning import choice_file
from coupled_adam_bench.tools.verify.judge import MetricKey
from coupled_adam_bench.tools.verify.recorded import Recorded
from coupled_adam_registry import form

_ROUNDING = 1e-12
"""What a number of a statistic may be off, since processors sum in different orders; above 1, as a
share of it."""
_ANEW = "run `report` on the unchanged results of the study, and bundle it again"


def check_numbers(opened: form.Opened, recorded: Recorded, study_dir: Path) -> None:
    """Refuse a number that does not follow from the results, and results that lack one."""
    folder = opened.folder
    if odd := opened.bundle.histories.keys() ^ recorded.cells.keys():
        raise ValueError(
            f"{folder / form.BUNDLE}: histories.{min(odd)}: only one of this and manifest.json"
            " has it"
        )
    results = _check_results(folder, recorded, study_dir / form.RESULTS)
    study = decide(StudyResults(groups.layout_of(recorded.plan), results))
    material = declared.Material(study, study_dir=study_dir)
    for statistic in contents.statistics_of(recorded.plan):
        if statistic.file in form.STATISTICS:
            found = tidy.read_csv(study_dir / statistic.file, statistic.columns, statistic.key)
            if statistic.file == form.TUNING:
                _write_choices(folder / form.TUNING, found, recorded, study_dir / paths.TUNING)
            _check_same(folder / statistic.file, found, material.frame(statistic), _ROUNDING)


def _check_results(folder: Path, recorded: Recorded, path: Path) -> DataFrame:
    """Return ``results.csv``; refuse one that lacks a number, or has one that cannot be, or another
    field."""
    plan, shown = recorded.plan, folder / form.RESULTS
    values = recorded.values  # noqa: PD011 - no frame
    of_study: dict[str, set[MetricKey]] = {}
    # What is undefined is so for all cells of a model on a text, as the similarity of words that it
    # does not have.
    defined: set[tuple[str, str, MetricKey]] = set()
    for name, cell in plan.cells.items():
        of_study.setdefault(cell.study.name, set()).update(values.get(name, ()))
        finite = [number for number, value in values.get(name, {}).items() if math.isfinite(value)]
        defined |= {(cell.data_id, cell.model.name, number) for number in finite}
    for name, cell in plan.cells.items():
        status = recorded.cells[name]["status"]
        for task, metric in sorted(of_study[cell.study.name]):
            value = values.get(name, {}).get((task, metric))
            if value is None:
                raise ValueError(
                    f"{shown}: no {task} {metric} of {name}; no seed or number may be left out:"
                    f" {_ANEW}"
                )
            must_be = (
                status == "completed" and (cell.data_id, cell.model.name, (task, metric)) in defined
            )
            is_odd = (
                not math.isfinite(value)
                if must_be
                else status == "diverged" and not math.isnan(value)
            )
            if is_odd or stored.wrong_row([{"task": task, "metric": metric, "value": value}]):
                what = f"{task} {metric} of {name}, which is {status}, cannot be {value}"
                raise ValueError(f"{shown}: value: {what}; {_ANEW}")
    results = collect.read_results(path)
    columns = (results[name].tolist() for name in ("cell", "task", "metric", "value", "unit"))
    rows = ((plan.cells[name], *rest) for name, *rest in zip(*columns, strict=True))
    _check_same(shown, results, collect.results_frame(plan, rows))
    return results


def _write_choices(path: Path, tried: DataFrame, recorded: Recorded, folder: Path) -> None:
    """Write into ``folder`` what trials chose by the losses of a bundle; refuse other choices than
    the cells have."""
    records = [*recorded.cells.values(), *recorded.manifest["tuning_cells"]]
    diverged = {record["cell"] for record in records if record["status"] == "diverged"}
    for cell, loss in zip(tried["cell"], tried["val_loss"], strict=True):
        if not (math.isnan(loss) if cell in diverged else 0 <= loss < math.inf):
            raise ValueError(
                f"{path}: val_loss: {loss} of {cell} is of no run that ended as it did; put it back"
            )
    for name, tuning in recorded.plan.tunings.items():
        record = choice_record(tuning, tried_of(tuning, tried))
        if record["chosen"] != recorded.choices[name]:
            raise ValueError(
                f"{path}: {name}: by these losses candidate {record['chosen']} is chosen, but the"
                f" cells have the settings of candidate {recorded.choices[name]}; put the losses"
                " back as they were"
            )
        write_sealed(choice_file(folder, name), record)


def _check_same(path: Path, found: DataFrame, expected: DataFrame, rounding: float = 0.0) -> None:
    """Raise ``ValueError`` that names column and row in which a file is not what follows from the
    results."""
    try:
        assert_frame_equal(found, expected, rtol=rounding, atol=rounding)
    except AssertionError as error:
        where, *_, what = str(error).splitlines()
        raise ValueError(
            f"{path}: {where}: {what}, which follows from the study and its results; {_ANEW}"
        ) from None
