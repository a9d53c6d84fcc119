"""Sizes and grids of the paper's two scales, counted by hand."""

from pathlib import Path

import pytest
import torch
from planned import only

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.study.catalogue.presets import MODEL_PRESETS
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import Model, load_study

CONFIGS = Path(__file__).parents[4] / "workflow" / "config"
VOCAB_SIZE = 50304


def small(n_layer: int, d: int) -> int:
    """Two embeddings; per layer attention in and out, MLP in and out, two norms; a last norm."""
    return (
        VOCAB_SIZE * d
        + 1024 * d
        + n_layer * (3 * d * d + d * d + 4 * d * d + 4 * d * d + d + d)
        + d
    )


def large(n_layer: int, d: int, d_ffn: int) -> int:
    """One embedding; per layer attention in and out, gate, up and down, two norms; a last norm."""
    return (
        VOCAB_SIZE * d
        + n_layer * (3 * d * d + d * d + d * d_ffn + d * d_ffn + d_ffn * d + d + d)
        + d
    )


@pytest.mark.parametrize(
    ("name", "seq_len", "by_hand", "billions", "learning_rate", "n_head"),
    [
        ("gpt2-125m", 1024, small(12, 768), 0.124, 6.0e-4, 12),
        ("gpt2-355m", 1024, small(24, 1024), 0.355, 3.0e-4, 16),
        ("gpt2-760m", 1024, small(24, 1536), 0.758, 2.5e-4, 16),
        ("stablelm-1.3b", 2048, large(24, 2048, 5632), 1.336, 2.0e-4, 32),
        ("stablelm-2.6b", 2048, large(32, 2560, 6912), 2.666, 1.6e-4, 32),
    ],
)
def test_the_presets_are_the_papers_models(name, seq_len, by_hand, billions, learning_rate, n_head):
    preset = Model(**MODEL_PRESETS[name])
    with torch.device("meta"):
        model = build_model(preset, VOCAB_SIZE, seq_len)
    assert sum(parameter.numel() for parameter in model.parameters()) == by_hand
    assert preset.n_params(VOCAB_SIZE, seq_len) == by_hand
    assert round(by_hand / 1e9, 3) == billions
    assert (preset.learning_rate, preset.n_head) == (learning_rate, n_head)


@pytest.fixture(scope="module")
def paper_large():
    return make_plan(load_study(CONFIGS / "paper_large.yaml"))


def test_the_large_grid_is_table_2(paper_large):
    (groups,) = layout_of(paper_large).groups.values()
    rows = [(group.table, group.tokens_label, group.model_label) for group in groups]
    assert rows == [
        ("table2", "26B", "1.3B"),
        ("table2", "52B", "2.6B"),
        ("table2", "105B", "1.3B"),
        ("table2", "210B", "2.6B"),
    ]
    for group in groups:
        assert round(group.n_tokens / 1e9) == int(group.tokens_label.removesuffix("B"))
        assert [len(cells) for cells in group.cells.values()] == [1, 1]


def test_the_large_scale_trains_as_the_paper_says(paper_large):
    training = only(paper_large).study.training
    assert training.batch_sequences * training.seq_len == 524_288
    for cell in paper_large.cells.values():
        assert training.warmup(cell.steps) == cell.steps // 100
    assert (training.schedule, training.precision, cell.model.tied) == ("cosine", "bf16", True)
