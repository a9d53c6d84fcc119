from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from coupled_adam_bench.records.stored import named
from coupled_adam_bench.report.figures import FIGURES, figures_in
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.tools.theory.figures import (
    draw_drift,
    draw_second_moment,
    draw_slopes,
    draw_toy,
    toy,
)
from coupled_adam_bench.tools.theory.records import TheoryGroup, read_theory


@pytest.fixture(scope="session")
def groups(fake_theory: Any) -> tuple[TheoryGroup, ...]:
    return read_theory(layout_of(fake_theory.plan), fake_theory.root / "runs")


def group_of(
    groups: tuple[TheoryGroup, ...], model: str, tokens: str, optimizer: str
) -> TheoryGroup:
    (found,) = [
        g
        for g in groups
        if (g.model_label, g.tokens_label, g.cell.optimizer.key) == (model, tokens, optimizer)
    ]
    return found


def data(line: Any) -> np.ndarray:
    """Return x and y of a line as numbers: errorbar keeps objects."""
    return np.asarray(line.get_data(), dtype=float)


def test_toy_has_an_arrow_for_each_update_and_a_sum_only_for_adam() -> None:
    example = toy()
    figure = draw_toy()
    assert [ax.get_title() for ax in figure.axes] == ["SGD", "Adam", "Coupled Adam"]
    scales = []
    for ax in figure.axes:
        arrows = {
            kind: [text for text in ax.texts if text.get_gid() == kind]
            for kind in ("update", "sum")
        }
        updates = example.updates[ax.get_title()]
        starts = np.array([text.xyann for text in arrows["update"]])
        drawn = np.array([text.xy for text in arrows["update"]]) - starts
        np.testing.assert_allclose(starts, example.embeddings_V2)
        scales.append(np.linalg.norm(drawn) / np.linalg.norm(updates))
        np.testing.assert_allclose(drawn, scales[0] * updates, atol=1e-12)
        assert len(arrows["sum"]) == (ax.get_title() == "Adam")
        for text in arrows["sum"]:
            step = np.array(text.xy) - np.array(text.xyann)
            np.testing.assert_allclose(step, scales[0] * updates.sum(axis=0), atol=1e-12)
        assert ax.get_xlabel().endswith("= 0$") == (ax.get_title() != "Adam")
        (dots,) = ax.collections
        np.testing.assert_allclose(
            dots.get_sizes() / dots.get_sizes()[0], example.probabilities_V / 0.6
        )


def test_second_moment_of_the_largest_tied_cell_of_adam(groups: tuple[TheoryGroup, ...]) -> None:
    record = group_of(groups, "4M", "D2", "adamw").records[0]
    assert record.cell.seed == 1
    figure = draw_second_moment(groups)
    assert figure.get_suptitle() == "N = 4M, D = D2, tied weights"
    for row, name in enumerate(("second_moment", "second_moment_adam")):
        moment = record.values[name]
        for column in range(2):
            ax = figure.axes[2 * row + column]
            (points,), (line,) = ax.collections, ax.lines
            np.testing.assert_array_equal(
                points.get_offsets(), np.c_[moment["probability"], moment["mean_square"]]
            )
            x, y = line.get_data()
            np.testing.assert_allclose(y, moment["slope"] * x + moment["intercept"])
            assert x.max() == pytest.approx(max(moment["probability"]))
            assert ax.get_xscale() == ax.get_yscale() == ("linear", "log")[column]
        (text,) = figure.axes[2 * row].texts
        assert "R^2 = 0.920" in text.get_text()
    untied = draw_second_moment([group for group in groups if not group.tied])
    assert untied.get_suptitle() == "N = 4Mu, D = D2, untied head"


def test_rows_of_zero_and_a_line_below_zero_on_logarithmic_axes(
    groups: tuple[TheoryGroup, ...],
) -> None:
    group = group_of(groups, "1M", "D2", "adamw")
    values = group.records[0].values
    moment = values["second_moment"]
    square = [0.0, *moment["mean_square"][1:]]
    changed = moment | {"mean_square": square, "intercept": -moment["slope"] * 0.01}
    record = replace(
        group.records[0], values=values | {"second_moment": changed, "second_moment_adam": None}
    )
    linear, log = draw_second_moment([replace(group, records=(record,))]).axes
    assert (
        len(linear.collections[0].get_offsets()) == len(log.collections[0].get_offsets()) + 1 == 300
    )
    assert [text.get_text() for text in log.texts] == ["rows of zero,\nnot shown: 1"]
    assert linear.lines[0].get_ydata().min() < 0
    assert log.lines[0].get_ydata().min() > log.get_ylim()[0] > min(square[1:]) / 3


def test_slopes_against_parameters_and_tokens(groups: tuple[TheoryGroup, ...]) -> None:
    against_params, against_tokens = draw_slopes(groups).axes
    labels = against_params.get_legend_handles_labels()[1]
    assert labels == ["D = D<1>, tied", "D = D<1>, untied", "D = D2, tied", "D = D2, untied"]
    labels = against_tokens.get_legend_handles_labels()[1]
    assert labels == ["N = 1M, tied", "N = 1Mu, untied", "N = 4M, tied", "N = 4Mu, untied"]
    lines = [container.lines[0] for container in against_params.containers]
    slopes = [1e-3 / 400, 1e-3 * 2**0.5 / 400]
    places = [group_of(groups, model, "D<1>", "adamw").cell.n_params for model in ("1M", "4M")]
    np.testing.assert_allclose(data(lines[0]), [places, slopes])
    np.testing.assert_allclose(data(lines[2])[1], [slope / 2 for slope in slopes])
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-", "--"]
    # Tied and untied of the same tokens share the colour, and of the same size in the other panel.
    for ax in (against_params, against_tokens):
        colors = [to_hex(container.lines[0].get_color()) for container in ax.containers]
        assert colors[0] == colors[1] != colors[2] == colors[3]
    tokens = [group_of(groups, "1M", label, "adamw").cell.n_tokens for label in ("D<1>", "D2")]
    np.testing.assert_allclose(
        data(against_tokens.containers[0].lines[0]), [tokens, [slopes[0], slopes[0] / 2]]
    )
    assert [tick.get_text() for tick in against_params.get_xticklabels()] == ["1M", "4M"]


def test_drift_by_optimizer_and_matrix(groups: tuple[TheoryGroup, ...]) -> None:
    figure = draw_drift(groups)
    axes = np.reshape(figure.axes, (3, 3))
    assert [ax.get_title() for ax in axes[0]] == ["Adam", "Coupled Adam", "SGD, f = 500"]
    assert [ax.get_ylabel().split("\n")[0] for ax in axes[:, 0]] == [
        "tied embedding",
        "untied embedding",
        "untied head",
    ]
    drawn = ["whole displacement", "from the input side", "from the output side"]
    for row, expected in enumerate((drawn, drawn[:2], [drawn[0], drawn[2]])):
        # Two seeds; parts of zero have no line on a logarithmic axis.
        assert [line.get_label() for line in axes[row][1].lines] == 2 * expected
    for row, model, matrix in ((0, "4M", "embedding"), (1, "4Mu", "embedding"), (2, "4Mu", "head")):
        drift = group_of(groups, model, "D2", "coupled_adam").records[1].matrices[matrix]
        line = axes[row][1].lines[len(axes[row][1].lines) // 2]
        np.testing.assert_array_equal(line.get_data(), [drift["step"], drift["displacement"]])
        # SGD is not split here, and its second seed diverged.
        assert [line.get_label() for line in axes[row][2].lines] == drawn[:1]
        assert [text.get_text() for text in axes[row][2].texts] == ["not split"]
    low, high = axes[0][0].get_ylim()
    assert axes[0][0].get_yscale() == "log"
    assert low < 2.5e-4 < 1.2 < high
    assert len(draw_drift([group for group in groups if group.tied]).axes) == 3


def test_the_size_run_tied_and_untied_is_drawn(groups: tuple[TheoryGroup, ...]) -> None:
    # The larger one was run with tied weights only.
    some = [group for group in groups if group.model_label != "4Mu"]
    (title,) = [legend.get_title().get_text() for legend in draw_drift(some).legends]
    assert title == "N = 1M / 1Mu, D = D2"
    # Nor is a size drawn that is not measured yet.
    partial = [
        replace(g, records=tuple(replace(r, values={}) for r in g.records))
        if (g.model_label, g.tokens_label) != ("4Mu", "D<1>")
        else g
        for g in groups
    ]
    (title,) = [legend.get_title().get_text() for legend in draw_drift(partial).legends]
    assert title == "N = 4M / 4Mu, D = D<1>"


def test_nothing_measured(fake_theory: Any, tmp_path: Path, drawn_from: Any) -> None:
    for name in set(figures_in("theory")) - {"toy"}:
        figure = named(FIGURES[name].draw)(drawn_from(fake_theory.plan, tmp_path))
        assert figure.axes
        assert not any(ax.has_data() for ax in figure.axes)
        figure.savefig(tmp_path / "figure.svg")
