"""Optimizers against each other in three minutes: a study underneath, and its answer in a few
lines.

The study is ``workflow/config/compare.yaml`` with other optimizers and seeds. Snakemake runs it, so
ids, numbers, statistics and the way on after a stop are those of every study.
"""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from coupled_adam_bench.page.formats import fixed, p_value, plural, shorthand
from coupled_adam_bench.report.contrasts import Contrast, contrasts
from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.results.groups import Group, layout_of
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_text
from coupled_adam_bench.study.catalog.metrics import BANDS, METRICS
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.config.reading import read_study_file
from coupled_adam_bench.study.plan import load_plan, make_plan
from embedding_geometry.table import align

if TYPE_CHECKING:
    from pandas import DataFrame

Entry = str | type | dict[str, Any]
"""An optimizer: a name, ``my_module.MyOptimizer``, a class, or an entry of a study."""
NAME = "compare"
"""The name of the study, which is that of its folder in ``results/``."""
_CLONE = Path(__file__).parents[3]
_SHIPPED = _CLONE / "workflow" / "config" / f"{NAME}.yaml"
_LOSS = METRICS["loss"]
_HEADS = {
    "loss": "loss",
    **{band.metric: band.label for band in BANDS},
    "isotropy": "isotropy",
}
"""The columns of the table by their metric: the loss of all tokens and of each band of frequency,
and the isotropy."""
_DIGITS = 3
_WORDS = {
    "good": "has a lower loss than",
    "bad": "has a higher loss than",
    "": "has no clearly other loss than",
}
"""What a sentence says of each outcome of a comparison."""
_PAGE = "docs/contexts.md"
_LINE_SECONDS = "10"
"""Seconds between two lines of progress where no line can be drawn anew, such as in a notebook."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """What a comparison has found; printed, it is a table and a sentence for each optimizer."""

    study: Path
    """The study that it ran, a YAML file: ``snakemake --cores all --configfile FILE`` goes on with
    the same cells."""
    frame: "DataFrame"
    """All numbers of the study, one a row, with the columns of ``results.csv``."""
    text: str
    """The table and the sentences."""

    def __repr__(self) -> str:
        return self.text


def compare(
    optimizers: Sequence[Entry],
    seeds: int | Sequence[int] = 3,
    *,
    name: str = NAME,
    cores: int | None = None,
) -> Comparison:
    """Train a head without a transformer with each optimizer and seed, and compare them with the
    first one.

    Args:
        optimizers: Two or more. The first one is what the others are compared with.
        seeds: Their number, from seed 1 on, or the seeds themselves. Those of an earlier call are
            not trained again.
        name: The name of the study, and of its folder in ``results/``.
        cores: How many processors may work; by default all.

    Raises:
        ValueError: An optimizer or a seed is not valid. Nothing has been trained.
        RuntimeError: The study has not ended well; its words are on the standard error.
    """
    values = _study(optimizers, seeds, name)
    # What is wrong with the settings is said here. Snakemake tries the classes, before it trains.
    make_plan(parse_study(values, NAME))
    file = paths.study_dir(name) / f"{name}.yaml"
    command = f"snakemake --cores all --configfile {file}"
    write_text(file, f"# {command}\n" + yaml.safe_dump(values, sort_keys=False, width=100))
    _run(file, cores)
    return _result(name, file)


def _study(optimizers: Sequence[Entry], seeds: int | Sequence[int], name: str) -> dict[str, Any]:
    """Return the study as a mapping."""
    if not _SHIPPED.is_file():
        raise ValueError(
            f"{_SHIPPED}: no such file; studies are run from a clone of the repository:"
            " pip install -e packages/coupled-adam -e packages/embedding-geometry -e '.[pipeline]'"
        )
    if isinstance(optimizers, str) or len(optimizers) < 2:
        raise ValueError(
            f"optimizers: {optimizers!r} is nothing to compare; give a list of two or more, such as"
            ' ["adamw", "my_module.MyOptimizer"]'
        )
    values: dict[str, Any] = read_study_file(_SHIPPED)
    (block,) = values["grid"]
    block["optimizers"] = [_entry(one) for one in optimizers]
    block["seeds"] = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    return values | {"study": name}


def _entry(optimizer: Entry) -> str | dict[str, Any]:
    """Return an optimizer as a study has it; a class has its dotted path for a name."""
    if isinstance(optimizer, type):
        if optimizer.__module__ == "__main__":
            raise ValueError(
                f"optimizers: {optimizer.__name__} is of this program, which no job imports; write"
                f" it into a file my_module.py here and give 'my_module.{optimizer.__name__}'"
            )
        optimizer = f"{optimizer.__module__}.{optimizer.__qualname__}"
    if isinstance(optimizer, str) and "." in optimizer:
        return {"name": "custom", "path": optimizer, "key": optimizer, "label": optimizer}
    return optimizer


def _run(file: Path, cores: int | None) -> None:
    """Let Snakemake run a study, and show what it says."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(_CLONE / "Snakefile")]
    command += ["--cores", str(cores or "all"), "--configfile", str(file)]
    is_terminal = sys.stderr.isatty()
    if not is_terminal:
        command += ["--logger-study-line-seconds", _LINE_SECONDS]
    # A notebook sets how its own figures are drawn.
    variables = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    # In a session of its own it is stopped once, by us, and not by the terminal as well.
    with subprocess.Popen(
        command,
        env=variables,
        stderr=None if is_terminal else subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            _relay(process)
            status = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does, so that its jobs stop, too
            _relay(process)
            process.wait()
            raise
    if status:
        raise RuntimeError(
            f"{file}: the study has not ended well, for the reason above; the same call goes on"
        )


def _relay(process: subprocess.Popen[str]) -> None:
    """Write what a process says to our standard error, which in a notebook is its cell's."""
    for line in process.stderr or ():
        sys.stderr.write(line)


def _result(name: str, file: Path) -> Comparison:
    """Return what a finished study has found."""
    folder = paths.study_dir(name)
    frame = read_results(folder / "results.csv")
    study = StudyResults(layout_of(load_plan(paths.plan_file(name))), frame)
    ((group,),) = study.groups.values()
    reference, *others = group.cells
    answers = contrasts(study, group, reference, centered=False)
    found = [Contrast(group, key, reference, answers) for key in others]
    lines = [
        *align(list(_rows(study, group)), n_left=1),
        "",
        *map(_sentence, found),
        f"This is a head without a transformer on a generated text ({_PAGE}).",
        f"Report: {folder / 'report' / 'index.html'}",
    ]
    return Comparison(file, frame, "\n".join(lines))


def _rows(study: StudyResults, group: Group) -> Iterator[list[str]]:
    """Yield the head of the table and a row for each optimizer: means with standard deviations."""
    labels = group.optimizer_labels
    yield ["optimizer", *_HEADS.values()]
    for key, label in labels.items():
        cells = []
        for name in _HEADS:
            values = study.samples(group, METRICS[name])[key]
            cells.append(str(shorthand(summarize(values), _DIGITS)))
        yield [label, *cells]


def _sentence(contrast: Contrast) -> str:
    """Return in words how an optimizer's loss differs from that of the first one."""
    test, p = contrast.test(_LOSS)
    first = contrast.group.optimizer_labels[contrast.reference]
    if math.isnan(test.difference):
        reason = test.reason or "a test needs two seeds"
        return f"{contrast.label} is not tested against {first}: {reason}."
    ends = f"{fixed(test.low, _DIGITS)} to {fixed(test.high, _DIGITS)}"
    return (
        f"{contrast.label} {_WORDS[contrast.outcome(_LOSS)]} {first}: the difference is"
        f" {fixed(test.difference, _DIGITS)} nat a token (95 % interval {ends}, paired by"
        f" {plural(test.n, 'seed')}; one-sided p of a lower loss after Holm's correction:"
        f" {p_value(p)})."
    )
