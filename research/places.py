"""The places of a study, and what two optimizers differ by at each of them.

A place is a table, a number of tokens and what its cells have in common. Its batch, D and rate are
read from the plan in the study's manifest, and its numbers from ``results.csv``. ``tests.csv`` has
the best optimizer with every other one only, so that a contrast is computed here from the values
that ``tests.csv`` is made of.
"""

import itertools
import json
import math
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from claims import ROOT, contents_of, file_of, lines_of
from tables import unpack

from coupled_adam_bench.report.make import Places, material_of
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults, records
from coupled_adam_bench.statistics.compare import compare
from coupled_adam_bench.statistics.paired import paired_test
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings.optimizers import rate_factor
from coupled_adam_bench.tools.verify.recorded import read_recorded

PLACE_AND_PAIR = ("table", "n_params", "n_tokens", "recipe", "metric", "optimizer", "reference")
"""The columns of tests.csv that tell its lines apart."""
_SETTINGS = re.compile(r"_(f|b2-)[\d.]+")


@dataclass(frozen=True)
class Contrast:
    """One optimizer's values minus another's at a place, paired by seed, with a 95 % interval."""

    group: Group
    metric: str
    optimizer: str
    reference: str
    difference: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """The sign of the difference; 0 where the interval holds 0, or where there is none."""
        if self.low > 0:
            return 1
        return -1 if self.high < 0 else 0


@cache
def results_of(study: str) -> StudyResults:
    """Return the results of a study of the book, with its tests made anew."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plan = read_recorded(unpack(study, folder)).plan
        places = Places(ROOT / "templates", folder, results=folder / "results.csv")
        return material_of(plan, places).study


@cache
def groups_of(study: str) -> tuple[Group, ...]:
    """Return the places of a study, each once."""
    groups = results_of(study).layout.groups.values()
    return tuple(group for of_table in groups for group in of_table)


def like(study: str, one: Group) -> list[Group]:
    """Return the places of a study that have the model and the text of one."""
    own = (one.setup.model, one.setup.data)
    return [group for group in groups_of(study) if (group.setup.model, group.setup.data) == own]


def times_read(study: str, group: Group) -> float:
    """Return the training tokens of a place for each token of its training text."""
    manifest = json.loads(contents_of(f"{study}/manifest.json"))
    (meta,) = [data["meta"] for data in manifest["data"] if data["id"] == group.setup.data]
    return float(group.n_tokens / meta["splits"]["train"]["n_tokens"])


def rate_of(cell: Cell) -> float:
    """Return the peak learning rate of a cell's embedding."""
    assert cell.model.learning_rate is not None
    return cell.model.learning_rate * rate_factor(cell.optimizer, cell.model.d_model)


def batch_of(cell: Cell) -> int:
    """Return the tokens of a step of a cell."""
    return cell.training.batch_sequences * cell.training.seq_len


def kind(key: str) -> str:
    """Return an optimizer's key without its rate, and without which beta2 of its own it has."""
    return _SETTINGS.sub(lambda found: "" if found[1] == "f" else "_b2", key)


def contrast(study: str, group: Group, metric: str, optimizer: str, reference: str) -> Contrast:
    """Return one optimizer's values minus another's at a place, given their keys."""
    results = results_of(study)
    by_seed = group.by_seed(results.values, results.layout.metrics[metric])
    test = paired_test(by_seed[optimizer], by_seed[reference], False)
    return Contrast(group, metric, optimizer, reference, test.difference, test.low, test.high)


def elsewhere(study: str, one: Contrast) -> Iterator[Contrast]:
    """Yield the same contrast at all places of its study with the same model and text, its own
    included; what differs is batch, D, rate, or which beta2 of its own an optimizer has."""
    wanted = (kind(one.optimizer), kind(one.reference))
    for group in like(study, one.group):
        for optimizer, reference in itertools.permutations(group.cells, 2):
            if (kind(optimizer), kind(reference)) == wanted:
                yield contrast(study, group, one.metric, optimizer, reference)


def stale(study: str) -> list[str]:
    """Return how tests.csv of a study differs from what its results.csv gives, line by line."""
    tests = compare(results_of(study))
    written = {_place_and_pair(line): line for line in lines_of(f"{study}/tests.csv")}
    made = {_place_and_pair(line): line for line in records(tests)}
    problems = [f"{key}: not in both" for key in written.keys() ^ made.keys()]
    for key in written.keys() & made.keys():
        for column, text in written[key].items():
            if not _is_same(text, made[key][column]):
                problems.append(
                    f"{key} {column}: {text}, and results.csv gives {made[key][column]}"
                )
    return problems


def _place_and_pair(line: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(line[name]) for name in PLACE_AND_PAIR)


def _is_same(text: str, value: Any) -> bool:
    """Tell whether a number of a file is the one that was made, up to rounding; NaN is empty."""
    if not isinstance(value, float):
        return text == str(value)
    number = float(text) if text else math.nan
    if math.isnan(number) or math.isnan(value):
        return math.isnan(number) == math.isnan(value)
    return math.isclose(number, value, rel_tol=1e-9, abs_tol=0.0) or number == value


def has_results(study: str) -> bool:
    """Tell whether the book has the results of a study."""
    return file_of(f"{study}/results.csv") is not None
