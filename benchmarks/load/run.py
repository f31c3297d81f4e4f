"""A server under mixed traffic, minute after minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass

import grpc
import httpx

from benchmarks.load import batches as batch_files
from benchmarks.load import schedule, watch
from benchmarks.load.batches import Batch
from benchmarks.load.clients import Answer, Clients
from benchmarks.load.minutes import Row, seen
from benchmarks.load.schedule import Ask
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto import inference_pb2_grpc as pb_grpc
from jaxserve.terminal.metrics_page import Change, Page

BATCH_SHARE = 0.1  # lines of batches, as a share of the other requests
BATCHES = 2  # a minute
_SAMPLES = 12  # of the gauges, a minute
_DRAIN_SECONDS = 180.0
_PAGE_SECONDS = 30.0  # in which a page of metrics comes, where a minute is shorter (a rehearsal)
_IDLE_SECONDS, _POLL_SECONDS = 30.0, 0.5
_WARM_UP = 0.25  # of the time in which capacity is measured


@dataclass(frozen=True, slots=True)
class Subject:
    """What is loaded.

    Attributes:
        http, address: base URL, and host and port of gRPC.
        pid: of its first process.
        model: its name.
        vocabulary: token ids that it knows.
        context: tokens of a prompt and its output at most.
    """

    http: str
    address: str
    pid: int
    model: str
    vocabulary: int
    context: int


async def look(http: str, address: str, pid: int) -> Subject:
    """Ask a server what it serves. Raises grpc.aio.AioRpcError if it does not say."""
    async with grpc.aio.insecure_channel(address) as channel:
        info = await pb_grpc.InferenceStub(channel).GetModelInfo(pb.GetModelInfoRequest())
    return Subject(http, address, pid, info.name, info.vocab_size, info.max_model_len)


async def capacity(subject: Subject, clients: int, seconds: float) -> float:
    """Requests a second that end when so many clients always have one open. Raises RuntimeError if none ends well."""
    sender = Clients(subject.http, subject.address, subject.model)
    begin = time.perf_counter()
    ended: list[Answer] = []
    asked = _endless(subject.context)

    async def client() -> None:
        for number, ask in asked:
            if time.perf_counter() > begin + seconds:
                return
            answer = Answer(ask, time.perf_counter())
            await sender.send(answer, schedule.prompt(ask, number, subject.vocabulary))
            ended.append(answer)

    await asyncio.gather(*(client() for _ in range(clients)))
    await sender.close()
    first, last = begin + _WARM_UP * seconds, begin + seconds
    rate = sum(not answer.error and first <= answer.ended < last for answer in ended) / (last - first)
    if not rate:
        raise RuntimeError(f"no request of {len(ended)} ended well: {sorted({answer.error for answer in ended})}")
    return rate


def _endless(context: int) -> Iterator[tuple[int, Ask]]:
    """Requests that no minute of the run has, with the number of theirs."""
    number = 0
    while number := number - 1:
        for ask in schedule.minute(5.0, context, seed=number):
            yield number, ask


class Soak:
    """A run.

    Args:
        subject: the server.
        asks: what is asked in every minute.
        seconds: that a minute has.

    Attributes:
        rows: of the minutes that are over.
        batches: all so far.
    """

    def __init__(self, subject: Subject, asks: Sequence[Ask], seconds: float) -> None:
        self.rows: list[Row] = []
        self.batches: list[Batch] = []
        self._subject = subject
        self._asks = asks
        self._seconds = seconds
        self._answers: list[list[Answer]] = []
        self._sender = Clients(subject.http, subject.address, subject.model)
        self._http = httpx.AsyncClient(base_url=subject.http, timeout=max(seconds, _PAGE_SECONDS))
        self._processes = watch.Processes(subject.pid)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, count: int, tell: Callable[[], None]) -> Row:
        """So many minutes; `tell` is called after each. Returns what there is at the end, when everybody has been waited for."""
        begin = time.perf_counter()
        try:
            for number in range(count):
                await self._minute(number, begin + number * self._seconds)
                tell()
            await asyncio.wait(self._tasks, timeout=_DRAIN_SECONDS)
            self._count_open_again()
            return await self._end()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._sender.close()
            await self._http.aclose()

    def seen_after(self, minutes: int) -> Row:
        """What clients saw in all minutes but the first ones, as of one minute."""
        return seen([answer for answers in self._answers[minutes:] for answer in answers])

    async def _minute(self, number: int, begin: float) -> None:
        answers = [Answer(ask, begin + ask.due) for ask in self._asks]
        self._answers.append(answers)
        gauges = watch.Gauges()
        before, busy, own = await self._page(), self._processes.cpu_seconds(), time.process_time()
        sampling = asyncio.create_task(self._sample(gauges))
        lines = max(1, round(BATCH_SHARE * len(answers) / BATCHES))
        for turn in range(BATCHES):
            self._begin(self._batch(f"{number} {turn}", lines, begin + turn * self._seconds / BATCHES))
        for answer in answers:
            prompt = schedule.prompt(answer.ask, number, self._subject.vocabulary)  # before it is due
            await asyncio.sleep(max(0.0, answer.due - time.perf_counter()))
            self._begin(self._sender.send(answer, prompt))
        await asyncio.sleep(max(0.0, begin + self._seconds - time.perf_counter()))
        sampling.cancel()
        after = await self._page()
        row: Row = {"minute": number + 1, **seen(answers), "gauges": gauges.told(), "steps": {}, "counters": {}}
        if before and after:
            change = Change(before, after)
            row |= {"steps": watch.steps(change), "counters": watch.counters(change)}
        row["memory_mib"] = await asyncio.to_thread(self._processes.memory)
        row["cores"] = {
            role: round((now - busy.get(role, 0.0)) / self._seconds, 3) for role, now in self._processes.cpu_seconds().items()
        }
        row["clients_cores"] = round((time.process_time() - own) / self._seconds, 3)
        self.rows.append(row)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)

    async def _batch(self, name: str, lines: int, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        batch = Batch(lines)
        self.batches.append(batch)
        await batch_files.run(self._http, batch, batch_files.content(self._subject.model, name, lines, self._subject.vocabulary))

    async def _sample(self, gauges: watch.Gauges) -> None:
        while True:
            await asyncio.sleep(self._seconds / _SAMPLES)
            if page := await self._page():
                gauges.take(page)

    async def _page(self) -> Page | None:
        """None while the server has none to give."""
        try:
            return await watch.read(self._http)
        except httpx.HTTPError:
            return None

    def _count_open_again(self) -> None:
        for row, answers in zip(self.rows, self._answers, strict=True):
            if row["open"]:
                row |= seen(answers)

    async def _end(self) -> Row:
        """What there is once nothing is open any more, or after some patience."""
        deadline = time.perf_counter() + _IDLE_SECONDS
        while True:
            page = await self._page()
            if page:
                requests, held = watch.requests(page), watch.held(page)
                if time.perf_counter() > deadline or not (requests["active"] or any(held.values())):
                    return {"requests": requests, **held}
            elif time.perf_counter() > deadline:
                raise RuntimeError("the server does not tell its metrics any more")
            await asyncio.sleep(_POLL_SECONDS)
