"""Prompts and scores of the two tasks of the paper that lm-eval has changed since 0.4.3, by the
rules of 0.4.3."""

import ast
import math
from typing import Any

_BLANK = "  _  ."
"""The end of a sentence whose last words are asked for."""


def race_prompt(item: dict[str, Any]) -> str:
    """Return the article, the questions before the last one with their answers, and the last
    question.

    If an earlier question ends in a blank, only its last five characters stand before its answer.
    Version 3.0 has all of it but these.
    """
    *earlier, last = _questions(item)
    lines = [f"Article: {item['article']}", ""]
    for question in earlier:
        text, answer = question["question"], question["options"][_letter(question)]
        lines += (
            [text[-5:] + answer]
            if text.endswith(_BLANK)
            else [f"Question: {text}", f"Answer: {answer}"]
        )
    return "\n".join([*lines, last["question"]])


def race_choices(item: dict[str, Any]) -> list[str]:
    """Return the four options of the last question."""
    options: list[str] = _questions(item)[-1]["options"]
    return options[:4]


def race_answer(item: dict[str, Any]) -> int:
    """Return the place of the right option."""
    return _letter(_questions(item)[-1])


def _questions(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an article's questions, which the dataset holds as the text of a Python list."""
    questions: list[dict[str, Any]] = ast.literal_eval(item["problems"])
    return questions


def _letter(question: dict[str, Any]) -> int:
    return "ABCD".index(question["answer"])


def truthfulqa_mc2_score(
    item: dict[str, Any], results: list[tuple[float, bool]]
) -> dict[str, float]:
    """Return the share of the probability of all answers that those before the first false one
    have.

    Version 3.0 takes all true answers instead: two items list a true answer after a false one.
    """
    probabilities = [math.exp(log_likelihood) for log_likelihood, _ in results]
    n_true = list(item["mc2_targets"]["labels"]).index(0)
    return {"acc": math.fsum(probabilities[:n_true]) / math.fsum(probabilities)}
