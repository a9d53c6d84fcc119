import json
import math
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coupled_adam_bench.data.check import checksum
from coupled_adam_bench.evaluation import stage as driver
from coupled_adam_bench.evaluation.embedding_geometry import EMBEDDING_KEYS, read_embeddings
from coupled_adam_bench.evaluation.stage import run_stage
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.records.stored import measurement_of, row
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_json, read_sealed, sha256_file, write_sealed
from coupled_adam_bench.study.catalogue.metrics import columns_of
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.settings import parse_study
from embedding_geometry.metrics import embedding_metrics, isotropy

DONE = Path("stage.done")


def files_of(cell_id: str, stage: str) -> list[Path]:
    return sorted((paths.run_dir(cell_id) / "evaluations").glob(f"{stage}-*.json"))


def file_of(cell_id: str, stage: str) -> Path:
    (file,) = files_of(cell_id, stage)
    return file


def values_in(file: Path) -> dict[tuple[str, str], float]:
    rows = read_sealed(file)["results"]
    assert all(row.keys() == {"task", "metric", "value", "unit"} for row in rows)
    values = {(row["task"], row["metric"]): row["value"] for row in rows}
    assert len(values) == len(rows)
    return values


def values_of(cell_id: str, stage: str) -> dict[tuple[str, str], float]:
    return values_in(file_of(cell_id, stage))


def columns(stage: str) -> tuple[tuple[str, str], ...]:
    return tuple((task, metric) for task, metric, _ in columns_of(stage))


WANTED = ("test_loss", "embeddings", "downstream")


@pytest.mark.parametrize("stage", WANTED)
def test_files_and_marker(part, stage, capsys):
    cell_ids = list(part.cells)
    assert run_stage(STAGES[stage], part.of(cell_ids), DONE) == 0
    assert DONE.read_bytes() == b""
    for cell_id in cell_ids:
        record = read_sealed(file_of(cell_id, stage))
        assert (record["cell"], record["stage"], record["status"], record["reason"]) == (
            cell_id,
            stage,
            "ok",
            None,
        )
        assert record["version"] == STAGES[stage].version
        assert record["model_sha256"] == sha256_file(
            paths.run_dir(cell_id) / "model" / "model.safetensors"
        )
        values = values_of(cell_id, stage)
        assert columns(stage) and all(math.isfinite(values[column]) for column in columns(stage))
    first = {cell_id: file_of(cell_id, stage).read_bytes() for cell_id in cell_ids}
    log = capsys.readouterr().err
    assert all(f"{stage}: {cell_id}: " in log for cell_id in cell_ids)

    assert run_stage(STAGES[stage], part.of(cell_ids), DONE) == 0  # kept
    assert {cell_id: file_of(cell_id, stage).read_bytes() for cell_id in cell_ids} == first
    assert capsys.readouterr().err.count("kept") == 2


@pytest.mark.fault(
    "evaluation",
    "a file of an evaluation's settings, such as a list of word pairs, changes while a job"
    " reads it",
    "the job stops before it measures, and the next start reads what is there then",
)
def test_files_that_change_while_they_are_read(part, monkeypatch):
    settings_of = driver.settings_of
    monkeypatch.setattr(
        driver, "settings_of", lambda *given: settings_of(*given) | {"word_similarity": "other"}
    )
    message = (
        "embeddings: the files behind word_similarity changed while they were read; start again"
    )
    with pytest.raises(ValueError, match=message):
        run_stage(STAGES["embeddings"], part.of(part.cells), DONE)
    assert not any(files_of(cell_id, "embeddings") for cell_id in part.cells)


def test_embedding_rows(part):
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["embeddings"], part.of([cell_id]), DONE) == 0
    values = values_of(cell_id, "embeddings")
    embeddings = (
        load_model(paths.run_dir(cell_id) / "model").embedding.weight.detach().double().numpy()
    )
    counts = np.load(paths.data_dir(part.data_id) / "unigram.npy")
    for name, value in embedding_metrics(embeddings, counts, "both_signs").items():
        assert values["embeddings", name] == pytest.approx(value, rel=1e-12)
    centered = embeddings - embeddings.mean(axis=0)
    assert values["embeddings_centered", "isotropy"] == pytest.approx(
        isotropy(centered, "both_signs"), rel=1e-12
    )
    words = {word: i for i, word in enumerate(load_words(part))}
    pairs = [line.split("\t") for line in generated(part, "word_similarity/synthetic.tsv")]

    def r_bar(matrix):
        unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        cosines = [float(unit[words[a]] @ unit[words[b]]) for a, b, _ in pairs]
        return 100 * np.corrcoef(cosines, [float(rating) for _, _, rating in pairs])[0, 1]

    top = np.linalg.svd(centered, full_matrices=False)[2][:1]
    assert values["synthetic", "n_pairs"] == 60
    assert values["synthetic", "coverage"] == 1.0
    top_2 = np.linalg.svd(centered, full_matrices=False)[2][:2]
    without_2 = centered - centered @ top_2.T @ top_2
    assert values["embeddings_abtt2", "r_bar"] == pytest.approx(r_bar(without_2), rel=1e-9)
    assert values["embeddings_abtt2", "isotropy"] == pytest.approx(
        isotropy(without_2, "both_signs"), rel=1e-9
    )
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    scaled = embeddings - lengths * (embeddings / lengths).mean(axis=0)
    assert values["embeddings_norm_scaled", "r_bar"] == pytest.approx(r_bar(scaled), rel=1e-9)
    assert values["embeddings_norm_scaled", "isotropy"] == pytest.approx(
        isotropy(scaled, "both_signs"), rel=1e-9
    )
    # A word-level vocabulary has no pieces.
    assert values["synthetic_subwords", "pearson_dot"] == values["synthetic", "pearson_dot"]
    assert values["word_similarity", "r_bar_low"] < values["word_similarity", "r_bar"]
    assert values["word_similarity", "r_bar"] == pytest.approx(r_bar(embeddings), rel=1e-9)
    assert values["embeddings_centered", "r_bar"] == pytest.approx(r_bar(centered), rel=1e-9)
    assert values["embeddings_abtt", "r_bar"] == pytest.approx(
        r_bar(centered - centered @ top.T @ top), rel=1e-9
    )


def test_rows_that_no_text_trains_are_left_out(part):
    cell_id = next(iter(part.cells))
    folder = paths.data_dir(part.data_id)
    counts = np.load(folder / "unigram.npy")
    counts[[3, 77, 100]] = 0
    np.save(folder / "unigram.npy", counts)
    meta = read_sealed(folder / "meta.json")
    meta["files"]["unigram.npy"] = asdict(checksum(folder / "unigram.npy"))
    write_sealed(folder / "meta.json", meta)
    assert run_stage(STAGES["embeddings"], part.of([cell_id]), DONE) == 0
    values = values_of(cell_id, "embeddings")
    embeddings = (
        load_model(paths.run_dir(cell_id) / "model").embedding.weight.detach().double().numpy()
    )
    parts = {
        "embeddings": (embeddings, counts),
        "embeddings_unpadded": (
            embeddings[:121],
            counts,
        ),  # the vocabulary has 121 tokens, the matrix 128 rows
        "embeddings_seen": (embeddings[:121][counts > 0], counts[counts > 0]),
    }
    for task, (rows, of_rows) in parts.items():
        for name, value in embedding_metrics(rows, of_rows, "both_signs").items():
            assert values[task, name] == pytest.approx(value, rel=1e-12), (task, name)
        assert values[task, "n_rows"] == len(rows)
    assert values["embeddings_seen", "n_rows"] == np.count_nonzero(counts) < 121
    matrix = read_sealed(file_of(cell_id, "embeddings"))["matrices"]["embeddings"]
    assert matrix["shape"] == [128, 8]
    np.testing.assert_allclose(
        matrix["singular_values"], np.linalg.svd(embeddings, compute_uv=False), rtol=1e-9
    )
    assert sum(matrix["norm_frequency"]["n_tokens"]) == 128
    assert not any(task.startswith("head") for task, _ in values)


def test_the_output_matrix_is_measured_where_a_model_of_the_study_is_untied(part, save_cell):
    cell_id, cell = next(iter(part.cells.items()))
    settings = part.study.model_dump(mode="json")
    untied = settings["models"][0] | {"name": "untied", "tied": False}
    study = parse_study(settings | {"models": [*settings["models"], untied]})
    counts = np.load(paths.data_dir(part.data_id) / "unigram.npy")
    for tied in (True, False):
        model = cell.model.model_copy(update={"tied": tied})
        saved = save_cell(part, replace(cell, model=model), 3, eot_id=120)
        changed = replace(cell, model=model, study=study)
        assert run_stage(STAGES["embeddings"], [changed], DONE) == 0
        file = max(files_of(cell_id, "embeddings"), key=lambda file: file.stat().st_mtime_ns)
        values = values_in(file)
        head = (saved.embedding if tied else saved.head).weight.detach().double().numpy()
        for name, value in embedding_metrics(head, counts, "both_signs").items():
            assert values["head", name] == pytest.approx(value, rel=1e-12), name
        assert (values["head", "isotropy"] == values["embeddings", "isotropy"]) == tied
        assert values["head_unpadded", "n_rows"] == 121


def generated(part, name: str) -> list[str]:
    return (paths.data_dir(part.data_id) / name).read_text().splitlines()


def load_words(part) -> list[str]:
    vocabulary = read_json(paths.data_dir(part.data_id) / "tokenizer" / "tokenizer.json")["model"][
        "vocab"
    ]
    return sorted(vocabulary, key=vocabulary.get)


def test_synthetic_tasks_by_hand(part):
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["downstream"], part.of([cell_id]), DONE) == 0
    values = values_of(cell_id, "downstream")
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
                    log_p = model.logits(torch.tensor([context + target[:-1]]))[0].log_softmax(-1)[
                        -len(target) :
                    ]
                scores.append(sum(float(log_p[i, token]) for i, token in enumerate(target)))
            right.append(scores.index(max(scores)) == item["label"])
        assert values[task, "acc"] == pytest.approx(np.mean(right), abs=1e-12)
        accuracies.append(np.mean(right))
    assert values["average", "acc"] == pytest.approx(np.mean(accuracies), abs=1e-12)


def test_a_diverged_cell_is_a_result(part, capsys):
    good, bad = part.cells
    shutil.rmtree(paths.run_dir(bad) / "model")
    run = {
        "cell": bad,
        "status": "diverged",
        "reason": "loss is NaN in step 2",
        "model_sha256": None,
    }
    write_sealed(paths.run_dir(bad) / "run.json", run)
    for stage in ("test_loss", "embeddings"):
        assert run_stage(STAGES[stage], part.of([bad, good]), DONE) == 0
        record = read_sealed(file_of(bad, stage))
        assert (record["status"], record["reason"]) == ("diverged", "loss is NaN in step 2")
        values = values_of(bad, stage)
        assert values and all(math.isnan(value) for value in values.values())
        assert tuple(values) == columns(stage) + tuple(
            column[:2] for column in STAGES[stage].columns
        )
        before = file_of(bad, stage).stat().st_mtime_ns
        assert run_stage(STAGES[stage], part.of([bad]), DONE) == 0
        assert file_of(bad, stage).stat().st_mtime_ns == before
    assert "diverged (loss is NaN in step 2)" in capsys.readouterr().err


def test_an_undefined_value_has_its_reason(part):
    Path("sets").mkdir()
    Path("sets/own.tsv").write_text("nobody\tknows\t3\n")
    own = {"word_similarity": [{"name": "own", "file": "own.tsv"}]}
    settings = part.study.model_dump(mode="json") | {"paths": {"word_similarity": "sets"}}
    part = replace(part, study=parse_study(settings | {"evaluation": settings["evaluation"] | own}))
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["embeddings"], part.of([cell_id]), DONE) == 0
    record = read_sealed(file_of(cell_id, "embeddings"))
    assert record["status"] == "ok"
    assert record["reason"].split("; ") == [
        "own: 0 of 1 pairs are single tokens, 3 are needed",
        "own_subwords: 0 of 1 pairs have known words, 3 are needed",
    ]
    values = values_of(cell_id, "embeddings")
    assert math.isnan(values["word_similarity", "r_bar"]) and math.isfinite(
        values["embeddings", "isotropy"]
    )


def test_what_changes_is_evaluated_beside_what_was_there(part, save_cell, monkeypatch):
    cell_id = next(iter(part.cells))

    def new_files(study=part) -> int:
        before = {file: file.read_bytes() for file in files_of(cell_id, "embeddings")}
        assert run_stage(STAGES["embeddings"], study.of([cell_id]), DONE) == 0
        assert all(file.read_bytes() == content for file, content in before.items())
        return len(files_of(cell_id, "embeddings")) - len(before)

    assert new_files() == 1
    assert new_files() == 0
    settings = part.study.evaluation.model_copy(update={"isotropy": "eig_float32"})
    other = replace(part, study=part.study.model_copy(update={"evaluation": settings}))
    assert (new_files(other), new_files(other), new_files()) == (1, 0, 0)
    save_cell(part, part.cells[cell_id], seed=7, eot_id=120)  # another model
    assert (new_files(), new_files()) == (1, 0)
    newer = replace(STAGES["embeddings"], version=STAGES["embeddings"].version + 1)
    monkeypatch.setitem(STAGES, "embeddings", newer)  # other mathematics
    assert (new_files(), new_files()) == (1, 0)
    isotropies = {
        values_in(file)["embeddings", "isotropy"] for file in files_of(cell_id, "embeddings")
    }
    assert (
        len(isotropies) == 3
    )  # two models, one of them in two versions, and one under two definitions


@pytest.mark.fault(
    "evaluation",
    "An evaluation file is damaged: a digit is changed, it is cut off by a full disk, of another"
    " form or without its checksum.",
    "The collection stops with a sentence that names the file; the next start measures the cell"
    " again.",
)
@pytest.mark.parametrize(
    "damage", [lambda text: text.replace("0.", "1.", 1), lambda text: text[:50], lambda _: ""]
)
def test_a_damaged_evaluation_is_made_anew(part, damage, capsys):
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["embeddings"], part.of([cell_id]), DONE) == 0
    file = file_of(cell_id, "embeddings")
    whole = read_sealed(file)
    file.write_text(damage(file.read_text()))
    assert run_stage(STAGES["embeddings"], part.of([cell_id]), DONE) == 0
    assert f"evaluated again: {file}: " in capsys.readouterr().err
    assert read_sealed(file) | {"seconds": 0} == whole | {"seconds": 0}


@pytest.mark.fault(
    "evaluation",
    "A stage measures what no model can have: an accuracy of 7, an isotropy below 0.",
    "That cell fails with a sentence, and nothing is written for it.",
)
@pytest.mark.parametrize("value", [7.0, -0.1])
def test_an_impossible_number_is_never_written(part, value, capsys, monkeypatch):
    from embedding_geometry import matrix

    bad, good = part.cells
    right = matrix.embedding_geometry

    def wrong(embeddings_VD, *arguments):
        spoilt = (
            embeddings_VD[0, 0]
            == read_embeddings(paths.run_dir(bad) / "model", EMBEDDING_KEYS["gpt2"])[0, 0]
        )
        found = right(embeddings_VD, *arguments)
        return replace(found, metrics=found.metrics | ({"isotropy": value} if spoilt else {}))

    monkeypatch.setattr(matrix, "embedding_geometry", wrong)
    assert run_stage(STAGES["embeddings"], part.of([bad, good]), DONE) == 1
    assert not files_of(bad, "embeddings") and files_of(good, "embeddings")
    assert (
        f"embeddings: {bad}: FAILED: ValueError: embeddings isotropy is {value!r}"
        in capsys.readouterr().err
    )


@pytest.mark.fault(
    "evaluation",
    "A stage declares a metric and does not measure it, measures it in another unit or twice, or"
    " measures one that another stage declares.",
    "Each cell fails where it is evaluated, with a sentence that names the metric, and nothing is"
    " written.",
)
def test_a_stage_measures_what_it_declares(part, capsys):
    stage = replace(
        STAGES["embeddings"], columns=(("embeddings", "foo", "1"), ("test", "bar", "nat"))
    )
    assert run_stage(stage, part.of([*part.cells]), DONE) == 1
    said = (
        "FAILED: ValueError: embeddings declares embeddings foo, test bar, and did not measure it,"
        " or in another"
    )
    assert capsys.readouterr().err.count(said) == 2
    assert not any(files_of(cell_id, "embeddings") for cell_id in part.cells)
    measurement = measurement_of(STAGES["embeddings"], part.study, part.data_id)
    rows = [row(*column[:2], 0.5, column[2]) for column in measurement.columns]
    assert measurement.undeclared([*rows, row("mine", "own", 1.0)]) is None
    assert measurement.undeclared([{**rows[0], "unit": "mm"}, *rows[1:]]).startswith(
        "embeddings declares embeddings "
    )
    assert (
        measurement.undeclared([*rows, rows[0]]) == "embeddings measured one metric of a task twice"
    )
    assert (
        measurement.undeclared([*rows, row("test", "loss", 3.0)])
        == "embeddings measured test loss, which another stage declares"
    )


@pytest.mark.fault(
    "evaluation",
    "A number of a model is finite, and so large that its variance is not.",
    "It is NaN, with what it was as the reason; one that an older version wrote is measured anew.",
)
def test_a_number_that_statistics_cannot_use(part, monkeypatch):
    from embedding_geometry import matrix

    right = matrix.embedding_geometry

    def large(*arguments):
        found = right(*arguments)
        return replace(found, metrics=found.metrics | {"mean_norm": 1e200})

    monkeypatch.setattr(matrix, "embedding_geometry", large)
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["embeddings"], part.of([cell_id]), DONE) == 0
    file = file_of(cell_id, "embeddings")
    record = read_sealed(file)
    assert math.isnan(values_in(file)["embeddings", "mean_norm"])
    assert "embeddings mean_norm of this model is 1e+200" in record["reason"]
    measurement = measurement_of(STAGES["embeddings"], part.study, part.data_id)
    assert measurement.damage(cell_id) is None
    for found in record["results"]:
        found["value"] = 1e200 if found["metric"] == "mean_norm" else found["value"]
    write_sealed(file, record)
    assert (
        measurement.damage(cell_id)
        == f"{file}: embeddings mean_norm is 1e+200, above 1e+70 in size"
    )


@pytest.mark.fault(
    "evaluation",
    "The weights of a trained model are finite, but so large that its test loss is not.",
    "The loss is NaN, with what it was as the reason; the other numbers are there, and the study"
    " goes on.",
)
def test_numbers_that_are_not_finite_are_results(part, save_cell):
    cell_id, cell = next(iter(part.cells.items()))
    save_cell(part, cell, 5, eot_id=120, factor=1e30)
    assert run_stage(STAGES["test_loss"], part.of([cell_id]), DONE) == 0
    assert math.isnan(values_of(cell_id, "test_loss")["test", "loss"])
    reason = read_sealed(file_of(cell_id, "test_loss"))["reason"]
    assert any(
        re.fullmatch(r"test loss of this model is (inf|nan)", each) for each in reason.split("; ")
    )
    assert run_stage(STAGES["embeddings"], part.of([cell_id]), DONE) == 0
    assert (
        values_of(cell_id, "embeddings")["embeddings", "isotropy"] == 0
    )  # the metric works with logarithms


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: shutil.rmtree(folder / "model"),
            "model/config.json: missing, but run.json says .*; start again: the model is made anew",
        ),
        (
            lambda folder: (folder / "model/model.safetensors").write_bytes(b"x"),
            "model.safetensors: SHA-256 .*, but run.json says .*; start again",
        ),
        (lambda folder: (folder / "run.json").unlink(), "run.json: no such file"),
        (
            lambda folder: write_sealed(
                folder / "run.json", {"cell": folder.name, "status": "running"}
            ),
            "run.json: status 'running', neither",
        ),
    ],
)
def test_one_broken_cell_does_not_stop_the_others(part, capsys, damage, message):
    bad, good = part.cells
    DONE.write_text("")
    damage(paths.run_dir(bad))
    assert run_stage(STAGES["test_loss"], part.of([bad, good]), DONE) == 1
    assert not DONE.exists()
    assert not files_of(bad, "test_loss")
    assert math.isfinite(values_of(good, "test_loss")["test", "loss"])
    log = capsys.readouterr().err
    assert re.search(f"test_loss: {bad}: FAILED: .*{message}", log)
    assert log.splitlines()[-1] == f"test_loss: 1 of 2 cells failed: {bad}"
    assert "Traceback" not in log
    assert (paths.run_dir(bad) / "run.json").exists() == (
        "neither" in message
    )  # else it is trained at the next start


def test_the_embeddings_stage_needs_no_torch(part):
    write_sealed(Path("plan.json"), part.plan().to_json())
    code = """
        import sys
        from pathlib import Path
        sys.modules["torch"] = sys.modules["transformers"] = sys.modules["lm_eval"] = None
        from coupled_adam_bench.study.catalogue.stages import STAGES
        from coupled_adam_bench.evaluation.stage import run_stage
        from coupled_adam_bench.study.plan import load_plan
        cells = list(load_plan(Path("plan.json")).cells.values())
        sys.exit(run_stage(STAGES["embeddings"], cells, Path("stage.done")))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
