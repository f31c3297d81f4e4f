"""One server a state directory, also while only its children are left."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.errors import ConfigError
from server.processes.state_lock import StateLock


def test_the_second_is_told(tmp_path: Path) -> None:
    root = tmp_path / "new" / "state"
    first = StateLock(root)
    with pytest.raises(ConfigError, match=f"state_dir: another server uses {root}"):
        StateLock(root)
    first.close()
    StateLock(root).close()


def test_a_child_that_inherits_it_keeps_it(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock.descriptor]) as child:
        lock.close()
        with pytest.raises(ConfigError, match="another server"):
            StateLock(tmp_path)
        child.kill()
    StateLock(tmp_path).close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=f"state_dir: cannot use {file}"):
        StateLock(file / "state")
