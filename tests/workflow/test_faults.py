"""Faults injected into whole studies: what a plain second start of Snakemake makes of them."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from finished import HOSTILE, ROOT, SNAKEMAKE, copied, draws, outputs, read, small, write
from starts import begin, finish, jobs, make_tables, refused, snakemake, start
from waits import wait_until

NIGHTLY = pytest.mark.nightly


# ---- the first hour ----


@pytest.mark.fault(
    "settings",
    "The repository, its virtual environment and the working folder have a space, a quote and an"
    " umlaut in their path.",
    "Every rule quotes what it names; the study runs.",
)
@pytest.mark.parametrize("is_run", [False, pytest.param(True, marks=NIGHTLY)])
def test_a_path_with_a_space_a_quote_and_an_umlaut(is_run, finished, copy, tmp_path):
    # The finished study ran in such a folder, by a Python in such a folder; templates are in that
    # of the repository.
    assert HOSTILE in str(finished)
    home = tmp_path / HOSTILE
    for name in ("Snakefile", "rules", "templates", "workflow", "profiles"):
        source = ROOT / name
        home.mkdir(exist_ok=True)
        (
            shutil.copytree(source, home / name)
            if source.is_dir()
            else shutil.copy2(source, home / name)
        )
    asked = ("report", "tables", "--printshellcmds", "--snakefile", str(home / "Snakefile"))
    (command,) = re.findall(r"Shell command: (.* report .*)$", finish(copy, *asked, "-n"), re.M)
    assert str(home / "templates") in shlex.split(command)
    if not is_run:
        return
    said = finish(copy, *asked)
    assert "rule report_of_study:" in said
    assert outputs(copy) == outputs(finished)


@pytest.mark.fault(
    "settings",
    "in a fresh clone there are no word lists yet",
    "targets that need none run; others are stopped by a sentence that names the files",
)
def test_a_target_is_stopped_only_by_what_it_needs(tmp_path, tiny_study):
    settings = small(tiny_study())
    settings["evaluation"] = {
        "downstream": {"tasks": "synthetic"},
        "word_similarity": [{"name": "w", "file": "w.txt"}],
    }
    settings["paths"] = {"word_similarity": "nowhere"}
    settings["data"]["source"] = {"kind": "files"}
    settings["data"] |= {"tokenizer": "file", "vocab_size": 400}
    settings["paths"] |= {"text": "text", "tokenizer": "tokenizer.json"}
    settings["evaluation"]["downstream"] = {"tasks": ["arc_easy"]}
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        special_tokens=["<|endoftext|>"], initial_alphabet=tokenizer.pre_tokenizer.alphabet()
    )
    tokenizer.train_from_iterator(["some text"], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"text {n} of some"}) + "\n" for n in range(999))
    )
    write(tmp_path, settings)
    lacking = "nowhere/w.txt does not exist"
    for target, n_told in (("plan", 1), ("data", 0)):
        assert finish(tmp_path, target).count(lacking) == n_told
    said = refused(tmp_path)
    assert said.count(lacking) == 1
    assert f"{lacking}; put it there, or give another path; the settings are" in said


def test_the_plan_of_the_paper_in_a_fresh_clone(tmp_path):
    finish(tmp_path, "plan", study=str(ROOT / "workflow/config/paper_small.yaml"))
    assert "paper_small: 54 cells" in (tmp_path / "results/paper_small/plan.txt").read_text()


@pytest.mark.fault(
    "settings",
    "A study file has no `study:`.",
    "It is refused; it does not become the demo with some settings changed.",
)
def test_a_study_without_a_name_is_not_the_demo(tmp_path, tiny_study):
    settings = tiny_study()
    del settings["study"]
    write(tmp_path, settings)
    said = refused(tmp_path, "-n")
    assert "study: missing" in said
    assert 'File "' not in said


@pytest.mark.fault(
    "settings",
    "a study file is a program of Snakemake's (`__use_yte__: true`)",
    "the study is refused with a sentence that says so, after Snakemake has read it",
)
def test_a_study_that_is_a_program(tmp_path, tiny_study):
    code = "?open('ran', 'w').close()"
    write(tmp_path, {"__use_yte__": True, **tiny_study(title=code)})
    said = refused(tmp_path, "-n")
    assert "study.yaml: line 1: __use_yte__ makes a program of a file" in said
    (tmp_path / "ran").unlink(missing_ok=True)
    arguments = ["plan", "--study", "study.yaml", "--out", "plan.json"]
    command = [sys.executable, "-m", "coupled_adam_bench", *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert "__use_yte__ makes a program of a file" in result.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.fault(
    "settings",
    "`--config partial=false` or `partial=no` is given.",
    "`false` means false; what is neither true nor false is refused.",
)
def test_the_switch_partial(tmp_path, tiny_study):
    write(tmp_path, small(tiny_study()))
    assert "train_cells" in snakemake(tmp_path, "-n", "--config", "partial=false").stdout
    assert "train_cells" not in snakemake(tmp_path, "-n", "--config", "partial=true").stdout
    assert "must be true or false" in refused(tmp_path, "-n", "--config", "partial=no")


@pytest.mark.fault(
    "settings",
    "`--config` is given twice, without our profile and its logger.",
    "The start is refused with what to type; nothing is written.",
)
def test_a_second_config(tmp_path, tiny_study):
    write(tmp_path, tiny_study())
    twice = ["--config", "protocol=official", "--config", "study=mine"]
    said = refused(tmp_path, "-n", *twice, "--workflow-profile", "none")
    assert "type it once: --config protocol=official study=mine" in said


def test_jobs_ask_for_what_their_cells_need(tmp_path, tiny_study):
    settings = small(tiny_study())
    large = {"name": "large", "n_layer": 12, "n_head": 12, "d_model": 768, "learning_rate": 0.01}
    settings["models"].append(large)
    settings["grid"].append(
        {"models": ["large"], "tokens": [{"steps": 10**6}], "optimizers": ["adamw"], "seeds": [1]}
    )
    settings["execution"]["train_cells_per_job"] = 1
    write(tmp_path, settings)
    said = snakemake(tmp_path, "train", "-n").stdout
    resources = re.findall(
        r"^    wildcards: job=(\S+)\n(?:    .*\n)*?    resources: (.*)$", said, re.MULTILINE
    )
    asked = {job: dict(re.findall(r"(\w+)=(\d+)", text)) for job, text in resources}
    (of_large,) = [values for job, values in asked.items() if job.startswith("large_")]
    small_jobs = [values for job, values in asked.items() if not job.startswith("large_")]
    assert {(values["mem_mb"], values["runtime"]) for values in small_jobs} == {("4000", "60")}
    # 85M parameters on a CPU: weights, gradients and moments, a checkpoint, and the model twice
    # while it is exported.
    assert int(of_large["mem_mb"]) * 1e6 > (16 + 12 + 8) * 85e6
    assert 60 < int(of_large["runtime"]) <= 1440


def endless(settings: dict[str, Any]) -> dict[str, Any]:
    """One cell, which does not end by itself before it is stopped, and no other that takes the
    processors meanwhile."""
    settings = small(settings)
    steps = {"tokens": [{"steps": 100_000}], "table": None}
    settings["grid"][0] |= steps | {"optimizers": ["adamw"], "seeds": [1]}
    return settings


@pytest.mark.fault(
    "cluster",
    "Training is killed without a word: out of memory, or a node that goes down.",
    "The log names execution.train_mem_mb, and the retry asks for half as much memory again.",
)
def test_a_killed_job_says_that_memory_was_short(tmp_path, tiny_study):
    settings = endless(tiny_study())
    settings["execution"] |= {"train_mem_mb": 1000, "train_cells_per_job": 1}
    write(tmp_path, settings)
    process = begin(tmp_path)
    (history,) = [
        path for path in tmp_path.glob("results/runs/*/history.jsonl") if path.stat().st_size
    ][:1]
    pid = re.match(r"pid (\d+) on", (history.with_name(".lock")).read_text())
    assert pid
    os.kill(int(pid[1]), signal.SIGKILL)
    log = tmp_path / "results" / "tiny" / "logs" / f"{history.parent.name}.train.log"
    killed = "killed, most likely for lack of memory (execution.train_mem_mb)"
    wait_until(lambda: killed in log.read_text())
    # Snakemake 9 waits for ever if SIGTERM comes while it chooses jobs: its handler takes the lock
    # that it has.
    process.kill()
    process.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # the retry, if it has begun


# ---- numbers stay a study's own ----


@pytest.mark.fault(
    "results",
    "Studies share cells and measure them under different settings; they are run, collected in"
    " whole or in part, damaged and run again in any order.",
    "The results of each are byte for byte those of the study alone.",
)
@NIGHTLY  # by day the working folders that share results, below, and tests/attack
def test_two_studies_over_the_same_cells_in_any_order(finished, finished_twice, tmp_path):
    copy = copied(finished_twice, tmp_path / "copy")
    alone = outputs(finished)
    others = outputs(copy, "other")
    assert others["results.csv"].replace(b"other,", b"tiny,") != alone["results.csv"]
    assert outputs(copy) == alone
    for name, study in (("study.yaml", "tiny"), ("other.yaml", "other"), ("study.yaml", "tiny")):
        shutil.rmtree(copy / "results" / study)
        finish(copy, "tables", study=name)
        assert outputs(copy) == alone
        assert outputs(copy, "other") == others
    # A change of title collects again, and nothing else.
    write(copy, read(copy) | {"title": "Another"})
    finish(copy, "results/tiny/results.csv")
    assert outputs(copy)["results.csv"] == alone["results.csv"]


# ---- damage ----


def flip_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def change_byte(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    content[place] = (content[place] + rng.randrange(1, 256)) % 256
    path.write_bytes(content)


def drop_line(path: Path, rng: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    path.write_bytes(b"".join(lines))


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    flip_bit,
    change_byte,
    drop_line,
    delete,
)


class Victim:
    """A copy of a finished study that is damaged and put back as it was, times of files
    included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables = outputs(folder)
        self._contents = {path: path.read_bytes() for path in self._files()}
        self._times = {path: path.stat().st_mtime_ns for path in self._contents}

    def _files(self) -> list[Path]:
        return sorted(
            path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()
        )

    def results(self) -> list[Path]:
        return [
            path
            for path in self._contents
            if "results" in path.parts and not path.name.startswith(".")
        ]

    def restore(self) -> None:
        for path in set(self._files()) - set(self._contents):
            path.unlink()
        for path, content in self._contents.items():
            if (
                not path.exists()
                or path.stat().st_mtime_ns != self._times[path]
                or path.read_bytes() != content
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                os.utime(path, ns=(self._times[path], self._times[path]))


@pytest.fixture(scope="module")
def finished_victim(finished, tmp_path_factory) -> Victim:
    return Victim(copied(finished, tmp_path_factory.mktemp("damaged") / "copy"))


@pytest.fixture
def victim(finished_victim) -> Iterator[Victim]:
    """The finished study, which is put back as it was after each test."""
    yield finished_victim
    finished_victim.restore()


@pytest.mark.fault(
    "results",
    "one bit, one byte, one line or a whole file is lost, in one to three files of a finished"
    " study",
    "a plain second start, or the one after it, gives the undisturbed tables",
)
@pytest.mark.parametrize(
    "draw", draws("CAB_DAMAGE_DRAWS", by_night=6, by_day=0)
)  # `make attack` draws 500
def test_damage_at_random(victim, draw):
    rng = random.Random(draw)
    damaged = {}
    for path in rng.sample(victim.results(), rng.choice((1, 1, 1, 2, 3))):
        damaged[path] = rng.choice(DAMAGES) if path.stat().st_size else delete
        damaged[path](path, rng)
    what = ", ".join(
        f"{how.__name__} of {path.relative_to(victim.folder)}" for path, how in damaged.items()
    )
    for _ in range(1 + len(damaged)):
        result = snakemake(victim.folder)
        said = f"{what}:\n{result.stdout}"
        assert "Traceback" not in result.stdout, said
        if result.returncode == 0:
            break
        assert any(path.name in result.stdout for path in damaged), said
    assert result.returncode == 0, said
    assert outputs(victim.folder) == victim.tables, said


@pytest.mark.fault(
    "results",
    "one bit changes in a trained model before it is evaluated",
    "the evaluation stops and names the file; the next start makes the model anew",
)
def test_models_that_change_before_their_evaluation(victim):
    folder = victim.folder
    models = sorted(folder.glob("results/runs/*/model"))
    damaged = dict(
        zip(("model.safetensors", "config.json", "tokenizer.json"), models, strict=False)
    )

    def measured() -> dict[Path, Any]:
        files = folder.glob("results/runs/*/evaluations/*.json")
        return {path: json.loads(path.read_text())["results"] for path in files}

    before = measured()
    for name, model in damaged.items():
        next(model.parent.glob("evaluations/embeddings-*.json")).unlink()
        flip_bit(model / name, random.Random(0))
    result = snakemake(folder, "evaluate")
    assert result.returncode != 0
    said = result.stdout + "".join(
        path.read_text() for path in folder.glob("results/tiny/logs/*.log")
    )
    assert "Traceback" not in said
    for name, model in damaged.items():
        path = re.escape(str(model.relative_to(folder) / name))
        assert re.search(
            rf"{path}: SHA-256 \w+, but run.json says \w+; start again: the model is made anew",
            said,
        )
    finish(folder, "evaluate")
    assert measured() == before


@pytest.mark.fault(
    "several users",
    "The results may only be read, as in the folder of a colleague.",
    "A dry run tells what there is to do. A start says that the results must be writable.",
)
@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write everywhere"
)
def test_results_that_may_only_be_read(victim):
    folder = victim.folder
    as_user = ["setpriv", "--bounding-set", "-dac_override"] if os.geteuid() == 0 else []
    folders = [folder / "results", *(path for path in folder.glob("results/**") if path.is_dir())]
    try:
        for path in [*folders, *victim.results(), folder / "results/tiny/.lock"]:
            path.chmod(path.stat().st_mode & ~0o222)
        command = [*as_user, *SNAKEMAKE, "--configfile", "study.yaml"]
        for arguments, status, said in (
            (["-n"], 0, "Nothing to be done"),
            (
                ["--cores", "2"],
                1,
                "results/tiny/.lock': the results must be writable to run a study",
            ),
        ):
            result = subprocess.run(
                [*command, *arguments], cwd=folder, capture_output=True, text=True, check=False
            )
            assert result.returncode == status, result.stderr
            assert said in result.stdout + result.stderr
            assert "Traceback" not in result.stderr
    finally:
        for path in folder.glob("results/**"):
            path.chmod(path.stat().st_mode | 0o200)


CASES = {
    "results.csv": "results/tiny/results.csv",
    "tests.csv": "results/tiny/tests.csv",
    "paired.csv": "results/tiny/paired.csv",
    "a table": "results/tiny/tables/table1.tex",
    "the manifest": "results/tiny/manifest.json",
    "an evaluation": "results/runs/*_adamw_s1_*/evaluations/downstream-*.json",
    "a figure": "results/tiny/figures/plane.svg",
    "a record of a run": "results/runs/*_coupled_adam_s1_*/run.json",
    "a history": "results/runs/*_adamw_s2_*/history.jsonl",
}
LOST = {
    "power.csv": "results/tiny/power.csv",
    "another table": "results/tiny/tables/table1.html",
    "another evaluation": "results/runs/*_coupled_adam_s2_*/evaluations/downstream-*.json",
    "the page": "results/tiny/report/index.html",
    "another history": "results/runs/*_coupled_adam_s2_*/history.jsonl",
}
"""Files of the same kinds, for a start that finds some changed and some lost."""


@pytest.mark.fault(
    "results",
    "One digit is changed in an evaluation, the record of a run, a history, a CSV file of results,"
    " a table, a figure or the manifest; other such files and the page are deleted.",
    "A plain second start makes all anew from what they were made of, names what was changed, and"
    " keeps what it replaces.",
)
@pytest.mark.fault(
    "results",
    "in a finished study `plan.json` is edited, and a byte of the data changes",
    "a plain second start makes both anew, byte for byte",
)
def test_a_plain_second_start_mends(victim):
    folder = victim.folder
    found = {what: next(folder.glob(pattern)) for what, pattern in (CASES | LOST).items()}
    lost = {what: path for what, path in found.items() if what in LOST}
    changed = {what: path for what, path in found.items() if what in CASES}
    shown = [path for what, path in changed.items() if MADE_BY[what] == "report_of_study"]
    plan, power = folder / "results/tiny/plan.json", found["power.csv"]
    contents = plan.read_bytes(), power.read_bytes()
    flip_bit(next(folder.glob("results/data/*/train.bin")), random.Random(0))
    plan.write_text(plan.read_text().replace("tiny", "TINY", 1))
    said = snakemake(folder, "-n").stdout
    assert re.search(r"train\.bin: SHA-256 .*; it is made anew when a job needs it", said), said
    assert "Nothing to be done" in said  # no job does
    for path in changed.values():
        text = path.read_text()
        place = next(index for index, sign in enumerate(text) if sign in "12345678" and index > 20)
        path.write_text(text[:place] + "9" + text[place + 1 :])
    for path in lost.values():
        path.unlink()
    edited = {path: path.read_bytes() for path in shown}
    said = finish(folder)
    for what, path in changed.items():
        assert (
            str(path.relative_to(folder / "results/tiny" if path in shown else folder)) in said
        ), what
    for what, path in (changed | lost).items():
        assert path.is_file(), what
    for path, content in edited.items():
        assert path.with_name(f"{path.name}.damaged-1").read_bytes() == content
    assert (plan.read_bytes(), power.read_bytes()) == contents
    assert outputs(folder) == victim.tables
    assert "Nothing to be done" in snakemake(folder, "-n").stdout


@pytest.mark.fault(
    "settings",
    "a seed is added to a finished study",
    "a start says that its cell is not trained yet, and not that something is damaged",
)
def test_a_new_seed_is_no_damage(copy):
    settings = read(copy)
    settings["grid"][0]["seeds"] = [1, 2, 3]
    settings["execution"] |= {"train_cells_per_job": 6, "evaluation_cells_per_job": 6}
    write(copy, settings)
    said = snakemake(copy, "-n").stdout
    assert re.search(r"^nano_\S+_s3_\w+ is not trained yet; it will be$", said, re.MULTILINE), said
    assert re.search(
        r"^nano_\S+_s3_\w+ has no embeddings yet; it will be measured$", said, re.MULTILINE
    )
    assert "no such file" not in said and "anew" not in said


# The job that a file's loss asks for, while all that was made of it is still there.
MADE_BY = {
    "results.csv": "report_of_study",
    "tests.csv": "report_of_study",
    "paired.csv": "report_of_study",
    "a table": "report_of_study",
    "a figure": "report_of_study",
    "the manifest": "report_of_study",
    "an evaluation": "downstream",
    "a record of a run": "train_cells",
    "a history": "train_cells",
}


@pytest.mark.fault(
    "results",
    "A single file of a finished study is deleted: a CSV file of results, a table, a figure, the"
    " manifest, an evaluation, the record of a run or a history.",
    "A plain second start plans the job that makes it.",
)
@pytest.mark.parametrize("what", CASES)
def test_a_deleted_file_is_planned_again(victim, what):
    next(victim.folder.glob(CASES[what])).unlink()
    said = snakemake(victim.folder, "-n").stdout
    assert re.search(rf"^(local)?rule {MADE_BY[what]}:", said, re.MULTILINE), said


@pytest.mark.fault(
    "several users",
    "A study is changed and run in another working folder with the same results, or its"
    " `.snakemake` is deleted: Snakemake does not know for which settings the results were made.",
    "The manifest names the cells, labels and settings that it was made for; the results of others"
    " are made anew.",
)
@NIGHTLY  # by day the studies that share cells, above and in tests/attack
def test_results_made_for_other_settings(victim):
    folder = victim.folder
    change = {
        "evaluation": {
            "word_similarity": "synthetic",
            "downstream": {"tasks": "synthetic", "limit": 5},
        }
    }
    settings = read(folder)
    write(folder, settings | change)
    finish(folder, "tables")
    expected = outputs(folder)
    assert expected != victim.tables
    for study, tables in ((settings, victim.tables), (settings | change, expected)):
        shutil.rmtree(folder / ".snakemake")
        write(folder, study)
        finish(folder, "tables")
        assert outputs(folder) == tables


@pytest.mark.fault(
    "results",
    "The report of a finished study fails, as with a template that raises.",
    "The last good results are there, byte for byte; the next good start makes them anew.",
)
@pytest.mark.parametrize("is_made_anew", [False, pytest.param(True, marks=NIGHTLY)])
def test_a_report_that_fails_leaves_the_last_one(is_made_anew, victim, tmp_path):
    folder, home = victim.folder, tmp_path / "home"
    for name in ("rules", "templates", "workflow", "profiles"):
        shutil.copytree(ROOT / name, home / name)
    shutil.copy2(ROOT / "Snakefile", home)
    page = home / "templates/html/report.html.j2"
    arguments = ["report", "--snakefile", str(home / "Snakefile")]
    manifest = folder / "results/tiny/manifest.json"
    shown = [
        manifest,
        *(manifest.parent / name for name in json.loads(manifest.read_text())["sha256"]),
    ]
    before = {path: path.read_bytes() for path in shown}
    assert len(before) > 30
    text = page.read_text()
    page.write_text("{{ nothing.there }}" + text)
    result = snakemake(folder, *arguments)
    assert result.returncode != 0
    assert (
        "Error in rule report_of_study" in result.stdout
        and "'nothing' is undefined" in result.stdout
    )
    assert "Restored" not in result.stdout and "Removing output" not in result.stdout
    assert {path: path.read_bytes() for path in before if path.exists()} == before
    page.write_text(text)
    announced = jobs(snakemake(folder, *arguments, "-n"), target="report")
    assert announced == {"report_of_study": 1}
    if not is_made_anew:
        return
    times = {path: path.stat().st_mtime_ns for path in before}
    finish(folder, *arguments)
    assert {path: path.read_bytes() for path in before} == before
    assert all(path.stat().st_mtime_ns > times[path] for path in before)
    assert "Nothing to be done" in snakemake(folder, *arguments, "-n").stdout


# ---- kills and company ----


@pytest.mark.fault(
    "several users",
    "Snakemake is killed by SIGKILL or SIGHUP, alone or with all of its jobs",
    "the next start removes its locks, waits for jobs that live on, and finishes the study",
)
@pytest.mark.parametrize(
    ("number", "jobs_too", "target"),
    [
        (signal.SIGKILL, False, "train"),
        pytest.param(signal.SIGHUP, False, "tables", marks=NIGHTLY),
        (signal.SIGHUP, True, "train"),
    ],
    ids=["SIGKILL", "SIGHUP", "SIGHUP of all"],
)
def test_a_killed_snakemake(number, jobs_too, target, tmp_path, tiny_study):
    settings = small(tiny_study())
    settings["grid"][0]["tokens"] = [{"steps": 200}]
    settings["execution"] |= {"train_cells_per_job": 2, "checkpoint_every": 50}
    write(tmp_path, settings)
    process = begin(tmp_path)
    (os.killpg if jobs_too else os.kill)(process.pid, number)
    assert process.wait() == -number
    said = finish(tmp_path, target)
    assert "an earlier run was killed and left its locks; they are removed" in said
    assert len(list(tmp_path.glob("results/runs/*/run.json"))) == 4
    assert target == "train" or all(outputs(tmp_path).values())
    assert "Nothing to be done" in snakemake(tmp_path, target, "-n").stdout


@pytest.mark.fault(
    "training",
    "Only Snakemake is sent SIGINT or SIGTERM, by a supervisor, a notebook or `docker stop`.",
    "Training has the signal, too: it finishes its step, writes a checkpoint and ends.",
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_snakemake_alone_reaches_its_jobs(number, tmp_path, tiny_study):
    write(tmp_path, endless(tiny_study()))
    process = begin(tmp_path)
    (history,) = tmp_path.glob("results/runs/*/history.jsonl")
    os.kill(process.pid, number)
    wait_until(lambda: any((history.parent / "checkpoints").glob("step-*")))
    assert len(history.read_text().splitlines()) < 100_000
    if number == signal.SIGTERM:  # at which Snakemake 9 itself can wait for ever
        process.kill()
    assert process.wait(60) != 0


@pytest.mark.fault(
    "several users",
    "A study is started for the first time by two people at once, in one folder.",
    "The second start waits, says for which process, and finds the work done.",
)
def test_two_first_starts_at_once(tmp_path, tiny_study):
    write(tmp_path, small(tiny_study()))
    processes = {name: start(tmp_path, "data", said=name) for name in ("one.txt", "two.txt")}
    for name, process in processes.items():
        process.wait(timeout=300)
        assert process.returncode == 0, (tmp_path / name).read_text()
    said = "".join((tmp_path / name).read_text() for name in processes)
    assert said.count("results/tiny: waits for the process that works in this folder (pid ") == 1
    assert said.count("Nothing to be done") == 1


@pytest.mark.fault(
    "several users",
    "three working folders share one results folder: two run the same study at once, the third one"
    " another study",
    "data are prepared once, each cell is trained once, and all end with the tables of each alone",
)
def test_working_folders_with_one_results(
    finished, finished_twice, tmp_path, tiny_study, other_study
):
    settings, other = small(tiny_study()), other_study()
    (tmp_path / "shared").mkdir()
    runs = {}
    for name, study in (("one", settings), ("two", settings), ("three", other)):
        write(tmp_path / name, study)
        (tmp_path / name / "results").symlink_to(tmp_path / "shared")
        runs[name] = start(tmp_path / name, "evaluate")
    said = {}
    for name, process in runs.items():
        process.wait(timeout=300)
        said[name] = (tmp_path / name / "said.txt").read_text()
        assert process.returncode == 0, said[name]
    assert "waits for the process that works in this folder" in said["one"] + said["two"]
    assert len(list((tmp_path / "shared/runs").glob("*/run.json"))) == 4
    logs = "".join(path.read_text() for path in (tmp_path / "shared").glob("*/logs/*.log"))
    assert "Traceback" not in logs
    assert logs.count("loss=") <= 4 * 4  # a line every five steps
    make_tables(tmp_path / "one")
    make_tables(tmp_path / "three", "other")
    assert outputs(tmp_path / "one") == outputs(finished)
    assert outputs(tmp_path / "three", "other") == outputs(finished_twice, "other")
