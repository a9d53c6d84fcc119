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

from coupled_adam_bench.page.formats import fixed, p_equals, plural, shorthand
from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.results.facts import Fact
from coupled_adam_bench.results.groups import Group, layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_text
from coupled_adam_bench.study.catalogue.bands import BANDS
from coupled_adam_bench.study.catalogue.metrics import LOSS, METRICS
from coupled_adam_bench.study.plan import load_plan, make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.study.settings.reading import read_study_file
from embedding_geometry.table import align

if TYPE_CHECKING:
    from pandas import DataFrame

Entry = str | type | dict[str, Any]
"""An optimizer: a name, ``my_module.MyOptimizer``, a class, or an entry of a study."""
NAME = "compare"
"""The name of the study, which is that of its folder in ``results/``."""
_CLONE = Path(__file__).parents[3]
_SHIPPED = _CLONE / "workflow" / "config" / f"{NAME}.yaml"
_HEADS = {
    "loss": "loss",
    **{band.metric: band.label for band in BANDS},
    "isotropy": "isotropy",
}
"""The columns of the table by their metric: the loss of all tokens and of each band of frequency,
and the isotropy."""
_DIGITS = 3
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
        seeds: Their number, from seed 1 on, or the seeds themselves. Seeds of an earlier call are
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
    """Return an optimizer as an entry of a study; a class has its dotted path for a name."""
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
            f"{file}: the study has not ended well, for the reason above; once that is mended, the"
            " same call goes on"
        )


def _relay(process: subprocess.Popen[str]) -> None:
    """Write what a process says to our standard error, which in a notebook is its cell's."""
    for line in process.stderr or ():
        sys.stderr.write(line)


def _result(name: str, file: Path) -> Comparison:
    """Return what a finished study has found."""
    folder = paths.study_dir(name)
    frame = read_results(folder / "results.csv")
    study = decide(StudyResults(layout_of(load_plan(paths.plan_file(name))), frame))
    ((group,),) = study.layout.groups.values()
    first, *others = study.at(group, LOSS).values()
    lines = [
        *align(list(_rows(study, group)), n_left=1),
        "",
        *(_sentence(other, first) for other in others),
        f"This is a head without a transformer on a generated text ({_PAGE}).",
        f"Report: {folder / 'report' / 'index.html'}",
    ]
    return Comparison(file, frame, "\n".join(lines))


def _rows(study: StudyResults, group: Group) -> Iterator[list[str]]:
    """Yield the head of the table and a row for each optimizer: means with standard deviations."""
    yield ["optimizer", *_HEADS.values()]
    facts = [study.at(group, METRICS[name]) for name in _HEADS]
    for key, label in group.optimizer_labels.items():
        yield [label, *(str(shorthand(fact[key].sample, _DIGITS)) for fact in facts)]


def _sentence(other: Fact, first: Fact) -> str:
    """Return in words how an optimizer's loss differs from that of the first one."""
    found = other.against[first.optimizer]
    if math.isnan(found.p):
        reason = found.reason or "a test needs two seeds"
        return f"{other.label} is not tested against {first.label}: {reason}."
    if other.by_seed == first.by_seed:
        return f"The losses of {other.label} and {first.label} are the same with every seed."
    low, high = fixed(found.low, _DIGITS), fixed(found.high, _DIGITS)
    return (
        f"The loss of {other.label} is {fixed(abs(found.difference), _DIGITS)} nat a token"
        f" {'lower' if found.difference < 0 else 'higher'} than that of {first.label}, which is"
        f" {found.outcome} (95 % interval {low} to {high}, paired by {plural(found.n, 'seed')};"
        f" p {p_equals(found.p)}, corrected p {p_equals(found.p_corrected)})."
    )
