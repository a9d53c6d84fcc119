"""Compares what lm-eval understands of each item of a task with what the item says, before anything
is trained.

lm-eval guesses what an answer is. A text that a template gives and that has digits only is a place
among the choices for it, and an answer that is none of the choices counts as one that no model has
right, with a warning in its log. Only functions import this module, since it loads lm-eval.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from numbers import Integral
from typing import Any

from coupled_adam_bench.records.kept import Document

_EXPRESSION = re.compile(r"\s*\{\{((?:(?!\}\}).)*)\}\}\s*", re.DOTALL)
_SINGLE_BRACES = re.compile(r"(?<![\w{}])\{(\w+)\}(?!\})")
_LEAVE_OUT = "leave these items out with process_docs"
_SHOWN = 200
"""Largest number of characters of an item that a message shows."""


def check_items(task: Any, limit: int | None) -> None:
    """Check where a task's examples come from, and prompt, choices and answer of each item.

    They are checked where the answer is a place among choices, also of the items that may stand as
    examples in a prompt, if these are read in the same way.

    ``ValueError`` for the first kind of fault that is found, with the number of its items, the
    first of them and what to do. A task with a ``process_results`` of its own judges answers
    itself, so only prompts and choices are looked at. An item on which the task's own code fails is
    left to the scoring, which says so.
    """
    from lm_eval.api.task import ConfigurableTask

    if not isinstance(task, ConfigurableTask):
        return
    config, examples = task.config, task.fewshot_cfg
    has_examples = examples.split or examples.samples or config.training_split
    if config.num_fewshot and not (has_examples or config.validation_split):
        raise ValueError(
            f"downstream task {task.task_name!r}: its {config.num_fewshot} examples of a prompt"
            " would be drawn from the items that are scored, the item itself among them; write"
            f" fewshot_split: {config.test_split} into the task, which leaves the item itself out,"
            " or name another split there, or set evaluation.downstream.num_fewshot to 0"
        )
    if config.num_fewshot:
        _check_number_of_examples(task)
    _check_braces(task)
    _check_mean(task)
    if task.OUTPUT_TYPE != "multiple_choice":
        return
    _check(task, "items", task.doc_iterator(limit=limit))
    names = ("doc_to_text", "doc_to_choice", "doc_to_target")
    is_alike = all(getattr(examples, name) == getattr(config, name) for name in names)
    if config.num_fewshot and is_alike:
        _check(task, "examples of the prompts", enumerate(task.fewshot_docs()))


def _check_number_of_examples(task: Any) -> None:
    """Raise ``ValueError`` if there are fewer examples than a prompt is to have."""
    config, scored = task.config, task.config.test_split or task.config.validation_split
    split = task.fewshot_cfg.split or config.training_split or config.validation_split
    # lm-eval leaves out the item itself, also where both of its names for the split are missing.
    has_item = split == scored or task.fewshot_cfg.split == config.test_split
    n_there = len(list(task.fewshot_docs())) - has_item
    if config.num_fewshot > n_there:
        raise ValueError(
            f"downstream task {task.task_name!r}: a prompt is to have {config.num_fewshot}"
            f" examples, and there are only {n_there}; set evaluation.downstream.num_fewshot, or"
            f" num_fewshot in the task's file, to at most {n_there}"
        )


def _check_braces(task: Any) -> None:
    """Raise ``ValueError`` for a field of the items in single braces, which lm-eval takes for a
    text that all items have."""
    for name in ("doc_to_text", "doc_to_target", "doc_to_choice"):
        rule = getattr(task.config, name)
        found = _SINGLE_BRACES.findall(rule) if isinstance(rule, str) else []
        for field in found:
            if field in task.features:
                raise ValueError(
                    f"downstream task {task.task_name!r}: {name}: {rule!r} would have the text"
                    f" {{{field}}} in each item; write {{{{{field}}}}} for the field of the item"
                )


def _check_mean(task: Any) -> None:
    """Raise ``ValueError`` for a task whose ``acc`` is by its file no mean over the items."""
    for metric in task.config.metric_list or ():
        aggregation = metric.get("aggregation", "mean")
        # What a function of the task's own makes of the items is the task's matter.
        if metric.get("metric") == "acc" and isinstance(aggregation, str) and aggregation != "mean":
            raise ValueError(
                f"downstream task {task.task_name!r}: metric_list: the aggregation of acc is"
                f" {aggregation!r}, and Acc is a mean; write aggregation: mean"
            )


def check_acc(name: str, members: Iterable[str], documents: Sequence[Document]) -> None:
    """Raise ``ValueError`` if the ``acc`` of a task leaves out some of its items, or that of a
    group some of its tasks; lm-eval then gives the mean over the others."""
    for member in members:
        items = [document for document in documents if document.task == member]
        n_scored = sum("acc" in document.metrics for document in items)
        if n_scored < len(items):
            raise ValueError(
                f"evaluation.downstream.tasks: {name}: its acc would be the mean without"
                f" {len(items) - n_scored} of the {len(items)} items of {member!r}, for which the"
                " task reports none; have it report acc for each item, or leave these out with"
                " process_docs"
            )


def _check(task: Any, what: str, docs: Iterable[tuple[int, Any]]) -> None:
    faults: dict[str, list[tuple[int, str]]] = {}
    items = []
    for number, doc in docs:
        try:
            item = _Item(task, doc)
        except Exception:  # of the task's own code
            continue
        items.append(item)
        if fault := item.fault():
            faults.setdefault(fault[0], []).append((number, fault[1]))
    for kind, found in faults.items():
        first, shown = found[0]
        raise ValueError(
            f"downstream task {task.task_name!r}: {len(found)} of {len(items)} {what} {kind}, the"
            f" first is item {first} (from 0): {shown}; {_cure(kind, task, items)}"
        )


_ONE_CHOICE = "have one choice, which any model gets right"
_MISSING = "have a prompt with a missing value, for which lm-eval writes None"
_NO_TEXT = "have a prompt that lm-eval takes for a number"
_NO_CHOICES = "have choices that are no list of texts"
_MISREAD = "have an answer that lm-eval takes for another choice"
_NO_CHOICE = "have an answer that is none of the choices"


class _Item:
    """An item of a task: what it says, and what lm-eval makes of it."""

    def __init__(self, task: Any, doc: Any) -> None:
        config = task.config
        self.choices = _understood(task.doc_to_choice, doc)
        self.text = _understood(task.doc_to_text, doc)
        self.said_text = _said_by(config.doc_to_text, doc, task.features)
        # A function that fails is left to the scoring, which shows its error.
        is_none = self.said_text is None and not callable(config.doc_to_text)
        self.lacks_text = is_none and (self.text is None or "None" in str(self.text))
        self.has_inputs = bool(task.multiple_input)
        # Where the choices are whole texts, doc_to_text gives the place of the right one.
        self.answer = self.text if self.has_inputs else _understood(task.doc_to_target, doc)
        rule = config.doc_to_text if self.has_inputs else config.doc_to_target
        self.said = _said_by(rule, doc, task.features)
        self.judges_itself = callable(config.process_results)

    def fault(self) -> tuple[str, str] | None:
        """Return the kind of the item's fault and how it looks, None without one."""
        if isinstance(self.said_text, str) and not isinstance(self.text, str):
            return _NO_TEXT, repr(self.said_text)
        if self.lacks_text:
            return _MISSING, _short(repr(self.text))
        if not isinstance(self.choices, list) or not all(
            isinstance(choice, str) and choice for choice in self.choices
        ):
            return _NO_CHOICES, _short(repr(self.choices))
        if self.judges_itself:
            return None
        if len(self.choices) == 1:
            return _ONE_CHOICE, _short(repr(self.choices))
        answer = self.answer if self.said is None else self.said
        shown = f"the answer {answer!r} to the choices {_short(repr(self.choices))}"
        places = self.places()
        is_guessed = isinstance(self.said, str) and not isinstance(self.answer, str)
        if is_guessed and self.said in self.choices:
            if places != [self.choices.index(self.said)]:
                return _MISREAD, shown
            return None
        if not places or not all(0 <= place < len(self.choices) for place in places):
            return _NO_CHOICE, shown
        return None

    def places(self) -> list[int]:
        """Return the places of the right choices as lm-eval understands them, -1 for one that is
        none of them."""
        if isinstance(self.answer, str):
            return [self.choices.index(self.answer) if self.answer in self.choices else -1]
        answers = self.answer if isinstance(self.answer, list) else [self.answer]
        if not all(isinstance(one, Integral) for one in answers):
            return [-1]
        return [int(one) for one in answers]


def _understood(read: Any, doc: Any) -> Any:
    """Return what lm-eval makes of a field; None where its guess ends in an error, as for 007."""
    try:
        return read(doc)
    except (SyntaxError, ValueError):
        return None


def _said_by(rule: Any, doc: Any, features: Sequence[str]) -> Any:
    """Return what an item itself says where a rule of the task leads: a number or a text, as the
    file has it.

    A rule is the name of a field, a template, a function or a value. A template of one expression
    gives the expression's value, and any other a text. None where a value is missing or cannot be
    found, such as the place of a text that is not in a list.
    """
    if callable(rule):
        return _understood(rule, doc)
    if not isinstance(rule, str):
        return rule
    if rule in features:
        return doc[rule]
    return _understood(lambda values: _template(rule)(**values), doc)


@lru_cache(maxsize=64)
def _template(rule: str) -> Any:
    """Return the function that fills a template, or evaluates its one expression, as lm-eval
    would."""
    from lm_eval.utils import env

    found = _EXPRESSION.fullmatch(rule)
    if found is None:
        return env.overlay(finalize=_no_none).from_string(rule).render
    return env.compile_expression(found[1], undefined_to_none=False)


def _no_none(value: Any) -> Any:
    """Return a value that a template writes; ``ValueError`` for None."""
    if value is None:
        raise ValueError("a value is missing")
    return value


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


# ---- what to do ----


def _expression(rule: Any, features: Sequence[str]) -> str | None:
    """Return a rule as an expression for a template, None if it cannot stand in one."""
    if isinstance(rule, list | dict):
        return repr(list(rule.values()) if isinstance(rule, dict) else rule)
    if not isinstance(rule, str):
        return None
    if rule in features:
        return rule
    found = _EXPRESSION.fullmatch(rule)
    if found is None:
        return None
    inner = found[1].strip()
    return inner if re.fullmatch(r"[\w.]+", inner) else f"({inner})"


def _cure(kind: str, task: Any, items: Sequence[_Item]) -> str:
    config, features = task.config, task.features
    field = "doc_to_text" if items[0].has_inputs else "doc_to_target"
    answer = _expression(getattr(config, field), features)
    choices = _expression(config.doc_to_choice, features)
    text = _expression(config.doc_to_text, features)
    if kind == _ONE_CHOICE:
        return f"write the wrong answers into doc_to_choice, too, or {_LEAVE_OUT}"
    if kind == _MISSING:
        return f"fill the field in the file, or {_LEAVE_OUT}"
    if kind == _NO_TEXT:
        words = f"write doc_to_text: {text}" if text in features else "put a word before the number"
        place = f'doc_to_text: "{{{{{text} | int}}}}"' if text else "a number"
        return f"{words}; if the number is the place of the right choice, write {place}"
    if kind == _NO_CHOICES:
        if choices is None:
            return f"correct doc_to_choice, or {_LEAVE_OUT}"
        return (
            "write the choices as texts, and numbers among them with"
            f" doc_to_choice: \"{{{{{choices} | map('string') | list}}}}\", or {_LEAVE_OUT}"
        )
    if kind == _MISREAD:
        if answer is None or choices is None:
            return f"let a function give {field}: a whole number for a place, a text for a choice"
        return (
            f'if the answer is the text of a choice, write {field}: "{{{{{choices}.index({answer})'
            f'}}}}", and if it is its place from 0, {field}: "{{{{{answer} | int}}}}"'
        )
    return _cure_of_no_choice(field, answer, items)


def _cure_of_no_choice(field: str, answer: str | None, items: Sequence[_Item]) -> str:
    """Return what to do about answers that are none of the choices, by what all answers look
    like."""
    said = [item.said for item in items]
    numbers = [int(str(one)) for one in said if re.fullmatch(r"-?\d+", str(one))]
    n_choices = max(len(item.choices) for item in items)
    if len(numbers) == len(said) and answer is not None:
        if min(numbers) == 1 and max(numbers) == n_choices:
            return f'the places seem to count from 1: write {field}: "{{{{{answer} | int - 1}}}}"'
        if min(numbers) >= 0 and max(numbers) < n_choices:
            return (
                f'if the answer is the place of a choice, write {field}: "{{{{{answer} | int}}}}"'
            )
    if numbers and min(numbers) < 0:
        return (
            "a split whose answers are hidden cannot be scored: name another one, such as"
            f" validation_split, or {_LEAVE_OUT}"
        )
    if any(isinstance(one, str) for one in said):
        return f"write each answer just as its choice is written, or {_LEAVE_OUT}"
    return f"correct the answers, whose places count from 0, or {_LEAVE_OUT}"
