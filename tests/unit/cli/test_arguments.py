"""What a user typed: nothing of it is dropped without a word."""

import argparse
from collections.abc import Iterator

import pytest

from coupled_adam_bench.cli import parser
from coupled_adam_bench.cli.arguments import check_given_once

snakemake_cli = pytest.importorskip("snakemake.cli")


@pytest.mark.fault(
    "settings",
    "`--config` or another option with a list of values is given twice, as is `--configfile`.",
    "One sentence names what Snakemake would drop, and what to type; nothing is planned.",
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "plan --cores 1 --config protocol=official --config study=mine title=b",
            (
                "--config: given 2 times, of which Snakemake takes only the last, without"
                " protocol=official; type it once: --config protocol=official study=mine title=b"
            ),
        ),
        ("-C aa=1 --cores 1 -C bb=2 -C cc=3", "--config: given 3 times, .* without aa=1 bb=2; "),
        (
            "--configfile a.yaml --configfiles b.yaml",
            (
                "--configfile: given 2 times, .* without a.yaml; type it once: --configfile a.yaml"
                " b.yaml"
            ),
        ),
        ("--configfile=a.yaml -n --configfile=b.yaml", "--configfile: given 2 times"),
        ("--set-threads train=2 --set-threads choose=2", "--set-threads: given 2 times"),
        ("--set-resources a:mem=1 --set-resources b:mem=1", "--set-resources: given 2 times"),
        ("--default-resources mem=1 --default-res disk=1", "--default-resources: given 2 times"),
        ("--resources gpu=1 --res mem=1", "--resources: given 2 times"),
        ("--until a --until b --forcerun c -R d", "--forcerun: .*\n--until: "),
        ("--config aa=1 bb=2 aa=3", "--config: aa stands there 2 times; give it once"),
        ("--set-resources a:mem=1 a:mem=2", "--set-resources: a:mem stands there 2 times"),
    ],
)
def test_an_option_that_is_given_twice(words, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        check_given_once(snakemake_cli.get_argument_parser(), words.split())


@pytest.mark.parametrize(
    "words",
    [
        "tables --cores 1 --configfile a.yaml b.yaml --config aa=1 bb=2",
        "--profile a --profile b --cores 1 --cores 2",
        "--config aa=1 --config aa=1 bb=2",
        "--configfile k=1.yaml k=2.yaml -- --config",
        "--set-resources a:mem=1 a:disk=1 --resources mem=1",
        "",
    ],
)
def test_what_snakemake_takes_whole(words):
    check_given_once(snakemake_cli.get_argument_parser(), words.split())


def commands(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands(command)


def test_our_own_options_keep_every_list():
    lists = [
        (command.prog, option)
        for command in commands(parser())
        for option in command._actions
        if option.option_strings and option.nargs in ("+", "*")
    ]
    assert len(lists) > 10
    assert [
        (prog, option.dest)
        for prog, option in lists
        if option.default is not None and option.default
    ] == []
    for _, option in lists:
        assert isinstance(option, argparse._ExtendAction), option.option_strings
