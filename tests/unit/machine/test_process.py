import gc
import signal
import subprocess
import sys

import pytest

from coupled_adam_bench.machine.process import rarely_collected


def test_python_looks_for_garbage_as_before_at_the_end():
    usual = gc.get_threshold()
    with pytest.raises(KeyError), rarely_collected():
        assert gc.get_threshold()[0] > 10 * usual[0]
        assert gc.isenabled()
        raise KeyError
    assert gc.get_threshold() == usual


def test_the_command_line_leaves_its_objects_to_the_system_when_it_ends():
    program = (
        "import atexit, gc, sys; from coupled_adam_bench import __main__\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 10_000))\n"
        "sys.argv = ['coupled-adam-bench', '--help']\n"
        "__main__.main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "True"


def test_ctrl_c_ends_a_command_by_its_signal_and_in_one_line():
    program = (
        "import os, signal, sys; from coupled_adam_bench import __main__, cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "cli.main = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "__main__.main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "stopped by Ctrl-C\n")


HANGS = """
import signal, threading
from coupled_adam_bench.machine import process
process._LOOK_SECONDS = 0.05
signal.signal(signal.SIGTERM, lambda *_: lock.acquire())
process.end_with_parent(0.05)
lock = threading.Lock()
lock.acquire()
print("hangs", flush=True)
lock.acquire()
"""


@pytest.mark.fault(
    "cluster",
    "A Snakemake in a cluster's job hangs when the job is cancelled (Ctrl-C), since the signal"
    " finds it with a lock.",
    "It ends when the script of the job has ended.",
)
def test_a_process_that_hangs_ends_with_its_parent():
    command = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", HANGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as script:
        assert script.stdout.readline() == b"hangs\n"
        script.kill()
        assert script.stdout.read() == b""  # until no process has its other end


PASSES_ON = """
import os, subprocess, sys, time
from coupled_adam_bench.machine import process
process._LOOK_SECONDS = 0.05
process.pass_signals_on()
wait = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"]
job, other = (subprocess.Popen(["sh", "-c", '"$@"; true', "sh", *wait], stdout=subprocess.PIPE,
    start_new_session=own) for own in (False, True))
job.stdout.readline(), other.stdout.readline()
os.kill(os.getpid(), NUMBER)
ended = job.wait(30)
print(ended != 0, other.poll())
os.killpg(other.pid, 9)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_to_jobs_and_to_nothing_else(number):
    """To the children of children, but not to a session of its own."""
    code = f"import signal\nsignal.signal({int(number)}, lambda *_: None)\n" + PASSES_ON.replace(
        "NUMBER", str(int(number))
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=90
    )
    assert done.stdout == "True None\n"
