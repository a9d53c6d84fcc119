"""What a user typed behind ``snakemake``, and what Snakemake would drop of it or take for something
else."""

import argparse
import shlex
from collections import Counter
from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path

from coupled_adam_bench.study.settings.reading import NestingError, read_study_file


def check_studies(arguments: list[str]) -> None:
    """Raise ``ValueError`` for what stands behind ``--configfile`` and is no file, such as a
    target.

    A file that contains itself, or has thousands of levels, is refused too, since Snakemake cannot
    read it. All else about a study is found by the workflow.
    """
    for option in {"--configfile", "--configfiles"} & {*arguments}:
        for name in takewhile(
            lambda word: word[:1] != "-", arguments[arguments.index(option) + 1 :]
        ):
            if not Path(name).exists():
                raise ValueError(
                    f"{name}: no such file. Snakemake takes all that follows {option} for studies,"
                    f" so targets stand first: snakemake TARGET --cores all {option} STUDY"
                )
            try:
                read_study_file(Path(name))
            except NestingError:
                raise
            except ValueError:
                continue


def check_given_once(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Raise ``ValueError`` for each option with a list of values that is given twice, with what to
    type instead.

    ``parser`` is Snakemake's, which keeps only the last list and says nothing. If a key stands
    twice in one list, as in ``study=a study=b``, it keeps the last value.
    """
    # The same options, but these keep every list that they are given.
    keeping = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options = {}
    for action in parser._actions:
        if action.option_strings and action.nargs in ("+", "*"):
            kept = keeping.add_argument(*action.option_strings, action="append", nargs=action.nargs)
            options[kept.dest] = action
    given, _ = keeping.parse_known_args(arguments)
    problems: list[str] = []
    for name, option in options.items():
        has_keys = "=" in str(option.metavar)
        problems.extend(_dropped(option.option_strings[0], getattr(given, name) or [], has_keys))
    if problems:
        raise ValueError("\n".join(problems))


def _dropped(option: str, lists: list[list[str]], has_keys: bool) -> Iterator[str]:
    """Yield a sentence if Snakemake would drop a list of an option, or a key of its last list."""
    everything = list(dict.fromkeys(chain.from_iterable(lists)))
    last = lists[-1] if lists else []
    if lost := [value for value in everything if value not in last]:
        yield (
            f"{option}: given {len(lists)} times, of which Snakemake takes only the last, without "
            f"{' '.join(lost)}; type it once: {option} {shlex.join(everything)}"
        )
    keys = [value.partition("=")[0] for value in last if has_keys]
    for key in [key for key, count in Counter(keys).items() if count > 1]:
        yield f"{option}: {key} stands there {keys.count(key)} times; give it once"
