"""Writes ``report/index.html``, a page that says whether the paper was reproduced and needs no other file."""

import base64
import hashlib
from collections import Counter
from pathlib import Path

from markupsafe import Markup

from coupled_adam_bench.report import formats
from coupled_adam_bench.report.contents import sections
from coupled_adam_bench.report.figures import figures_of
from coupled_adam_bench.report.render import html_environment
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.files import write_text


def _figure(path: Path) -> str:
    """Return an SVG file as a data URI: its ids then cannot collide with those of the others on the page."""
    try:
        svg = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; draw the figures first") from None
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def write_report(material: Material, templates_dir: Path) -> None:
    """Write ``report/index.html`` from the material of a study, whose figures and manifest are in its folder."""
    plan, folder = material.plan, material.study_dir
    environment = html_environment(templates_dir)
    environment.filters |= {
        "fixed": formats.fixed,
        "significant": formats.significant,
        "p_value": formats.p_value,
        "interval": lambda ends, digits=3: formats.interval(ends[0], ends[1], digits),
        "plural": formats.plural,
    }
    environment.globals["figures"] = {
        name: (_figure(folder / "figures" / f"{name}.svg"), text) for name, text in figures_of(plan).items()
    }
    environment.globals["render"] = lambda template, values: Markup(environment.get_template(template).render(**values))
    environment.globals["show"] = environment.get_template("section.html.j2").module.show  # type: ignore[attr-defined]
    script = (templates_dir / "html" / "page.js").read_text(encoding="utf-8")
    shown = [(section, list(section.blocks(material))) for section in sections()]
    page = environment.get_template("report.html.j2").render(
        plan=plan,
        generated=any(study.data.source.kind == "synthetic" for study in plan.studies.values()),
        manifest=material.manifest,
        statuses=Counter(cell["status"] for cell in material.manifest["cells"]),
        sections=[(section, blocks) for section, blocks in shown if blocks],
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    write_text(folder / "report" / "index.html", page)
