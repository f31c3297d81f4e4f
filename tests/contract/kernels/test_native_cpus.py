"""The native kernels on other CPUs than this one, emulated by qemu, and within each instruction set that this CPU has."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pallas_kernels.native import build, library

from .needs import NATIVE

DRIVER = Path(__file__).with_name("native_driver.cc")
QEMU = shutil.which("qemu-x86_64")
ABSENT = "not on this CPU"
pytestmark = [
    NATIVE,
    pytest.mark.skipif(build.find_compiler() is None, reason="NOT CHECKED: the driver of native kernels needs a compiler"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The command that runs the library's self-test within the instruction sets named after it."""
    program = tmp_path_factory.mktemp("driver") / "native_driver"
    compiler = build.find_compiler()
    assert compiler is not None
    subprocess.run([compiler, "-std=c++17", str(DRIVER), "-o", str(program), "-ldl"], check=True)
    return [str(program), str(library.libraries()[0])]


def results(command):
    """What the driver says of each instruction set."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.mark.skipif(QEMU is None, reason="NOT CHECKED: emulating CPUs without AVX-512 needs qemu-x86_64 (Debian: qemu-user)")
@pytest.mark.parametrize(
    ("cpu", "want"),
    [
        ("max,-avx2,-fma", {"avx2": ABSENT, "avx512": ABSENT, "best": "right"}),
        ("max", {"avx2": "right", "avx512": ABSENT, "best": "right"}),
    ],
)
def test_cpus_without_avx512(driver, cpu, want):
    """The library loads there, and the dispatch chooses kernels that the CPU can run."""
    assert results([QEMU, "-cpu", cpu, *driver, *want]) == want


@pytest.mark.parametrize("name", ["portable", *library.INSTRUCTION_SETS])
def test_instruction_sets_of_this_cpu(driver, name):
    (result,) = results([*driver, name]).values()
    if result == ABSENT:
        pytest.skip(f"NOT CHECKED: {name} is not on this CPU")
    assert result == "right"
