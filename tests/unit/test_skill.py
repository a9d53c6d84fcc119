"""AGENTS.md as a skill, in the form of https://agentskills.io, which programs look for in
``.agents/skills``.

``python tests/unit/test_skill.py`` (``make skill``) writes it anew.
"""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SKILL = ROOT / ".agents" / "skills" / "coupled-adam-bench" / "SKILL.md"
OTHER = ROOT / ".claude" / "skills" / "coupled-adam-bench"
HEAD = {
    "name": SKILL.parent.name,
    "description": (
        "How to install, run, test and extend Coupled Adam Bench, which compares optimizers of the"
        " embeddings of language models and reproduces the paper Better Embeddings with Coupled"
        " Adam. Use it to compare an optimizer with Adam in minutes, to write or run a study, to"
        " read its results, to hand in a bundle, and before a change of this repository."
    ),
    "license": "Apache-2.0",
}


def skill() -> str:
    """Return the skill: its head, and AGENTS.md with links that lead from where it lies."""
    up = "../" * len(SKILL.parent.relative_to(ROOT).parts)
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    linked = re.sub(r"\]\((?![a-z]+:|#)", f"]({up}", text)
    return f"---\n{yaml.safe_dump(HEAD, sort_keys=False, width=1000)}---\n\n{linked}"


def test_the_skill_is_what_agents_md_says():
    assert SKILL.read_text(encoding="utf-8") == skill(), "make skill"


def test_the_skill_has_the_form_of_the_standard():
    _, head, _ = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(head)
    assert fields.keys() <= {"name", "description", "license", "compatibility", "metadata"}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"]) and len(fields["name"]) <= 64
    assert fields["name"] == SKILL.parent.name
    assert 0 < len(fields["description"]) <= 1024


def test_its_links_lead_somewhere_and_the_other_place_is_the_same_folder():
    for link in re.findall(r"\]\(([^)#]+)", SKILL.read_text(encoding="utf-8")):
        assert "://" in link or (SKILL.parent / link).exists(), link
    assert OTHER.resolve() == SKILL.parent


if __name__ == "__main__":
    SKILL.write_text(skill(), encoding="utf-8")
