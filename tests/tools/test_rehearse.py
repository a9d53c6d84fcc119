"""Every shipped study in miniature, and one of them run to its end."""

from pathlib import Path

import pytest
from tiny import REPOSITORY

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.study import load_study, parse_study
from coupled_adam_bench.tools.rehearse import LAYERS, STEPS, miniature, rehearse

STUDIES = sorted(REPOSITORY.glob("workflow/config/*.yaml"))


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_a_miniature_has_the_tables_and_rows_of_its_study(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)  # where its example of an own optimizer is found
    study = load_study(file)
    small = parse_study(miniature(study))
    assert [block.optimizers for block in small.grid] == [block.optimizers for block in study.grid]
    for block, full in zip(small.grid, study.grid, strict=True):
        assert (block.table, len(block.tokens)) == (full.table, len(full.tokens))
    cells = make_plan(small).cells.values()
    assert max(cell.steps for cell in cells) <= STEPS + 10
    assert {cell.model.n_layer for cell in cells} == {LAYERS}
    # Rows of another size or length stay apart.
    sizes = {(cell.model.name, cell.n_params) for cell in cells}
    assert len({n_params for _, n_params in sizes}) == len(sizes) == len(study.models)


@pytest.mark.timeout(600)
def test_a_rehearsal_ends_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/server.db")
    results = sorted((REPOSITORY / "results").iterdir())
    assert rehearse(load_study(REPOSITORY / "workflow/config/own_optimizer.yaml"), 2) == 0
    assert "| Ember " in capfd.readouterr().out
    assert sorted((REPOSITORY / "results").iterdir()) == results
    assert not [*tmp_path.iterdir()]
