"""The model card: its facts, its header, and names that look like markup."""

from dataclasses import replace

import pytest
import yaml

from coupled_adam_bench.models.export import model_card

HOSTILE = (
    "a: {b} | <script>alert(1)</script> `x` # - \"q\" 'q' & % \\ _é‖中 \U0001f600\nlicense:"
    " mit\n---"
)


@pytest.fixture
def cell(tiny_plan):
    return next(iter(tiny_plan.cells.values()))


def parts(card: str) -> tuple[dict, str]:
    empty, header, body = card.split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(header), body


def test_what_a_card_says(cell):
    header, body = parts(model_card(cell))
    assert header["license"] == "unknown"
    assert header["model_name"] == cell.id
    assert header["tags"] == ["coupled-adam-bench", cell.model.architecture, "adamw"]
    assert "| training tokens | 3,840, 60 steps of 4 x 16 |" in body  # 60 x 4 x 16
    assert "| seed | 1 |" in body
    assert model_card(cell) == model_card(replace(cell, tokens_label="another"))


def test_names_that_look_like_markup(cell):
    study = cell.study.model_copy(
        update={"data": cell.study.data.model_copy(update={"name": HOSTILE})}
    )
    header, body = parts(model_card(replace(cell, id=HOSTILE, study=study)))
    assert header["model_name"] == HOSTILE
    assert header["license"] == "unknown"
    assert "<script>" not in body
    rows = [line for line in body.splitlines() if line.startswith("| ")]
    assert len(rows) == 10
    for row in rows:  # two columns, whatever the text has
        assert row.replace("\\|", "").count("|") == 3
    assert "\nlicense: mit" not in body
