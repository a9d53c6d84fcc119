"""Learns the byte-level BPE of a study from its own text, and only from documents of train.

The pieces of text that are merged are those of GPT-2's pattern. The merges are the same for any
number of threads.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from coupled_adam_bench.data.bins import SPLITS
from coupled_adam_bench.data.shards import shards_dir, split_of
from coupled_adam_bench.data.sources import Corpus
from coupled_adam_bench.data.tokenizers import Merges
from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import Progress
from coupled_adam_bench.store.files import read_sealed, write_sealed
from coupled_adam_bench.study.settings import Study
from coupled_adam_bench.study.settings.data import BYTES_AND_EOT

MIN_FREQUENCY = 2
"""Occurrences that a pair needs to be merged, as in the class ByteLevelBPETokenizer of the library
``tokenizers``."""
_PIECE_CHARACTERS = 2**16
"""Length from which a document is cut: the library holds 256 pieces at once, and a document can
have many MB."""
# White space as in GPT-2's pattern, which unlike Python's does not count the separators 1C to 1F,
# and everything else.
_SPACE, _INK = r"[^\S\x1c-\x1f]", r"[\S\x1c-\x1f]"
_CUT = re.compile(rf"{_INK}(?=[ \n])")  # the pattern never matches across this place
# The library needs a time that grows with the square of a run that the pattern takes as one word.
_LONG_RUN = re.compile(rf"{_INK}{{1000}}|{_SPACE}{{1000}}")
_SHORT_RUNS = re.compile(
    rf"{_SPACE}{{0,999}}+(?:{_INK}{{1,999}}+{_SPACE}{{1,999}}+)*+{_INK}{{0,999}}+"
)


@dataclass(frozen=True)
class Bpe:
    """The merges of a byte-level BPE in the order in which they were learned, and the text that
    they are from."""

    merges: Merges
    n_documents: int
    n_characters: int
    tokenizers_version: str
    """Version of the library ``tokenizers``."""

    def facts(self) -> dict[str, Any]:
        """Return what is known of the text, without the merges, as a JSON value."""
        return {name: value for name, value in asdict(self).items() if name != "merges"}


def learn_bpe(study: Study, data_id: str, out: Path, threads: int) -> Bpe:
    """Return the BPE of ``data.vocab_size`` tokens, with those of the 256 bytes and end-of-text, of
    a study's text.

    After an interruption of the data's preparation in ``out``, the next call returns what was
    learned. Raises ``ValueError`` for invalid input, and if the text has too few different pieces
    for so many tokens.
    """
    record = shards_dir(out) / "bpe.json"
    if (learned := _read(record, data_id)) is not None:
        return learned
    text = _TrainText(study, shards_dir(out) / "hub")
    # The library has no argument for its threads: it looks for them in the environment.
    with (
        environment(
            {
                "RAYON_NUM_THREADS": str(threads),
                "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
            }
        ),
        Progress(None, "characters", f"learn the BPE of {data_id}") as progress,
    ):
        merges = _merges(text.pieces(progress), study.data.vocab_size - BYTES_AND_EOT)
    # Where no pair is left to merge, the library stops early and does not say so.
    if (n_types := BYTES_AND_EOT + len(merges)) < study.data.vocab_size:
        raise ValueError(
            f"data.vocab_size: {study.data.vocab_size}, but the text supports a BPE of {n_types}"
            f" tokens ({text.n_documents} documents of train with {text.n_characters:,} characters"
            f" were read); set it to at most {n_types}, or give more text"
        )
    learned = Bpe(merges, text.n_documents, text.n_characters, version("tokenizers"))
    write_sealed(record, {"data_id": data_id, **asdict(learned)})
    return learned


def _read(record: Path, data_id: str) -> Bpe | None:
    try:
        values = read_sealed(record)
        if values.pop("data_id") != data_id:
            return None
        return Bpe(**values | {"merges": [(first, second) for first, second in values["merges"]]})
    except (
        ValueError,
        OSError,
        KeyError,
        TypeError,
    ):
        # The file is missing, damaged, or of another version.
        return None


class _TrainText:
    """The first documents of train, up to the number of characters from which a BPE is learned."""

    def __init__(self, study: Study, downloads: Path) -> None:
        self._corpus, self._split = Corpus(study, downloads), study.data.split
        # A token stands for a character or more, so documents up to max_tokens characters are read
        # for the bins too.
        self._limit = min(
            study.data.bpe_characters, study.data.max_tokens or study.data.bpe_characters
        )
        self.n_documents = self.n_characters = 0

    def pieces(self, progress: Progress) -> Iterator[str]:
        """Yield the text in pieces of bounded length; ``ValueError`` if a mirror has too little of
        it."""
        for text in self._corpus:
            if SPLITS[split_of(text.encode(), self._split)] != "train":
                continue
            self.n_documents += 1
            self.n_characters += len(text)
            yield from cut(text)
            progress.update(len(text), documents=self.n_documents)
            if self.n_characters >= self._limit:
                return
        if self._corpus.shortfall is not None:
            raise self._corpus.shortfall


def cut(text: str) -> Iterator[str]:
    """Yield a text in pieces of 65536 characters or somewhat more, in which GPT-2's pattern finds
    the same words.

    A run of 1000 characters without white space, or of nothing else, ends a piece too, so longer
    words are cut.
    """
    start = 0
    while (place := _CUT.search(text, start + _PIECE_CHARACTERS - 1)) is not None:
        yield from _without_long_runs(text[start : place.end()])
        start = place.end()
    yield from _without_long_runs(text[start:])


def _without_long_runs(piece: str) -> Iterator[str]:
    start = 0
    if _SHORT_RUNS.fullmatch(piece) is None:  # much faster than the search, which text rarely needs
        for run in _LONG_RUN.finditer(piece):
            yield piece[start : run.end()]
            start = run.end()
    yield piece[start:]


def _merges(pieces: Iterator[str], n_merges: int) -> Merges:
    """Return the merges of a BPE in their order: ``n_merges`` of them, or fewer if no pair occurs
    twice any more."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + n_merges,
        min_frequency=MIN_FREQUENCY,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    # The model has no list of its merges, and the ids of what they make are in their order.
    return [(first, second) for first, second in json.loads(tokenizer.to_str())["model"]["merges"]]
