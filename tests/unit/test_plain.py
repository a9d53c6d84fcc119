"""A statement does one thing: what a reader would have to take apart in the head is refused."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SOURCES = [
    path
    for folder in (ROOT / "src", *sorted((ROOT / "packages").glob("*/src")))
    for path in sorted(folder.rglob("*.py"))
]


def own_nodes(statement):
    """Yield the expressions of a statement, or of a lambda, without what has a body of its own."""
    inner = (ast.stmt, ast.excepthandler, ast.match_case, ast.Lambda)
    open_nodes = list(ast.iter_child_nodes(statement))
    while open_nodes:
        node = open_nodes.pop()
        if not isinstance(node, inner):
            yield node
            open_nodes += ast.iter_child_nodes(node)


def is_bound_test(statement, walrus):
    """Tell whether a walrus is the whole test of an if or while, or the left side of it."""
    if not isinstance(statement, ast.If | ast.While):
        return False
    test = statement.test
    if isinstance(test, ast.UnaryOp):
        test = test.operand
    return walrus is (test.left if isinstance(test, ast.Compare) else test)


def packed(statement):
    """Yield what is packed into a statement."""
    nodes = list(own_nodes(statement))
    comprehensions = [node for node in nodes if isinstance(node, COMPREHENSIONS)]
    if len(comprehensions) > 1:
        yield "several comprehensions"
    for comprehension in comprehensions:
        inside = list(ast.walk(comprehension))
        if any(isinstance(node, ast.IfExp) for node in inside):
            yield "a ternary in a comprehension"
        if any(isinstance(node, ast.NamedExpr) for node in inside):
            yield "a walrus in a comprehension"
        if len(comprehension.generators) > 2:
            yield "a comprehension of three loops"
    if sum(isinstance(node, ast.IfExp) for node in nodes) > 1:
        yield "several ternaries"
    walruses = [node for node in nodes if isinstance(node, ast.NamedExpr)]
    if walruses and not (len(walruses) == 1 and is_bound_test(statement, walruses[0])):
        yield "a walrus that does more than bind the test"


def found_in(text):
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt | ast.Lambda) and not isinstance(node, scopes):
            yield from (f"line {node.lineno}: {fault}" for fault in packed(node))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_statement_does_one_thing(path):
    assert list(found_in(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x = [[a for a in b] for b in c]", "several comprehensions"),
        ("x = [1 if a else 2 for a in b]", "a ternary in a comprehension"),
        ("x = [c for a in b if (c := a)]", "a walrus in a comprehension"),
        ("x = [d for a in b for c in a for d in c]", "a comprehension of three loops"),
        ("x = (1 if a else 2) + (1 if b else 2)", "several ternaries"),
        ("if a and (b := c):\n    pass", "a walrus that does more than bind the test"),
        ("x = (a := 1)", "a walrus that does more than bind the test"),
        ("x = lambda a: [1 if b else 2 for b in a]", "a ternary in a comprehension"),
    ],
)
def test_what_is_packed_is_found(text, fault):
    assert f"line 1: {fault}" in list(found_in(text))


@pytest.mark.parametrize(
    "text",
    [
        "if a := b:\n    pass",
        "while (a := b) > 1:\n    x = [c for c in d]",
        "if not (a := b):\n    pass",
        "x = {a: b for a, b in c if a}",
    ],
)
def test_what_is_plain_is_not(text):
    assert list(found_in(text)) == []
