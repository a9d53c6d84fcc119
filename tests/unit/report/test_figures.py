import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rc_context

from coupled_adam_bench.config import parse_study
from coupled_adam_bench.plan import make_plan
from coupled_adam_bench.report.band_figure import differences
from coupled_adam_bench.report.figures import FIGURES, GEOMETRY_FIGURE, figures_of, write_figures
from coupled_adam_bench.report.history_figures import Shown, geometry, training
from coupled_adam_bench.report.spectrum_figure import spectrum_of_study
from coupled_adam_bench.report.style import RC
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


def test_the_geometry_is_drawn_where_a_study_measures_it(
    tiny_study: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    settings = tiny_study()
    assert figures_of(make_plan(parse_study(settings))) == FIGURES
    settings["execution"]["geometry_per_decade"] = 4
    plan = make_plan(parse_study(settings))
    assert figures_of(plan) == FIGURES | GEOMETRY_FIGURE
    for index, cell_id in enumerate(plan.cells):
        (tmp_path / "runs" / cell_id).mkdir(parents=True)
        rows = [
            {"step": step, "loss": 4 / step, "isotropy": 0.9 / step + index / 100, "mean_norm_ratio": 1 - 1 / step}
            for step in (1, 10, 60)
        ]
        lines = [*rows, {"step": 7, "loss": 4.0, "mean_norm_ratio": 0.99}]  # a step without geometry
        (tmp_path / "runs" / cell_id / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    with rc_context(RC):
        isotropy, ratio = geometry(layout_of(plan), tmp_path / "runs").axes
    for ax, values in ((isotropy, [0.9, 0.09, 0.015]), (ratio, [0.0, 0.9, 1 - 1 / 60])):
        assert ax.get_xscale() == "log" and len(ax.lines) == len(plan.cells)
        np.testing.assert_array_equal(ax.lines[0].get_xdata(), [1, 10, 60])
        np.testing.assert_allclose(ax.lines[0].get_ydata(), values)
    write_results(collect(plan, tmp_path / "runs", partial=True), tmp_path / "results.csv")
    write_figures(plan, tmp_path / "results.csv", tmp_path / "runs", tmp_path / "figures")
    assert (tmp_path / "figures/geometry.svg").is_file() and (tmp_path / "figures/geometry.pdf").is_file()


def test_differences_are_between_equal_seeds() -> None:
    losses, reference = {1: [5.0, 2.0], 3: [math.nan, 1.0]}, {1: [4.0, 2.5], 2: [0.0, 0.0]}
    assert differences(losses, reference) == {1: [1.0, -0.5]}
    assert differences(reference, reference) == {1: [0.0, 0.0], 2: [0.0, 0.0]}


def test_validation_losses_are_points_beside_the_training_loss(fake: Any) -> None:
    with rc_context(RC):
        losses, _ = training(layout_of(fake.plan), fake.root / "runs").axes
    lines, points = losses.lines[0::2], losses.lines[1::2]
    assert len(lines) == len(points) == 2
    for line, point in zip(lines, points, strict=True):
        assert line.get_marker() == "" and point.get_linestyle() == "None"
        assert point.get_xdata()[0] == line.get_xdata()[-1]
        assert point.get_ydata()[0] == pytest.approx(line.get_ydata()[-1] + 0.1)


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
    for name in FIGURES.keys() - {"spectrum", "noise"}:  # which have no line of a cell that is not measured
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
    shown = Shown([plan.cells[cell] for cell in (first, second, diverged)], "N = 1$")
    figure = spectrum_of_study(layout_of(plan), tmp_path / "runs", shown)
    spectrum, norms = figure.axes
    (line,) = spectrum.get_lines()  # a matrix of zeros has no spectrum
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 2, 3], [1.0, 0.5, 0.25])
    # Tokens that never occur have no place on a logarithmic axis.
    assert [line.get_xdata().tolist() for line in norms.get_lines()] == [[3.0, 20.0]] * 2
    assert [line.get_ydata().tolist() for line in norms.get_lines()] == [[1.0, 2.0]] * 2
