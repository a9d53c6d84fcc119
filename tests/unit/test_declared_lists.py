"""The lists of pages against what is declared: model families, metrics, and files of statistics;
and what the files of additions declare against the lists of the code."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from matplotlib.figure import Figure

from coupled_adam_bench import statistics
from coupled_adam_bench.report import figures
from coupled_adam_bench.statistics.declared import Statistic
from coupled_adam_bench.study.catalogue import metrics
from coupled_adam_bench.study.catalogue.architectures import ARCHITECTURES
from coupled_adam_bench.study.catalogue.bands import BANDS
from coupled_adam_bench.study.catalogue.contents import STATISTICS
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.catalogue.tables import PAPER_COLUMNS
from coupled_adam_bench.study.settings import optimizers
from coupled_adam_bench.study.settings.optimizers.base import BuiltInSettings
from coupled_adam_bench.study.settings.optimizers.built_in import BuiltIn
from coupled_adam_bench.training import live
from coupled_adam_bench.training.measurement import Measurement

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GEOMETRY = ROOT / "packages" / "embedding-geometry" / "README.md"
BAND = re.compile("|".join(sorted((band.name for band in BANDS), key=len, reverse=True)))
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def first_column(page: str, head: str) -> set[str]:
    """Return the names in the first column of the table with this head."""
    text = (DOCS / page).read_text(encoding="utf-8")
    table = text.partition(f"\n| {head} |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\S+?)`", cell)}


def test_the_model_families():
    assert first_column("training.md", "`architecture`") == ARCHITECTURES.keys()


def rows_of(page: Path, head: str) -> list[list[str]]:
    """Return the cells of the lines of the table with this head."""
    table = page.read_text(encoding="utf-8").partition(f"\n| {head} |")[2].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def symbol(html: str) -> str:
    """Return the symbol of a metric as a page in Markdown writes it."""
    signs = html.replace("<sub>", "_").replace("<sup>", "^").replace("|", r"\|")
    return re.sub(r"<.*?>", "", signs)


def test_the_table_of_metrics_follows_from_what_is_declared():
    """Name, symbol, unit and better side; a line stands for the four bands."""
    declared = []
    for name, metric in METRICS.items():
        in_tables = BAND.sub("BAND", symbol(metric.html).replace("most frequent", "most_frequent"))
        line = [f"`{BAND.sub('BAND', name)}`", in_tables, metric.unit, metric.better]
        if line not in declared:
            declared.append(line)
    listed = [
        [name, in_tables, unit, better]
        for name, in_tables, _, unit, better in rows_of(DOCS / "metrics.md", "column")
    ]
    assert listed == declared


def test_the_metrics_of_the_paper_are_named():
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    sentence = text.partition("The paper's tables have ")[2].partition(".\n")[0]
    assert tuple(re.findall(r"`(\w+)`", sentence)) == PAPER_COLUMNS


def test_a_symbol_stands_once():
    """Another label is one line: that of the loss goes to its bands, too."""
    tree = ast.parse(Path(metrics.__file__).read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    symbols = [text for text in texts if isinstance(text, str) and "<i>" in text]
    assert len(symbols) > 10
    assert sorted(symbols) == sorted({*symbols})


def test_the_package_defines_its_metrics_in_the_same_words():
    of_package = dict(rows_of(GEOMETRY, "metric"))
    assert len(of_package) > 10
    bench = {row[0]: row[2] for row in rows_of(DOCS / "metrics.md", "column")}
    ours = {name: LINK.sub(r"\1", bench[name]) for name in of_package}
    assert ours == of_package


def test_the_files_of_statistics():
    head = "file in `results/<study>/`"
    assert first_column("statistics.md", head) == {statistic.file for statistic in STATISTICS}


def defined_in(folder: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield what the modules of a folder define, as ``module:name`` of the program and itself."""
    for found in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        module = importlib.import_module(found.name)
        place = found.name.partition(".")[2]
        for name, value in vars(module).items():
            if isinstance(value, Statistic) or getattr(value, "__module__", "") == found.name:
                yield f"{place}:{name}", value


def test_no_optimizer_is_forgotten():
    declared = {
        value
        for _, value in defined_in(optimizers)
        if isinstance(value, type) and issubclass(value, BuiltInSettings) and "title" in vars(value)
    }
    assert declared == {*get_args(BuiltIn)}


def test_no_statistic_is_forgotten():
    declared = {name for name, value in defined_in(statistics) if isinstance(value, Statistic)}
    assert declared == {statistic.declaration for statistic in STATISTICS}


def test_no_measurement_is_forgotten():
    declared = {
        value
        for value in vars(live).values()
        if isinstance(value, type)
        and issubclass(value, Measurement)
        and value.__module__ == live.__name__
    }
    assert declared == {*live.MEASUREMENTS}


def test_no_figure_is_forgotten():
    declared = {
        name
        for name, value in defined_in(figures)
        if inspect.isfunction(value)
        and not value.__name__.startswith("_")
        and [*inspect.signature(value).parameters] == ["material"]
        and inspect.signature(value).return_annotation is Figure
    }
    assert declared == {figure.draw for figure in figures.FIGURES.values()}
