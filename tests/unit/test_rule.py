"""The rule of the book (``research/rule.py``): each fault that a page has had is refused."""

import csv
import io
from pathlib import Path

import claims
import places
import pytest
import rule
from pages import SHORT, Entry, prose, short

TOKENS = "tokens/results.csv seeds=3 model=contexts task=test n_tokens=4096000"
MEMORY = "memory/results.csv seeds=3 n_tokens=3145728000"
RATES = "regime/results.csv seeds=5 task=test metric=loss_rarest n_tokens=196608000"
HEAD = "After 2,000 steps at ten times the paper's rate, with 2,048 tokens a batch,"


def found(tmp_path: Path, study: str, text: str, *its_claims: str) -> list[str]:
    """Return what the rule says of a page of a study whose only sentence with claims is its
    text."""
    page = tmp_path / study / "README.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(f"# A page\n\n## Found\n\n{text}\n", encoding="utf-8")
    is_long = len(text.split()) > SHORT
    entry = Entry(str(page), short(prose(page), text) if is_long else text, its_claims)
    said = [entry] if its_claims else []
    return [
        *rule.unnamed(entry),
        *rule.untold_places(entry, said),
        *rule.untold_failures(str(page), said),
        *rule.unclaimed_numbers(str(page), said),
        *rule.readings(str(page)),
    ]


FAULTS = {
    "isotropy without its place": (
        "book",
        "Coupled Adam gives them. In memory its isotropy is 0.99 and Adam's 0.05.",
        (f"{MEMORY} task=embeddings metric=isotropy optimizer=coupled_adam_f0.1 mean~0.99",),
        "batch 98304 of memory is not named",
    ),
    "Muon without its place": (
        "book",
        "So does Muon, a rule without one: its isotropy is above 0.99 in ingredients.",
        (
            "ingredients/results.csv seeds=3 task=embeddings metric=isotropy optimizer=muon mean>0.9",
        ),
        "number of tokens 3.93216e+08 of ingredients is not named",
    ),
    "an equality whose sibling failed": (
        "book",
        "Adam with a longer memory equals AMSGrad's loss and stays anisotropic.",
        ("memory/stated.csv hypothesis='equal loss of AMSGrad' outcome=confirmed",),
        "'equal loss of Coupled Adam' failed and is not told",
    ),
    "the half-life counts": (
        "book",
        f"{HEAD} Coupled Adam's loss of the rarest is 0.91 below Adam's at one half-life.",
        (
            f"{TOKENS} metric=loss_rarest optimizer=coupled_adam_b2-0.999858"
            " reference=adamw_b2-0.999858 difference~-0.91 high<0",
        ),
        "adamw_b2-0.973111 is 0.1439",
    ),
    "rarest tokens of fresh": (
        "fresh",
        f"{HEAD} Coupled Adam's loss of the rarest band is 0.68 below Adam's.",
        (
            "fresh/results.csv seeds=3 task=test metric=loss_rarest n_tokens=4096000"
            " optimizer=coupled_adam reference=adamw_b2-0.999858 difference~-0.68",
        ),
        "is 0.4429 (0.4232 to 0.4627) in fresh_98k",
    ),
    "nothing is read twice": (
        "fresh",
        "Does it hold where nothing is read twice?",
        (),
        "drawn 4.2 times",
    ),
    "text that is read another number of times": (
        "fresh",
        "With 98,304 tokens a batch a pair is drawn 9.2 times.",
        (),
        "no place reads its text 9.2 times",
    ),
    "200K of the demo's language": (
        "book",
        "With 200K tokens at one rate, in batches of 1,024, Coupled Adam's loss is 0.19 below.",
        (
            "tokens/results.csv seeds=3 model=gpt2-2x64 task=test n_tokens=199680 metric=loss"
            " optimizer=coupled_adam reference=adamw difference~-0.19 high<0",
        ),
        "with 399,360 tokens",
    ),
    "failed hypotheses of tokens": (
        "tokens",
        "Thirteen of nineteen hypotheses are confirmed.",
        ("tokens/stated.csv lines=6 outcome='not confirmed'",),
        "'memory of Coupled Adam at 16k' failed and is not told",
    ),
    "mu-centering without the other place": (
        "tokens",
        "Mu-centering has an isotropy of 0.08.",
        (
            "tokens/results.csv seeds=3 model=tied task=embeddings metric=isotropy"
            " n_tokens=4096000 optimizer=adamw_mucenter mean~0.08",
        ),
        "batch 2048 of tokens is not named",
    ),
    "a longer memory alone": (
        "book",
        "A longer memory alone, at own rates with 0.2B tokens in batches of 98,304: 0.165 below.",
        (
            f"{RATES} reference=adamw reference_cell=contexts_197M_adamw_f100_s*"
            " optimizer=adamw_b2-0.999 cell=contexts_197M_adamw_f30_b2-0.999_s* difference~-0.165",
        ),
        "adamw_b2-0.999 and adamw of regime differ in their rates",
    ),
    "100 steps suffice": (
        "book",
        "At the paper's batch and rate 100 steps suffice with 0.4B tokens, within 0.005.",
        ("ladder/stated.csv hypothesis='Adam from 0.99 to 0.999' outcome=confirmed",),
        "'Adam from 0.95 to 0.999' failed and is not told",
    ),
    "one curve": (
        "ladder",
        "Each bin lies within 0.16 of it.",
        ("ladder/curve.csv optimizer=adam* every=count lines=10 distance<0.16",),
        "failed and is not told",
    ),
    "a number among what a study found": (
        "ladder",
        "Adam's loss is 0.005 lower.",
        (),
        "no claim and no link",
    ),
    "a row of a table without its place": (
        "theory",
        "| It follows the unigram probability | R² is 0.86 to 0.99 |",
        ("theory/results.csv task=theory lines=36 metric=head_gradient_sum value<1",),
        "batch 1024 of theory is not named",
    ),
    "all places of a batch that is not named": (
        "book",
        "In english, at chosen rates, isotropy is 0.5 higher at every D.",
        (
            "english/results.csv seeds=5 optimizer=coupled_adam reference=adamw every=n_tokens"
            " task=embeddings metric=isotropy low>0.5",
        ),
        "batch 2048 of english is not named",
    ),
    "a number without a source": (
        "book",
        "For a whole model 0.999 can make the loss spike.",
        (),
        "no claim and no link",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_page_has_left_out_is_refused(tmp_path, fault):
    study, text, its_claims, problem = FAULTS[fault]
    problems = found(tmp_path, study, text, *its_claims)
    assert any(problem in each for each in problems), problems


def test_a_sentence_that_names_its_place_and_the_others_passes(tmp_path):
    loss = f"{TOKENS} metric=loss optimizer=coupled_adam_b2-0.999858 reference=adamw_b2-0.999858"
    text = f"{HEAD} Coupled Adam's loss is 0.026 above Adam's."
    assert found(tmp_path, "book", text, f"{loss} difference~0.026 low>0") == []


def test_a_contrast_has_its_sign_or_none():
    def signs(metric: str) -> set[tuple[str, int]]:
        group = places.groups_of("tokens")[0]
        one = places.contrast("tokens", group, metric, "coupled_adam", "adamw")
        return {(each.group.table, each.sign) for each in places.elsewhere("tokens", one)}

    assert signs("loss") == {
        ("tokens_2k", -1),
        ("tokens_16k", 0),
        ("tokens_98k", 1),
        ("tokens_393k", 1),
    }


def test_numbers_that_results_do_not_give_are_stale(monkeypatch):
    text = claims.contents_of("ingredients/tests.csv").decode()
    lines = list(csv.DictReader(io.StringIO(text)))
    assert places.stale("ingredients") == []
    lines[3]["p_value"] = "0.5"
    monkeypatch.setattr(places, "lines_of", lambda name: lines)
    (problem,) = places.stale("ingredients")
    assert "p_value: 0.5, and results.csv gives" in problem
    lines.pop(4)
    assert len(places.stale("ingredients")) == 2
