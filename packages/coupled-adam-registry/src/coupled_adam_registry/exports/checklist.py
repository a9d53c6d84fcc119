"""Answers what a manifest knows of the checklists of ARR and NeurIPS, as Markdown.

The questions are those of ARR's Responsible NLP Research checklist
(https://aclrollingreview.org/responsibleNLPresearch/) and of the NeurIPS Paper Checklist
(https://neurips.cc/public/guides/PaperChecklist). ARR's numbers come from its template, those of
NeurIPS from the template of 2024; compare them with the form that you fill in.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

_UNANSWERED = """\
What no manifest knows is yours to answer: claims, limitations, risks and broader impacts, ethics,
theory, licences and citations of texts and models, personal data, people who took part, and the use
of AI assistants (ARR A, B1 to B5, D, E; NeurIPS 1 to 3 and 9 to 16)."""


def checklist(manifest: Manifest) -> str:
    """Return the answers, each under the numbers that the question has in both checklists."""
    sections = (
        ("ARR B6", "How much data, and in which splits?", _data(manifest)),
        ("ARR C1, NeurIPS 8", "Parameters, budget, infrastructure?", _compute(manifest)),
        ("ARR C2, NeurIPS 6", "Setup, hyperparameters, their search?", _settings(manifest)),
        ("ARR C3, NeurIPS 7", "Error bars and significance?", _statistics(manifest)),
        ("ARR C4", "Packages and their settings?", _packages(manifest)),
        ("NeurIPS 4, 5", "Can it be reproduced?", _reproduction(manifest)),
    )
    lines = [f"# Checklist of the study {manifest['study']}: {manifest['title']}", "", _UNANSWERED]
    for numbers, question, answers in sections:
        lines += ["", f"## {numbers}: {question}", ""]
        lines += [f"- {answer}" for answer in answers]
    return "\n".join([*lines, ""])


def _words(settings: Any) -> str:
    """Return settings as they are said in a sentence."""
    if isinstance(settings, dict):
        given = {name: value for name, value in settings.items() if value not in (None, [], {})}
        return ", ".join(f"{name} {_words(value)}" for name, value in given.items())
    if isinstance(settings, list):
        return f"({'; '.join(map(_words, settings))})"
    return str(settings)


def _data(manifest: Manifest) -> Iterator[str]:
    for data in manifest["data"]:
        meta = data["meta"]
        if meta is None:
            yield f"{data['id']} was not prepared."
            continue
        yield f"{data['id']} is made of: {_words(meta['source'])}."
        yield f"Its tokenizer, {meta['tokenizer']}, has {meta['n_vocab']:,} tokens."
        for name, split in meta["splits"].items():
            yield f"{name}: {split['n_tokens']:,} tokens in {split['n_documents']:,} documents."


def _compute(manifest: Manifest) -> Iterator[str]:
    cells = [*manifest["cells"], *manifest.get("tuning_cells", [])]
    runs = {cell["cell"]: cell for cell in cells if cell["train"]}
    for name, size in sorted({(run["model"], run["n_params"]) for run in runs.values()}):
        yield f"{name} has {size:,} parameters."
    hours: dict[str, list[float]] = defaultdict(list)
    for run in runs.values():
        device = f"{run['environment']['device']}, {run['environment']['cpu_count']} cores"
        hours[device].append(run["train"]["seconds"] * run["train"]["processes"] / 3600)
    for device, each in hours.items():
        yield f"Training {len(each)} models took {sum(each):.3g} hours on {device}."
    memory = [run["train"]["peak_memory_bytes"] for run in runs.values()]
    if memory:
        yield f"A run took at most {max(memory) / 1e9:.3g} GB of memory."
    if any(study["training"]["schedule"] == "wsd" for study in manifest["studies"]):
        yield "Cells share their steps before the decay, which are counted in each: it took less."
    yield "Preparation, evaluation, and what failed or was tried elsewhere are not counted."


def _settings(manifest: Manifest) -> Iterator[str]:
    for study in manifest["studies"]:
        yield f"Training of {study['study']}: {_words(study['training'])}."
        yield f"Its models: {_words(study['models'])}."
        for block in study["grid"]:
            tokens, optimizers = _words(block["tokens"]), _words(block["optimizers"])
            yield f"{block['table']} has the optimizers {optimizers} on tokens {tokens}."
            tune = block.get("tune")
            if tune:
                yield f"{block['table']} chose settings by validation loss: {_words(tune)}."
    trials = manifest.get("tuning_cells")
    if trials:
        yield f"{len(trials)} runs were trials; tuning.csv has their losses and the choices."
    else:
        yield "No setting was searched for in this study."


def _statistics(manifest: Manifest) -> Iterator[str]:
    for study in manifest["studies"]:
        for block in study["grid"]:
            yield f"{block['table']} has a run for each of the seeds {_words(block['seeds'])}."
    yield "A number is the mean over seeds; behind it stands the sample standard deviation."
    yield "tests.csv has Student's one-sided t-test, and paired tests with Holm's correction."
    unfinished = [cell for cell in manifest["cells"] if cell["status"] != "completed"]
    yield f"{len(unfinished)} of {len(manifest['cells'])} runs did not complete; none is left out."
    if manifest.get("stated"):
        yield f"Hypotheses and seeds stand in a file with SHA-256 {manifest['stated']['sha256']}."
    else:
        yield "No hypothesis was stated in a file: the study is exploratory."


def _packages(manifest: Manifest) -> Iterator[str]:
    yield f"{_words(manifest['packages'])}."
    for study in manifest["studies"]:
        yield f"Evaluation of {study['study']}: {_words(study['evaluation'])}."


def _reproduction(manifest: Manifest) -> Iterator[str]:
    yield f"The code is at revision {manifest.get('git_revision')}."
    yield f"The versions of its mathematics are {_words(manifest['protocol']['versions'])}."
    yield "`python -m coupled_adam_bench verify manifest.json --sample 2` trains two cells again."
    yield f"The manifest has the SHA-256 of data, weights and {len(manifest['sha256'])} results."
