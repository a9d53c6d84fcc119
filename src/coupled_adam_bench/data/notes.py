"""What a user should know of prepared data: what was left out of the text, and what there is little
of. It imports nothing heavy, as the workflow tells it at its end."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.markup import first_of
from coupled_adam_bench.study.catalogue.metrics import FEW_DOCUMENTS
from coupled_adam_bench.study.plan.inputs import fingerprints, hidden_in, text_files
from coupled_adam_bench.study.settings import FilesSource, OwnSource, Study

_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice|changelog)\b.*\.txt", re.IGNORECASE)
"""Names of files that are about a text."""
_SPLIT = re.compile(r"(train|val|valid|validation|dev|test)([-_]\d.*)?(\.|$)", re.IGNORECASE)
"""Beginnings of the names of files and folders that are a split."""
_LEFT_OUT = {
    "n_empty_documents": "documents without text",
    "n_invalid_documents": "rows without valid text",
    "n_files_without_text": "files without text",
}


def left_out(skip: str, source: Mapping[str, Any]) -> str | None:
    """Return in a sentence what ``data.skip`` has left out; None if it was nothing.

    ``source`` is that of ``meta.json``.
    """
    counts = {what: source.get(fact, 0) for fact, what in _LEFT_OUT.items()}
    found = ", ".join(f"{what}: {number:,}" for what, number in counts.items() if number)
    return f"left out: {found} (data.skip: {skip})" if found else None


def notes(study: Study, meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each other thing to know of the data that ``meta.json`` describes."""
    splits = meta["splits"]
    if others := meta["source"].get("other_files"):
        named = ", ".join(f"{ending}: {number:,}" for ending, number in others.items())
        yield f"files with other endings are not read ({named})"
    yield from _changes(meta["source"])
    patterns = study.paths.text if isinstance(study.data.source, FilesSource) else ()
    yield from _doubts(_files_at(patterns))
    hidden = [str(path) for pattern in patterns for path in hidden_in(pattern)]
    if hidden:
        yield (
            f"hidden files and folders are not read ({first_of(hidden)}); to read one, name it in"
            " paths.text"
        )
    if study.training.data_order == "pairs":
        return  # train is a source, of which a run may draw any number of tokens
    split = study.evaluation.test_loss.split
    held_out = splits[split]
    if held_out["n_documents"] < FEW_DOCUMENTS:
        is_own = isinstance(study.data.source, OwnSource)
        cure = "let the source hold out more" if is_own else f"raise data.split.{split}_fraction"
        yield (
            f"the loss is measured on {held_out['n_tokens']:,} tokens of"
            f" {held_out['n_documents']} documents, which are few: other text may give another"
            f" loss; {cure}"
        )
    n_train, largest = splits["train"]["n_tokens"], study.largest_tokens
    if largest > n_train:
        yield (
            f"train has {n_train:,} tokens, and the largest run of the grid reads {largest:,}:"
            f" {largest / n_train:.3g} times the text; give more text, or a smaller number of"
            " tokens"
        )


def _changes(source: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the tokenizer makes of the text that a reader may not expect."""
    if read_back := source.get("read_back"):
        yield (
            f"the tokenizer changes the text: {read_back}; if this is not meant, correct its"
            " normalizer, its pre_tokenizer or its decoder"
        )
    if n_documents := source.get("n_documents_with_end"):
        yield (
            f"<|endoftext|> stands in {n_documents:,} documents and is read as text; if it"
            " separates documents of a .txt file, set data.source.txt_document: end_of_text"
        )


def _files_at(patterns: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return the files of a text with their names; none if it is gone, as it may be when a run
    ends."""
    try:
        return text_files(patterns)
    except ValueError:
        return []


def _doubts(files: Sequence[tuple[str, Path]]) -> Iterator[str]:
    """Yield what was read that may not be meant, by the names of the files below the folder of the
    text, and by copies among them."""
    if about := [str(path) for _, path in files if _ABOUT.fullmatch(path.name)]:
        yield f"read as text, too: {first_of(about)}; if this is not meant, move it elsewhere"
    splits: dict[str, str] = {}
    for name, path in files:
        for part in Path(name).parts:
            if found := _SPLIT.match(part):
                splits.setdefault(found[1].lower(), str(path))
    if len(splits) > 1:
        yield (
            f"splits that somebody has made ({first_of(splits.values())}) are one text here, which"
            " data.split splits anew; to train on one of them, name it in paths.text"
        )
    if copies := _copies([path for _, path in files]):
        yield (
            f"files with the same contents are read each time ({first_of(copies)}); if this is not"
            " meant, remove one of them"
        )


def _copies(files: Sequence[Path]) -> list[str]:
    """Return in words which files seem to have the same contents, by their size, beginning and
    end; empty ones do not count."""
    by_size: dict[int, list[Path]] = {}
    for path in files:
        by_size.setdefault(path.stat().st_size, []).append(path)
    alike: dict[tuple[int, str], list[str]] = {}
    for size, paths in by_size.items():
        if size and len(paths) > 1:
            prints = fingerprints([(path.name, path) for path in paths])
            for path, (_, _, contents) in zip(paths, prints, strict=True):
                alike.setdefault((size, contents), []).append(str(path))
    return [" and ".join(names) for names in alike.values() if len(names) > 1]
