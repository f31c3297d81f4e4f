"""The publisher's sockets: numbers, replays, and what is lost where somebody is too slow."""

import threading
from collections import deque

import msgspec
import pytest
import zmq

from jaxserve.cache.events import Cleared
from jaxserve.config.kv_events import KVEventsConfig
from jaxserve.engine.kv_events.publisher import KVEventPublisher
from jaxserve.engine.kv_events.replays import END, MAX_READERS, STALLED_SECONDS, Replays
from jaxserve.errors import ConfigError

PATIENCE_MS = 20_000


def encode(seconds, events):
    return msgspec.msgpack.encode([len(events)])


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context
        context.destroy(0)


@pytest.fixture
def opened(tmp_path):
    made = []

    def build(encode=encode, **given):
        config = {"endpoint": f"ipc://{tmp_path}/events", "replay_endpoint": f"ipc://{tmp_path}/replays", **given}
        made.append(KVEventPublisher(KVEventsConfig(**config), encode))
        return made[-1]

    yield build
    for one in made:
        one.close()


def replay(context, publisher, *frames):
    """What comes back, until the end: numbers and batches."""
    with context.socket(zmq.DEALER) as asking:
        asking.connect(publisher.source.replay_endpoint)
        asking.send_multipart(frames)
        came: list[list[bytes]] = []
        while not came or came[-1][0] != END:
            assert asking.poll(PATIENCE_MS)
            empty, *reply = asking.recv_multipart()
            assert empty == b""
            came.append(reply)
        assert came.pop() == [END, b""]
        return [(int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)) for number, payload in came]


def from_number(first):
    return b"", first.to_bytes(8, "big")


def test_whoever_asks_gets_what_is_kept_from_a_number_on(opened, context):
    publisher = opened(buffer_steps=300)
    for count in range(400):
        publisher.take([Cleared()] * count)
    assert replay(context, publisher, *from_number(398)) == [(398, [398]), (399, [399])]
    assert replay(context, publisher, *from_number(0)) == [(number, [number]) for number in range(100, 400)]
    assert replay(context, publisher, *from_number(400)) == []


def test_one_who_asks_by_req_gets_the_first_reply(opened, context):
    """It takes no more than one, which is how the socket is."""
    publisher = opened()
    publisher.take([Cleared()])
    with context.socket(zmq.REQ) as asking:
        asking.connect(publisher.source.replay_endpoint)
        asking.send(from_number(0)[1])
        assert asking.poll(PATIENCE_MS)
        assert asking.recv_multipart() == [bytes(8), msgspec.msgpack.encode([1])]


def test_a_request_that_is_none_is_passed_over(opened, context, caplog):
    publisher = opened()
    with context.socket(zmq.DEALER) as asking:
        asking.connect(publisher.source.replay_endpoint)
        asking.send_multipart((b"", b"seven"))
        asking.send_multipart((b"", b"", b"", b""))
        asking.send_multipart(from_number(0))
        assert asking.poll(PATIENCE_MS)
        assert asking.recv_multipart() == [b"", END, b""]
    assert len(caplog.records) == 2


def test_what_does_not_fit_in_the_queue_is_lost_and_its_number_with_it(opened, context):
    begun, go_on = threading.Event(), threading.Event()

    def slow(seconds, events):
        begun.set()
        assert go_on.wait(PATIENCE_MS / 1000)
        return encode(seconds, events)

    publisher = opened(slow, max_queue_size=2)
    publisher.take([])
    assert begun.wait(PATIENCE_MS / 1000)
    for _ in range(3):  # the first is being sent, two wait
        publisher.take([])
    go_on.set()
    assert [number for number, _ in replay(context, publisher, *from_number(0))] == [0, 1, 2]
    publisher.take([])
    assert [number for number, _ in replay(context, publisher, *from_number(0))] == [0, 1, 2, 4]


def test_a_publisher_may_connect_to_the_one_subscriber_of_many(opened, context):
    with context.socket(zmq.SUB) as live:
        port = live.bind_to_random_port("tcp://127.0.0.1")
        live.setsockopt(zmq.SUBSCRIBE, b"kv")
        publisher = opened(endpoint=f"tcp://127.0.0.1:{port}", replay_endpoint=None, topic="kv@one@model")
        assert publisher.source.endpoint == f"tcp://127.0.0.1:{port}"
        assert publisher.source.replay_endpoint is None
        while not live.poll(1):  # until it has subscribed
            publisher.take([])
        topic, number, payload = live.recv_multipart()
        assert (topic, len(number), msgspec.msgpack.decode(payload)) == (b"kv@one@model", 8, [0])


def test_a_port_that_was_left_open_is_told(opened, context):
    publisher = opened(endpoint="tcp://*:*", replay_endpoint="tcp://127.0.0.1:*")
    for endpoint in (publisher.source.endpoint, publisher.source.replay_endpoint):
        transport, host, port = endpoint.rsplit(":", 2)
        assert transport == "tcp"
        assert host not in ("//0.0.0.0", "//*")
        assert int(port) > 0


def test_an_endpoint_that_cannot_be_had_is_named(opened):
    first = opened(endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*")
    with pytest.raises(ConfigError, match=f"{first.source.replay_endpoint} cannot be had: Address already in use"):
        opened(endpoint="tcp://*:*", replay_endpoint=first.source.replay_endpoint)


class Reader:
    """A reader whose buffer holds `room` messages."""

    def __init__(self, room):
        self.room, self.now, self.got = room, 0.0, []
        self.kept = deque(((number.to_bytes(8, "big"), b"x") for number in range(10)), maxlen=10)
        self.replays = Replays(self.send, self.kept, lambda: self.now)

    def send(self, frames):
        if self.room == 0:
            raise zmq.Again
        self.room -= 1
        self.got.append(int.from_bytes(frames[2], "big", signed=True))

    def read(self, room):
        self.room = room
        self.replays.go_on()


def test_a_replay_goes_on_as_its_reader_reads():
    reader = Reader(room=4)
    reader.replays.begin(b"r", bytes(8))
    reader.replays.go_on()
    assert reader.got == [0, 1, 2, 3]
    reader.kept.extend((number.to_bytes(8, "big"), b"x") for number in range(10, 18))  # those before 8 are gone
    reader.replays.begin(b"r", (16).to_bytes(8, "big"))  # asks again too early
    reader.read(5)
    reader.read(20)
    assert reader.got == [0, 1, 2, 3, *range(8, 18), -1, 16, 17, -1]
    assert not reader.replays


def test_readers_that_do_not_read_are_dropped(caplog):
    reader = Reader(room=0)
    for index in range(MAX_READERS + 5):
        reader.replays.begin(b"%d" % index, bytes(8))
    assert len(caplog.records) == 5
    reader.replays.go_on()
    assert reader.replays
    reader.now += STALLED_SECONDS + 1
    reader.replays.go_on()
    assert not reader.replays
    assert len(caplog.records) == 5 + MAX_READERS


def test_a_reader_that_does_not_read_holds_a_bounded_buffer(opened, context):
    sizes: list[int] = []
    publisher = opened(lambda seconds, events: bytes(2**16), buffer_steps=500)
    publisher._replays._send = count_sent(publisher._replays._send, sizes)
    for _ in range(500):
        publisher.take([])
    with context.socket(zmq.DEALER) as lazy:
        lazy.set(zmq.RCVHWM, 1)
        lazy.connect(publisher.source.replay_endpoint)
        for _ in range(20):
            lazy.send_multipart(from_number(0))
        with context.socket(zmq.DEALER) as other:  # is served meanwhile
            other.connect(publisher.source.replay_endpoint)
            other.send_multipart(from_number(500))
            assert other.poll(PATIENCE_MS)
            assert other.recv_multipart() == [b"", END, b""]
        assert sum(sizes) < 200


def count_sent(send, sizes):
    def counting(frames):
        send(frames)
        sizes.append(1)

    return counting
