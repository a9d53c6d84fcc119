import json
import math
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coupled_adam_bench import paths
from coupled_adam_bench.config import parse_study
from coupled_adam_bench.embeddings.metrics import embedding_metrics, isotropy
from coupled_adam_bench.evaluation.embedding_geometry import EMBEDDING_KEYS, read_embeddings
from coupled_adam_bench.evaluation.stage import STAGES, run_stage
from coupled_adam_bench.files import digest, read_json, sha256_file, write_json
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.results.schema import METRICS

INDEX = Path("index.json")


def file_of(cell_id: str, stage: str) -> Path:
    return paths.run_dir(cell_id) / f"{stage}.json"


def values_of(cell_id: str, stage: str) -> dict[tuple[str, str], float]:
    rows = read_json(file_of(cell_id, stage))["results"]
    assert all(row.keys() == {"task", "metric", "value", "unit"} for row in rows)
    values = {(row["task"], row["metric"]): row["value"] for row in rows}
    assert len(values) == len(rows)
    return values


@pytest.mark.parametrize("stage", STAGES)
def test_files_and_index(part, stage, capsys):
    cell_ids = list(part.cells)
    assert run_stage(STAGES[stage], part, cell_ids, INDEX) == 0
    index = read_json(INDEX)
    assert list(index) == cell_ids
    for cell_id in cell_ids:
        file = file_of(cell_id, stage)
        assert index[cell_id] == {"file": str(file), "sha256": sha256_file(file)}
        record = read_json(file)
        assert (record["cell"], record["stage"], record["status"], record["reason"]) == (cell_id, stage, "ok", None)
        assert record["version"] == STAGES[stage].version
        assert record["settings_hash"] == digest(record["settings"])
        assert record["model_sha256"] == sha256_file(paths.run_dir(cell_id) / "model" / "model.safetensors")
        values = values_of(cell_id, stage)
        assert STAGES[stage].columns and all(math.isfinite(values[column]) for column in STAGES[stage].columns)
    first = {cell_id: file_of(cell_id, stage).read_bytes() for cell_id in cell_ids}
    log = capsys.readouterr().err
    assert all(f"{stage}: {cell_id}: " in log for cell_id in cell_ids)

    assert run_stage(STAGES[stage], part, cell_ids, INDEX) == 0  # kept
    assert {cell_id: file_of(cell_id, stage).read_bytes() for cell_id in cell_ids} == first
    assert capsys.readouterr().err.count("kept") == 2


def test_every_column_of_the_tables_has_a_stage():
    columns = [column for stage in STAGES.values() for column in stage.columns]
    assert sorted(columns) == sorted((metric.task, metric.name) for metric in METRICS.values())


def test_embedding_rows(part):
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["embeddings"], part, [cell_id], INDEX) == 0
    values = values_of(cell_id, "embeddings")
    embeddings = load_model(paths.run_dir(cell_id) / "model").embedding.weight.detach().double().numpy()
    counts = np.load(paths.data_dir(part.data_id) / "unigram.npy")
    for name, value in embedding_metrics(embeddings, counts, "both_signs").items():
        assert values["embeddings", name] == pytest.approx(value, rel=1e-12)
    centered = embeddings - embeddings.mean(axis=0)
    assert values["embeddings_centered", "isotropy"] == pytest.approx(isotropy(centered, "both_signs"), rel=1e-12)
    words = {word: i for i, word in enumerate(load_words(part))}
    pairs = [line.split("\t") for line in generated(part, "word_similarity/synthetic.tsv")]

    def r_bar(matrix):
        unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        cosines = [float(unit[words[a]] @ unit[words[b]]) for a, b, _ in pairs]
        return 100 * np.corrcoef(cosines, [float(rating) for _, _, rating in pairs])[0, 1]

    top = np.linalg.svd(centered, full_matrices=False)[2][:1]
    assert values["synthetic", "n_pairs"] == 60
    assert values["word_similarity", "r_bar"] == pytest.approx(r_bar(embeddings), rel=1e-9)
    assert values["embeddings_centered", "r_bar"] == pytest.approx(r_bar(centered), rel=1e-9)
    assert values["embeddings_abtt", "r_bar"] == pytest.approx(r_bar(centered - centered @ top.T @ top), rel=1e-9)


def test_embedding_rows_under_the_protocol_official(part):
    cell_id = next(iter(part.cells))
    changes = {"protocol": "official", "evaluation": {"word_similarity": "synthetic"}}
    official = replace(part, study=parse_study(part.study.model_dump(mode="json") | changes))
    assert run_stage(STAGES["embeddings"], official, [cell_id], INDEX) == 0
    settings = read_json(file_of(cell_id, "embeddings"))["settings"]
    assert (settings["isotropy"], settings["leading_space"]) == ("eig_float32", False)
    values = values_of(cell_id, "embeddings")
    embeddings = load_model(paths.run_dir(cell_id) / "model").embedding.weight.detach().double().numpy()
    centered = embeddings - embeddings.mean(axis=0)
    for task, matrix in (("embeddings", embeddings), ("embeddings_centered", centered)):
        directions = np.real(np.linalg.eig(matrix.astype(np.float32).T @ matrix.astype(np.float32))[1])
        z = np.exp(matrix @ directions).sum(axis=0)
        assert values[task, "isotropy"] == pytest.approx(z.min() / z.max(), abs=0.6e-4)
        assert values[task, "isotropy"] == round(values[task, "isotropy"], 4)
    assert values["embeddings_abtt", "isotropy"] == round(values["embeddings_abtt", "isotropy"], 4)


def test_the_embedding_of_either_architecture_is_found(part, save_cell):
    cell_id, cell = next(iter(part.cells.items()))
    found = {}
    for architecture in ("gpt2", "stablelm"):
        changed = replace(cell, model=cell.model.model_copy(update={"architecture": architecture, "tied": False}))
        model = save_cell(replace(part, cells={cell_id: changed}), cell_id, 5, eot_id=120)
        found[architecture] = read_embeddings(paths.run_dir(cell_id) / "model", EMBEDDING_KEYS[architecture])
        np.testing.assert_array_equal(found[architecture], model.embedding.weight.detach().numpy())
    assert found["gpt2"].shape == found["stablelm"].shape == (128, 8)


def generated(part, name: str) -> list[str]:
    return (paths.data_dir(part.data_id) / name).read_text().splitlines()


def load_words(part) -> list[str]:
    vocabulary = read_json(paths.data_dir(part.data_id) / "tokenizer" / "tokenizer.json")["model"]["vocab"]
    return sorted(vocabulary, key=vocabulary.get)


def test_synthetic_tasks_by_hand(part):
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["lm_eval"], part, [cell_id], INDEX) == 0
    values = values_of(cell_id, "lm_eval")
    model = load_model(paths.run_dir(cell_id) / "model").double()
    ids = {word: i for i, word in enumerate(load_words(part))}
    accuracies = []
    for task in ("synthetic_grammar", "synthetic_topic"):
        right = []
        for line in generated(part, f"tasks/{task}.jsonl"):
            item = json.loads(line)
            context = [ids[word] for word in item["context"].split()]
            scores = []
            for choice in item["choices"]:
                target = [ids[word] for word in choice.split()]
                with torch.no_grad():
                    log_p = model.logits(torch.tensor([context + target[:-1]]))[0].log_softmax(-1)[-len(target) :]
                scores.append(sum(float(log_p[i, token]) for i, token in enumerate(target)))
            right.append(scores.index(max(scores)) == item["label"])
        assert values[task, "acc"] == pytest.approx(np.mean(right), abs=1e-12)
        accuracies.append(np.mean(right))
    assert values["average", "acc"] == pytest.approx(np.mean(accuracies), abs=1e-12)


def test_a_diverged_cell_is_a_result(part, capsys):
    good, bad = part.cells
    shutil.rmtree(paths.run_dir(bad) / "model")
    run = {"cell": bad, "status": "diverged", "reason": "loss is NaN in step 2", "model_sha256": None}
    write_json(paths.run_dir(bad) / "run.json", run)
    for stage in ("test_loss", "embeddings"):
        assert run_stage(STAGES[stage], part, [bad, good], INDEX) == 0
        record = read_json(file_of(bad, stage))
        assert (record["status"], record["reason"]) == ("diverged", "loss is NaN in step 2")
        values = values_of(bad, stage)
        assert values and all(math.isnan(value) for value in values.values())
        assert tuple(values) == STAGES[stage].columns
        before = file_of(bad, stage).stat().st_mtime_ns
        assert run_stage(STAGES[stage], part, [bad], INDEX) == 0
        assert file_of(bad, stage).stat().st_mtime_ns == before
    assert "diverged (loss is NaN in step 2)" in capsys.readouterr().err


def test_an_undefined_value_has_its_reason(part):
    (paths.data_dir(part.data_id) / "word_similarity/synthetic.tsv").write_text("nobody\tknows\t3\n")
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["embeddings"], part, [cell_id], INDEX) == 0
    record = read_json(file_of(cell_id, "embeddings"))
    assert record["status"] == "ok"
    assert record["reason"] == "synthetic: 0 of 1 pairs are single tokens, 3 are needed"
    values = values_of(cell_id, "embeddings")
    assert math.isnan(values["word_similarity", "r_bar"]) and math.isfinite(values["embeddings", "isotropy"])


def test_what_changes_is_evaluated_again(part, save_cell, monkeypatch):
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["embeddings"], part, [cell_id], INDEX) == 0
    file = file_of(cell_id, "embeddings")
    record = read_json(file)

    def evaluated_again() -> bool:
        write_json(file, read_json(file) | {"mark": 1})
        assert run_stage(STAGES["embeddings"], part, [cell_id], INDEX) == 0
        return "mark" not in read_json(file)

    assert not evaluated_again()
    save_cell(part, cell_id, seed=7, eot_id=120)  # another model
    assert evaluated_again()
    assert values_of(cell_id, "embeddings")["embeddings", "isotropy"] != record["results"][0]["value"]
    with (paths.data_dir(part.data_id) / "word_similarity/synthetic.tsv").open("a") as pairs:
        pairs.write("ba\tbe\t3\n")  # another setting
    assert evaluated_again()
    newer = replace(STAGES["embeddings"], version=STAGES["embeddings"].version + 1)
    monkeypatch.setitem(STAGES, "embeddings", newer)  # other mathematics
    assert evaluated_again()
    file.write_text("{")  # cut off by a full disk
    assert run_stage(STAGES["embeddings"], part, [cell_id], INDEX) == 0
    assert read_json(file)["status"] == "ok"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: shutil.rmtree(folder / "model"),
            "missing, though .*run.json says completed; delete .*run.json",
        ),
        (
            lambda folder: (folder / "model/model.safetensors").write_bytes(b"x"),
            "SHA-256 .*, but run.json says .*; delete",
        ),
        (lambda folder: (folder / "run.json").unlink(), "run.json: no such file"),
        (lambda folder: write_json(folder / "run.json", {"status": "running"}), "run.json: status 'running', neither"),
        (lambda folder: (folder / "model/config.json").write_text("{}"), "KeyError"),
    ],
)
def test_one_broken_cell_does_not_stop_the_others(part, capsys, damage, message):
    bad, good = part.cells
    INDEX.write_text("of an earlier run")
    damage(paths.run_dir(bad))
    assert run_stage(STAGES["test_loss"], part, [bad, good], INDEX) == 1
    assert not INDEX.exists()
    assert not file_of(bad, "test_loss").exists()
    assert math.isfinite(values_of(good, "test_loss")["test", "loss"])
    log = capsys.readouterr().err
    assert re.search(f"test_loss: {bad}: FAILED: .*{message}", log)
    assert log.splitlines()[-1] == f"test_loss: 1 of 2 cells failed: {bad}"
    assert ("Traceback" in log) == (message == "KeyError")


def test_unknown_cell(part):
    with pytest.raises(ValueError, match="cells: nobody not in study 'tiny'"):
        run_stage(STAGES["test_loss"], part, [*part.cells, "nobody"], INDEX)


def test_the_embeddings_stage_needs_no_torch(part):
    write_json(Path("plan.json"), Plan("tiny", "", (part,)).to_json())
    code = """
        import sys
        from pathlib import Path
        sys.modules["torch"] = sys.modules["transformers"] = sys.modules["lm_eval"] = None
        from coupled_adam_bench.evaluation.stage import STAGES, run_stage
        from coupled_adam_bench.plan import load_plan
        (part,) = load_plan(Path("plan.json")).parts
        sys.exit(run_stage(STAGES["embeddings"], part, list(part.cells), Path("index.json")))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
