"""Brings what a study needs from the network to where its jobs look for it without one."""

import io
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.request import urlopen

from coupled_adam_bench.store.files import atomic_path, write_bytes
from coupled_adam_bench.study.data import HubSource
from coupled_adam_bench.study.study import Study

_COPIES = (
    "https://raw.githubusercontent.com/mrmechko/simcross/ffc5c7598185be00260d81fd71274db32e6bceda"
)
WORD_LISTS = {
    "MEN_dataset_lemma_form_full": (
        f"{_COPIES}/MEN/MEN_dataset_lemma_form_full",
        "d13c9c666691944c29aa4bdee7128fa69eb5f9734603f8c6048d1bc2ca08465a",
    ),
    "rw.txt": (
        "https://nlp.stanford.edu/~lmthang/morphoNLM/rw.zip",
        "f38941b02b85cf20e9d857ab4ee06ee0dfcb1c9ce0df6c546f1134fc5e625dae",
    ),
    "SimLex-999.txt": (
        f"{_COPIES}/SimLex-999/SimLex-999.txt",
        "34751e3b4f9ef1719357489e984977b779e759ca5aae4633608168b1dd0fb004",
    ),
    "wordsim_similarity_goldstandard.txt": (
        f"{_COPIES}/wordsim353/similarity.tab",
        "f1da938998863c94e53f72f984a5c6e215f0b46c323aae8f0f4930703a339107",
    ),
    "wordsim_relatedness_goldstandard.txt": (
        f"{_COPIES}/wordsim353/relatedness.tab",
        "66a7c88100624d0a391605ff61ce84e11d11ee620d51ec0298da49592838f8fa",
    ),
}
"""The paper's word lists: their public homes, and the SHA-256 of the authors' files [C]."""
HAVE_HEADERS = ("MEN_dataset_lemma_form_full", "SimLex-999.txt")
"""The published files that begin with a line which the authors' files do not have."""
TASKS = {
    "hellaswag": "Rowan/hellaswag/default/validation",
    "winogrande": "allenai/winogrande/winogrande_xl/validation",
    "arc_easy": "allenai/ai2_arc/ARC-Easy/test",
    "arc_challenge": "allenai/ai2_arc/ARC-Challenge/test",
    "truthfulqa_mc2": "truthfulqa/truthful_qa/multiple_choice/validation",
    "lambada_openai": "EleutherAI/lambada_openai/default/test",
    "race": "EleutherAI/race/high/test",
}
"""The rows of the paper's tasks [C]: dataset of the hub, configuration and split."""
COMMITS = {
    "Rowan/hellaswag": "218ec52e09a7e7462a5400043bb9a69a41d06b76",
    "allenai/winogrande": "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
    "allenai/ai2_arc": "210d026faf9955653af8916fad021475a3f00453",
    "truthfulqa/truthful_qa": "741b8276f2d1982aa3d5b832d3ee81ed3b896490",
    "EleutherAI/lambada_openai": "900124bf3b8235c6daf21033af9948b3f07346c4",
}
"""The commits of these datasets from which rows are taken."""

Item = tuple[str, bool, Callable[[], object]]
"""What a study needs: its name, whether it is there, and what gets it."""


def _get_list(target: Path) -> None:
    address, wanted = WORD_LISTS[target.name]
    with urlopen(address, timeout=60) as answer:
        content = answer.read()
    if zipfile.is_zipfile(io.BytesIO(content)):
        content = zipfile.ZipFile(io.BytesIO(content)).read(f"{target.stem}/{target.name}")
    if target.name in HAVE_HEADERS:
        content = content.partition(b"\n")[2]
    if (found := sha256(content).hexdigest()) != wanted:
        raise ValueError(f"its SHA-256 is {found} and must be {wanted}")
    write_bytes(target, content)


def _get_rows(place: str, target: Path) -> None:
    from datasets import load_dataset

    owner, name, config, split = place.split("/")
    dataset = f"{owner}/{name}"
    rows = load_dataset(dataset, config, split=split, revision=COMMITS.get(dataset))
    with atomic_path(target) as temporary:
        rows.to_json(temporary)


def _of_cache(name: str, get: Callable[..., object]) -> Item:
    """Return what the hub's library keeps in its cache, from which it can be told to read alone."""
    try:
        is_there = bool(get(local_files_only=True))
    except FileNotFoundError:
        is_there = False
    return name, is_there, get


def _items(study: Study) -> Iterator[Item]:
    """Yield what a study needs from the network: text, tokenizer, word lists and tasks."""
    # The libraries of the hub take long to import.
    if isinstance(source := study.data.source, HubSource):
        from coupled_adam_bench.data.documents import hub_files

        yield _of_cache(f"dataset {source.dataset}", partial(hub_files, source))
    if study.data.tokenizer == "gpt2" and study.paths.tokenizer is None:
        from huggingface_hub import hf_hub_download

        from coupled_adam_bench.data.tokenizers import GPT2, GPT2_REVISION

        get = partial(hf_hub_download, GPT2, "tokenizer.json", revision=GPT2_REVISION)
        yield _of_cache("GPT-2's tokenizer", get)
    lists, downstream = study.evaluation.word_similarity, study.evaluation.downstream
    for wanted in () if lists == "synthetic" else lists:
        target = Path(study.paths.word_similarity, wanted.file)
        if target.name in WORD_LISTS:
            yield f"word list {target}", target.exists(), partial(_get_list, target)
    if study.paths.hub_mirror is None or downstream is None or downstream.tasks == "synthetic":
        return
    for task in downstream.tasks:
        if place := TASKS.get(task):
            target = Path(study.paths.hub_mirror, f"{place}.jsonl")
            yield f"task {task}", target.exists(), partial(_get_rows, place, target)


def missing(study: Study) -> list[str]:
    """Return the names of what ``fetch`` would bring."""
    return [name for name, is_there, _ in _items(study) if not is_there]


def fetch(study: Study) -> int:
    """Bring what is missing; return 1 if some of it cannot be had, which is told at its name."""
    status = 0
    for name, is_there, get in _items(study):
        print(f"{name}: {'is there' if is_there else 'fetching'}", flush=True)
        try:
            if not is_there:
                get()
        except Exception as error:  # of many types: of servers, of the hub, of archives
            print(f"{name}: not fetched ({error})", flush=True)
            status = 1
    return status
