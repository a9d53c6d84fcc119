"""Tables of the paper's models, datasets, tasks and word-similarity sets."""

from dataclasses import dataclass
from typing import Any

# Layers, heads, width and peak learning rate are from the paper's table of hyperparameters [P].
MODEL_PRESETS: dict[str, dict[str, Any]] = {
    name: {
        "name": name,
        "label": label,
        "architecture": architecture,
        "n_layer": n_layer,
        "n_head": n_head,
        "d_model": d_model,
        "learning_rate": learning_rate,
    }
    for name, label, architecture, n_layer, n_head, d_model, learning_rate in (
        ("gpt2-125m", "125M", "gpt2", 12, 12, 768, 6.0e-4),
        ("gpt2-355m", "355M", "gpt2", 24, 16, 1024, 3.0e-4),
        ("gpt2-760m", "760M", "gpt2", 24, 16, 1536, 2.5e-4),
        ("stablelm-1.3b", "1.3B", "stablelm", 24, 32, 2048, 2.0e-4),
        ("stablelm-2.6b", "2.6B", "stablelm", 32, 32, 2560, 1.6e-4),
        # These are ours, for tests, the demo and small machines.
        ("gpt2-4x256", None, "gpt2", 4, 4, 256, 1.0e-3),
        ("gpt2-2x64", None, "gpt2", 2, 2, 64, 3.0e-3),
        ("gpt2-2x32", None, "gpt2", 2, 2, 32, 3.0e-3),
    )
}


@dataclass(frozen=True)
class Place:
    """A place on the Hugging Face hub that has the text of a preset."""

    dataset: str
    revision: str | None = None
    """Commit, or branch where no commit is known."""
    config_name: str | None = None
    split: str = "train"
    text_field: str = "text"
    license: str = "none stated"


# Where a preset's text lies, tried in turn; this is no part of the data id. Commits, sizes and
# licenses are from public pages and code, seen in November 2026: docs/data.md has them, with what
# could not be seen.
HUB_PLACES: dict[str, tuple[Place, ...]] = {
    "openwebtext": (
        # Parquet on the main branch, 80 files with 8,013,769 documents; commits before it have a
        # loading script.
        Place(
            "Skylion007/openwebtext", "79d93d786212f7344586290adb811d4ae6a1762c", license="cc0-1.0"
        ),
        Place("Skylion007/openwebtext", "refs/convert/parquet", license="cc0-1.0"),
        Place("reedie01/openwebtext", license="cc0-1.0"),
    ),
    "slimpajama": (
        Place("cerebras/SlimPajama-627B", license="apache-2.0"),
        Place(
            "gmongaras/SlimPajama-627B_Reupload",
            "c34c22dbb10ae6b264a2f357a909d1a537141b36",
            license="apache-2.0, of the original",
        ),
    ),
    "slimpajama-6b": (
        Place(
            "DKYoon/SlimPajama-6B",
            "b5f90f419b7489cdba26fdbc8c022fcb5562f968",
            license="none stated; apache-2.0 of the original",
        ),
    ),
    "fineweb-edu-10bt": (
        Place(
            "HuggingFaceFW/fineweb-edu",
            "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
            "sample-10BT",
            license="odc-by",
        ),
    ),
    "fineweb-100bt": (Place("HuggingFaceFW/fineweb", None, "sample-100BT", license="odc-by"),),
    "dclm": (
        Place(
            "mlfoundations/dclm-baseline-1.0",
            "a3b142c183aebe5af344955ae20836eb34dcf69b",
            license="cc-by-4.0",
        ),
        Place("mlfoundations/dclm-baseline-1.0-parquet", license="cc-by-4.0"),
    ),
    "c4-en": (
        Place("allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2", "en", license="odc-by"),
    ),
}

HUB_PRESETS: dict[str, dict[str, Any]] = {
    name: {"dataset": places[0].dataset, "config_name": places[0].config_name}
    for name, places in HUB_PLACES.items()
}
"""What a preset fills into a source; it is part of the data id."""

# Commits of the task data that lm-eval 0.4.13 names, all parquet; of EleutherAI/race none is known
# (docs/data.md).
TASK_REVISIONS = {
    "Rowan/hellaswag": "218ec52e09a7e7462a5400043bb9a69a41d06b76",
    "allenai/winogrande": "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
    "allenai/ai2_arc": "210d026faf9955653af8916fad021475a3f00453",
    "truthfulqa/truthful_qa": "741b8276f2d1982aa3d5b832d3ee81ed3b896490",
    "EleutherAI/lambada_openai": "900124bf3b8235c6daf21033af9948b3f07346c4",
}

PAPER_TASKS = (
    "hellaswag",
    "winogrande",
    "arc_easy",
    "arc_challenge",
    "truthfulqa_mc2",
    "lambada_openai",
    "race",
)
"""The paper's downstream tasks [C]."""


@dataclass(frozen=True)
class Home:
    """A public place that has a word-similarity set: a file, or a file in an archive."""

    url: str
    member: str | None = None
    """Name of the file in an archive; None where the address is that of the file itself."""
    has_header: bool = False
    """Whether the first line of the file is a header, which is cut off here."""


@dataclass(frozen=True)
class WordList:
    """A word-similarity set: what it must be, and its homes in the order in which they are
    tried."""

    sha256: str
    """The SHA-256 of the file as it is stored here."""
    homes: tuple[Home, ...]


# By name of the file. The checksums are of the authors' files [C], and nothing else is taken,
# wherever it comes from. The SHA-1 sums that GluonNLP has of the files in the first homes
# (gluonnlp/data/word_embedding_evaluation.py) agree with them, for SimLex-999 with its header. None
# of the addresses could be asked by us: their names are from public code. The files in
# mrmechko/simcross were read in a copy of that commit, in November 2026, and have these checksums.
# The copy of rw.zip in the Internet Archive was not seen: the address leads to its nearest copy, if
# it has one.
_SIMCROSS = (
    "https://raw.githubusercontent.com/mrmechko/simcross/ffc5c7598185be00260d81fd71274db32e6bceda"
)
_ARCHIVE = "https://web.archive.org/web"
_WORDSIM353 = f"{_ARCHIVE}/20201112022046id_/http://alfonseca.org/pubs/ws353simrel.tar.gz"
_MEN = "https://staff.fnwi.uva.nl/e.bruni/resources/MEN.tar.gz"
_RW = "https://nlp.stanford.edu/~lmthang/morphoNLM/rw.zip"
WORD_LISTS = {
    "MEN_dataset_lemma_form_full": WordList(
        "d13c9c666691944c29aa4bdee7128fa69eb5f9734603f8c6048d1bc2ca08465a",
        (
            Home(_MEN, "MEN/MEN_dataset_lemma_form_full"),
            Home(f"{_SIMCROSS}/MEN/MEN_dataset_lemma_form_full", has_header=True),
        ),
    ),
    "rw.txt": WordList(
        "f38941b02b85cf20e9d857ab4ee06ee0dfcb1c9ce0df6c546f1134fc5e625dae",
        (Home(_RW, "rw/rw.txt"), Home(f"{_ARCHIVE}/2020id_/{_RW}", "rw/rw.txt")),
    ),
    "SimLex-999.txt": WordList(
        "34751e3b4f9ef1719357489e984977b779e759ca5aae4633608168b1dd0fb004",
        (
            Home(
                "https://fh295.github.io/SimLex-999.zip",
                "SimLex-999/SimLex-999.txt",
                has_header=True,
            ),
            Home(f"{_SIMCROSS}/SimLex-999/SimLex-999.txt", has_header=True),
        ),
    ),
    "wordsim_similarity_goldstandard.txt": WordList(
        "f1da938998863c94e53f72f984a5c6e215f0b46c323aae8f0f4930703a339107",
        (
            Home(f"{_SIMCROSS}/wordsim353/similarity.tab"),
            Home(_WORDSIM353, "wordsim353_sim_rel/wordsim_similarity_goldstandard.txt"),
        ),
    ),
    "wordsim_relatedness_goldstandard.txt": WordList(
        "66a7c88100624d0a391605ff61ce84e11d11ee620d51ec0298da49592838f8fa",
        (
            Home(f"{_SIMCROSS}/wordsim353/relatedness.tab"),
            Home(_WORDSIM353, "wordsim353_sim_rel/wordsim_relatedness_goldstandard.txt"),
        ),
    ),
}
