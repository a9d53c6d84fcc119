"""The lists of pages against what is declared: model families, metrics, and files of statistics."""

import re
from pathlib import Path

from coupled_adam_bench.study.architectures import ARCHITECTURES
from coupled_adam_bench.study.catalog.contents import STATISTICS
from coupled_adam_bench.study.catalog.metrics import BANDS, METRICS
from coupled_adam_bench.study.catalog.tables import PAPER_COLUMNS

DOCS = Path(__file__).parents[2] / "docs"


def first_column(page: str, head: str) -> set[str]:
    """Return the names in the first column of the table with this head."""
    text = (DOCS / page).read_text(encoding="utf-8")
    table = text.partition(f"\n| {head} |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\S+?)`", cell)}


def test_the_model_families():
    assert first_column("training.md", "`architecture`") == ARCHITECTURES.keys()


def test_the_metrics_of_embeddings():
    of_embeddings = {name for name, metric in METRICS.items() if metric.task == "embeddings"}
    assert first_column("measure.md", "metric") == of_embeddings


def test_the_metrics_that_the_paper_does_not_have():
    found = first_column("metrics.md", "column")
    listed = {name.replace("BAND", band.name) for name in found for band in BANDS}
    of_embeddings = {name for name, metric in METRICS.items() if metric.task == "embeddings"}
    assert listed - of_embeddings == METRICS.keys() - of_embeddings - set(PAPER_COLUMNS)


def test_the_files_of_statistics():
    head = "file in `results/<study>/`"
    assert first_column("statistics.md", head) == {statistic.file for statistic in STATISTICS}
