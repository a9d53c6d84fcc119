"""`fetch` with the hub's own libraries and a server on this machine; then the jobs, with the hub
switched off."""

import datetime
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_server import TEXTS, Fault, Here, HubServer, four_files, parquet, small_disk
from waits import wait_until

from coupled_adam_bench.data.patience import BY_FETCH
from coupled_adam_bench.data.tokenizers import GPT2_REPOSITORY, GPT2_REVISION
from coupled_adam_bench.evaluation.task_data import hub_data
from coupled_adam_bench.evaluation.task_files import find_tasks
from coupled_adam_bench.store.files import sha256_file, write_json
from coupled_adam_bench.study.catalogue.presets import PAPER_TASKS, TASK_REVISIONS, WORD_LISTS
from coupled_adam_bench.tools import fetch
from embedding_geometry.transport import check_address

ROOT = Path(__file__).parents[3]
ARC = [
    {
        "id": f"q{i}",
        "question": f"What is {i}?",
        "answerKey": "B",
        "choices": {"text": ["one", "two", "three"], "label": ["A", "B", "C"]},
    }
    for i in range(5)
]
PAIRS = b"sun\tmoon\t3.5\r\ncar\troad\t7\r\n"
LISTS = {"word_similarity": [{"name": "p", "file": "pairs.txt"}, {"name": "m", "file": "more.txt"}]}


def zipped(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr(name, content)
    return sink.getvalue()


def tarred(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return sink.getvalue()


@pytest.fixture(autouse=True)
def _what_there_is(hub: HubServer, here: Here) -> None:
    """A corpus, the data of a task, and two word lists, which the process that fetches them takes
    for known."""
    hub.add("datasets/org/set", four_files())
    card = (
        b"---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n  - {split: test, path:"
        b" ARC-Easy/test*}\n---\n"
    )
    files = {"ARC-Easy/test-00000-of-00001.parquet": parquet(ARC), "README.md": card}
    hub.add("datasets/allenai/ai2_arc", files, TASK_REVISIONS["allenai/ai2_arc"])
    hub.files["/pairs.zip"] = zipped("sets/pairs.txt", b"word1\tword2\trating\r\n" + PAIRS)
    hub.files["/more.tar.gz"] = tarred("sets/more.txt", PAIRS * 2)
    here.first = f"""from coupled_adam_bench.study.catalogue import presets
from coupled_adam_bench.study.catalogue.presets import Home, WordList
presets.WORD_LISTS.update({{
    "pairs.txt": WordList("{sha256(PAIRS).hexdigest()}", (
        Home("{here.url}/pairs.zip", "sets/pairs.txt", has_header=True),
        Home("{here.url}/pairs.txt"),
    )),
    "more.txt": WordList("{sha256(PAIRS * 2).hexdigest()}", (Home("{here.url}/more.tar.gz", "sets/more.txt"),)),
}})"""


def study(here: Here, mirror: str | None = "mirror", **data: Any) -> dict[str, Any]:
    """A study that needs the corpus, the task and the word lists."""
    paths = {"hub_mirror": mirror} | (
        {"tokenizer": None} if data.get("tokenizer") == "gpt2" else {}
    )
    evaluation = {"downstream": {"tasks": ["arc_easy"]}} | LISTS
    return here.study(paths=paths, data=data, evaluation=evaluation)


def mirrored(here: Here) -> dict[str, str]:
    files = [
        path
        for path in here.folder.glob("mirror/**/[!.]*")
        if path.is_file() and ".cache" not in path.parts
    ]
    return {str(path.relative_to(here.folder)): sha256_file(path) for path in sorted(files)}


real_data = pytest.mark.skipif("CAB_REAL_DATA" not in os.environ, reason="CAB_REAL_DATA is not set")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


def test_all_that_a_study_needs_and_the_jobs_without_a_network(hub, here):
    study(here)
    told = here.told("fetch", "--dry-run")
    said_of = (
        r"org/set \(none stated\), commit [0-9a-f]{40}: at most 0\.000 GB to fetch, and [0-9.]+ GB"
        r" are free at"
    )
    assert re.search(said_of, told)
    assert not hub.sent("store")
    here.run("fetch")
    assert (here.folder / "sets" / "pairs.txt").read_bytes() == PAIRS
    assert (here.folder / "sets" / "more.txt").read_bytes() == PAIRS * 2
    task = here.folder / "mirror" / "allenai" / "ai2_arc" / "ARC-Easy" / "test.jsonl"
    assert [json.loads(line) for line in task.read_text().splitlines()] == ARC
    sent = len(hub.log)
    for stage in (["prepare"], ["try-tasks", "--out", "tasks.json"]):
        here.run(*stage, **OFFLINE)
    assert len(hub.log) == sent
    assert [*json.loads((here.folder / "tasks.json").read_text()).values()] == [{"arc_easy": 5}]
    before = mirrored(here)
    here.run("fetch")
    assert not hub.sent("store")[sent:]
    assert mirrored(here) == before
    # The hub gives the same data as the mirror.
    (from_mirror,) = (here.folder / "results" / "data").iterdir()
    from_mirror.rename(here.folder / "from_mirror")
    study(here, mirror="elsewhere")
    here.run("prepare")
    for name in ("meta.json", "train.bin", "val.bin", "test.bin", "unigram.npy"):
        assert (from_mirror / name).read_bytes() == (
            here.folder / "from_mirror" / name
        ).read_bytes()


@pytest.mark.fault(
    "text and data",
    "`fetch` is killed in the middle of a file",
    "the next one downloads that file again and keeps those before it",
)
def test_killed_and_resumed(hub, here):
    study(here)
    second = sha256(four_files()["data/train-00001-of-00004.parquet"]).hexdigest()
    hub.faults += [Fault(f"/store/{second}", times=100, status=503)]
    process = here.start("fetch")
    wait_until(lambda: any(path.endswith(second) and status == 503 for _, path, status in hub.log))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    hub.faults.clear()
    hub.log.clear()
    here.run("fetch")
    found = {
        Path(name).name: digest
        for name, digest in mirrored(here).items()
        if name.endswith(".parquet")
    }
    assert found == {
        Path(name).name: sha256(content).hexdigest() for name, content in four_files().items()
    }
    assert hub.sent(second)
    assert not hub.sent(found["train-00000-of-00004.parquet"])


def test_a_cap_fetches_the_first_files_only(hub, here):
    study(here, max_tokens=8000)
    here.run("fetch", "--bytes-per-token", "0.1")
    corpus = next((here.folder / "mirror" / "corpora").iterdir())
    assert len(list(corpus.glob("data/*.parquet"))) == 1
    said = here.refused("prepare", **OFFLINE)
    assert re.search(
        r"Of 4 files the first 1 are in .*give `fetch` a larger --bytes-per-token", said
    )
    per_token = 1.5 * len("".join(TEXTS[:100])) / 8000
    here.run("fetch", "--bytes-per-token", str(per_token))
    assert len(list(corpus.glob("data/*.parquet"))) == 2
    here.run("prepare", **OFFLINE)


@pytest.mark.fault(
    "text and data",
    "what a job needs is not in the mirror, or damaged there, and the hub is switched off",
    "the job names it and the command that fetches it",
)
def test_what_is_not_there_is_named(hub, here):
    study(here)
    said = here.refused("prepare", **OFFLINE)
    assert re.search(
        r"dataset 'org/set' is not on this machine, .*target `fetch`, with paths\.hub_mirror",
        said,
    )
    here.run("fetch")
    corpus = next((here.folder / "mirror" / "corpora").iterdir())
    last = corpus / "data" / "train-00003-of-00004.parquet"
    content = bytearray(last.read_bytes())
    content[100] ^= 1
    last.write_bytes(content)
    said = here.refused("prepare", **OFFLINE)
    assert re.search(
        r"paths\.hub_mirror: .*train-00003.*SHA-256 .*delete it and run the target `fetch`",
        said,
    )
    last.unlink()
    said = here.refused("prepare", **OFFLINE)
    assert re.search(
        r"dataset 'org/set' is not on this machine, .*target `fetch`.*Of 4 files the first 3",
        said,
    )
    (here.folder / "mirror" / "allenai" / "ai2_arc" / "ARC-Easy" / "test.jsonl").unlink()
    said = here.refused("try-tasks", "--out", "tasks.json", **OFFLINE)
    assert re.search(r"arc_easy needs .*test\.jsonl; the target `fetch` downloads it", said)


@pytest.mark.fault(
    "text and data",
    "`fetch` has no folder to fetch into, cannot read a task's data, or gets another word list than"
    " the published",
    "it tries all else, keeps nothing else in its place, and names the setting and the homes that"
    " it tried",
)
def test_what_fetch_refuses(hub, here):
    study(here, mirror=None)
    said = here.refused("fetch")
    assert re.search(
        r"paths\.hub_mirror: not set .*--config 'paths=\{hub_mirror: data/hub\}'", said
    )
    study(here)
    task = hub.repos["datasets/allenai/ai2_arc"].branches[TASK_REVISIONS["allenai/ai2_arc"]]
    task["ai2_arc.py"] = b"import datasets"
    hub.files["/pairs.zip"] = zipped("sets/pairs.txt", b"header\nsun moon 4\n")
    said = here.refused("fetch")
    assert "2 things could not be fetched" in said
    assert said.count("has a loading script") == 1  # each failure once, at the end
    assert re.search(
        r"arc_easy: .*has a loading script, ai2_arc\.py, .*put its rows .*/ARC-Easy/test\.jsonl",
        said,
    )
    assert re.search(
        r"pairs\.txt with the SHA-256 [0-9a-f]{64}: put it at sets/pairs\.txt yourself; tried"
        r" .*pairs\.zip "
        r"\(ValueError: the SHA-256 is .*pairs\.txt \(ValueError: HTTP 404",
        said,
    ), said
    assert "`fetch`" not in said
    assert (here.folder / "sets" / "more.txt").read_bytes() == PAIRS * 2
    assert not (here.folder / "sets" / "pairs.txt").exists()
    del task["ai2_arc.py"]
    hub.files["/pairs.txt"] = PAIRS  # the second home
    here.run("fetch")
    assert (here.folder / "sets" / "pairs.txt").read_bytes() == PAIRS


@pytest.mark.fault(
    "text and data",
    "the names of the servers do not resolve while `fetch` runs",
    "it fails at once, after it has tried everything, and lists what is missing",
)
def test_names_that_do_not_resolve(here):
    here.first = here.first.replace(here.url, "https://lists.example.invalid")
    study(here)
    start = time.monotonic()
    said = here.refused("fetch", HF_ENDPOINT="https://hub.example.invalid")
    assert time.monotonic() - start < 25
    before, _, listed = said.partition("could not be fetched")
    assert before.endswith("4 things "), said
    for part in ("arc_easy|ai2_arc", "org/set", "pairs.txt", "more.txt"):
        assert re.search(part, listed)
    assert "`fetch`" not in said


@pytest.mark.fault(
    "text and data",
    "the corpus has no column of the name that the study says, or numbers in it",
    "`fetch` names it after the first file, and preparation need not find it later",
)
def test_a_text_column_that_is_missing(hub, here):
    study(here, source={"kind": "hub", "dataset": "org/set", "text_field": "body"})
    said = here.refused("fetch")
    message = (
        r"train-00000.* of 'org/set': no field 'body'; fields there: 'text'; set"
        r" data\.source\.text_field"
    )
    assert re.search(message, said), said
    assert not hub.sent("train-00001")


@pytest.mark.fault(
    "text and data",
    "the address of the hub or of a word list is plain http",
    "`fetch` refuses it; a server on this machine may be asked by http",
)
def test_plain_http(here):
    study(here)
    said = here.refused("fetch", HF_ENDPOINT="http://hub.example.org")
    assert "http://hub.example.org: not https" in said
    for allowed in (
        "https://hub.example.org/a",
        "http://localhost:80/a",
        "http://127.0.0.1",
        "http://[::1]:80",
    ):
        check_address(allowed)
    for refused in (
        "http://hub.example.org/a",
        "http://localhost.example.org",
        "ftp://hub.example.org/a",
    ):
        with pytest.raises(ValueError, match="not https"):
            check_address(refused)
    assert all(
        home.url.startswith("https://") for known in WORD_LISTS.values() for home in known.homes
    )


@pytest.mark.fault(
    "text and data",
    "the disk has too little space for what `fetch` needs",
    "it stops before it downloads, and names the setting",
)
def test_too_little_space(hub, here):
    with small_disk(here.folder / "mirror", "60k"):
        study(here)
        said = here.refused("fetch")
        assert re.search(
            r"paths\.hub_mirror: at most 0\.000 GB to fetch, and 0\.000 GB are free at .*mirror",
            said,
        )
        assert not hub.sent("store")


def test_the_target_of_the_workflow(hub, here):
    settings = study(here)
    settings["evaluation"]["word_similarity"] = []
    write_json(here.folder / "study.json", settings)
    environment = here.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = [sys.executable, "-m", "snakemake", "fetch", "--cores", "1"]
    command += ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "study.json"]
    done = subprocess.run(
        command,
        cwd=here.folder,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "GB are free at" in done.stdout


def test_a_tokenizer_that_is_not_gpt2s(hub, here):
    hub.add(
        GPT2_REPOSITORY,
        {"tokenizer.json": (here.tokenizer / "tokenizer.json").read_bytes()},
        GPT2_REVISION,
    )
    study(here, tokenizer="gpt2", vocab_size=50304)
    said = here.refused("fetch")
    assert "mirror/openai-community/gpt2/tokenizer.json: not GPT-2's tokenizer" in said
    assert not (here.folder / "mirror" / "openai-community" / "gpt2" / "tokenizer.json").exists()


@real_data
def test_gpt2s_tokenizer(hub, here):
    real = Path(os.environ["CAB_REAL_DATA"]) / "tokenizer" / "hf_gpt2" / "tokenizer.json"
    hub.add(GPT2_REPOSITORY, {"tokenizer.json": real.read_bytes()}, GPT2_REVISION)
    study(here, tokenizer="gpt2", vocab_size=50304)
    here.run("fetch")
    here.run("prepare", **OFFLINE)


@real_data
@pytest.mark.parametrize("name", WORD_LISTS)
def test_the_pinned_word_lists_are_the_authors(name):
    assert (
        sha256_file(Path(os.environ["CAB_REAL_DATA"]) / "wordsim" / name) == WORD_LISTS[name].sha256
    )


@real_data
def test_the_papers_tasks_with_their_real_rows(hub, here):
    """From parquet, in the configurations that lm-eval's task files name, to lines of JSON."""
    real = Path(os.environ["CAB_REAL_DATA"]) / "hub"
    expected = {}
    for task in find_tasks(PAPER_TASKS, None):
        data = hub_data(task, 0)
        assert data is not None
        (split,) = data.needed
        rows = [json.loads(line) for line in data.file(real, split).read_text().splitlines()]
        config = data.config_name or "default"
        branch = TASK_REVISIONS.get(data.dataset, "main")
        repo = hub.repos.get(f"datasets/{data.dataset}")
        files = dict(repo.branches[branch]) if repo is not None else {}
        files[f"{config}/{split}-00000-of-00001.parquet"] = parquet(rows)
        entry = (
            f"- config_name: {config}\n  data_files:\n  - {{split: {split}, path:"
            f" {config}/{split}-*}}\n"
        )
        card = files.get("README.md", b"---\nconfigs:\n---\n")
        files["README.md"] = card.replace(b"\n---\n", f"\n{entry}---\n".encode())
        hub.add(f"datasets/{data.dataset}", files, branch)
        expected[data.file(here.folder / "mirror", split)] = rows
    here.study(paths={"hub_mirror": "mirror"}, evaluation={"downstream": {}, "word_similarity": []})
    here.run("fetch")
    for file, rows in expected.items():
        assert [json.loads(line) for line in file.read_text().splitlines()] == rows


def test_the_rows_of_a_task_are_copied_as_they_stand(tmp_path, monkeypatch):
    """A text that looks like a date stays one, and a date of parquet is written as lm-eval would
    print it."""
    texts = [{"q": "2019-03-01", "a": 1}, {"q": "2019-03-02", "a": 2.5}]
    day = {"q": "2019-03-01", "when": datetime.date(2019, 3, 1)}
    files = {
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in texts).encode(),
        "b.parquet": parquet([day]),
        "c.parquet": parquet([{"q": b"\x00"}]),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(fetch, "download", lambda listing, part, folder, minutes: tmp_path / part)

    def written(name: str) -> list[Any]:
        fetch._write_task_data(SimpleNamespace(files=[name]), tmp_path / "out.jsonl", 1.0)
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]

    assert written("a.jsonl") == texts
    assert written("b.parquet") == [day | {"when": "2019-03-01"}]
    with pytest.raises(ValueError, match="a field of its rows has the type bytes"):
        written("c.parquet")


def test_it_does_not_advise_itself():
    missing: list[str] = []
    with fetch._tried(missing):
        raise ValueError(f"the hub is away; connect this machine,{BY_FETCH} or use a copy")
    assert missing == ["the hub is away; connect this machine, or use a copy"]


@pytest.mark.fault(
    "text and data",
    "HF_HOME names a folder that cannot be made or written",
    "whatever asks the hub names it, and does not blame the data set or the network",
)
@pytest.mark.parametrize("home", ["/proc/nothing", "/dev/null/x"])
def test_a_cache_that_cannot_be_written_is_named(hub, here, home):
    repository = hub.repos["datasets/allenai/ai2_arc"]
    (files,) = repository.branches.values()
    training = {"ARC-Easy/train-00000-of-00001.parquet": parquet(ARC)}
    card = (
        b"---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n  - {split: test, path:"
        b" ARC-Easy/test*}\n  - {split: validation, path: ARC-Easy/test*}\n"
        b"  - {split: train, path: ARC-Easy/train*}\n---\n"
    )
    hub.add("datasets/allenai/ai2_arc", files | training | {"README.md": card})
    study(here, mirror=None)
    stages = (["prepare"], ["try-tasks", "--out", "tasks.json"])
    for stage in stages:
        said = here.refused(*stage, HF_HOME=home)
        assert f"HF_HOME: {home} cannot be written" in said
        assert "set HF_HOME to a folder that can be written" in said
        assert not re.search("set data.source|hub_mirror", said)
    # What the message says ends the refusal.
    for stage in stages:
        here.run(*stage, HF_HOME=str(here.folder / "can be written"))
