"""What is wrong with a study is said in one line for each fault, with its place and a way out."""

from pathlib import Path
from typing import Any

import pytest
from tiny import changed, tiny_study

from coupled_adam_bench.evaluation.identity import check_tasks
from coupled_adam_bench.study.study import load_study, parse_study

BLOCK = "grid.0"
OWN = {"name": "custom", "path": "a.B", "key": "own"}


def faults(values: Any) -> list[str]:
    """Return the lines of a refusal, without that of its origin."""
    with pytest.raises(ValueError) as refused:
        parse_study(values)
    assert refused.value.__suppress_context__
    return [line.strip() for line in str(refused.value).splitlines()[1:]]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("trainig", {}, "training"),
        ("training.seqlen", 3, "seq_len"),
        ("training.schedule", "cosin", "cosine"),
        ("training.seq_len", "x", "integer"),
        ("training.min_lr_ratio", float("nan"), "finite"),
        ("data.source.synthetic.nwords", 3, "n_words"),
        ("data.source", {"kind": "hubb"}, "hub"),
        ("data.source.synthetic.n_word_pairs", 5000, "4950"),
        ("data.vocab_size", 0, "1"),
        ("data.name", "a b", "letters"),
        ("data.split.val_fraction", 0.5, "0.5"),
        ("models.0", "gpt2-2x46", "gpt2-2x64"),
        ("models.0.n_head", "two", "integer"),
        (f"{BLOCK}.table", "tabel1", "table1"),
        (f"{BLOCK}.models", ["smal"], "small"),
        (f"{BLOCK}.models", [], "1"),
        (f"{BLOCK}.tokens.0", "20X", "1.5M"),
        (f"{BLOCK}.tokens.0.steps", -4, "0"),
        (f"{BLOCK}.tokens", [100], "less than a batch"),
        (f"{BLOCK}.seeds", [1, 1], "1"),
        (f"{BLOCK}.seeds", [1], "2"),
        (f"{BLOCK}.optimizers", ["adamw"], "2"),
        (f"{BLOCK}.optimizers", "adamw", "list"),
        (f"{BLOCK}.optimizers.0.name", "adam", "adamw"),
        (f"{BLOCK}.optimizers.0", {"name": "sgd", "beta1": 0.5}, "momentum"),
        (f"{BLOCK}.optimizers.0", {"name": "custom", "key": "own"}, "path"),
        (f"{BLOCK}.optimizers.0.path", "no_class", "match"),
        (f"{BLOCK}.optimizers", ["adamw", "adamw"], "Adam"),
        (f"{BLOCK}.optimizers", [OWN, OWN | {"key": "other", "label": "own"}], "own"),
        ("tables", {"own": {"title": "Own", "comparison": "pear", "columns": ["loss"]}}, "pair"),
        ("tables", {"own": {"title": "Own", "comparison": "pair", "columns": ["los"]}}, "loss"),
        ("evaluation.word_similarity", "synthetisch", "synthetic"),
        ("evaluation.word_similarity", [{"name": "own"}], "required"),
        ("evaluation.word_similarity", [{"name": "own", "file": "a", "separator": ", "}], "1"),
        ("evaluation.word_similarity", [{"name": "own", "file": "a"}] * 2, "own"),
        ("evaluation.downstream.tasks", "race", "list"),
        ("evaluation.downstream.tasks", ["race", "race"], "race"),
        ("execution.gpus", -1, "0"),
        ("budget", {"gpu": "H201"}, "H200"),
        ("protocol", "../up", "letters"),
    ],
)
def test_one_fault_is_one_line(place: str, value: Any, said: str) -> None:
    study = tiny_study()
    study["grid"] = study["grid"][:1]
    where = place.replace("source.synthetic", "source")
    where = where.removesuffix(".name").removesuffix(".path") if "optimizers" in where else where
    if place.endswith(".path"):
        value = {"name": "custom", "key": "own", "path": value}
    if where.endswith(".steps"):
        where, value = where.removesuffix(".steps"), {"steps": value}
    (line,) = faults(changed(study, where, value))
    assert line.startswith(place)
    assert said in line[len(place) :]


def test_all_faults_are_told_at_once() -> None:
    study = changed(tiny_study(), "training.seqlen", 3)
    study = changed(changed(study, "models.0.n_layer", 0), "data.tokenizer", "words")
    places = [line.partition(": ")[0] for line in faults(study)]
    assert places == ["data.tokenizer", "models.0.n_layer", "training.seqlen"]


def test_one_name_for_two_optimizers_of_a_study() -> None:
    study = tiny_study()
    second = study["grid"][0] | {"optimizers": ["sgd", OWN | {"key": "coupled_adam"}]}
    study["grid"] = [study["grid"][0], second]
    (line,) = faults(study)
    assert line.startswith("grid.1.optimizers: coupled_adam")


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\n\tb: 2\n", 2), ("a: [1,\nb: 2\n", 3), ("a: 'b\n", 2)]
)
def test_yaml_that_does_not_parse(home: Path, text: str, line: int) -> None:
    (home / "study.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"^study\.yaml:{line}: "):
        load_study(Path("study.yaml"))


@pytest.mark.parametrize(("text", "number"), [("1.5M", 1_500_000), ("20B", 20 * 10**9), ("7", 7)])
def test_counts(text: str, number: int) -> None:
    study = parse_study(changed(tiny_study(), "data.source.n_tokens", text))
    assert study.data.source.n_tokens == number


def test_paths_are_those_of_a_shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch")
    monkeypatch.setenv("HOME", str(home))
    paths = {"text": ["~/a/**/*.txt", "$SCRATCH/b"], "hub_mirror": "~"}
    found = parse_study(tiny_study(paths=paths)).paths
    assert found.text == (f"{home}/a/**/*.txt", "/scratch/b")
    assert found.hub_mirror == str(home)


def test_a_task_that_nobody_has(home: Path) -> None:
    def check(*tasks: str) -> None:
        evaluation = {"word_similarity": "synthetic", "downstream": {"tasks": tasks}}
        check_tasks(parse_study(tiny_study(evaluation=evaluation, paths={"tasks": "own"})))

    (home / "own").mkdir()
    (home / "own/mine.yaml").write_text(
        "task: mine\ndataset_path: json\noutput_type: multiple_choice\n"
    )
    check("race", "mine")
    with pytest.raises(
        ValueError, match=r"^evaluation\.downstream\.tasks: .*helaswag.* hellaswag\?$"
    ):
        check("mine", "helaswag")
