"""What lm-eval makes of the fields of a task is what its file says, or is refused before training."""

import gzip
import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from own_tasks import append, json_lines, mean_of, write_task
from planned import Planned
from text_study import END, byte_tokenizer, cell_settings, write_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from coupled_adam_bench.evaluation import downstream
from coupled_adam_bench.evaluation.downstream import try_tasks
from coupled_adam_bench.evaluation.task_loading import load_tasks
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.settings import parse_study

DATA_ID = "files-0123456789"
KNOWN = ["the", "of", "and", "to", "sleep", "sleeps", "dog"]


TOKENIZER = paths.data_dir(DATA_ID) / "tokenizer"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working directory whose data have a tokenizer of bytes."""
    monkeypatch.chdir(tmp_path)
    write_tokenizer(byte_tokenizer(), TOKENIZER)
    return tmp_path


@pytest.fixture
def few_words(tmp_path, monkeypatch) -> Path:
    """A working directory whose data have a tokenizer of eight words, and [UNK] for all others."""
    monkeypatch.chdir(tmp_path)
    words = ["[UNK]", *KNOWN]
    model = models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([END])
    write_tokenizer(tokenizer, TOKENIZER)
    return tmp_path


def planned(*names: str, **evaluated: object) -> Planned:
    settings = cell_settings(128, seeds=[1])
    settings["paths"]["tasks"] = "tasks"
    settings["evaluation"] = {"word_similarity": [], "downstream": {"tasks": [*names]} | evaluated}
    return Planned(parse_study(settings), DATA_ID)


def cure(name: str, setting: str) -> None:
    """Write into a task what a message says to write."""
    path = Path(f"tasks/{name}.yaml")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | yaml.safe_load(setting)))


def tried(name: str, **evaluated: object) -> int:
    return try_tasks(planned(name, **evaluated).plan())["files"][name]


def requests(name: str) -> list[tuple[str, list[str], list[int]]]:
    """The prompt of each item, its choices, and the place of the right one as lm-eval sees it."""
    with load_tasks(planned(name).study, DATA_ID) as loaded:
        task = loaded[name]["tasks"][name]
        found = []
        for _, doc in task.doc_iterator():
            answer, choices = task.doc_to_target(doc), task.doc_to_choice(doc)
            place = choices.index(answer) if isinstance(answer, str) else answer
            found.append((task.doc_to_text(doc), choices, place))
    return found


# ---- fields as the file has them ----

ODD = ["2019-03-01", "NA", "null", "None", "nan", "1e5", "2019-03-01T00:00:00", "12:30", "true"]


@pytest.mark.fault(
    "evaluation",
    "the fields of a task's own file look like dates, numbers or missing values",
    "each reaches the model as the text that stands in the file",
)
@pytest.mark.parametrize("texts", [ODD, ODD[:1], ["2019-03-01", "2019-03-02"]])
def test_texts_of_json_are_not_read_as_dates(here, texts):
    rows = [{"q": text, "c": [text, "2019-01-01"], "a": 1} for text in texts]
    expected = [(text, [text, "2019-01-01"], 1) for text in texts]
    write_task("lines", rows)
    write_task("list", json.dumps(rows), "json")
    write_task("marked", "\ufeff" + json_lines(rows))
    write_task("field", json.dumps({"items": rows}, indent=1), "json")
    named = {"data_files": {"test": "tasks/field.json"}, "field": "items"}
    cure("field", yaml.safe_dump({"dataset_kwargs": named}))
    write_task("packed", rows)
    Path("tasks/packed.jsonl.gz").write_bytes(gzip.compress(Path("tasks/lines.jsonl").read_bytes()))
    cure("packed", "dataset_kwargs: {data_files: {test: tasks/packed.jsonl.gz}}")
    for name in ("lines", "list", "marked", "field", "packed"):
        assert requests(name) == expected, name
        assert tried(name) == len(texts)


@pytest.mark.parametrize("sep", [",", "\t"])
def test_fields_of_csv_are_texts(here, sep):
    texts = [*ODD, "", "1,5", 'say "no"', "0.50"]
    frame = pd.DataFrame({"q": texts, "c1": "NA", "c2": "to", "a": 0})
    options = {"data_files": {"test": "tasks/table.csv"}, "sep": sep}
    write_task(
        "table",
        frame.to_csv(sep=sep, index=False),
        "csv",
        doc_to_text="Q {{q}}",
        doc_to_choice="{{[c1, c2]}}",
        dataset_kwargs=options,
    )
    assert requests("table") == [(f"Q {text}", ["NA", "to"], 0) for text in texts]
    assert tried("table") == len(texts)


def test_a_folder_is_read_as_written_too(here):
    write_task("own", [{"q": "2019-03-01", "c": ["2019-03-02", "b"], "a": 1}])
    Path("data").mkdir()
    Path("tasks/own.jsonl").rename("data/test.jsonl")
    cure("own", "dataset_path: data\ndataset_kwargs: {}")
    assert requests("own") == [("2019-03-01", ["2019-03-02", "b"], 1)]


def test_parquet_keeps_its_types(here):
    write_task("own", [{"q": "", "c": [], "a": 0}], dataset_path="parquet")
    frame = pd.DataFrame({"q": ["2019-03-01", "NA"], "c": [["1", "2019-01-01"]] * 2, "a": [1, 0]})
    frame.to_parquet("tasks/own.jsonl")
    assert requests("own") == [
        ("2019-03-01", ["1", "2019-01-01"], 1),
        ("NA", ["1", "2019-01-01"], 0),
    ]


MIXED = [
    {"q": 1, "c": ["a", "b"], "more": {"x": 1}, "n": 2**60},
    {"q": "1", "c": ["a"], "more": {"y": [1, "1"]}, "n": None},
    {"q": 2.0, "c": None, "more": None, "extra": True},
]


def test_rows_come_back_as_they_are(here):
    write_task("own", MIXED, doc_to_text="x", doc_to_choice="{{['a', 'b']}}", doc_to_target=0)
    names = dict.fromkeys(name for row in MIXED for name in row)
    expected = [{name: row.get(name) for name in names} for row in MIXED]
    with load_tasks(planned("own").study, DATA_ID) as loaded:
        rows = [dict(row) for _, row in loaded["own"]["tasks"]["own"].doc_iterator()]
    assert json.dumps(rows) == json.dumps(expected)  # where 2 is not 2.0


def test_a_broken_line_is_named(here):
    write_task("own", '{"q": "x", "c": ["a", "b"], "a": 0}\n{"q": \n')
    with pytest.raises(ValueError, match=r"own\.jsonl:2: not JSON .* write one item a line"):
        tried("own")


# ---- answers ----

DIGITS = [["3", "1", "2", "0"], ["1", "2", "0", "3"], ["0", "1", "2", "3"]]


@pytest.mark.fault(
    "evaluation",
    "the answers of a task are digits and so are its choices, so that lm-eval takes a text for a"
    " place",
    "the task is refused before training, with both ways to say what is meant",
)
def test_answers_in_digits(here):
    answers = ["1", "0", "2"]
    rows = [
        {"q": "item", "c": c, "a": a, "i": c.index(a)} for c, a in zip(DIGITS, answers, strict=True)
    ]
    places = [row["i"] for row in rows]
    write_task("as_index", rows, doc_to_target="{{i}}")
    write_task("as_text", rows)
    assert tried("as_index") == 3
    assert [place for *_, place in requests("as_index")] == places
    message = (
        r"'as_text': 1 of 3 items have an answer that lm-eval takes for another choice, the first is"
        r" item 1 \(from 0\): the answer '0' to the choices \['1', '2', '0', '3'\]; if the answer is"
        r" the text of a choice, write (?P<text>.*), and if it is its place from 0, (?P<place>.*)"
    )
    # Also where nobody has tried the task before.
    with pytest.raises(ValueError, match=message):
        requests("as_text")
    with pytest.raises(ValueError, match=message) as error:
        tried("as_text")
    written = re.search(message, str(error.value))
    for how, expected in (("text", places), ("place", [1, 0, 2])):
        cure("as_text", written[how])
        assert tried("as_text") == 3
        assert [place for *_, place in requests("as_text")] == expected
    # The name of the field, without braces, is read as it is.
    for field in ("a", "i"):
        cure("as_text", f"doc_to_target: {field}")
        assert tried("as_text") == 3
        assert [place for *_, place in requests("as_text")] == places


NONE = {
    "labels beyond the choices": ([0, 3, 3], r"2 of 3 items .* item 1 .*: the answer 3 to", None),
    "labels from 1": ([1, 2, 3], r"1 of 3 items .* item 2 .*: the answer 3 to", "from 1: write "),
    "hidden labels": ([-1, -1, -1], r"3 of 3 items .* item 0 .*: the answer -1 to", None),
    "hidden labels as texts": (["-1"] * 3, r"3 of 3 items .*: the answer '-1' to", None),
    "another case": (["to", "To", "of"], r"1 of 3 items .* item 1 .*: the answer 'To' to", None),
    "no label": ([0, None, 1], r"1 of 3 items .* item 1 .*: the answer '?None'? to", None),
    "a list with one beyond": ([[0], [1, 5], [2]], r"1 of 3 items .* the answer \[1, 5\] to", None),
}


@pytest.mark.fault(
    "evaluation",
    "answers of a task are none of its choices, as hidden labels and those that count from 1 are",
    "the task is refused before training, with the number of items, the first and what to do",
)
@pytest.mark.parametrize("as_field", [False, True])
@pytest.mark.parametrize("labels", NONE)
def test_answers_that_are_none_of_the_choices(here, labels, as_field):
    answers, message, written = NONE[labels]
    rows = [{"q": "the of", "c": ["to", "in", "of"], "a": answer} for answer in answers]
    write_task("own", rows, doc_to_target="a" if as_field else "{{a}}")
    message = f"'own': {message}"
    with pytest.raises(ValueError, match="have an answer that is none of the choices") as error:
        tried("own")
    assert re.search(message, str(error.value))
    if written is not None:
        cure("own", str(error.value).partition(written)[2])
        assert [place for *_, place in requests("own")] == [0, 1, 2]
    else:
        assert "leave these items out with process_docs" in str(error.value)
        Path("tasks/code.py").write_text(
            "def kept(rows):\n"
            "    good = [0, 1, 2, [0], [1], [2], 'to', 'in', 'of']\n"
            "    return rows.filter(lambda row: row['a'] in good)\n"
        )
        append("own", "process_docs: !function code.kept")
        if "hidden" in labels:  # nothing is left
            return
    assert tried("own") > 0


def test_a_label_of_csv_is_a_place_if_the_task_says_so(here):
    rows = "q,c1,c2,a\nthe,to,of,1\nof,to,in,0\n"
    write_task("own", rows, "csv", doc_to_choice="{{[c1, c2]}}", doc_to_target="a")
    with pytest.raises(ValueError, match=r"the answer '1' to the choices .* write (.*)$") as error:
        tried("own")
    cure("own", str(error.value).rpartition(" write ")[2])
    assert tried("own") == 2
    assert [place for *_, place in requests("own")] == [1, 0]


def test_examples_of_the_prompts_are_looked_at(here):
    rows = [{"q": "the of", "c": ["to", "in"], "a": 0}]
    write_task("own", rows)
    Path("tasks/train.jsonl").write_text(json.dumps(rows[0] | {"a": -1}) + "\n")
    files = {"data_files": {"test": "tasks/own.jsonl", "train": "tasks/train.jsonl"}}
    cure("own", yaml.safe_dump({"dataset_kwargs": files, "training_split": "train"}))
    assert tried("own") == 1
    with pytest.raises(ValueError, match="1 of 1 examples of the prompts have an answer that is"):
        tried("own", num_fewshot=1)


def test_an_item_is_no_example_in_its_own_prompt(here):
    write_task("own", [{"q": f"item {i}", "c": ["to", "in"], "a": 0} for i in range(3)])
    with pytest.raises(
        ValueError, match="examples of a prompt would be drawn from the items that are scored"
    ) as error:
        tried("own", num_fewshot=2)
    cure("own", re.search(r"write (fewshot_split: test) into", str(error.value))[1])
    assert tried("own", num_fewshot=2) == 3
    with load_tasks(planned("own", num_fewshot=2).study, DATA_ID) as loaded:
        task = loaded["own"]["tasks"]["own"]
        task.set_fewshot_seed(0)
        for number, doc in task.doc_iterator():
            assert task.fewshot_context(doc, 2).count(f"item {number}") == 1


def test_more_examples_than_there_are(here):
    items = [{"q": f"item {i}", "c": ["to", "in"], "a": 0} for i in range(4)]
    write_task("own", items, fewshot_split="test", num_fewshot=4)
    with pytest.raises(ValueError, match="to have 4 examples, and there are only 3; set") as error:
        tried("own")
    assert "to at most 3" in str(error.value)
    cure("own", "num_fewshot: 3")
    assert tried("own") == 4
    with pytest.raises(ValueError, match="to have 9 examples"):
        tried("own", num_fewshot=9)


def test_one_choice_is_no_question(here):
    items = [{"q": "the of", "c": ["to", "in"], "a": 0}, {"q": "the", "c": ["in"], "a": 0}]
    write_task("own", items)
    with pytest.raises(
        ValueError, match=r"1 of 2 items have one choice, .* item 1.*write the wrong"
    ):
        tried("own")
    write_task("own", [items[0], items[1] | {"c": ["in", "to"]}])
    assert tried("own") == 2


@pytest.mark.parametrize("rule", ["{q}", "Question: {q}\nAnswer:", "{{q}} ({hint})"])
def test_a_field_in_single_braces_is_no_field(here, rule):
    items = [{"q": f"the {i}", "hint": "of", "c": ["to", "in"], "a": 0} for i in range(2)]
    write_task("own", items, doc_to_text=rule)
    with pytest.raises(ValueError, match=r"would have the text \{(q|hint)\} in each item") as error:
        tried("own")
    field = re.search(r"write \{\{(\w+)\}\} for the field", str(error.value))[1]
    mended = rule.replace("{q}", "{{q}}") if field == "q" else rule.replace("{hint}", "{{hint}}")
    cure("own", yaml.safe_dump({"doc_to_text": mended}))
    assert tried("own") == 2
    prompt = requests("own")[0][0]
    assert "the 0" in prompt and "{" not in prompt


def test_the_accuracy_is_a_mean(here):
    items = [{"q": f"the {i}", "c": ["to", "in"], "a": 0} for i in range(3)]
    metric = {"metric": "acc", "aggregation": "median", "higher_is_better": True}
    write_task("own", items, metric_list=[metric])
    with pytest.raises(
        ValueError, match="of acc is 'median', and Acc is a mean; write aggregation"
    ):
        tried("own")
    write_task("own", items, metric_list=[metric | {"aggregation": "mean"}])
    assert tried("own") == 3


def test_braces_around_other_text_are_text(here):
    items = [{"q": "the", "c": ["to", "in"], "a": 0}]
    write_task("own", items, doc_to_text="\\boxed{q} {other} {{q}}")
    assert requests("own")[0][0] == "\\boxed{q} {other} the"


SOMETIMES = """
def score(item, results):
    return {"acc": 1.0} if item["a"] else {}


def never(item, results):
    return {"other": 1.0}
"""


def test_an_accuracy_of_some_items_or_some_tasks_is_refused(here):
    rows = [{"q": "the", "c": ["to", "in"], "a": a} for a in (1, 0, 1)]
    for name in ("whole", "own", "none"):
        write_task(name, rows)
    Path("tasks/code.py").write_text(SOMETIMES)
    for name, function in (("own", "score"), ("none", "never")):
        append(name, f"process_results: !function code.{function}")
    group = {
        "group": "both",
        "task": ["whole", "none"],
        "aggregate_metric_list": [{"metric": "acc"}],
    }
    Path("tasks/both.yaml").write_text(yaml.safe_dump(group))
    with pytest.raises(ValueError, match="own: its acc would be the mean without 1 of the 3 items"):
        tried("own")
    with pytest.raises(ValueError, match=r"both: its acc .* without 3 of the 3 items of 'none'"):
        tried("both")


@pytest.mark.parametrize("first", [True, False])
def test_a_prompt_in_digits_is_a_prompt_or_refused(here, first):
    prompts = ["007", "what"] if first else ["what", "12"]
    write_task("own", [{"q": q, "c": ["to", "in"], "a": 0} for q in prompts])
    message = r"1 of 2 items have a prompt that lm-eval takes for a number, .* '(007|12)'; write "
    with pytest.raises(ValueError, match=message) as error:
        tried("own")
    cure("own", re.search(r"write (doc_to_text: q);", str(error.value))[1])
    assert tried("own") == 2
    assert [prompt for prompt, *_ in requests("own")] == prompts


@pytest.mark.parametrize("rule", ["{{q}}", "q", "Q: {{q}}\nA:"])
def test_a_missing_field_is_no_prompt(here, rule):
    rows = [{"q": "None", "c": ["to", "in"], "a": 0}, {"c": ["to", "in"], "a": 1}]
    write_task("own", rows, doc_to_text=rule)
    with pytest.raises(
        ValueError, match=r"1 of 2 items have a prompt with a missing value.* item 1"
    ):
        tried("own")
    guarded = "{% if q is not none %}{{q}}{% else %}what{% endif %}"
    cure("own", yaml.safe_dump({"doc_to_text": guarded}))
    assert tried("own") == 2
    assert [prompt for prompt, *_ in requests("own")] == ["None", "what"]


def test_choices_that_are_numbers(here):
    write_task("own", [{"q": "the of", "c": [1, 2, 30], "a": 2}] * 2)
    with pytest.raises(
        ValueError,
        match=r"2 of 2 items have choices that are no list of texts, .*"
        r" \[1, 2, 30\]",
    ) as error:
        tried("own")
    cure("own", re.search(r"with (doc_to_choice: .*), or leave", str(error.value))[1])
    assert tried("own") == 2
    assert requests("own")[0] == ("the of", ["1", "2", "30"], 2)


# ---- ties ----

PAIRS = [
    {"good": f"the {'ze' * (i + 1)} sleeps", "bad": f"the {'ze' * i}bra sleeps"} for i in range(6)
]


def accuracies(name: str, save_cell) -> dict[str, float]:
    part = planned(name)
    (cell,) = part.cells.values()
    if not (paths.run_dir(cell.id) / "model").exists():
        save_cell(part, cell, 0, eot_id=len(KNOWN) + 1)
    with downstream.open_evaluator(part.study, part.data_id, "cpu") as evaluate:
        found = evaluate(cell, paths.run_dir(cell.id) / "model")
    accuracies.tasks = found.detail["tasks"]
    return {row["metric"]: row["value"] for row in found.results if row["task"] == name}


METRICS = [mean_of("acc"), mean_of("acc_norm")]


@pytest.mark.fault(
    "evaluation",
    "two choices are the same tokens, as sentences with unknown words are, and lm-eval takes the"
    " first",
    "they are named before training, and share the hit: half of it each, whichever stands first",
)
def test_choices_of_the_same_tokens_share_the_hit(few_words, save_cell, capsys):
    rows = [{"q": "", **pair} for pair in PAIRS]
    for name, choices, answer in (("first", "[good, bad]", "0"), ("second", "[bad, good]", "1")):
        how = {"doc_to_choice": f"{{{{{choices}}}}}", "doc_to_target": answer, "doc_to_text": ""}
        write_task(name, rows, metric_list=METRICS, **how)
    for name in ("first", "second"):
        assert tried(name) == 6
        said = capsys.readouterr().err
        assert f"'{name}': 6 of 6 items have choices that are the same tokens" in said
        assert "the first is item 0 (from 0), with " in said
        found = accuracies(name, save_cell)
        assert found["acc"] == found["acc_norm"] == 0.5
        assert accuracies.tasks[name]["same_tokens"] == 6


def test_only_the_choices_of_the_same_tokens_share(few_words, save_cell):
    """Three of four choices are the same, the fourth is another one."""
    choices = ["the zebra", "the of", "the gnu", "the ibex"]
    rows = [{"q": "dog", "c": choices, "a": place} for place in range(4)]
    write_task("own", rows, metric_list=METRICS)
    shown = [{"q": "dog", "c": choices[::-1], "a": 3 - place} for place in range(4)]
    write_task("turned", shown, metric_list=METRICS)
    found, turned = (accuracies(name, save_cell) for name in ("own", "turned"))
    # One hit in four items, whole or in three parts.
    assert found["acc"] == pytest.approx(0.25)
    assert (turned["acc"], turned["acc_norm"]) == (found["acc"], found["acc_norm"])


OWN_SCORE = """
def score(item, results):
    found = [result[0] for result in results]
    return {"acc": float(found.index(max(found)) == item["a"])}
"""


def test_a_score_of_the_task_s_own_shares_as_well(few_words, save_cell):
    Path("tasks").mkdir()
    Path("tasks/code.py").write_text(OWN_SCORE)
    for name, place in (("first", 0), ("second", 1)):
        write_task(name, [{"q": "dog", "c": ["the zebra", "the gnu"], "a": place}] * 3)
        append(name, "process_results: !function code.score")
    for name in ("first", "second"):
        assert accuracies(name, save_cell)["acc"] == 0.5
