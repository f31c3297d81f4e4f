"""The adapters that an engine knows: by name, in the host's memory, and on their way there."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy.typing as npt

from jaxserve.adapters.peft import HostAdapter
from jaxserve.config.home import expand_home
from jaxserve.errors import CheckpointError, ConflictError, InvalidRequestError, JaxserveError, ModelNotFoundError
from jaxserve.untrusted import check_path

logger = logging.getLogger(__name__)

MAX_NAME_CHARS = 256
READERS = 2  # threads that read adapters: more would wait for the same disk


class AdapterInfo(msgspec.Struct, frozen=True):
    """What there is to say of an adapter.

    Attributes:
        name: that requests give as their model.
        key: of its content.
        path: its directory; empty for one that came as arrays.
        rank: its largest.
        modules: how many it changes.
        tenant: whose it is; None for everybody's.
        base_model: that it says it was trained on.
        pinned: whether it stays in the host's memory, and in its slot once it has one, whoever else needs the place.
    """

    name: str
    key: str
    path: str
    rank: int
    modules: int
    tenant: str | None = None
    base_model: str | None = None
    pinned: bool = False


class Shelf(Protocol):
    """Where adapters in the host's memory are kept for the devices (`executor.adapter_slots`)."""

    def keep(self, key: str, numbers: npt.NDArray[Any]) -> None: ...

    def forget(self, key: str) -> None: ...


class AdapterStore:
    """Adapters by name and by content. Safe from several threads; `fetch` and `trim` are for the engine's alone.

    A name may come to stand for another content: requests that were taken in go on with the one that it stood for. An adapter
    that came as arrays cannot be read again: it stays in memory until nothing names it and no request needs it.

    Args:
        read: reads one of a directory, and raises CheckpointError for what cannot be served (`directory.read_adapter`).
        capacity: adapters in the host's memory.
        slots: of those that have directories, how many are kept whatever came as arrays: as many as a step may put on devices.
            Fewer than that may be pinned: others must have a place, too.
        adapter_bytes: of each in the host's memory.
        base_model: name of the model that is served, for a warning where an adapter names another.
    """

    def __init__(
        self, read: Callable[[Path], HostAdapter], capacity: int, slots: int, adapter_bytes: int, shelf: Shelf, base_model: str
    ) -> None:
        self._read_directory = read
        self._capacity = capacity
        self._slots = slots
        self._adapter_bytes = adapter_bytes
        self._shelf = shelf
        self._base_model = base_model
        self._lock = threading.Lock()
        self._names: dict[str, AdapterInfo] = {}
        self._paths: dict[str, Path] = {}  # by key, also of names that are gone: requests may still need them
        self._held: OrderedDict[str, None] = OrderedDict()  # keys in memory that can be read again, least recently used first
        self._given: set[str] = set()  # keys in memory that came as arrays
        self._pinned: frozenset[str] = frozenset()  # keys that stay
        self._failed: dict[str, JaxserveError] = {}
        self._coming: dict[str, Future[None]] = {}
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="jaxserve-adapters")
        self.num_fetches = 0

    def load(
        self, name: str, path: str | Path, *, tenant: str | None = None, in_place: bool = False, pin: bool = False
    ) -> AdapterInfo:
        """Read an adapter and let requests name it; pinned or not, whatever one of its name was before.

        Raises InvalidRequestError for a name that cannot be one, ConflictError for one that is taken, unless it is to be replaced
        `in_place`, or for a pin too many, and CheckpointError for what cannot be served. Whatever is raised, nothing has changed.
        """
        self.check_name(name, tenant, in_place=in_place)
        check_path(str(path), "lora_path")
        directory = expand_home(path, "lora_path")
        adapter = self._read_directory(directory)
        info = self._info(name, adapter, str(directory), tenant, pin)
        with self._lock:
            self._check_name(name, tenant, in_place=in_place)
            self._check_pins(info)
            self._name(info)
            self._paths[info.key] = directory
            if len(self._held) < self._room or info.key in self._held or pin:
                self._keep(info.key, adapter)
        return info

    def give(
        self,
        name: str,
        adapter: HostAdapter,
        used: Collection[str],
        *,
        tenant: str | None = None,
        in_place: bool = False,
        pin: bool = False,
    ) -> AdapterInfo:
        """Let requests name an adapter that came as arrays. `used` are the keys that requests need.

        Raises as `load`, and ConflictError where the host's memory is full of such.
        """
        info = self._info(name, adapter, "", tenant, pin)
        with self._lock:
            self._check_name(name, tenant, in_place=in_place)
            others = {key for key in self._given if key in used or self._is_named(key, but=name)} - {info.key}
            if len(others) >= self._capacity:
                raise ConflictError(
                    f"max_cpu_loras is {self._capacity}, and as many adapters that came without a directory are in memory: "
                    "unload one, or wait for the requests of those that were replaced",
                    param="lora_name",
                )
            self._check_pins(info)
            self._name(info)
            self._given.add(info.key)
            self._shelf.keep(info.key, adapter.numbers)
            self._let_go(used)
        return info

    @property
    def has_unnamed(self) -> bool:
        """Whether there is something that `let_go` may forget."""
        with self._lock:
            return not all(map(self._is_named, self._given))

    def let_go(self, used: Collection[str]) -> None:
        """Forget adapters that came as arrays, that nothing names any more, and that no request needs: not those in `used`."""
        with self._lock:
            self._let_go(used)

    def unload(self, name: str, *, tenant: str | None = None) -> AdapterInfo:
        """Let no request name it any more; those that were taken in finish. Raises ModelNotFoundError."""
        with self._lock:
            info = self._known(name, tenant)
            del self._names[name]
            self._pinned = self._pins()
            return info

    def find(self, name: str, tenant: str = "") -> AdapterInfo:
        """The adapter that a tenant means by a name. Raises ModelNotFoundError, also for another tenant's."""
        with self._lock:
            return self._known(name, tenant)

    def listed(self) -> list[AdapterInfo]:
        """All that can be named, in the order in which they came."""
        with self._lock:
            return list(self._names.values())

    @property
    def pinned(self) -> frozenset[str]:
        """Keys of those that stay where they are."""
        return self._pinned

    @property
    def num_held(self) -> int:
        """Adapters in the host's memory."""
        with self._lock:
            return len(self._given.union(self._held))

    @property
    def num_bytes(self) -> int:
        """Of the adapters in the host's memory."""
        return self.num_held * self._adapter_bytes

    def check_name(self, name: str, tenant: str | None, *, in_place: bool) -> None:
        """Raise InvalidRequestError for a name that cannot be one, ConflictError for one that is taken; see `load`."""
        with self._lock:
            self._check_name(name, tenant, in_place=in_place)

    def fetch(self, key: str) -> bool:
        """Whether the adapter with a key is in the host's memory, and stays until the next step is submitted; if not it is read.

        Raises what it could not be read for, once.
        """
        with self._lock:
            if (error := self._failed.pop(key, None)) is not None:
                raise error.copy()
            if key in self._held:
                self._held.move_to_end(key)
                self._trim()
                return True
            if key in self._given:
                return True
            self._bring(key)
            return False

    def trim(self) -> None:
        """Let go of what is in memory beyond the capacity: what was read for requests that need it no more."""
        with self._lock:
            self._trim()

    def bring(self, key: str) -> Future[None] | None:
        """Done, whatever comes of it, when the adapter with a key has been read; None if it is in memory."""
        with self._lock:
            return None if key in self._held or key in self._given else self._bring(key)

    def wait(self, timeout: float) -> None:
        """Until one of the adapters that are being read is there, but `timeout` seconds at most; at once if there are none.

        Who looks again and again instead takes from the readers what they need most, the interpreter's lock.
        """
        with self._lock:
            coming = list(self._coming.values())
        if coming:
            wait(coming, timeout, FIRST_COMPLETED)

    def _bring(self, key: str) -> Future[None]:
        if key not in self._coming:
            self.num_fetches += 1
            self._coming[key] = Future()
            self._readers.submit(self._read, key, self._paths[key])
        return self._coming[key]

    def _read(self, key: str, directory: Path) -> None:
        try:
            adapter = self._read_directory(directory)
            if adapter.digest != key:
                raise CheckpointError(f"adapter {directory} has changed since it was loaded: load it again", param="model")
        except JaxserveError as error:
            self._end(key, error)
        except Exception as error:
            logger.exception("adapter %s could not be read", directory)
            self._end(key, CheckpointError(f"adapter {directory} cannot be read: {error!r}", param="model"))
        else:
            self._end(key, adapter)

    def _end(self, key: str, read: HostAdapter | JaxserveError) -> None:
        with self._lock:
            if isinstance(read, HostAdapter):
                self._keep(key, read)
            else:
                self._failed[key] = read
            done = self._coming.pop(key)
        done.set_result(None)

    def _trim(self) -> None:
        while len(self._held) > self._room:
            oldest = next(key for key in self._held if key not in self._pinned)  # there is room for all that are
            del self._held[oldest]
            self._forget(oldest)

    def _keep(self, key: str, adapter: HostAdapter) -> None:
        self._shelf.keep(key, adapter.numbers)
        self._held[key] = None
        self._held.move_to_end(key)

    @property
    def _room(self) -> int:
        """For adapters that can be read again."""
        return max(self._capacity - len(self._given), self._slots)

    def _let_go(self, used: Collection[str]) -> None:
        for key in [key for key in self._given if key not in used and not self._is_named(key)]:
            self._given.discard(key)
            self._forget(key)

    def _forget(self, key: str) -> None:
        if key not in self._held and key not in self._given:
            self._shelf.forget(key)

    def _is_named(self, key: str, but: str | None = None) -> bool:
        return any(info.key == key for name, info in self._names.items() if name != but)

    def _name(self, info: AdapterInfo) -> None:
        self._names[info.name] = info
        self._pinned = self._pins()

    def _pins(self, but: str | None = None) -> frozenset[str]:
        return frozenset(info.key for name, info in self._names.items() if info.pinned and name != but)

    def _check_pins(self, info: AdapterInfo) -> None:
        if info.pinned and len(self._pins(but=info.name) - {info.key}) + 1 >= self._slots:
            raise ConflictError(
                f"max_loras is {self._slots}: {self._slots - 1} adapters may be pinned, and as many are", param="pin"
            )

    def _info(self, name: str, adapter: HostAdapter, path: str, tenant: str | None, pin: bool) -> AdapterInfo:
        base = adapter.base_model
        if base is not None and Path(base).name != Path(self._base_model).name:
            logger.warning("adapter %s says that it is of %s, and is served over %s", name, base, self._base_model)
        return AdapterInfo(name, adapter.digest, path, adapter.rank, adapter.modules, tenant, base, pin)

    def _known(self, name: str, tenant: str | None) -> AdapterInfo:
        info = self._names.get(name)
        if info is None or (tenant is not None and info.tenant not in (None, tenant)):
            raise ModelNotFoundError(f"there is no adapter {name!r}", param="model")
        return info

    def _check_name(self, name: str, tenant: str | None, *, in_place: bool) -> None:
        if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise InvalidRequestError(f"lora_name must have 1 to {MAX_NAME_CHARS} printable characters", param="lora_name")
        if name == self._base_model:
            raise ConflictError(f"lora_name {name!r} is the model's own name", param="lora_name")
        known = self._names.get(name)
        if known is not None and (known.tenant != tenant or not in_place):
            raise ConflictError(f"there is an adapter {name!r} already; load_inplace replaces it", param="lora_name")
