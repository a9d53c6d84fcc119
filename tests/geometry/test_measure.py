"""``measure`` on models that transformers made, a matrix of NumPy and a cell, against direct sums."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from pandas import DataFrame
from tokenizers import Tokenizer, models, pre_tokenizers

from coupled_adam_bench.cli import main
from coupled_adam_bench.geometry.measure import measure
from coupled_adam_bench.geometry.metrics import geometry
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.evaluation import WordList

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "far", "house"]
TEXT = "the cat sat on the mat\nand the dog ran far\n"
LIST = WordList(name="own", file="own.csv", separator=",")


def values(frame: DataFrame, task: str) -> dict[str, float]:
    rows = frame[frame["task"] == task]
    return dict(zip(rows["metric"], rows["value"], strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts, a list of pairs and a tokenizer, which cuts texts after three tokens."""
    (tmp_path / "text[1].txt").write_text(TEXT)
    (tmp_path / "text1.txt").write_text("far")
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "the cat sat on the mat"}\n{"text": "and the dog ran far"}\n'
    )
    (tmp_path / "own.csv").write_text("cat,dog,9\nmat,house,2\nsat,ran,5\nthe,cow,1\n")
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(["[UNK]", *WORDS])}, "[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def gpt2() -> transformers.PreTrainedModel:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=20, n_layer=1, n_head=2, n_embd=8)
    )


def bert() -> transformers.PreTrainedModel:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
        )
    )


def untied() -> transformers.PreTrainedModel:
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


@pytest.mark.parametrize("make", [gpt2, bert, untied])
def test_a_model_that_transformers_made(folder: Path, make) -> None:
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(folder / "model")
    (folder / "model/tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    matrices = {"embeddings": model.get_input_embeddings().weight.detach().double().numpy()}
    if make is untied:
        matrices["head"] = model.get_output_embeddings().weight.detach().double().numpy()
    counts_V = np.zeros(20, int)
    for word in TEXT.split():
        counts_V[1 + WORDS.index(word)] += 1
    for text in ("text[1].txt", "rows.jsonl"):
        frame = measure(str(folder / "model"), text=[folder / text], words=folder, lists=[LIST])
        assert set(frame["task"]) == {*matrices, "own", "word_similarity"}
        for task, matrix_VD in matrices.items():
            assert values(frame, task) == geometry(matrix_VD, counts_V)
        # A word that the tokenizer does not know is no token.
        assert values(frame, "own")["n_pairs"] == 3


def test_a_matrix(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e_VD = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    np.save(folder / "matrix.npy", e_VD)
    np.save(folder / "counts.npy", np.arange(13))
    expected = geometry(e_VD.astype(float), np.arange(13))
    command = ["measure", str(folder / "matrix.npy"), "--counts", str(folder / "counts.npy")]
    assert main([*command, "--out", str(folder / "out.csv")]) == 0
    with (folder / "out.csv").open() as file:
        assert {row["metric"]: float(row["value"]) for row in csv.DictReader(file)} == expected
    out = capsys.readouterr().out
    assert "kappa" in out
    assert METRICS["kappa"].description in out
    np.save(folder / "counts.npy", np.arange(21))
    with pytest.raises(ValueError, match="21 numbers"):
        measure(str(folder / "matrix.npy"), counts=folder / "counts.npy")
    assert main(["measure", str(folder / "matrix.npy")]) == 0
    assert "rho" not in capsys.readouterr().out


def test_few_pairs_are_told(folder: Path) -> None:
    np.save(folder / "matrix.npy", np.random.default_rng(0).normal(size=(20, 5)))
    (folder / "few.csv").write_text("cat,dog,9\nmat,house,2\nthe,cow,1\n")
    few = LIST.model_copy(update={"name": "few", "file": "few.csv"})
    absent = LIST.model_copy(update={"file": "absent.csv"})
    frame = measure(
        str(folder / "matrix.npy"),
        tokenizer=folder / "tokenizer.json",
        words=folder,
        lists=[LIST, few, absent],
    )
    assert values(frame, "few")["n_pairs"] == 2
    assert np.isnan(values(frame, "word_similarity")["r_bar"])
    told = "\n".join(frame.attrs["notes"])
    assert "few: " in told
    assert "absent.csv" in told


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["absent"], "absent"),
        (["./absent/model"], "./absent/model"),
        (["absent.npy"], "absent.npy"),
        (["cube.npy"], "(2, 2, 2)"),
        (["turned.npy"], "3 rows and 90000 columns"),
        (["model.npy", "--words", "nowhere"], "nowhere"),
        (["model.npy", "--text", "text1.txt", "--counts", "model.npy"], "--counts"),
        (["model.npy", "--text", "named.jsonl", "--tokenizer", "tokenizer.json"], "named.jsonl"),
        (["empty"], "empty"),
        (["small.npy", "--text", "text1.txt", "--tokenizer", "tokenizer.json"], "4 embeddings"),
        (["small.npy", "--text", "text1.txt", "--tokenizer", "text1.txt"], "--tokenizer"),
        (["small.npy", "--text", "text1.txt"], "--tokenizer"),
        (["model.npy", "--text", "absent.txt", "--tokenizer", "tokenizer.json"], "absent.txt"),
    ],
)
def test_what_cannot_be_measured_is_named(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    named: str,
) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    (folder / "named.jsonl").write_text('{"story": "the cat"}')
    shapes = {"cube": (2, 2, 2), "small": (4, 3), "model": (20, 3), "turned": (3, 90_000)}
    for name, shape in shapes.items():
        np.save(folder / f"{name}.npy", np.ones(shape))
    assert main(["measure", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert named in said


def test_a_cell_measures_as_its_study_did(finished: Path) -> None:
    with Path("results/tiny/results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["unit"] != "nat/token"]
    cell = rows[0]["cell"]
    known = {
        (row["task"], row["metric"]): float(row["value"]) for row in rows if row["cell"] == cell
    }
    data = Path("results/data") / rows[0]["data"]
    frame = measure(
        f"results/runs/{cell}/model",
        counts=data / "unigram.npy",
        words=data / "word_lists",
        lists=[WordList(name="synthetic", file="synthetic.tsv")],
    )
    assert len(frame) == 14
    for row in frame.itertuples():
        assert row.value == known[row.task, row.metric]
