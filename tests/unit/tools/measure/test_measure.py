import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from forks import python
from hub_server import Fault, HubServer, hub_environment
from planned import values_of
from small_models import N_ROWS, build

from coupled_adam_bench.cli import main
from coupled_adam_bench.report.figures.curves import _draw_spectra
from coupled_adam_bench.report.figures.style import STYLES
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.tools.measure import known_of
from embedding_geometry.metrics import embedding_metrics
from embedding_geometry.model import Measured, measure_model
from embedding_geometry.word_lists import WordLists, read_word_lists

NO_LISTS = WordLists({}, ["no lists"])


def measured(folder: Path, lists: WordLists = NO_LISTS) -> Measured:
    return measure_model(str(folder), lists, [], known_of=known_of)


def measure_on_hub(
    hub: HubServer, home: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, since the hub's library reads its address once."""
    environment = hub_environment(hub.url, home) | variables
    command = ["-m", "coupled_adam_bench", "measure", *arguments]
    process = python("pipeline without a hub", command, home.parent, environment)
    out, error = process.communicate(timeout=120)
    return subprocess.CompletedProcess(command, process.returncode, out, error)


@pytest.mark.parametrize("shards", [True, False])
def test_of_a_model_on_the_hub_only_the_needed_bytes_are_sent(saved, tmp_path, hub, shards):
    build("llama").save_pretrained(tmp_path / "model", max_shard_size="8KB" if shards else "1GB")
    files = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    files |= {
        "tokenizer.json": (saved("llama") / "tokenizer.json").read_bytes(),
        "pytorch_model.bin": b"x" * 2000,
    }
    hub.add("someone/llama", files, branch="v2")
    hub.add("someone/llama", {"config.json": b"{}"})
    out = tmp_path / "out.json"
    done = measure_on_hub(
        hub, tmp_path / "home", "someone/llama@v2", "someone/nobody", "--json", str(out)
    )
    assert (
        "error: someone/nobody: no folder of this name, and not available from the Hugging Face hub"
        in done.stderr
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    (model,) = json.loads(out.read_text())["models"]
    found = values_of(model["results"])
    whole = measured(saved("llama"))
    for task in ("embeddings", "head"):
        assert found[task, "isotropy"] == whole.value(task, "isotropy")
    assert model["model"] == "someone/llama@v2"
    matrices = 2 * N_ROWS * 16 * 4
    headers = hub.n_ranged - matrices
    assert (
        0
        < headers
        < 5000
        < sum(len(content) for name, content in files.items() if name.endswith(".safetensors"))
    )
    assert not [path for _, path, status in hub.log if path.endswith(".bin") and status == 200]
    assert not [
        path
        for method, path, status in hub.log
        if "safetensors" in path
        and (method, status) == ("GET", 200)
        and "resolve" in path
        and "index" not in path
    ]


@pytest.mark.fault(
    "evaluation",
    "The hub sends all of a file of weights where a part is asked for, or fewer bytes, or a tensor"
    " of another size.",
    "The model is refused with a sentence, and others are measured.",
)
def test_a_hub_that_sends_other_bytes_of_weights(saved, tmp_path, hub):
    files = {file.name: file.read_bytes() for file in saved("llama").iterdir()}
    for name in ("whole", "part", "fine"):
        hub.add(f"org/{name}", files)
    whole = files["model.safetensors"]
    hub.faults.append(Fault("org/whole/resolve/.*safetensors", times=100, content=whole))
    hub.faults.append(Fault("org/part/resolve/.*safetensors", times=100, content=whole[:5]))
    out = tmp_path / "out.json"
    done = measure_on_hub(
        hub, tmp_path / "home", "org/whole", "org/part", "org/fine", "--json", str(out)
    )
    assert [model["model"] for model in json.loads(out.read_text())["models"]] == ["org/fine"]
    assert re.search(
        r"error: org/whole@\w+/model\.safetensors: the hub sends [0-9,]+ bytes where 8 are",
        done.stderr,
    )
    assert re.search(
        r"error: org/part@\w+/model\.safetensors: the hub sends 5 bytes where 8 are asked",
        done.stderr,
    )
    assert "Traceback" not in done.stderr
    # What is in the cache is measured without the hub, but its weights are not there.
    done = measure_on_hub(hub, tmp_path / "home", "org/fine", HF_HUB_OFFLINE="1")
    assert "error: org/fine: " in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["lost.safetensors", "folder/lost.bin", "./lost.pt"])
def test_a_file_that_is_missing_is_said_to_be(name, capsys):
    assert main(["measure", name]) == 1
    assert f"error: {name}: no such file; give the folder of a model" in capsys.readouterr().err


def test_a_file_that_is_there_is_said_to_be_one(tmp_path, capsys):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    assert main(["measure", str(file)]) == 1
    assert f"error: {file}: a file .safetensors, of which only .npy" in capsys.readouterr().err


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
        value = values_of(model["results"])["embeddings", "isotropy"]
        assert f"{value:.4g}" == text
        assert "no counts of tokens; give --text" in " ".join(model["undefined"])
    assert lines["head isotropy"][0] == "-" != lines["head isotropy"][1]
    assert "<svg" in (tmp_path / "out.svg").read_text()
    assert main([*arguments, "--figure", str(tmp_path / "out.gif")]) == 2
    assert "--figure: " in capsys.readouterr().err


def test_counts_and_the_list_of_the_generated_language_are_found_for_a_cell_trained_on_it(
    saved, pairs_file, tmp_path
):
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


def test_a_pipe_beside_a_model_or_in_its_place_is_not_opened(saved, tmp_path):
    cell = shutil.copytree(saved("gpt2"), tmp_path / "results" / "runs" / "cell" / "model")
    os.mkfifo(cell.parent / "cell.json")
    assert measured(cell).value("embeddings", "isotropy") is not None
    os.mkfifo(tmp_path / "matrix.npy")
    with pytest.raises(ValueError, match=r"matrix\.npy: no file, but a folder or a pipe; write"):
        measured(tmp_path / "matrix.npy")


@pytest.mark.parametrize("n_panels", [1, 2])
def test_the_figure_has_a_panel_for_what_is_known(saved, tmp_path, n_panels):
    text = tmp_path / "text.txt"
    text.write_text("the sun and the moon\n")
    model = measure_model(str(saved("gpt2")), NO_LISTS, [text] * (n_panels - 1))
    lines = [("gpt2", STYLES[0], model.detail["embeddings"])]
    assert len(_draw_spectra(lines).axes) == n_panels
