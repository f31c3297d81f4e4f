"""The checked-in stubs are what `make proto` writes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_stubs_are_up_to_date(tmp_path: Path) -> None:
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    protos = [str(path.relative_to(ROOT)) for path in (ROOT / "jaxserve/proto").glob("*.proto")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", *out, *protos]
    subprocess.run(command, cwd=ROOT, check=True)
    written = sorted(path.name for path in (tmp_path / "jaxserve/proto").iterdir())
    assert written == sorted(path.name for path in (ROOT / "jaxserve/proto").glob("*_pb2*"))
    assert len(written) == 3 * len(protos) > 0
    for name in written:
        assert (tmp_path / "jaxserve/proto" / name).read_text() == (ROOT / "jaxserve/proto" / name).read_text(), name
