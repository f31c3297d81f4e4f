"""A recording comes back from its file as it was; whatever is not a recording is refused by name."""

import hashlib
import os
import stat
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.errors import ConfigError
from jaxserve.executor.base import Capabilities
from jaxserve.record import dump
from jaxserve.record.crash import CrashDumper
from jaxserve.record.dump import read_dump, write_dump
from jaxserve.record.recording import RecordedSequence, RecordedStep, Recording
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.step.plan import LogprobRows, MoveKind, PageMove, Plan, Reading, Readout, RowStart, StepResult
from jaxserve.types import ServiceClass
from tests.unit.record.support import Engine, header, request, same

BITS = st.integers(0, 2**32).map(np.random.default_rng)
INT32 = st.integers(-(2**31), 2**31 - 1)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)


def array(rng, dtype, *shape):
    """Any bits: infinities and all kinds of NaN among them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    values = np.frombuffer(rng.bytes(size), np.uint8 if dtype == np.bool_ else dtype).reshape(shape)
    return values % 2 == 1 if dtype == np.bool_ else values


@st.composite
def logprobs(draw):
    rng = draw(BITS)
    count, columns = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    shape = (count, columns)
    return LogprobRows(
        array(rng, np.float32, count),
        array(rng, np.int32, count),
        array(rng, np.int32, *shape),
        array(rng, np.float32, *shape),
    )


@st.composite
def plans(draw):
    rng = draw(BITS)
    rows, pages, tokens, words = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 5)),
        draw(st.integers(0, 2)),
    )
    bias = st.dictionaries(st.integers(0, 2**31), st.floats(-100, 100), max_size=3)
    return Plan(
        step=draw(st.integers(0, 2**40)),
        ids=tuple(draw(st.lists(st.text(), min_size=rows, max_size=rows))),
        slots=array(rng, np.int32, rows),
        tokens=array(rng, np.int32, tokens),
        query_start=array(rng, np.int32, rows + 1),
        kv_length=array(rng, np.int32, rows),
        page_table=array(rng, np.int32, rows, pages),
        samples=array(rng, np.bool_, rows),
        num_drafts=array(rng, np.int32, rows),
        sampling=array(rng, np.int32, rows, words),
        starts=tuple(draw(st.lists(st.builds(RowStart, INT32, TOKENS, TOKENS, bias, st.none() | TOKENS), max_size=2))),
        readouts=tuple(draw(st.lists(st.builds(Readout, INT32, INT32, TOKENS), max_size=2))),
        moves=tuple(draw(st.lists(st.builds(PageMove, st.sampled_from(MoveKind), INT32, INT32), max_size=2))),
    )


CHOICE = StructuredOutputsParams(choice=["a", "b"])


@st.composite
def requests(draw):
    params = SamplingParams(
        max_tokens=draw(st.none() | st.integers(1, 9)),
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0])),
        presence_penalty=draw(st.floats(-2, 2)),
        logit_bias=draw(st.dictionaries(st.integers(0, 2**31), st.floats(-100, 100), max_size=3)),
        allowed_token_ids=draw(st.none() | st.just((1, 2))),
        seed=draw(st.none() | st.integers(-(2**63), 2**64 - 1)),
        stop=tuple(draw(st.lists(st.text(min_size=1), max_size=2))),
        ignore_eos=draw(st.booleans()),
        logprobs=draw(st.none() | st.integers(0, 20)),
        structured_outputs=draw(st.none() | st.sampled_from([CHOICE, ResponseParams(template="{}", tools="[]", content=CHOICE)])),
    )
    return EngineRequest(
        id=draw(st.text()),
        prompt=draw(TOKENS),
        params=params,
        max_tokens=draw(st.integers(1, 2**40)),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        eos_token_ids=draw(st.frozensets(st.integers(0, 99), max_size=2)),
        cache_root=draw(st.binary(max_size=20)),
        arrival=draw(st.floats(allow_nan=False)),
        tenant=draw(st.text()),
        service_class=draw(st.sampled_from(ServiceClass)),
        parent=draw(st.none() | st.text()),
        queue_deadline=draw(st.floats(allow_nan=False)),
    )


@st.composite
def recordings(draw):
    rng = draw(BITS)
    sequences = [RecordedSequence(draw(requests()), array(rng, np.int32, draw(st.integers(0, 4)))) for _ in range(2)]
    steps = []
    for _ in range(draw(st.integers(0, 2))):
        plan = draw(plans())
        result = StepResult(
            plan.step,
            array(rng, np.int32, plan.num_rows, 2),
            array(rng, np.int32, plan.num_rows),
            draw(st.none() | logprobs()),
            (Reading(logprobs=draw(logprobs())), Reading(vectors=array(rng, np.float32, 3, 2))),
        )
        rows = tuple(draw(st.lists(st.integers(0, 1), min_size=plan.num_rows, max_size=plan.num_rows)))
        steps.append(RecordedStep(plan, rows, draw(st.sampled_from([None, result])), draw(st.none() | st.floats(0, 9))))
    settings = draw(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers(0, 9) | st.floats(0, 9) | st.text()))
    return Recording(
        header=header(Capabilities(4, 9, 40, 21, 4, swap_page_seconds=draw(st.floats(0, 1))), settings=settings),
        reason=draw(st.text()),
        created=draw(st.floats(0, 2e9)),
        sequences=tuple(sequences),
        steps=tuple(steps),
    )


@settings(max_examples=25, deadline=None)
@given(recording=recordings())
def test_comes_back_as_it_was(tmp_path_factory, recording):
    path = tmp_path_factory.mktemp("dump") / "a.record"
    write_dump(path, recording)
    assert same(read_dump(path), recording)


def test_views_and_mappings_come_back_as_plain_ones(tmp_path):
    recording = small()
    step = recording.steps[0]
    packed = np.arange(12, dtype=np.int32).reshape(6, 2)
    result = StepResult.of_rows(step.plan, packed[:, 0])
    given = request("a", [1])
    given = EngineRequest(
        **{name: getattr(given, name) for name in EngineRequest.__slots__}
        | {"params": SamplingParams(logit_bias=MappingProxyType({3: 1.5}))}
    )
    changed = Recording(
        header=recording.header,
        reason="",
        created=0.0,
        sequences=(RecordedSequence(given, packed[::2, 1]),),
        steps=(RecordedStep(step.plan, step.sequences, result, 0.0),),
    )
    write_dump(tmp_path / "a", changed)
    back = read_dump(tmp_path / "a")
    assert back.steps[0].result is not None
    assert back.steps[0].result.tokens.tolist() == [[0], [2], [4], [6], [8], [10]]
    assert back.sequences[0].tokens.tolist() == [1, 5, 9]
    assert back.sequences[0].request.params.logit_bias == {3: 1.5}


def small():
    engine = Engine()
    engine.core.add([request("a", [5, 6, 7], 4)])
    engine.core.step()
    return engine.recording()


def test_only_the_owner_can_read_it(tmp_path):
    path = tmp_path / "a.record"
    path.write_text("older, and open to all")
    path.chmod(0o644)
    write_dump(path, small())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["a.record"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    path = tmp_path / "a.record"
    path.mkdir()
    with pytest.raises(OSError, match=r"a\.record"):
        write_dump(path, small())
    assert os.listdir(tmp_path) == ["a.record"]


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"", "not a recording"),
        (lambda content: b"PK" + content, "not a recording"),
        (lambda content: content[:20], "truncated"),
        (lambda content: content[:-1], "damaged or truncated"),
        (lambda content: content + b"x", "damaged or truncated"),
        (lambda content: flipped(content, len(content) // 2), "damaged or truncated"),
        (lambda content: flipped(content, 25), "damaged or truncated"),
        (lambda content: content[:16] + b"\x09" + content[17:], "format 9, this jaxserve reads format 4"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, change, message):
    path = tmp_path / "a.record"
    write_dump(path, small())
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigError, match=message) as error:
        read_dump(path)
    assert str(path) in error.value.message


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.record: No such file"):
        read_dump(tmp_path / "none.record")


@pytest.mark.parametrize("field", ["steps", "created"])
def test_content_of_another_shape_is_refused(tmp_path, monkeypatch, field):
    path = tmp_path / "a.record"
    whole = small()
    parts = {name: getattr(whole, name) for name in Recording.__slots__}
    parts[field] = ("what",)
    write_dump(path, Recording(**parts))
    with pytest.raises(ConfigError, match=rf"understands.*\$\.{field}"):
        read_dump(path)


def test_parameters_that_cannot_be_are_refused(tmp_path):
    path = tmp_path / "a.record"
    recording = small()
    object.__setattr__(recording.sequences[0].request.params, "temperature", -1.0)
    write_dump(path, recording)
    with pytest.raises(ConfigError, match=r"understands.*temperature must be between"):
        read_dump(path)


def test_content_that_is_not_compressed_is_refused(tmp_path):
    path = tmp_path / "a.record"
    body = b"as it is"
    digest = hashlib.blake2b(body, digest_size=16).digest()
    path.write_bytes(b"jaxserve record\n" + dump.VERSION.to_bytes(4, "little") + digest + body)
    with pytest.raises(ConfigError, match="understands"):
        read_dump(path)


def test_what_an_earlier_death_left_is_no_obstacle(tmp_path):
    (tmp_path / "a.record.partial").write_text("half")
    write_dump(tmp_path / "a.record", small())
    assert os.listdir(tmp_path) == ["a.record"]


# Crashes


def failure():
    try:
        raise ValueError("the device is gone")
    except ValueError as error:
        return error


def dumper(directory: Path) -> CrashDumper:
    engine = Engine(directory=directory)
    engine.core.add([request("a", [5, 6, 7], 4)])
    engine.core.step()
    return engine.dumper


def test_a_crash_is_written_with_its_traceback(tmp_path, caplog):
    path = dumper(tmp_path / "deep" / "dumps").dump(failure())
    assert path is not None
    recording = read_dump(path)
    assert "in failure" in recording.reason
    assert recording.reason.endswith("ValueError: the device is gone\n")
    assert [step.plan.ids for step in recording.steps] == [("a",)]
    assert str(path) in caplog.text
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_only_the_newest_crashes_are_kept(tmp_path):
    (tmp_path / "mine.record").write_text("not a dump")
    paths = [dumper(tmp_path).dump(failure()) for _ in range(11)]
    assert sorted(tmp_path.iterdir()) == sorted([*paths[-8:], tmp_path / "mine.record"])
    times = [read_dump(path).created for path in paths[-8:] if path is not None]
    assert len(times) == 8
    assert times == sorted(times)


def test_a_directory_that_cannot_be_made_is_logged_and_nothing_is_raised(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert dumper(tmp_path / "file" / "dumps").dump(failure()) is None
    assert "could not be written" in caplog.text
    assert "NotADirectoryError" in caplog.text


def test_format_and_version_are_the_first_bytes(tmp_path):
    write_dump(tmp_path / "a", small())
    assert (tmp_path / "a").read_bytes().startswith(b"jaxserve record\n" + bytes([dump.VERSION, 0, 0, 0]))
