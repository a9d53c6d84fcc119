import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from every_class import language_models, small_model
from safetensors.torch import load_file, save_file
from small_models import FAMILIES, N_ROWS, WORDS, build, byte_level
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from embedding_geometry import compare, stored
from embedding_geometry.checkpoint import find_matrices
from embedding_geometry.command import main
from embedding_geometry.metrics import embedding_metrics
from embedding_geometry.model import Measured, measure_model
from embedding_geometry.place import open_place
from embedding_geometry.tokenizer import count_tokens
from embedding_geometry.word_lists import Pair, WordLists, read_word_lists
from embedding_geometry.word_similarity import set_correlations, single_token_pairs

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
    assert found.to_json()["tensors"] == {"embeddings": name} | (
        {} if tied else {"head": head_name}
    )
    assert set(found.detail) == set(matrices)
    for task, weight in matrices.items():
        matrix = weight.detach().double().numpy()
        expected = embedding_metrics(matrix, None, "both_signs")
        assert {metric: found.value(task, metric) for metric in expected} == pytest.approx(
            expected, rel=1e-12
        )
        assert found.value(task, "rho") is None
        assert found.detail[task]["shape"] == list(matrix.shape)
        np.testing.assert_allclose(
            found.detail[task]["singular_values"],
            np.linalg.svd(matrix, compute_uv=False),
            rtol=1e-9,
        )


def test_word_similarity_with_the_model_s_own_tokenizer(saved, pairs_file):
    lists = read_word_lists(pairs_file, Path())
    found = measured(saved("gpt2"), lists)
    kept = single_token_pairs(
        "own", lists.sets["own"], byte_level(), word_level=False, leading_space=True
    )
    assert (kept.n_pairs, kept.n_read) == (28, 36)
    matrix = build("gpt2").get_input_embeddings().weight.detach().double().numpy()
    for metric, value in set_correlations(matrix, kept).items():
        assert found.value("own", metric) == pytest.approx(value, rel=1e-12)
    assert found.value("own_subwords", "coverage") == 1.0
    assert found.value("word_similarity", "r_bar") == pytest.approx(
        100 * found.value("own", "pearson_cosine")
    )


def test_models_are_compared_over_the_pairs_that_all_of_them_have(saved, pairs_file, tmp_path):
    other = shutil.copytree(saved("llama"), tmp_path / "other")
    vocabulary = {f" {word}": number for number, word in enumerate(WORDS[2:], 1)} | {"[UNK]": 0}
    Tokenizer(
        models.WordLevel({word.strip(): n for word, n in vocabulary.items()}, unk_token="[UNK]")
    ).save(str(other / "tokenizer.json"))
    lists = read_word_lists(pairs_file, Path())
    found, failed = compare.measure_models([str(saved("gpt2")), str(other)], lists, [])
    assert failed == 0
    shared = {
        Pair(*pair) for pair in lists.sets["own"] if {pair.word1, pair.word2} <= set(WORDS[2:])
    }
    for model in found:
        assert model.value("own_shared", "n_pairs") == len(shared) == 15
    kept = single_token_pairs(
        "own", [p for p in lists.sets["own"] if p in shared], byte_level(), False, True
    )
    matrix = build("gpt2").get_input_embeddings().weight.detach().double().numpy()
    expected = set_correlations(matrix, kept)["spearman_dot"]
    assert found[0].value("own_shared", "spearman_dot") == pytest.approx(expected, rel=1e-12)
    assert "r_bar of shared pairs" in compare.table_of(found)


def test_counts_of_json_are_those_of_its_texts(tmp_path):
    texts = ["the sun", 'a "moon"\nand', ""]
    rows = [json.dumps({"id": 7, "text": text}) for text in texts]
    path = tmp_path / "some.jsonl"
    path.write_text("\ufeff" + "\n\n".join(rows) + "\n", encoding="utf-8")
    tokenizer = byte_level()
    counts, _ = count_tokens([path], tokenizer, 300)
    (tmp_path / "plain.txt").write_text("".join(texts))
    plain, _ = count_tokens([tmp_path / "plain.txt"], tokenizer, 300)
    assert counts.tolist() == plain.tolist()
    for line, message in (
        ('{"content": "the sun"}', r"without a text in its field 'text' .*rename the field"),
        ('[{"text": "the sun"}]', "without a text in its field"),
        ("the sun", "has a line that is not JSON"),
    ):
        path.write_text(f"{rows[0]}\n{line}\n")
        with pytest.raises(ValueError, match=rf"--text: .*some\.jsonl {message}|{message}"):
            count_tokens([path], tokenizer, 300)


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
    assert found.value("embeddings", "rho") == pytest.approx(
        embedding_metrics(matrix, counts, "both_signs")["rho"]
    )
    assert found.value("embeddings_unpadded", "n_rows") == len(counts) < N_ROWS
    assert found.value("embeddings_seen", "n_rows") == np.count_nonzero(counts)
    assert sum(found.detail["embeddings"]["norm_frequency"]["n_tokens"]) == N_ROWS


@pytest.mark.fault(
    "evaluation",
    "The text for `measure` has words that the model's tokenizer of words does not know, as on"
    " cells of the demo.",
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
    assert (
        "--text: 5 words that the tokenizer does not know are left out of the counts"
        in found.undefined
    )
    (tmp_path / "some.txt").write_text("nothing known\n")
    with pytest.raises(ValueError, match="no tokens of the model's tokenizer"):
        measure_model(str(folder), NO_LISTS, [tmp_path / "some.txt"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(saved, tmp_path, dtype):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "half")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: weight.to(dtype) for name, weight in weights.items()}, folder / "model.safetensors"
    )
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


def test_files_are_read_in_the_order_of_transformers(saved, tmp_path):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "both")
    old = build("gpt2")
    with torch.no_grad():
        old.get_input_embeddings().weight.fill_(1.0)
    old.save_pretrained(tmp_path / "old", max_shard_size="8KB")
    for file in (tmp_path / "old").glob("model-*"):
        shutil.copy(file, folder)
    shutil.copy(tmp_path / "old" / "model.safetensors.index.json", folder)
    loaded = (
        AutoModelForCausalLM.from_pretrained(folder)
        .get_input_embeddings()
        .weight.detach()
        .double()
        .numpy()
    )
    np.testing.assert_array_equal(measured(folder).matrices.embeddings.read(), loaded)
    assert measured(folder).value("embeddings", "isotropy") == measured(saved("gpt2")).value(
        "embeddings", "isotropy"
    )
    # What config.json names is read before all others.
    change_config(folder, transformers_weights="model.safetensors.index.json")
    loaded = (
        AutoModelForCausalLM.from_pretrained(folder)
        .get_input_embeddings()
        .weight.detach()
        .double()
        .numpy()
    )
    np.testing.assert_array_equal(measured(folder).matrices.embeddings.read(), loaded)
    assert (loaded == 1.0).all()


def test_a_tied_matrix_under_the_name_of_the_head(saved, tmp_path):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "head")
    change_weights(
        folder,
        lambda weights: weights.update({"lm_head.weight": weights.pop("transformer.wte.weight")}),
    )
    found = measured(folder)
    assert (found.matrices.tied, found.matrices.embeddings.name) == (True, "lm_head.weight")
    assert found.value("embeddings", "isotropy") == measured(saved("gpt2")).value(
        "embeddings", "isotropy"
    )


SOME_CLASSES = (
    "Gemma3ForConditionalGeneration",
    "NemotronHForCausalLM",
    "FuyuForCausalLM",
    "GPTNeoXForCausalLM",
)


@pytest.mark.parametrize(
    "name",
    [
        *SOME_CLASSES,
        *(
            pytest.param(n, marks=pytest.mark.nightly)
            for n in language_models()
            if n not in SOME_CLASSES
        ),
    ],
)
def test_the_matrices_of_every_class_of_transformers(tmp_path, name):
    try:
        model = small_model(name)
    except Exception:
        assert name not in SOME_CLASSES
        # One reason for all, so that pytest prints one line with their number.
        pytest.skip("the class cannot be built small by changing its sizes only")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    modules = (loaded.get_input_embeddings(), loaded.get_output_embeddings())
    inputs, outputs = (getattr(module, "weight", None) for module in modules)
    found = find_matrices(open_place(str(tmp_path)))
    assert found.tied == (outputs is inputs)
    np.testing.assert_array_equal(found.embeddings.read(), inputs.detach().double().numpy())
    if outputs is None or outputs is inputs:
        assert found.head is None
    else:
        np.testing.assert_array_equal(found.head.read(), outputs.detach().double().numpy())


def test_a_tokenizer_that_cuts_pads_or_draws_is_used_without(saved, pairs_file, tmp_path):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "cutting")
    text = tmp_path / "text.txt"
    text.write_text("".join(f" {word}" * 50 + "\n" for word in WORDS))
    lists, file = read_word_lists(pairs_file, Path()), folder / "tokenizer.json"
    whole = measure_model(str(folder), lists, [text])
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(file))
    values = json.loads(file.read_text())
    values["model"]["dropout"] = 0.5
    file.write_text(json.dumps(values))
    assert measure_model(str(folder), lists, [text]).results == whole.results
    assert whole.value("own", "n_pairs") == 28


def test_a_checkpoint_without_the_prefix_of_the_head(saved, tmp_path):
    folder = shutil.copytree(saved("gpt2"), tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name.removeprefix("transformer."): w for name, w in weights.items()},
        folder / "model.safetensors",
    )
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
    assert (
        found.value("head", "isotropy") is None
        and found.value("embeddings", "isotropy") is not None
    )


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


def index_of(folder: Path, value: object) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(value))


def shard(folder: Path, name: str) -> None:
    index_of(folder, {"weight_map": {"transformer.wte.weight": name}})


def link(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    (folder / "model.safetensors").rename(elsewhere)
    (folder / "model.safetensors").symlink_to(elsewhere)


def change_header(
    folder: Path, length: int | None = None, replace: bytes | None = None, **entry: object
) -> None:
    """Change what the file of weights says of the embedding, of the length of its header, or all of
    its header."""
    file = folder / "model.safetensors"
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["transformer.wte.weight"] |= entry
    changed = json.dumps(header).encode() if replace is None else replace
    stated = len(changed) if length is None else length
    file.write_bytes(stated.to_bytes(8, "little") + changed + content[end:])


DAMAGES = {
    "negative size": (lambda f: change_config(f, vocab_size=-4), "cannot be as config.json says"),
    "a size of words": (lambda f: change_config(f, n_embd="many"), "config.json"),
    "no heads": (lambda f: change_config(f, n_head=0), "cannot be as config.json says"),
    "NaN": (
        lambda f: change_weights(f, set_nan),
        r"wte\.weight has a value that is not finite, first in row 57",
    ),
    "quantized": (
        lambda f: change_weights(f, quantize),
        "is stored as I8, not one of F64, F32, F16, BF16",
    ),
    "vocabulary": (
        lambda f: change_config(f, vocab_size=90),
        r"shape \(100, 16\), but config.json says \(90, 16\)",
    ),
    "no embedding": (
        lambda f: change_weights(f, lambda w: w.pop("transformer.wte.weight")),
        "no tensor transformer.wte",
    ),
    "pickled": (
        pickle_only,
        "no model.safetensors .*; pytorch_model.bin can run code when it is read; save the model",
    ),
    "another kind": (
        lambda f: change_config(f, model_type="vit"),
        "ViTConfig is not of a causal or masked language",
    ),
    "own code": (
        lambda f: change_config(f, model_type="own", auto_map={"AutoConfig": "own.Config"}),
        "config.json cannot be used",
    ),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json cannot be used"),
    "cut off": (
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:-10]
        ),
        "not a whole file of safetensors",
    ),
    "index": (
        lambda f: index_of(f, {}),
        r"index\.json is not an index of safetensors .*; fetch it again",
    ),
    "index of a list": (lambda f: index_of(f, []), r"it holds a list, not an object"),
    "index of numbers": (
        lambda f: index_of(f, {"weight_map": {"a": 1}}),
        "a name of a file is no text",
    ),
    "shard above": (
        lambda f: shard(f, "../../out.safetensors"),
        "out.safetensors' leads out of the folder of the",
    ),
    "shard elsewhere": (
        lambda f: shard(f, "/etc/passwd"),
        "'/etc/passwd' leads out of the folder of the model",
    ),
    "shard of another": (lambda f: shard(f, "config.json"), "not a whole file of safetensors"),
    "link": (link, "'model.safetensors' leads out of the folder of the model; put the file into"),
    "config of a list": (
        lambda f: (f / "config.json").write_text("[]"),
        "it holds a list, not an object",
    ),
    "config of depth": (
        lambda f: (f / "config.json").write_text("[" * 10**5),
        "config.json cannot be used",
    ),
    "many layers": (
        lambda f: change_config(f, n_layer=10**9),
        "n_layer is 1000000000, and at most 1000000 can be",
    ),
    "more layers": (
        lambda f: change_config(f, n_layer=10**6),
        "more than 1,160 modules, far more than the weights",
    ),
    "many labels": (
        lambda f: change_config(f, num_labels=10**9),
        "num_labels is 1000000000, and at most",
    ),
    "header": (
        lambda f: change_header(f, length=2**62),
        r"its header of [0-9,]+ bytes cannot be in [0-9,]+ bytes",
    ),
    "short": (
        lambda f: (f / "model.safetensors").write_bytes(b"abc"),
        "not a whole file of safetensors",
    ),
    "rows": (
        lambda f: change_header(f, shape=[10**12, 16]),
        r"has 6,400 bytes, which is not \(1000000000000, 16\) of",
    ),
    "type": (
        lambda f: change_header(f, dtype="F64"),
        r"has 6,400 bytes, which is not \(100, 16\) of F64",
    ),
    "overlap": (
        lambda f: change_header(f, data_offsets=[0, 6400]),
        "is not behind the tensor before it",
    ),
    "no dictionary": (
        lambda f: change_header(f, replace=b"[1]"),
        "not a whole file of safetensors",
    ),
}


@pytest.mark.fault(
    "evaluation",
    "a model that is measured has NaN weights, pickled weights only, code of its own, no embedding,"
    " or a damaged file",
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
    "The tokenizer of a model that is measured has more tokens than its embedding has rows, cannot"
    " be read, or is not there.",
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
    assert (
        found.value("word_similarity", "r_bar") is None
        and found.value("embeddings", "isotropy") is not None
    )
    assert reason in compare.table_of([found])


@pytest.mark.fault(
    "evaluation",
    "A matrix that is measured is larger than the memory of the machine.",
    "It is refused with a sentence before it is read.",
)
def test_a_matrix_that_memory_cannot_hold(saved, monkeypatch):
    sizes = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": N_ROWS * 16 * 8 - 1}
    monkeypatch.setattr(stored.os, "sysconf", sizes.__getitem__)
    with pytest.raises(
        ValueError,
        match=r"of the shape \(100, 16\) takes 0 GB in float64, and this machine has 0 GB",
    ):
        measured(saved("gpt2"))


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
    (folder / "vocab.json").write_text(
        json.dumps(model["vocab"] | {"<|endoftext|>": len(model["vocab"])})
    )
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    lists = read_word_lists(pairs_file, Path())
    found, expected = measured(folder, lists), measured(saved("gpt2"), lists)
    assert found.value("own", "n_pairs") == 28
    assert found.value("word_similarity", "r_bar") == expected.value("word_similarity", "r_bar")


def test_a_matrix_of_numpy(saved, pairs_file, tmp_path, capsys):
    matrix = build("gpt2").get_input_embeddings().weight.detach().numpy()
    np.save(tmp_path / "wte.npy", matrix)
    lists, whole = (
        read_word_lists(pairs_file, Path()),
        measured(saved("gpt2"), read_word_lists(pairs_file, Path())),
    )
    alone = measured(tmp_path / "wte.npy", lists)
    assert alone.value("embeddings", "isotropy") == whole.value("embeddings", "isotropy")
    assert (alone.matrices.tied, alone.value("own", "n_pairs")) == (None, None)
    assert "word similarity: a matrix has no tokenizer; give --tokenizer" in alone.undefined
    for given in (saved("gpt2"), saved("gpt2") / "tokenizer.json"):
        found = measure_model(str(tmp_path / "wte.npy"), lists, [], given)
        assert found.value("word_similarity", "r_bar") == whole.value("word_similarity", "r_bar")
    assert main([str(tmp_path / "wte.npy"), "--tokenizer", str(saved("gpt2"))]) == 0
    assert "embeddings isotropy" in capsys.readouterr().out
    assert main([str(saved("gpt2")), "--tokenizer", str(saved("gpt2"))]) == 2
    assert (
        "--tokenizer: only for matrices in .npy files; a model has its own"
        in capsys.readouterr().err
    )


def test_what_is_read_of_a_word_list_is_printed(tmp_path, capsys):
    np.save(tmp_path / "m.npy", np.eye(9, 4) + 0.1)
    (tmp_path / "own.csv").write_text("Word 1,Word 2,judges,Human (mean)\nsun,moon,13,6.77\n")
    assert main([str(tmp_path / "m.npy"), "--word-similarity", str(tmp_path / "own.csv")]) == 0
    assert capsys.readouterr().err == (
        "word list own: 1 pair, first sun and moon with 6.77, from column 4 ('Human (mean)')\n"
    )
    (tmp_path / "own.csv").write_text("sun,moon,13,6.77\n")
    assert main([str(tmp_path / "m.npy"), "--word-similarity", str(tmp_path / "own.csv")]) == 2
    assert "could be in column 3 or column 4" in capsys.readouterr().err


@pytest.mark.fault(
    "evaluation",
    "A matrix that is measured is stored as width x tokens.",
    "A note says how many tokens were measured and what to do.",
)
def test_fewer_rows_than_columns_are_said(tmp_path, capsys):
    said = "if a token is a column of m.npy, give the transposed matrix"
    matrix = np.random.default_rng(0).normal(size=(9, 4))
    np.save(tmp_path / "m.npy", matrix.T)
    assert main([str(tmp_path / "m.npy")]) == 0
    found = capsys.readouterr().out
    assert f"embeddings: 4 rows of width 9 are measured as 4 tokens; {said}" in found
    np.save(tmp_path / "m.npy", matrix)
    assert main([str(tmp_path / "m.npy")]) == 0
    assert said not in capsys.readouterr().out


MATRICES = {
    "not there": (None, "not a whole file of numpy.save"),
    "no numbers": (np.array([["a", "b"]]), "give a matrix of floats"),
    "objects": (np.array([[1.0, None]], dtype=object), "not a whole file of numpy.save"),
    "a vector": (np.ones(5), r"has the shape \(5,\)"),
    "empty": (np.ones((0, 5)), r"has the shape \(0, 5\)"),
    "NaN": (
        np.array([[1.0, 2.0], [math.nan, 1.0]]),
        "has a value that is not finite, first in row 1",
    ),
}


@pytest.mark.fault(
    "evaluation",
    "A matrix of NumPy that is measured is not there, cut off, pickled, of no floats or of one"
    " dimension, or has NaN.",
    "It is refused with a sentence.",
)
@pytest.mark.parametrize("damage", MATRICES)
def test_matrices_of_numpy_that_cannot_be_measured(tmp_path, damage):
    matrix, message = MATRICES[damage]
    if matrix is not None:
        np.save(tmp_path / "m.npy", matrix, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        measured(tmp_path / "m.npy")


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
    assert (
        "-  rho, the curve and the rows of seen tokens: no counts of tokens; give --text" in notes
    )
    assert "-  headless: head: the checkpoint has no output matrix" in notes
