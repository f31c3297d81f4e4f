import json
import logging
import sys

import pytest

from jaxserve.logs import FIELDS, JsonFormatter, TextFormatter

MOMENT = 1_700_000_000.25  # 2023-11-14 22:13:20.25 UTC


def record(message, *arguments, fields=None, error=None):
    made = logging.LogRecord("server.x", logging.WARNING, __file__, 1, message, arguments, error)
    made.created, made.msecs = MOMENT, 250.0
    if fields is not None:
        setattr(made, FIELDS, fields)
    return made


def failure():
    try:
        raise ValueError("told apart\nby lines")
    except ValueError:
        return sys.exc_info()


def test_json_lines_are_objects_whatever_is_logged():
    lines = [
        JsonFormatter().format(one)
        for one in (
            record("%d of %s", 3, 'a "b"\n'),
            record("access", fields={"status": "200", "tenant": "é\n", "ttft": None}),
            record("failed", error=failure()),
        )
    ]
    assert not any("\n" in line for line in lines)
    plain, access, failed = (json.loads(line) for line in lines)
    head = {"time": "2023-11-14T22:13:20.250Z", "level": "warning", "logger": "server.x"}
    assert plain == {**head, "message": '3 of a "b"\n'}
    assert access == {**head, "message": "access", "status": "200", "tenant": "é\n", "ttft": None}
    assert "ValueError: told apart\nby lines" in failed["exception"]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("plain", "plain"),
        (1.5, "1.5"),
        (None, "-"),
        ("", "-"),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('"', r'"\""'),
        ("new\nline", r'"new\nline"'),
        ("é", r'"\u00e9"'),
        ("\x1b[2J", r'"\u001b[2J"'),
    ],
)
def test_what_clients_send_stays_one_word(value, word):
    line = TextFormatter().format(record("access", fields={"x": value, "y": 1}))
    assert line.endswith(f" WARNING server.x: access x={word} y=1")


def test_names_that_clients_choose_make_no_lines_of_their_own():
    line = TextFormatter().format(record("preempted %s: é", "a\n2023 ERROR server: b\x1b[2J\x85\u2028\ud800"))
    assert line.endswith(r" WARNING server.x: preempted a\n2023 ERROR server: b\x1b[2J\x85\u2028\ud800: é")


def test_text_lines_without_fields_are_as_usual():
    assert TextFormatter().format(record("%d things", 3)).endswith(" WARNING server.x: 3 things")
    assert "ValueError" in TextFormatter().format(record("failed", error=failure()))
