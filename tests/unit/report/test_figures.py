import json
import math
import re
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from cycler import cycler
from fontTools.ttLib import TTFont
from matplotlib import rc_context
from matplotlib.figure import Figure

from coupled_adam_bench.report.figures import (
    FIGURE_ENDINGS,
    FIGURES,
    figures_of,
    scaled_places,
    write,
)
from coupled_adam_bench.report.figures.curves import (
    differences,
    spectrum,
    write_spectra,
)
from coupled_adam_bench.report.figures.files import lay_out
from coupled_adam_bench.report.figures.histories import draw_mean, geometry, training
from coupled_adam_bench.report.figures.sizes import embeddings, plane, scale
from coupled_adam_bench.report.figures.style import IN_COLUMN, RC, drawing_with, panels
from coupled_adam_bench.report.figures.write import write_figures
from coupled_adam_bench.results.collect import collect
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study

OF_ALL = {
    "loss_accuracy",
    "embeddings",
    "loss_by_frequency",
    "spectrum",
    "training",
    "plane",
}
"""Figures that every study has."""


def draw_all(plan: Plan, folder: Path, out: Path) -> None:
    """Draw what there is of a plan in the folder of its runs."""
    runs = folder / "runs"
    study = StudyResults(layout_of(plan), collect(plan, runs, partial=True))
    write_figures(Material(study, runs, folder), out)


def test_all_figures_in_both_formats_the_same_bytes_again(
    fake, fake_in_parts, tmp_path, monkeypatch
):
    first, again = (
        fake.study_dir / "figures",
        fake_in_parts.study_dir / "figures",
    )  # drawn from the same numbers
    names = sorted(
        f"{name}.{ending}" for name in figures_of(fake.plan) for ending in FIGURE_ENDINGS
    )
    assert sorted(path.name for path in first.iterdir()) == names
    for name in names:
        if name.endswith(".svg"):
            text = (again / name).read_text()
            assert text == (first / name).read_text()
            assert ElementTree.fromstring(text).tag.endswith("svg")
            assert not re.search(r"\d{4}-\d\d-\d\dT", text)
        else:
            assert b"CreationDate" not in (first / name).read_bytes()
    # PDFs take most of the time, so of the figures one is drawn again.
    monkeypatch.setattr(write, "figures_of", lambda plan: {"training": FIGURES["training"].caption})
    write_figures(fake.material, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"training.{e}" for e in FIGURE_ENDINGS
    )
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (first / path.name).read_bytes()


def test_a_file_takes_one_draw_and_no_other_file_changes_it(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "figures_of", lambda plan: {"training": FIGURES["training"].caption})
    drawn, draw = [], Figure.draw

    def counted(figure: Figure, renderer: Any) -> None:
        drawn.append(figure)
        draw(figure, renderer)

    monkeypatch.setattr(Figure, "draw", counted)
    write_figures(fake.material, tmp_path, ["pdf"])
    assert len(drawn) == 1
    written = (tmp_path / "training.pdf").read_bytes()
    assert written == (fake.study_dir / "figures/training.pdf").read_bytes()


def test_fonts_in_a_pdf_have_no_tables_of_layout(fake):
    written = (fake.study_dir / "figures/training.pdf").read_bytes()
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", written, re.DOTALL)
    contents = [zlib.decompress(stream) for stream in streams]
    fonts = [TTFont(BytesIO(each)) for each in contents if each.startswith(b"\0\1\0\0")]
    assert fonts
    for font in fonts:
        assert "glyf" in font
        assert not {"GDEF", "GPOS", "GSUB"} & set(font.keys())


@pytest.mark.fault(
    "results",
    "a matplotlibrc in the working folder or the home changes fonts, lines, colours and layout",
    "figures begin with matplotlib's own defaults: the same bytes",
)
def test_a_matplotlibrc_changes_no_figure(fake, tmp_path, monkeypatch):
    theirs = {
        "font.family": "monospace",
        "lines.linewidth": 9,
        "savefig.bbox": "tight",
        "axes.prop_cycle": cycler("color", ["r"]),
        "text.usetex": True,
        "figure.autolayout": True,
        "axes.grid": True,
    }
    monkeypatch.setattr(write, "figures_of", lambda plan: {"training": FIGURES["training"].caption})
    shares = {"a label": {"singular_values": [0.5, 0.3, 0.2]}}
    write_spectra(shares, tmp_path / "spectra.svg")
    with rc_context(theirs):
        write_figures(fake.material, tmp_path, ["svg"])
        write_spectra(shares, tmp_path / "again.svg")
    assert (tmp_path / "training.svg").read_bytes() == (
        fake.study_dir / "figures/training.svg"
    ).read_bytes()
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "spectra.svg").read_bytes()


@pytest.mark.usefixtures("no_pdf")
def test_partial_results_and_studies_without_tables_are_drawn(tiny_study, tmp_path):
    block = {"models": ["nano"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}
    studies = ({}, {"grid": [block]})
    for number, plan in enumerate(
        make_plan(parse_study(tiny_study(**changes))) for changes in studies
    ):
        draw_all(plan, tmp_path, tmp_path / str(number))
        assert len(list((tmp_path / str(number)).iterdir())) == len(figures_of(plan))


@pytest.mark.usefixtures("no_pdf")
def test_the_geometry_is_drawn_where_a_study_measures_it(tiny_study, tmp_path, drawn_from):
    settings = tiny_study()
    without = figures_of(make_plan(parse_study(settings)))
    assert OF_ALL | {"similarity"} <= set(without)
    settings["execution"]["geometry_per_decade"] = 4
    plan = make_plan(parse_study(settings))
    assert set(figures_of(plan)) - set(without) == {
        "geometry",
        "second_moment",
    }
    for index, cell_id in enumerate(plan.cells):
        (tmp_path / "runs" / cell_id).mkdir(parents=True)
        rows = [
            {
                "step": step,
                "loss": 4 / step,
                "isotropy": 0.9 / step + index / 100,
                "mean_norm_ratio": 1 - 1 / step,
                "rate_sum": step / 1000,
            }
            for step in (1, 10, 60)
        ]
        lines = [
            *rows,
            {"step": 7, "loss": 4.0, "mean_norm_ratio": 0.99},
        ]  # a step without geometry
        (tmp_path / "runs" / cell_id / "history.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in lines)
        )
    with rc_context(RC):
        isotropy, ratio = geometry(drawn_from(plan, tmp_path / "runs")).axes
    # The mean over seeds, whose index is 0, 1 and 2, and a band for each of the two optimizers.
    for ax, values in ((isotropy, [0.91, 0.1, 0.025]), (ratio, [0.0, 0.9, 1 - 1 / 60])):
        assert ax.get_xscale() == "log" and len(ax.lines) == len(ax.collections) == 2
        np.testing.assert_array_equal(ax.lines[0].get_xdata(), [1, 10, 60])
        np.testing.assert_allclose(ax.lines[0].get_ydata(), values, atol=1e-15)
    draw_all(plan, tmp_path, tmp_path / "figures")
    assert (tmp_path / "figures/geometry.svg").is_file()


def test_differences_are_at_the_places_that_both_have():
    found, reference = [(1, 5.0), (2, 2.0), (4, 1.0)], [(1, 4.0), (2, 2.5), (3, 0.0)]
    assert differences(found, reference) == [(1, 1.0), (2, -0.5)]
    assert differences(reference, reference) == [(1, 0.0), (2, 0.0), (3, 0.0)]


def test_validation_losses_are_points_beside_the_training_loss(fake, drawn_from):
    with rc_context(RC):
        losses, _ = training(drawn_from(fake.plan, fake.root / "runs")).axes
    (legend,) = losses.figure.legends
    said = [text.get_text() for text in legend.get_texts()]
    assert said[-2:] == ["training", "validation"]
    lines, points = losses.lines[0::2], losses.lines[1::2]
    assert len(lines) == len(points) == 2
    for line, point in zip(lines, points, strict=True):
        assert line.get_marker() == "" and point.get_linestyle() == "None"
        assert point.get_xdata()[0] == line.get_xdata()[-1]
        assert point.get_ydata()[0] == pytest.approx(line.get_ydata()[-1] + 0.1)


@pytest.mark.usefixtures("no_pdf")
@pytest.mark.fault(
    "settings",
    "a label is half a formula, such as `$\\frac{$`",
    "figures print it as it is, where the report failed after all training",
)
def test_labels_are_text_and_not_formulas(tiny_study, tmp_path):
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
        (tmp_path / "runs" / cell_id / "history.jsonl").write_text(
            '{"step": 1, "loss": 2.5, "mean_norm_ratio": 0.1}\n'
        )
    draw_all(plan, tmp_path, tmp_path / "figures")
    for name in OF_ALL - {"spectrum", "plane"}:  # without data here
        text = (tmp_path / "figures" / f"{name}.svg").read_text()
        ElementTree.fromstring(text)
        assert r"<!-- $\frac{$ -->" in text  # matplotlib's note of what it drew


def test_spectrum_and_norms_of_the_cells_that_are_measured(
    tiny_study, tmp_path, stored, drawn_from
):
    plan = make_plan(parse_study(tiny_study()))
    first, second, diverged = list(plan.cells)[:3]
    files = stored(plan, tmp_path / "runs")
    curve = {
        "count": [0.0, 3.0, 20.0],
        "mean_norm": [9.0, 1.0, 2.0],
        "sd_norm": [0.0] * 3,
        "n_tokens": [1, 2, 3],
    }
    for cell, singular in ((first, [4.0, 2.0, 1.0]), (second, [0.0, 0.0])):
        files.run(cell)
        detail = {"shape": [6, 3], "singular_values": singular, "norm_frequency": curve}
        files.evaluation(cell, "embeddings", [], matrices={"embeddings": detail})
    files.run(diverged, status="diverged")
    files.evaluation(diverged, "embeddings", [])
    singular, norms = spectrum(drawn_from(plan, tmp_path / "runs")).axes
    (line,) = singular.get_lines()  # a matrix of zeros has no spectrum
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 2, 3], [1.0, 0.5, 0.25])
    # Tokens that never occur have no place on a logarithmic axis.
    assert [line.get_xdata().tolist() for line in norms.get_lines()] == [[3.0, 20.0]] * 2
    assert [line.get_ydata().tolist() for line in norms.get_lines()] == [[1.0, 2.0]] * 2


def test_the_band_is_one_standard_deviation_where_all_seeds_are_there():
    from matplotlib.figure import Figure

    seeds = [{1: 4.0, 2: 3.0, 3: 2.0}, {1: 6.0, 2: 3.5, 3: math.nan}, {1: 5.0, 2: 2.5}]
    histories = [[{"step": step, "loss": value} for step, value in seed.items()] for seed in seeds]
    ax = Figure().subplots()
    draw_mean(
        ax, [*histories, [], [{"step": 1, "val_loss": 9.0}]], "loss", "A", {"color": "#000000"}
    )
    mean, rest = ax.lines
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([1, 2], [5.0, 3.0])
    # A seed that goes on alone is drawn alone, and is no mean.
    assert (list(rest.get_xdata()), list(rest.get_ydata()), rest.get_linewidth()) == (
        [3],
        [2.0],
        0.5,
    )
    (band,) = ax.collections
    edges = {(x, round(float(y), 12)) for x, y in band.get_paths()[0].vertices}
    assert edges == {
        (1, 4.0),
        (1, 6.0),
        (2, 2.5),
        (2, 3.5),
    }  # the sample standard deviations are 1 and 0.5


def test_a_long_curve_has_no_more_points_than_its_panel_can_show():
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    rows = [{"step": step, "loss": 1.0 / step} for step in range(1, 20_001)]
    draw_mean(ax, [rows, rows], "loss", "loss", {"color": "#000000"})
    (line,) = ax.lines
    assert (line.get_xdata()[0], line.get_xdata()[-1], len(line.get_xdata())) == (1, 20_000, 500)


def test_pdf_figures_have_the_width_of_the_page_and_no_type_3_font(fake):
    for path in sorted((fake.study_dir / "figures").glob("*.pdf")):
        content = path.read_bytes()
        assert b"/Subtype /Type3" not in content and b"/FontFile2" in content
        box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ([0-9.]+) \]", content)
        assert box is not None
        # In TeX points, those of the columns and the text of ACL's class, which article's hold.
        width, height = (float(side) / 72 * 72.27 for side in box.groups())
        widest, highest = (219.08, 180) if ".column." in path.name else (455.24, 620)
        if path.name in ("embeddings.column.pdf", "loss_accuracy.column.pdf"):
            highest = 5 * 58  # a row for each size of this study, of which 180 points hold three
        assert widest - 1.5 < width <= widest and height <= highest, path.name


@pytest.mark.parametrize("settings", [RC, IN_COLUMN], ids=["page", "column"])
def test_rows_of_many_models_have_room_for_their_labels(settings):
    """matplotlib warns where it has none, and then lets panels lie over each other."""
    with drawing_with(settings):
        figure, axes = panels(20)
        for ax in axes:
            ax.set(title="N = 124M", xlabel="D (tokens)", ylabel="L")
        figure.draw_without_rendering()
        heights = [ax.get_window_extent().height / figure.dpi for ax in axes]
    assert min(heights) > 0.15


def test_one_number_of_tokens_is_drawn_as_bars_by_optimizer(tiny_plan, results_of, drawn_from):
    study = results_of(tiny_plan, lambda cell, metric: 0.25 + 0.01 * cell.seed)
    with rc_context(RC):
        isotropy, ratio = embeddings(drawn_from(tiny_plan, Path(), study)).axes
    for ax in (isotropy, ratio):
        assert [label.get_text() for label in ax.get_yticklabels()] == ["Adam", "Coupled Adam"]
        np.testing.assert_allclose([bar.get_width() for bar in ax.patches], [0.27, 0.27])
        assert ax.get_xlim()[0] == 0
        assert [text.get_text() for text in ax.texts] == ["0.27 (1)", "0.27 (1)"]


def test_the_plane_has_each_place_once_beside_the_line_of_the_paper(fake, drawn_from):
    with rc_context(RC):
        (ax,) = plane(drawn_from(fake.plan, fake.root / "runs")).axes
    *points, line = ax.lines
    found = {
        (x, y) for part in points for x, y in zip(part.get_xdata(), part.get_ydata(), strict=True)
    }
    assert found == {(cell.n_tokens, cell.n_params) for cell in fake.plan.cells.values()}
    assert [len(part.get_xdata()) for part in points] == [
        9,
        2,
    ]  # Table 7's two places are in Table 1
    assert [part.get_label() for part in points] == ["Table 1", "Table 2"]
    np.testing.assert_allclose(np.divide(line.get_xdata(), line.get_ydata()), 20)


def test_scales_of_coupled_adam_are_drawn_with_their_spread(tiny_study, results_of, drawn_from):
    assert scaled_places(make_plan(parse_study(tiny_study()))) == []
    settings = tiny_study()
    scaled = [{"name": "coupled_adam", "scale_exponent": n} for n in (2, -1)]
    settings["grid"] = [
        settings["grid"][0] | {"table": None, "optimizers": ["adamw", "coupled_adam", *scaled]}
    ]
    plan = make_plan(parse_study(settings))
    assert OF_ALL | {"scale", "similarity"} <= set(figures_of(plan))
    (exponents,) = scaled_places(plan)
    assert list(exponents) == [-1, 0, 2] and [len(cells) for cells in exponents.values()] == [
        3,
        3,
        3,
    ]

    def value(cell: Any, metric: Any) -> float:
        n = getattr(cell.optimizer, "scale_exponent", 99)
        return math.nan if (n, cell.seed) == (2, 1) else 3.0 + 0.1 * n + 0.01 * cell.seed

    with rc_context(RC):
        losses, isotropy = scale(drawn_from(plan, Path(), results_of(plan, value))).axes
    for ax in (losses, isotropy):
        line = ax.lines[0]
        np.testing.assert_array_equal(line.get_xdata(), [-1, 0, 2])
        # A missing seed is not averaged away.
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), [2.92, 3.02, math.nan])


def test_a_label_that_is_longer_than_its_axis_has_two_lines():
    with drawing_with(IN_COLUMN):
        figure, (first, second) = panels(2)
        first.set_ylabel("difference to $a  b$ of Adam (nat/token)")
        second.set_ylabel("loss")
        lay_out(figure, "pdf")
        assert first.get_ylabel() == "difference to $a  b$\nof Adam (nat/token)"
        assert second.get_ylabel() == "loss"
        bottom = first.yaxis.label.get_window_extent().y0
        assert bottom > second.yaxis.label.get_window_extent().y1
