import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from coupled_adam_bench.config import parse_study
from coupled_adam_bench.plan import make_plan
from coupled_adam_bench.report.figures import FIGURES, write_figures
from coupled_adam_bench.report.geometry_figure import geometry_of_study
from coupled_adam_bench.results.collect import collect, write_results
from coupled_adam_bench.results.groups import layout_of


def test_all_figures_in_both_formats_the_same_bytes_again(fake: Any, tmp_path: Path) -> None:
    write_figures(fake.plan, fake.study_dir / "results.csv", fake.root / "runs", tmp_path)
    names = sorted(f"{name}.{kind}" for name in FIGURES for kind in ("svg", "pdf"))
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (fake.study_dir / "figures" / name).read_bytes()
        if name.endswith(".svg"):
            text = (tmp_path / name).read_text()
            assert ElementTree.fromstring(text).tag.endswith("svg")
            assert not re.search(r"\d{4}-\d\d-\d\dT", text)
        else:
            assert b"CreationDate" not in (tmp_path / name).read_bytes()


def test_partial_results_and_studies_without_tables_are_drawn(
    tiny_study: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    block = {"models": ["nano"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}
    studies = ({}, {"grid": [block]})
    for number, plan in enumerate(make_plan(parse_study(tiny_study(**changes))) for changes in studies):
        write_results(collect(plan, tmp_path / "runs", partial=True), tmp_path / "results.csv")
        write_figures(plan, tmp_path / "results.csv", tmp_path / "runs", tmp_path / str(number))
        assert len(list((tmp_path / str(number)).iterdir())) == 2 * len(FIGURES)


@pytest.mark.fault(
    "settings",
    "a label is half a formula, such as `$\\frac{$`",
    "figures print it as it is, where the report failed after all training",
)
def test_labels_are_text_and_not_formulas(tiny_study: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    settings = tiny_study()
    settings["models"][0]["label"] = r"5$ <b>&_{\frac"
    own = {"name": "custom", "path": "torch.optim.Adagrad", "key": "ada", "label": r"$\frac{$"}
    settings["grid"][0]["optimizers"] = ["adamw", own]
    settings["grid"][0]["tokens"] = [{"steps": 60, "label": "$1^ & $"}]
    # The same place in two tables: drawn once, from Table 1.
    settings["grid"].append(settings["grid"][0] | {"table": "table2", "seeds": [1]})
    plan = make_plan(parse_study(settings))
    for cell_id in plan.cells:
        (tmp_path / "runs" / cell_id).mkdir(parents=True)
        (tmp_path / "runs" / cell_id / "history.jsonl").write_text('{"step": 1, "loss": 2.5, "mean_norm_ratio": 0.1}\n')
    write_results(collect(plan, tmp_path / "runs", partial=True), tmp_path / "results.csv")
    write_figures(plan, tmp_path / "results.csv", tmp_path / "runs", tmp_path / "figures")
    for name in FIGURES.keys() - {"geometry"}:  # which has no line of a cell that is not measured
        text = (tmp_path / "figures" / f"{name}.svg").read_text()
        ElementTree.fromstring(text)
        assert r"<!-- $\frac{$ -->" in text  # matplotlib's note of what it drew


def test_spectrum_and_norms_of_the_cells_that_are_measured(
    tiny_study: Callable[..., dict[str, Any]], tmp_path: Path, stored: Any
) -> None:
    plan = make_plan(parse_study(tiny_study()))
    first, second, diverged = list(plan.cells)[:3]
    files = stored(plan, tmp_path / "runs")
    curve = {"count": [0.0, 3.0, 20.0], "mean_norm": [9.0, 1.0, 2.0], "sd_norm": [0.0] * 3, "n_tokens": [1, 2, 3]}
    for cell, singular in ((first, [4.0, 2.0, 1.0]), (second, [0.0, 0.0])):
        files.run(cell)
        detail = {"shape": [6, 3], "singular_values": singular, "norm_frequency": curve}
        files.evaluation(cell, "embeddings", [], matrices={"embeddings": detail})
    files.run(diverged, status="diverged")
    files.evaluation(diverged, "embeddings", [])
    figure = geometry_of_study(layout_of(plan), tmp_path / "runs", {first, second, diverged}, "N = 1$")
    spectrum, norms = figure.axes
    (line,) = spectrum.get_lines()  # a matrix of zeros has no spectrum
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 2, 3], [1.0, 0.5, 0.25])
    # Tokens that never occur have no place on a logarithmic axis.
    assert [line.get_xdata().tolist() for line in norms.get_lines()] == [[3.0, 20.0]] * 2
    assert [line.get_ydata().tolist() for line in norms.get_lines()] == [[1.0, 2.0]] * 2
