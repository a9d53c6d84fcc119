import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_server import HubServer
from safetensors.torch import load_file, save_file
from small_models import FAMILIES, N_ROWS, WORDS, build, byte_level
from tokenizers import Tokenizer, models, pre_tokenizers

from coupled_adam_bench.cli import main
from coupled_adam_bench.embeddings.metrics import embedding_metrics
from coupled_adam_bench.evaluation.pairs import Pair
from coupled_adam_bench.evaluation.word_similarity import set_correlations, single_token_pairs
from coupled_adam_bench.report.figures.curves import _draw_spectra
from coupled_adam_bench.report.figures.style import STYLES
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.tools.measure import compare
from coupled_adam_bench.tools.measure.model import (
    Measured,
    WordLists,
    count_tokens,
    measure_model,
    read_word_lists,
)

NO_LISTS = WordLists({}, ["no lists"])


def measured(folder: Path, lists: WordLists = NO_LISTS) -> Measured:
    return measure_model(str(folder), lists, [])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_matrices_of_each_family(saved, family):
    *_, tied, name, head_name = FAMILIES[family]
    found = measured(saved(family))
    model = build(family)
    matrices = {"embeddings": model.get_input_embeddings().weight} | (
        {} if tied else {"head": model.get_output_embeddings().weight}
    )
    assert found.matrices.tied == tied
    assert found.to_json()["tensors"] == {"embeddings": name} | ({} if tied else {"head": head_name})
    assert set(found.detail) == set(matrices)
    for task, weight in matrices.items():
        matrix = weight.detach().double().numpy()
        expected = embedding_metrics(matrix, None, "both_signs")
        assert {metric: found.value(task, metric) for metric in expected} == pytest.approx(expected, rel=1e-12)
        assert found.value(task, "rho") is None
        assert found.detail[task]["shape"] == list(matrix.shape)
        np.testing.assert_allclose(
            found.detail[task]["singular_values"], np.linalg.svd(matrix, compute_uv=False), rtol=1e-9
        )


def test_word_similarity_with_the_model_s_own_tokenizer(saved, pairs_file):
    lists = read_word_lists(pairs_file, Path())
    found = measured(saved("gpt2"), lists)
    kept = single_token_pairs("own", lists.sets["own"], byte_level(), word_level=False, leading_space=True)
    assert (kept.n_pairs, kept.n_read) == (28, 36)
    matrix = build("gpt2").get_input_embeddings().weight.detach().double().numpy()
    for metric, value in set_correlations(matrix, kept).items():
        assert found.value("own", metric) == pytest.approx(value, rel=1e-12)
    assert found.value("own_subwords", "coverage") == 1.0
    assert found.value("word_similarity", "r_bar") == pytest.approx(100 * found.value("own", "pearson_cosine"))


def test_models_are_compared_over_the_pairs_that_all_of_them_have(saved, pairs_file, tmp_path):
    other = shutil.copytree(saved("llama"), tmp_path / "other")
    vocabulary = {f" {word}": number for number, word in enumerate(WORDS[2:], 1)} | {"[UNK]": 0}
    Tokenizer(models.WordLevel({word.strip(): n for word, n in vocabulary.items()}, unk_token="[UNK]")).save(
        str(other / "tokenizer.json")
    )
    lists = read_word_lists(pairs_file, Path())
    found, failed = compare.measure_models([str(saved("gpt2")), str(other)], lists, [])
    assert failed == 0
    shared = {Pair(*pair) for pair in lists.sets["own"] if {pair.word1, pair.word2} <= set(WORDS[2:])}
    for model in found:
        assert model.value("own_shared", "n_pairs") == len(shared) == 15
    kept = single_token_pairs("own", [p for p in lists.sets["own"] if p in shared], byte_level(), False, True)
    matrix = build("gpt2").get_input_embeddings().weight.detach().double().numpy()
    expected = set_correlations(matrix, kept)["spearman_dot"]
    assert found[0].value("own_shared", "spearman_dot") == pytest.approx(expected, rel=1e-12)
    assert "r_bar of shared pairs" in compare.table_of(found)


def test_counts_of_a_text(saved, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f" {word}" * (number + 1) + "\n" for number, word in enumerate(WORDS)))
    found = measure_model(str(saved("gpt2")), NO_LISTS, [text])
    tokenizer = byte_level()
    counts = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
    for token in tokenizer.encode(text.read_text()).ids:
        counts[token] += 1
    np.testing.assert_array_equal(count_tokens([text], tokenizer, len(counts))[0], counts)
    matrix = build("gpt2").get_input_embeddings().weight.detach().double().numpy()
    assert found.value("embeddings", "rho") == pytest.approx(embedding_metrics(matrix, counts, "both_signs")["rho"])
    assert found.value("embeddings_unpadded", "n_rows") == len(counts) < N_ROWS
    assert found.value("embeddings_seen", "n_rows") == np.count_nonzero(counts)
    assert sum(found.detail["embeddings"]["norm_frequency"]["n_tokens"]) == N_ROWS


@pytest.mark.fault(
    "evaluation",
    "The text for `measure` has words that the model's tokenizer of words does not know, as on cells of the demo.",
    "They are left out of the counts, and their number is said.",
)
def test_words_that_a_tokenizer_does_not_know(saved, tmp_path):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "words")
    tokenizer = Tokenizer(models.WordLevel({"sun": 0, "moon": 1}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (tmp_path / "some.txt").write_text("the sun and the moon and the sun\n")
    counts, n_unknown = count_tokens([tmp_path / "some.txt"], tokenizer, 2)
    assert (counts.tolist(), n_unknown) == ([2, 1], 5)
    found = measure_model(str(folder), NO_LISTS, [tmp_path / "some.txt"])
    assert "--text: 5 words that the tokenizer does not know are left out of the counts" in found.undefined
    (tmp_path / "some.txt").write_text("nothing known\n")
    with pytest.raises(ValueError, match="no tokens of the model's tokenizer"):
        measure_model(str(folder), NO_LISTS, [tmp_path / "some.txt"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(saved, tmp_path, dtype):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight.to(dtype) for name, weight in weights.items()}, folder / "model.safetensors")
    found = measured(folder)
    matrix = weights["transformer.wte.weight"].to(dtype).double().numpy()
    expected = embedding_metrics(matrix, None, "both_signs")["isotropy"]
    assert found.value("embeddings", "isotropy") == pytest.approx(expected, rel=1e-12)


def test_of_a_sharded_checkpoint_only_the_shards_of_the_matrices_are_read(saved, tmp_path):
    build("llama").save_pretrained(tmp_path, max_shard_size="8KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    needed = {index["model.embed_tokens.weight"], index["lm_head.weight"]}
    others = set(index.values()) - needed
    assert others
    for file in others:
        (tmp_path / file).unlink()
    whole, found = measured(saved("llama")), measured(tmp_path)
    for task in ("embeddings", "head"):
        assert found.value(task, "isotropy") == whole.value(task, "isotropy")
    (tmp_path / index["lm_head.weight"]).unlink()
    with pytest.raises(ValueError, match=r"is missing, which has lm_head\.weight; fetch it again"):
        measured(tmp_path)


def test_a_checkpoint_without_the_prefix_of_the_head(saved, tmp_path):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("transformer."): w for name, w in weights.items()}, folder / "model.safetensors")
    assert measured(folder).matrices.embeddings.name == "wte.weight"


def test_a_head_that_is_stored_beside_tied_embeddings(saved, tmp_path):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "stored")
    weights = load_file(folder / "model.safetensors")
    for factor, tied in ((1.0, True), (2.0, False)):
        head = factor * weights["transformer.wte.weight"]
        save_file(weights | {"lm_head.weight": head}, folder / "model.safetensors")
        found = measured(folder)
        assert (found.matrices.tied, found.matrices.head is None) == (tied, tied)


def test_a_checkpoint_without_its_head_is_measured_and_says_so(saved, tmp_path):
    folder = shutil.copytree(saved("llama"), tmp_path / "headless")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors")
    found = measured(folder)
    assert "head: the checkpoint has no output matrix" in found.undefined
    assert found.value("head", "isotropy") is None and found.value("embeddings", "isotropy") is not None


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def change_weights(folder: Path, change: object) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def set_nan(weights: dict) -> None:
    weights["transformer.wte.weight"][57, 3] = math.nan


def quantize(weights: dict) -> None:
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"].to(torch.int8)


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


DAMAGES = {
    "negative size": (lambda f: change_config(f, vocab_size=-4), "cannot be as config.json says"),
    "a size of words": (lambda f: change_config(f, n_embd="many"), "config.json"),
    "no heads": (lambda f: change_config(f, n_head=0), "cannot be as config.json says"),
    "NaN": (lambda f: change_weights(f, set_nan), r"wte\.weight has a value that is not finite, first in row 57"),
    "quantized": (lambda f: change_weights(f, quantize), "is stored as I8, not one of F64, F32, F16, BF16"),
    "vocabulary": (lambda f: change_config(f, vocab_size=90), r"shape \(100, 16\), but config.json says \(90, 16\)"),
    "no embedding": (
        lambda f: change_weights(f, lambda w: w.pop("transformer.wte.weight")),
        "no tensor transformer.wte",
    ),
    "pickled": (pickle_only, "no model.safetensors .*; pytorch_model.bin can run code when it is read; save the model"),
    "another kind": (lambda f: change_config(f, model_type="vit"), "ViTConfig is not of a causal or masked language"),
    "own code": (
        lambda f: change_config(f, model_type="own", auto_map={"AutoConfig": "own.Config"}),
        "config.json cannot be used",
    ),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json cannot be used"),
    "cut off": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-10]),
        "not a whole file of safetensors",
    ),
    "index": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        r"index\.json: not an index of safetensors .*; fetch it again",
    ),
}


@pytest.mark.fault(
    "evaluation",
    "a model that is measured has NaN weights, pickled weights only, code of its own, no embedding, or a damaged file",
    "it is refused with a sentence; other models of the command are measured",
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_models_that_cannot_be_measured_are_refused(saved, tmp_path, damage, capsys):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "damaged")
    change, message = DAMAGES[damage]
    change(folder)
    with pytest.raises(ValueError, match=message):
        measured(folder)
    found, failed = compare.measure_models([str(folder), str(saved("gpt2"))], NO_LISTS, [])
    assert ([model.model for model in found], failed) == ([str(saved("gpt2"))], 1)
    assert str(folder) in capsys.readouterr().err


@pytest.mark.fault(
    "evaluation",
    "The tokenizer of a model that is measured has more tokens than its embedding has rows, cannot be read, or is not "
    "there.",
    "Word similarity is missing with this reason, and the geometry is measured.",
)
@pytest.mark.parametrize("damage", ["larger", "broken", "none"])
def test_a_tokenizer_that_does_not_fit_is_a_marked_gap(saved, pairs_file, tmp_path, damage):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "other")
    file = folder / "tokenizer.json"
    if damage == "larger":
        Tokenizer(models.WordLevel({f"w{n}": n for n in range(N_ROWS + 1)})).save(str(file))
    elif damage == "broken":
        file.write_text("{}")
    else:
        file.unlink()
    found = measured(folder, read_word_lists(pairs_file, Path()))
    (reason,) = (reason for reason in found.undefined if reason.startswith("word similarity: "))
    expected = {"larger": "has 101 tokens, the embedding only 100 rows"}.get(damage, "can be read")
    assert expected in reason
    assert found.value("word_similarity", "r_bar") is None and found.value("embeddings", "isotropy") is not None
    assert reason in compare.table_of([found])


def test_counts_that_cannot_be(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match="--text: no tokens"):
        count_tokens([tmp_path / "empty.txt"], byte_level(), 100)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="is not UTF-8"):
        count_tokens([tmp_path / "latin.txt"], byte_level(), 100)


def test_word_lists_that_are_missing_or_damaged(tmp_path):
    nothing = read_word_lists(None, tmp_path)
    assert nothing.sets == {} and nothing.missing[0].count(",") == 4
    (tmp_path / "rw.txt").write_bytes(b"sun\tmoon\t4.5\t1\r\ncat\tdog\t7\t1\r\n")
    one = read_word_lists(tmp_path, Path("nowhere"))
    assert list(one.sets) == ["rw"] and "rw.txt" not in one.missing[0]
    (tmp_path / "rw.txt").write_text("sun\tmoon\n")
    with pytest.raises(ValueError, match=r"rw\.txt:1: 2 columns, 'rw' needs 3"):
        read_word_lists(tmp_path, Path())
    with pytest.raises(ValueError, match=r"--word-similarity: .*nowhere does not exist"):
        read_word_lists(tmp_path / "nowhere", Path())


def test_a_tokenizer_of_older_files(saved, pairs_file, tmp_path):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "older")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"] | {"<|endoftext|>": len(model["vocab"])}))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    lists = read_word_lists(pairs_file, Path())
    found, expected = measured(folder, lists), measured(saved("gpt2"), lists)
    assert found.value("own", "n_pairs") == 28
    assert found.value("word_similarity", "r_bar") == expected.value("word_similarity", "r_bar")


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


def test_of_a_model_on_the_hub_only_the_needed_files_are_downloaded(saved, tmp_path, hub):
    build("llama").save_pretrained(tmp_path / "model", max_shard_size="8KB")
    files = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    files |= {"tokenizer.json": (saved("llama") / "tokenizer.json").read_bytes(), "pytorch_model.bin": b"x" * 2000}
    hub.add("someone/llama", files)
    index = json.loads(files["model.safetensors.index.json"])["weight_map"]
    needed = {index["model.embed_tokens.weight"], index["lm_head.weight"]}
    code = (
        "import sys\nfrom coupled_adam_bench.tools.measure.checkpoint import open_place\n"
        "folder, file_of = open_place('someone/llama')\n"
        "assert all(file_of(name) for name in sys.argv[1:]) and file_of('none.safetensors') is None\n"
        "print(folder)\n"
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    environment = kept | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", code, *sorted(needed)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    folder = Path(result.stdout.strip())
    assert {file.name for file in folder.iterdir()} == {
        "config.json", "model.safetensors.index.json", "tokenizer.json", *needed,
    }  # fmt: skip
    found, whole = measured(folder), measured(saved("llama"))
    assert found.value("head", "isotropy") == whole.value("head", "isotropy")
    command = [sys.executable, "-c", code.replace("someone/llama", "someone/nobody")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "someone/nobody: no folder of this name, and not to be had from the Hugging Face hub" in result.stderr


def test_the_command(saved, pairs_file, tmp_path, capsys):
    arguments = ["measure", str(saved("gpt2")), str(saved("llama")), str(tmp_path / "nowhere")]
    outputs = ["--json", str(tmp_path / "out.json"), "--figure", str(tmp_path / "out.svg")]
    assert main([*arguments, "--word-similarity", str(pairs_file), *outputs]) == 1
    printed = capsys.readouterr()
    assert f"error: {tmp_path / 'nowhere'}: no such folder" in printed.err
    lines = {line[:36].strip(): line[36:].split() for line in printed.out.splitlines()}
    models = json.loads((tmp_path / "out.json").read_text())["models"]
    assert [model["architecture"] for model in models] == ["GPT2LMHeadModel", "LlamaForCausalLM"]
    for model, text in zip(models, lines["embeddings isotropy"], strict=True):
        (value,) = (
            row["value"] for row in model["results"] if (row["task"], row["metric"]) == ("embeddings", "isotropy")
        )
        assert f"{value:.4g}" == text
        assert "no counts of tokens; give --text" in " ".join(model["undefined"])
    assert lines["head isotropy"][0] == "-" != lines["head isotropy"][1]
    assert "<svg" in (tmp_path / "out.svg").read_text()
    assert main([*arguments, "--figure", str(tmp_path / "out.gif")]) == 2
    assert "--figure: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["results/runs/one/model"], ["one"]),
        (["results/runs/one/model", "results/runs/two/model/"], ["one", "two"]),
        (["a/seed1/checkpoint-9", "a/seed2/checkpoint-9"], ["seed1", "seed2"]),
        (["a/x/m", "b/x/m", "b/y/m/model"], ["a/x", "b/x", "b/y"]),
        (["x/m", "x/n", "y/m"], ["x/m", "x/n", "y/m"]),
        (["openai-community/gpt2", "results/runs/one/model"], ["gpt2", "one"]),
        (["model"], ["model"]),
    ],
)
def test_models_are_called_by_the_shortest_end_of_their_path_that_tells_them_apart(paths, labels):
    assert compare.labels_of([Measured(path, None, None) for path in paths]) == labels


def test_each_note_is_said_once(saved, tmp_path):
    headless = shutil.copytree(saved("llama"), tmp_path / "headless")
    change_weights(headless, lambda weights: weights.pop("lm_head.weight"))
    text = compare.table_of([measured(saved("gpt2")), measured(saved("opt")), measured(headless)])
    notes = [line for line in text.splitlines() if line.startswith("-  ")]
    assert len(set(notes)) == len(notes)
    assert "-  rho, the curve and the rows of seen tokens: no counts of tokens; give --text" in notes
    assert "-  headless: head: the checkpoint has no output matrix" in notes


def test_counts_and_the_list_of_the_generated_language_are_found_for_a_cell_trained_on_it(saved, pairs_file, tmp_path):
    cell = shutil.copytree(saved("gpt2"), tmp_path / "results" / "runs" / "cell" / "model")
    assert "own" not in measured(cell).pairs
    write_sealed(cell.parent / "cell.json", {"id": "cell", "data_id": "words-01"})
    list_ = tmp_path / "results" / "data" / "words-01" / "word_similarity" / "synthetic.tsv"
    list_.parent.mkdir(parents=True)
    shutil.copy(pairs_file, list_)
    assert measured(cell).value("embeddings", "rho") is None
    counts = np.arange(1, 51)
    np.save(list_.parents[1] / "unigram.npy", counts)
    matrix = build("gpt2").get_input_embeddings().weight.detach().double().numpy()
    expected = embedding_metrics(matrix, counts, "both_signs")["rho"]
    assert measured(cell).value("embeddings", "rho") == pytest.approx(expected)
    assert measured(cell).value("synthetic", "n_pairs") == 28
    given = read_word_lists(pairs_file, Path())
    assert list(measured(cell, given).pairs) == ["own"]


@pytest.mark.parametrize("n_panels", [1, 2])
def test_the_figure_has_a_panel_for_what_is_known(saved, tmp_path, n_panels):
    text = tmp_path / "text.txt"
    text.write_text("the sun and the moon\n")
    model = measure_model(str(saved("gpt2")), NO_LISTS, [text] * (n_panels - 1))
    lines = [("gpt2", STYLES[0], model.detail["embeddings"])]
    assert len(_draw_spectra(lines).axes) == n_panels
