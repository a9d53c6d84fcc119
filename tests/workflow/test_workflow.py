"""The whole pipeline through real Snakemake, on a study whose cells train in about a second."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from finished import ROOT, copied, outputs, read, write
from starts import finish, jobs, make_planned_tables, make_tables, refused, snakemake

from coupled_adam_bench.cli import main

# Tests that share a study and write into it run in one worker.
COMPOSITE = pytest.mark.xdist_group("composite")


def change(folder: Path, **sections) -> None:
    """Update sections of the folder's study."""
    study = read(folder)
    for section, values in sections.items():
        study[section] = (
            {**study.get(section, {}), **values} if isinstance(values, dict) else values
        )
    write(folder, study)


def test_the_contract_of_files(finished):
    study = finished / "results/tiny"
    for name in (
        "results.csv",
        "tests.csv",
        "paired.csv",
        "power.csv",
        "tables/table1.tex",
        "tables/table1.html",
        "occupancy.csv",
        "shares.csv",
        "report/index.html",
    ):
        assert (study / name).stat().st_size > 0, name
    assert (study / "manifest.json").is_file()
    assert (finished / "results/mlflow.db").is_file()
    runs = sorted((finished / "results/runs").iterdir())
    assert len(runs) == 4
    for run in runs:
        names = {path.name for path in run.iterdir()}
        assert names >= {
            "cell.json",
            "history.jsonl",
            "checkpoints",
            "model",
            "evaluations",
            "run.json",
        }
        files = [
            re.sub(r"-\w+\.", ".", path.name) for path in sorted((run / "evaluations").iterdir())
        ]
        assert files == [
            "downstream.documents.jsonl.gz",
            "downstream.json",
            "embeddings.json",
            "embeddings.pairs.csv.gz",
            "test_loss.json",
            "test_loss.windows.csv.gz",
        ]
    with (study / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = (
        "study,n_params,n_tokens,optimizer,seed,task,metric,value,unit,protocol,cell,model,data"
    )
    assert ",".join(rows[0]) == columns
    assert {row["metric"] for row in rows} >= {
        "loss",
        "acc",
        "isotropy",
        "mean_norm",
        "mean_norm_ratio",
        "r_bar",
        "rho",
        "kappa",
    }
    assert {(row["optimizer"], row["seed"]) for row in rows} == {
        (optimizer, seed) for optimizer in ("adamw", "coupled_adam") for seed in "12"
    }


def test_every_run_is_in_mlflow(finished):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{finished}/results/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    found = client.search_runs([experiment.experiment_id], "tags.optimizer != ''")
    assert len(found) == 4
    assert {run.data.metrics["embeddings/isotropy"] > 0 for run in found} == {True}


def test_the_import_beside_the_jobs_has_no_complaint(finished):
    said = (finished / "results/tiny/logs/mlflow-live.log").read_text().splitlines()
    assert [
        line for line in said if not line.startswith("waiting for another import")
    ] == []  # that of the end


def test_a_server_that_is_away_fails_no_study_and_the_next_start_imports(copy, monkeypatch):
    (copy / "results/tiny/mlflow.json").unlink()
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI", "http://127.0.0.1:9"
    )  # the port "discard", at which nobody listens
    assert "Start again to bring MLflow up to date: nothing else will run" in finish(copy)
    assert "not_imported" in (copy / "results/tiny/mlflow.json").read_text()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert jobs(snakemake(copy, "-n")) == {"track": 1}
    assert "Start again" not in finish(copy)
    assert json.loads((copy / "results/tiny/mlflow.json").read_text())["unchanged"] == 4
    assert jobs(snakemake(copy, "-n")) == {}


def test_a_second_run_does_nothing(copy):
    assert jobs(snakemake(copy, "-n")) == {}
    assert "Nothing to be done" in finish(copy)
    # What MLflow's database names lies elsewhere from now on.
    moved = copy.rename(copy.with_name("moved"))
    assert jobs(snakemake(moved, "-n")) == {"track": 1}


def test_execution_paths_and_labels_rerun_no_computation(copy):
    change(
        copy,
        title="Another title",
        execution={
            "train_threads": 2,
            "micro_batch_sequences": 2,
            "log_every": 7,
            "evaluation_batch_sequences": 3,
        },
        paths={"text": "elsewhere"},
    )
    assert set(jobs(snakemake(copy, "-n"))) <= {"report_of_study", "track"}


def test_a_new_seed_trains_only_its_cells(copy):
    change(copy, execution={"train_cells_per_job": 1})
    finish(copy, "train")
    study = read(copy)
    study["grid"][0]["seeds"] = [1, 2, 3]
    write(copy, study)
    counts = jobs(snakemake(copy, "-n"))
    assert counts["train_cells"] == 2
    assert "prepare" not in counts


def test_runs_of_two_places_are_merged_and_not_trained_again(copy, tmp_path, monkeypatch):
    places = [tmp_path / name / "results" for name in ("one", "two")]
    for place, seed in zip(places, ("_s1_", "_s2_"), strict=True):
        shutil.copytree(copy / "results/data", place / "data")
        for run in (copy / "results/runs").glob(f"*{seed}*"):
            shutil.copytree(run, place / "runs" / run.name)
    (tmp_path / "here").mkdir()
    shutil.copy(copy / "study.yaml", tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    assert main(["merge", *map(str, places)]) == 0
    finish(Path.cwd(), "evaluate")
    make_tables(Path.cwd())
    logs = "".join(log.read_text() for log in Path("results/tiny/logs").glob("*.train.log"))
    assert logs.count("kept, trained before") == len(list(Path("results/runs").iterdir())) == 4
    assert outputs(Path.cwd()) == outputs(copy)


def test_a_changed_template_renders_again_and_nothing_else(copy, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("Snakefile", "rules", "templates", "workflow", "profiles"):
        path = ROOT / name
        shutil.copytree(path, source / name) if path.is_dir() else shutil.copy2(path, source / name)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return snakemake(copy, *arguments, snakefile=str(source / "Snakefile"))

    assert run("--touch").returncode == 0  # it was made with the templates of another folder
    assert jobs(run("-n")) == {}
    template = source / "templates/latex/table.tex.j2"
    template.write_text(template.read_text() + "%% changed\n")
    assert set(jobs(run("-n"))) == {"report_of_study", "track"}


@pytest.mark.parametrize(
    ("stage", "rules"),
    [
        ("DATA", {"prepare", "train_cells", "downstream"}),
        ("TRAIN", {"train_cells", "downstream"}),
        ("downstream", {"downstream"}),
        ("STATISTICS", {"report_of_study"}),
    ],
)
def test_a_changed_protocol_version_reruns_its_stage(stage, rules, copy):
    # The version is changed in the process that reads the Snakefile; a dry run needs no other.
    newer = (
        "from dataclasses import replace; from coupled_adam_bench.study.catalogue.stages import"
        f" STAGES as stages;stages[{stage!r}] = replace(stages[{stage!r}],"
        f" version=stages[{stage!r}].version + 1)"
        if stage.islower()
        else f"from coupled_adam_bench.study.catalogue import versions; versions.{stage} += 1"
    )
    result = snakemake(copy, "-n", first=newer)
    announced = set(jobs(result))
    assert rules <= announced
    if stage == "downstream":
        assert not announced & {"prepare", "train_cells", "test_loss", "embeddings"}
    if stage == "STATISTICS":
        assert not announced & {"prepare", "train_cells", "test_loss", "embeddings", "downstream"}


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ({"leading_space": False}, "embeddings"),
        ({"isotropy": "eig_float32"}, "embeddings"),
        ({"test_loss": {"split": "val"}}, "test_loss"),
        ({"test_loss": {"n_batches": 7}}, None),  # of random windows only
    ],
)
def test_a_protocol_s_setting_of_evaluation_reruns_its_stage(setting, rule, copy):
    change(copy, evaluation=setting)
    announced = set(jobs(snakemake(copy, "-n")))
    assert announced & {"prepare", "train_cells", "test_loss", "embeddings", "downstream"} == (
        {rule} if rule else set()
    )
    assert ("report_of_study" in announced) == (rule is not None)


def test_a_study_under_another_protocol_is_one_line(tmp_path, tiny_study):
    write(tmp_path, tiny_study())

    def cells(*config: str) -> set[str]:
        said = finish(tmp_path, "train", "-n", *(["--config", *config] if config else []))
        return set(re.findall(r"output: results/\w+/training/(\S+)\.done", said))

    corrected, official = cells(), cells("protocol=official", "study=tiny_official")
    assert len(corrected) == len(official) == 6
    assert not corrected & official
    assert {cell.rsplit("_", 1)[0] for cell in corrected} == {
        cell.rsplit("_", 1)[0] for cell in official
    }


def test_a_diverged_cell_is_a_result_and_the_others_go_on(tmp_path, tiny_study):
    settings = tiny_study(study="diverging")
    settings["models"].append(
        {**settings["models"][0], "name": "wild", "n_layer": 2, "learning_rate": 1e6}
    )
    settings["training"]["warmup_steps"] = 0
    settings["grid"][0] |= {"models": ["nano", "wild"], "seeds": [1, 2]}
    settings["execution"] |= {"train_cells_per_job": 8, "evaluation_cells_per_job": 8}
    write(tmp_path, settings)
    finish(tmp_path, "evaluate")
    make_tables(tmp_path, "diverging")
    table = (tmp_path / "results/diverging/tables/table1.html").read_text()
    assert "diverged" in table
    records = [json.loads(path.read_text()) for path in tmp_path.glob("results/runs/*/run.json")]
    assert [record["status"] for record in records].count("diverged") == 4
    assert all(
        "not finite in step" in record["reason"]
        for record in records
        if record["status"] == "diverged"
    )
    with (tmp_path / "results/diverging/results.csv").open() as file:
        rows = list(csv.DictReader(file))
    wild = {row["value"] for row in rows if row["metric"] == "loss" and int(row["n_params"]) > 2000}
    assert wild <= {"", "nan", "NaN"}
    assert any(row["value"] not in ("", "nan", "NaN") for row in rows)


def test_cells_of_several_d_share_a_trunk(tmp_path, tiny_study):
    settings = tiny_study(study="wsd")
    settings["training"]["schedule"] = "wsd"
    settings["grid"] = [{"models": ["nano"], "optimizers": ["adamw"], "seeds": [1]}]

    def announced(*steps: int, **execution) -> dict[str, int]:
        settings["grid"][0]["tokens"] = [{"steps": count} for count in steps]
        changed = {**settings, "execution": {**settings["execution"], **execution}}
        write(tmp_path, changed)
        counts = jobs(snakemake(tmp_path, "train", "-n"))
        return {rule: count for rule, count in counts.items() if rule != "train"}

    assert announced(20, 40, 80, train_cells_per_job=2) == {
        "prepare": 1,
        "train_trunk": 3,
        "train_cells": 2,
    }
    assert announced(20, 40) == {"prepare": 1, "train_trunk": 2, "train_cells": 2}
    finish(tmp_path, "train")
    records = {
        run.parent: json.loads(run.read_text()) for run in tmp_path.glob("results/runs/*/run.json")
    }
    assert sorted((run["step"], run["trunk_steps"]) for run in records.values()) == [
        (20, 17),
        (40, 33),
    ]
    assert announced(20, 40) == {}

    # A larger D goes on with the trunk, a smaller one leaves it earlier, and both train only
    # themselves.
    assert announced(20, 40, 80) == {"train_trunk": 1, "train_cells": 1}
    assert announced(20, 30, 40) == {
        "train_trunk": 2,
        "train_cells": 1,
    }  # the next branch looks, and finds itself there
    (longest,) = (folder for folder, run in records.items() if run["step"] == 40)
    (longest / "run.json").unlink()
    assert announced(20, 30, 40) == {"train_trunk": 2, "train_cells": 2}


def test_a_crashed_cell_leaves_the_others_and_partial_tables(copy):
    run = next((copy / "results/runs").glob("nano_*_adamw_s1_*"))
    (run / "run.json").unlink()
    for name in ("evaluations", "checkpoints"):
        shutil.rmtree(run / name)
    (run / "checkpoints").symlink_to("/proc/self")  # a folder in which nobody can write
    change(copy, execution={"train_cells_per_job": 1, "evaluation_cells_per_job": 1})
    result = snakemake(copy)
    assert result.returncode != 0
    evaluated = list((copy / "results/tiny/evaluation").glob("nano_*.downstream.done"))
    assert len(evaluated) == 3  # all but the crashed one
    make_planned_tables(copy, "--config", "partial=true")
    assert "lack an evaluation" in (copy / "results/tiny/tables/table1.html").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unheard_of": 1}, "unheard_of"),
        ({"training": {"seq_len": 16, "batch_sequences": 4, "momentum": 0.9}}, "training.momentum"),
        (
            {
                "models": [
                    {"name": "nano", "n_layer": 1, "n_head": 3, "d_model": 8, "learning_rate": 1}
                ]
            },
            "not divide",
        ),
        (
            {
                "evaluation": {
                    "word_similarity": "synthetic",
                    "downstream": {"tasks": ["hellaswagg"]},
                }
            },
            "hellaswag",
        ),
        ({"evaluation": {"downstream": {"tasks": "synthetic"}}}, "does not exist"),
    ],
    ids=["unknown key", "unknown setting", "heads", "unknown task", "missing word-similarity file"],
)
def test_a_wrong_study_stops_before_the_first_job(changes, message, tmp_path, tiny_study):
    write(tmp_path, tiny_study() | changes)
    assert message in refused(tmp_path)


def test_gpus_that_torch_cannot_use_stop_before_the_first_job(tmp_path, tiny_study, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: one'\necho 'GPU 1: two'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    study = tiny_study()
    study["execution"]["gpus"] = 1
    write(tmp_path, study)
    result = snakemake(tmp_path, "train", "--printshellcmds")
    assert result.returncode == 1
    assert re.search(r"Provided resources: .*gpu\b.*\b2\b", result.stdout)
    assert "\nError: execution.gpus: 1, but torch can use none here" in result.stdout
    assert "rules/start.smk" not in result.stdout  # no lines of our code behind the sentence
    assert not (tmp_path / "results" / "data").exists()


@pytest.mark.parametrize(
    ("name", "n_jobs"),
    [
        ("paper", 146),
        ("paper_small", 54),
        ("paper_large", 8),
        ("paper_sgd", 72),
        ("paper_scale", 33),
        # Jobs of three to ten cells.
        ("demo", 4),
        ("optimizers", 5),
        ("tuned", 9),
    ],
)
def test_a_dry_run_of_a_shipped_study_is_light(name, n_jobs, tmp_path):
    say = (
        "import atexit, sys; libraries = {'torch', 'lm_eval', 'mlflow', 'transformers', 'scipy',"
        " 'matplotlib'};atexit.register(lambda: print('heavy:', sorted(libraries &"
        " set(sys.modules))))"
    )
    result = snakemake(
        tmp_path, "-n", study=str(ROOT / "workflow/config" / f"{name}.yaml"), first=say
    )
    assert "heavy: []" in result.stdout
    training = {rule: count for rule, count in jobs(result).items() if rule.startswith("train_")}
    assert sum(training.values()) == n_jobs
    found = set(
        re.findall(r"^rule (\w+):(?:\n    .*)*?\n    resources: .*gpu=(\d+)", result.stdout, re.M)
    )
    if (
        name == "paper"
    ):  # training takes the GPUs of the cell's own study, an evaluation one or none
        training_gpus = {("train_cells", "1"), ("train_cells", "8")}
        assert found == training_gpus | {
            ("test_loss", "1"),
            ("downstream", "1"),
            ("embeddings", "0"),
        }


def test_dry_run_of_the_contract_s_targets(copy):
    targets = ("all", "plan", "data", "train", "evaluate", "tables", "figures", "report")
    assert snakemake(copy, *targets, "-n").returncode == 0


def test_what_lint_finds_is_answered_in_the_rules(copy):
    result = snakemake(copy, "--lint")
    found = set(re.findall(r"^    \* (.*?)(?: in line \d+\.?)?:$", result.stdout, re.MULTILINE))
    assert found == {
        "Mixed rules and functions in same snakefile.",
        "Environment variable PYTHONSAFEPATH used but not asserted with envvars directive",
        "Environment variable PYTHONUTF8 used but not asserted with envvars directive",
        "Shell command directly uses variable rule from outside of the rule",
        "No log directive defined",
        "Specify a conda environment or container for each rule.",
    }


@pytest.mark.fault(
    "settings",
    "Snakemake is asked for something that runs no job, such as `--lint` or `--list-rules`.",
    "It leaves no folder of a study behind.",
)
@pytest.mark.parametrize("option", ["--lint", "--list-rules"])
def test_what_runs_nothing_leaves_nothing(option, tmp_path, tiny_study):
    write(tmp_path, tiny_study())
    assert "prepare" in snakemake(tmp_path, option).stdout
    assert not (tmp_path / "results").exists()


def test_snakemake_s_own_report_shows_tables_and_figures_with_captions(copy):
    finish(copy, "--report", "shown.html")
    page = (copy / "shown.html").read_text()
    for category in ("Tables", "Figures", "Results", "Report"):
        assert f'"{category}"' in page
    assert "table1.html" in page and "loss_accuracy.svg" in page
    assert "A figure of the study." in page


def test_the_plan_lists_cells_and_cost(copy):
    finish(copy, "plan")
    text = (copy / "results/tiny/plan.txt").read_text()
    assert "tiny: 4 cells" in text
    cell = json.loads(next((copy / "results/runs").glob("*/cell.json")).read_text())
    # 6 N T with N without positions, and attention's 12 L d T a token.
    flops = (6 * (cell["n_params"] - 16 * 8) + 12 * 1 * 8 * 16) * cell["n_tokens"]
    assert f"{flops:.2e}" in text
    assert (
        "4, 4 done" in text
        and "0 of them left" in text
        and "The times rest on speeds of ended runs." in text
    )


def test_the_plan_is_said_whenever_it_is_asked_for(copy):
    finish(copy, "plan")
    shutil.rmtree(next((copy / "results/runs").iterdir()))
    again = snakemake(copy, "plan", "--config", "budget={gpus: 3}")
    assert "tiny: 4 cells" in again.stdout
    assert "4, 3 done" in (copy / "results/tiny/plan.txt").read_text()
    refused = snakemake(copy, "plan", "--config", "budget={price_per_gpu_hour: -1}")
    assert refused.returncode != 0
    assert "budget.price_per_gpu_hour: must be greater than or equal to 0" in refused.stdout


def test_tables_from_results_alone_need_no_torch(copy):
    # What a reader with nothing but results.csv and the plan can do.
    for folder in ("runs", "data"):
        shutil.rmtree(copy / "results" / folder)
    (copy / "results/tiny/tables/table1.tex").unlink()
    blocked = copy / "blocked"
    blocked.mkdir()
    (blocked / "torch.py").write_text("raise ImportError('torch is not needed here')\n")
    given = "--plan results/tiny/plan.json --results results/tiny/results.csv --only tables"
    command = [sys.executable, "-m", "coupled_adam_bench", "report", *given.split()]
    subprocess.run(
        [*command, "--templates", str(ROOT / "templates")],
        cwd=copy,
        check=True,
        env={**os.environ, "PYTHONPATH": str(blocked)},
        timeout=60,
    )
    assert (copy / "results/tiny/tables/table1.tex").is_file()


# A study made of studies: two texts, two recipes, and cells that two of them share.

PARTS = ("short", "long", "again")


def three_studies(tiny_study) -> dict[str, dict]:
    """Return two optimizers with two seeds, with longer sequences of another text, and the first
    again."""
    short, long, again = (tiny_study(study=name) for name in PARTS)
    short["grid"][0] |= {"seeds": [1, 2]}
    short["execution"] |= {"train_cells_per_job": 4}
    long["data"] = {
        **long["data"],
        "name": "other",
        "source": {**long["data"]["source"], "seed": 5},
    }
    long["training"]["seq_len"] = 32
    long["grid"][0] |= {"table": "table2", "seeds": [1]}
    long["execution"] |= {"train_cells_per_job": 2}
    again["grid"][0] |= {"table": "table7", "seeds": [1, 2]}
    return {"short": short, "long": long, "again": again}


def write_composite(folder: Path, parts: dict[str, dict]) -> Path:
    for name, settings in parts.items():
        write(folder, settings, f"{name}.yaml")
    write(folder, {"study": "whole", "title": "All", "studies": [*parts]})
    return folder


@pytest.fixture(scope="module")
def composite(tmp_path_factory, tiny_study):
    """A working directory in which the composite study has run through, and what Snakemake said."""
    folder = write_composite(tmp_path_factory.mktemp("composite"), three_studies(tiny_study))
    result = snakemake(folder, "--printshellcmds")
    assert result.returncode == 0, result.stdout
    return folder, result


@COMPOSITE
def test_each_text_is_prepared_and_each_cell_trained_once(composite):
    folder, result = composite
    cells = [
        json.loads(path.read_text())
        for path in sorted((folder / "results/runs").glob("*/cell.json"))
    ]
    found = Counter(
        (cell["optimizer_key"], cell["seed"], cell["training"]["seq_len"]) for cell in cells
    )
    short = [(key, seed, 16) for key in ("adamw", "coupled_adam") for seed in (1, 2)]
    assert found == Counter([*short, ("adamw", 1, 32), ("coupled_adam", 1, 32)])
    data = {path.name.split("-")[0]: path.name for path in (folder / "results/data").iterdir()}
    assert set(data) == {"tiny", "other"}
    texts = {(cell["training"]["seq_len"], cell["data_id"]) for cell in cells}
    assert texts == {(16, data["tiny"]), (32, data["other"])}
    announced = jobs(result)
    # The first study's four cells in one job, the second's two in another; the third has no others.
    training = {rule: count for rule, count in announced.items() if rule.startswith("train")}
    assert training == {"train_cells": 2}
    assert announced["prepare"] == 2
    assert announced["downstream"] == 2  # up to six cells each, none with cells of two studies


@COMPOSITE
def test_one_results_folder_has_the_tables_of_all_parts(composite):
    folder, _ = composite
    study = folder / "results/whole"
    assert {path.name for path in (folder / "results").iterdir() if path.is_dir()} == {
        "data",
        "runs",
        "whole",
        "mlflow-artifacts",
    }
    assert sorted(path.name for path in (study / "tables").glob("*.csv")) == [
        "table1.csv",
        "table2.csv",
        "table7.csv",
    ]
    with (study / "results.csv").open() as file:
        found = list(csv.DictReader(file))
    assert {row["study"] for row in found} == {"whole"}
    losses = [row for row in found if (row["task"], row["metric"]) == ("test", "loss")]
    n_params = Counter(int(row["n_params"]) for row in losses)
    short = 64 * 8 + 16 * 8 + 12 * 64 + 2 * 8 + 8
    assert n_params == {short: 4, short + 16 * 8: 2}
    large = f"{(short + 16 * 8) / 1000:.2f}K"
    assert large in (study / "tables/table2.tex").read_text()
    assert (
        large
        not in (study / "tables/table1.tex").read_text() + (study / "tables/table7.tex").read_text()
    )
    assert "Study: All." in (study / "tables/table2.tex").read_text()
    manifest = json.loads((study / "manifest.json").read_text())
    assert [study["study"] for study in manifest["studies"]] == list(PARTS)
    assert [data["meta"]["data_id"] for data in manifest["data"]] == [
        data["id"] for data in manifest["data"]
    ]
    page = (study / "report/index.html").read_text()
    assert "6 runs" in page
    assert all(data["id"] in page for data in manifest["data"])


@COMPOSITE
def test_each_part_is_evaluated_with_its_own_settings(composite):
    folder, _ = composite
    for run in (folder / "results/runs").iterdir():
        seq_len = json.loads((run / "cell.json").read_text())["training"]["seq_len"]
        (file,) = (run / "evaluations").glob("downstream-*.json")
        assert json.loads(file.read_text())["settings"]["max_length"] == seq_len


@COMPOSITE
def test_the_runs_are_one_experiment(composite):
    from mlflow import MlflowClient

    folder, _ = composite
    client = MlflowClient(f"sqlite:///{folder}/results/mlflow.db")
    assert {experiment.name for experiment in client.search_experiments()} <= {"Default", "whole"}
    runs = client.search_runs([client.get_experiment_by_name("whole").experiment_id])
    assert sorted("optimizer" in run.data.tags for run in runs) == [False] + 6 * [True]


@COMPOSITE
def test_a_second_run_does_nothing_and_a_part_alone_finds_its_runs(composite):
    folder, _ = composite
    assert jobs(snakemake(folder, "-n")) == {}
    alone = jobs(snakemake(folder, "-n", study="long.yaml"))
    assert (
        alone["prepare"] == alone["downstream"] == 1
    )  # its own markers of data and evaluations that are there
    finish(folder, "evaluate", study="long.yaml")
    logs = [path.read_text() for path in (folder / "results/long/logs").glob("*")]
    assert not any("loss=" in log for log in logs)
    assert sum(log.count("kept, evaluated before") for log in logs) == 3 * 2


@COMPOSITE
def test_a_changed_evaluation_of_one_part_reruns_no_other(composite, tmp_path):
    folder = copied(composite[0], tmp_path / "copy")
    settings = read(folder, "long.yaml")
    settings["evaluation"]["downstream"]["limit"] = 3
    write(folder, settings, "long.yaml")
    counts = jobs(snakemake(folder, "-n"))
    assert counts["downstream"] == 1
    assert not {"prepare", "test_loss", "embeddings"} & set(counts)
    assert not any(rule.startswith("train") for rule in counts)


def test_a_wrong_part_stops_before_the_first_job(tmp_path, tiny_study):
    parts = three_studies(tiny_study)
    parts["long"]["training"]["momentum"] = 1
    write_composite(tmp_path, parts)
    (tmp_path / "again.yaml").unlink()
    said = refused(tmp_path)
    assert f"whole: {tmp_path / 'long.yaml'}: 1 invalid setting(s)" in said
    assert "training.momentum: unknown key" in said
    assert f"no again.yaml in {tmp_path} or" in said
