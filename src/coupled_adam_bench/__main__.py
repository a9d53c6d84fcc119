"""Entry point of ``python -m coupled_adam_bench`` and of the command ``coupled-adam-bench``."""

import atexit
import codecs
import gc
import locale
import os
import sys
from importlib.util import find_spec
from types import TracebackType

from coupled_adam_bench.machine import surroundings
from coupled_adam_bench.machine.process import end_with_parent, rarely_collected


def _look_around() -> None:
    """Clear the variables that libraries would heed in place of the study, before any library is
    imported.

    Python has read its own before this, so the process starts anew without them, and with UTF-8 for
    all text files.
    """
    if surroundings.is_launched():  # its launcher has done so
        end_with_parent(float(os.environ[surroundings.LAUNCHER]))
        return
    if cleared := surroundings.clear():
        print(surroundings.describe(cleared), file=sys.stderr, flush=True)
    is_utf8 = codecs.lookup(locale.getpreferredencoding(do_setlocale=False)).name == "utf-8"
    is_anew = os.environ.get("PYTHONUTF8") == "1"
    os.environ["PYTHONUTF8"] = "1"
    if any(name.startswith("PYTHON") for name in cleared) or not (is_utf8 or is_anew):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an exception as Python does, and Ctrl-C in one line. Python itself then ends the
    process by the signal, so that a loop of a shell ends, too."""
    if issubclass(kind, KeyboardInterrupt):
        print("stopped by Ctrl-C", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def main() -> int:
    """Run one stage and return its exit status; 2 with a sentence if the packages of the pipeline
    are missing."""
    sys.excepthook = _tell
    _look_around()
    # A user's own `random.py` in the working folder is not Python's: own code is looked for last,
    # here and by Python in the processes that this one starts.
    here = os.getcwd()  # noqa: PTH109 (pathlib is not there yet)
    sys.path[:] = [*(place for place in sys.path if place not in ("", here)), here]
    os.environ["PYTHONSAFEPATH"] = "1"
    # Without a look at all objects at the end, which after torch takes up to a second: the system
    # frees their memory.
    atexit.register(gc.freeze)
    try:
        with rarely_collected():
            from coupled_adam_bench.cli import main as run_stage

        return run_stage()
    except ModuleNotFoundError as error:
        from importlib.metadata import PackageNotFoundError

        if isinstance(error, PackageNotFoundError):
            folder = f"{error.name.replace('-', '_')}-*.dist-info"
            print(
                f"error: no folder {folder} is on Python's path; it says which packages"
                f" {error.name!r} needs, and `pip install` writes it. Where only the source was"
                " copied, copy this folder too, from the site-packages of an installation",
                file=sys.stderr,
            )
            return 2
        package = (error.name or __package__).partition(".")[0]
        if find_spec(package) is not None:
            # It is there, and something in it is not: no matter of what is installed.
            raise
        advice = (
            "this command needs all packages of the pipeline: pip install"
            " 'coupled-adam-bench[pipeline]' (in a clone of the repository: pip install -e"
            " packages/coupled-adam -e packages/embedding-geometry -e '.[pipeline]')"
        )
        if package == "coupled_adam_registry":
            advice = (
                "this command needs it: pip install coupled-adam-registry (in a clone of the"
                " repository: pip install -e packages/coupled-adam-registry)"
            )
        print(f"error: the package {package!r} is not installed; {advice}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
