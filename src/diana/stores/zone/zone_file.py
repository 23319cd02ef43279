"""A zone's file: memory of a fixed size that all processes of one user open by the same name.

How it begins: `zone_header`.

What bites here is who comes at the same time, and who died half-way:

- Processes that start together: opening takes a lock on the file, the first lays the zone out and writes the header last. Should it be
  killed before that, the next one finds no header and begins again.
- Sizes are never changed in place; who wants another one has to wait until no process uses the zone.
- A file that cannot be used (another version of Diana, another kind, garbage): if no process uses it, it is laid out anew; if one does,
  that is a ConfigError. Every process holds a shared flock for as long as it uses the file: so that is known.
- A file of another user, a link, or one that others may read: refused. In a directory that all may write to, anyone may have put it there.
- Room: all of it is allocated at once. A hole in a file of shared memory is a SIGBUS when the machine has no page left for it.
- fcntl locks belong to a process, and closing any descriptor of the file gives them up: so a process opens each zone once, and its
  threads have `lock` besides. A forked child uses the same descriptor; the parent's locks are not the child's.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from time import monotonic, sleep, time_ns
from typing import NamedTuple
from weakref import WeakValueDictionary, finalize

from diana.core.errors import ConfigError, StoreError, shown
from diana.runtime.clock import epoch_offset_us
from diana.runtime.fork import fork_safe_lock
from diana.stores.zone.limit_names import remove_names
from diana.stores.zone.zone_header import MAGIC, VERSION, Header, boot_of_machine, read_header
from diana.stores.zone.zone_size import DEFAULT_SIZE, spelling_from_size

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("diana")

KINDS = ("python", "native", "replays")
FAR_OFF_US = 1_000_000
"""From the wall clock: it was stepped since the zone was made."""
PATIENCE_SECONDS = 10.0
"""For a lock that is held for microseconds: past it, its owner was stopped."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

LayOut = Callable[[mmap], None]
"""Writes a kind's own layout into a mapping that is all zeros after the header."""


class ZoneSpec(NamedTuple):
    """What a process wants of a zone."""

    kind: str
    size: int | None
    lay_out: LayOut
    adopt: LayOut | None
    version: int


class ZoneFile:
    """An open one. It is let go of when nothing refers to it any more."""

    def __init__(self, name: str, path: Path, descriptor: int, mapping: mmap, header: Header):
        self.name = name
        self.path = path
        self.descriptor = descriptor
        self.mapping = mapping
        self.header = header
        self.lock = fork_safe_lock()
        """For the threads of this process, taken before the lock on the file."""


_open_files: WeakValueDictionary[tuple[int, int], ZoneFile] = WeakValueDictionary()
_opening = fork_safe_lock()
_abandoned: list[tuple[int, tuple[int, int]]] = []
"""Descriptors that could not be closed at once."""


def open_zone_file(
    name: str,
    kind: str,
    size: int | None,
    lay_out: LayOut,
    adopt: LayOut | None = None,
    version: int = VERSION,
) -> ZoneFile:
    """The zone of this name, made if there is none. Without a size, the one it has, or DEFAULT_SIZE.

    `adopt` is called for one that exists and that no other process uses: to put right what those before have left. Should it raise
    ConfigError, the zone is laid out anew.
    """
    form = ZoneSpec(kind, size, lay_out, adopt, version)
    path = path_of_zone(name)
    with _opening:
        _close_abandoned()
        while True:
            file = _opened(name, path, form)
            if file is not None:
                return file


def header_of_zone(name: str) -> Header:
    """What its file says, whatever its kind and version. StoreError if there is none, ConfigError if it cannot be read."""
    path = path_of_zone(name)
    known = _known(path)
    if known is not None:
        return known.header
    try:
        # Should somebody have put a pipe there, it is not waited for until someone writes to it.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise StoreError(f"there is no zone {name}: {path} does not exist") from None
    except OSError as error:
        raise _refused(name, path, error) from None
    try:
        _check_owner(name, path, os.fstat(descriptor))
        header, problem = read_header(descriptor)
    finally:
        os.close(descriptor)
    if header is None:
        raise ConfigError(f"zone {name} cannot be read: {problem}; {_remove(name)}")
    return header


def remove_zone_file(name: str) -> None:
    """Who uses it goes on with it; who opens it from now on gets a new one."""
    path = path_of_zone(name)
    with suppress(OSError):
        remove_names(path)
    try:
        if not stat.S_ISLNK(os.lstat(path).st_mode):
            _check_owner(name, path, os.lstat(path))
        os.unlink(path)
    except FileNotFoundError:
        raise StoreError(f"there is no zone {name}: {path} does not exist") from None
    except OSError as error:
        raise _refused(name, path, error) from None


def path_of_zone(name: str) -> Path:
    """In shared memory; where the system has none, in the directory for temporary files."""
    if fcntl is None:  # pragma: no cover - Windows
        raise ConfigError("shared:// needs Linux or another Unix; write memory://")
    checked_zone_name(name)
    memory = Path("/dev/shm")  # noqa: S108 - owner, mode and links are checked
    if not (memory.is_dir() and os.access(memory, os.W_OK | os.X_OK)):
        memory = Path(tempfile.gettempdir())
    return memory / f"diana-{os.geteuid()}-{name}.zone"


def checked_zone_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{shown(name)} is no name of a zone; write up to 64 letters, digits, '.', '_' or '-', such as shared://api"
        )
    return name


def _opened(name: str, path: Path, form: ZoneSpec) -> ZoneFile | None:
    """None: it was removed meanwhile, so begin again."""
    known = _known(path)
    if known is not None:
        _check_wanted(name, known.header, form)
        return known
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise _refused(name, path, error) from None
    try:
        status = os.fstat(descriptor)
        _check_owner(name, path, status)
        _lock(name, descriptor)
        if not _is_still(path, status):
            os.close(descriptor)
            return None
        header = _usable_header(name, descriptor, form)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        mapping = mmap(descriptor, header.size)
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
    except BaseException:
        os.close(descriptor)
        raise
    file = ZoneFile(name, path, descriptor, mapping, header)
    place = (status.st_dev, status.st_ino)
    _open_files[place] = file
    finalize(file, _let_go, descriptor, place).atexit = False
    return file


def _known(path: Path) -> ZoneFile | None:
    """The one that this process has open already."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return _open_files.get((status.st_dev, status.st_ino))


def _is_still(path: Path, status: os.stat_result) -> bool:
    try:
        now = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)


def _lock(name: str, descriptor: int) -> None:
    until = monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
        if monotonic() > until:
            raise ConfigError(
                f"zone {name} has been locked by another process for {PATIENCE_SECONDS:.0f} s; is one of those that use it stopped?"
            )
        sleep(0.001)


def _usable_header(name: str, descriptor: int, form: ZoneSpec) -> Header:
    """Of the locked file; laid out anew if it cannot be used and no process uses it."""
    header, problem = read_header(descriptor)
    alone = _is_alone(descriptor)
    if header is not None:
        try:
            _check_wanted(name, header, form)
            return _adopted(descriptor, header, form) if alone else header
        except ConfigError as error:
            problem = str(error)
            if not alone:
                raise
    if not alone:
        raise ConfigError(
            f"zone {name} cannot be used: {problem}; stop the processes that use it, and {_remove(name)}"
        )
    if os.fstat(descriptor).st_size:
        log.warning("zone %s is made anew, no process uses it: %s", name, problem)
    return _made(name, descriptor, form)


def _is_alone(descriptor: int) -> bool:
    """Every process that uses a zone holds a shared flock on it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _adopted(descriptor: int, header: Header, form: ZoneSpec) -> Header:
    """A file may outlive the machine's monotonic clock, and a wall clock that was wrong: while no process uses it, both are set."""
    if form.adopt is not None:
        form.adopt(mmap(descriptor, header.size))
    offset = epoch_offset_us()
    if header.boot != boot_of_machine() or abs(header.epoch_offset_us - offset) > FAR_OFF_US:
        header = header._replace(boot=boot_of_machine(), epoch_offset_us=offset)
        os.pwrite(descriptor, header.packed(), 0)
    return header


def _made(name: str, descriptor: int, form: ZoneSpec) -> Header:
    size = form.size or DEFAULT_SIZE
    os.ftruncate(descriptor, 0)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:  # pragma: no cover - macOS
            os.ftruncate(descriptor, size)
    except OSError as error:
        os.ftruncate(descriptor, 0)
        raise ConfigError(
            f"zone {name}: no room for {spelling_from_size(size)} of shared memory: {error.strerror}; "
            "write a smaller size=, or give the machine or container more (--shm-size)"
        ) from None
    mapping = mmap(descriptor, size)
    form.lay_out(mapping)
    header = Header(
        MAGIC, form.version, form.kind, size, os.urandom(16), os.urandom(16),
        epoch_offset_us(), boot_of_machine(), time_ns() // 1_000,
    )  # fmt: skip
    packed = header.packed()
    mapping[: len(packed)] = packed
    return header


def _check_wanted(name: str, header: Header, form: ZoneSpec) -> None:
    if header.version != form.version:
        raise ConfigError(
            f"zone {name} is of layout {header.version}, written by another version of Diana, and this one reads layout {form.version}; "
            f"stop the processes that use it, and {_remove(name)}"
        )
    if header.kind != form.kind:
        switch = "set DIANA_NATIVE=0" if header.kind == "python" else "unset DIANA_NATIVE"
        raise ConfigError(
            f"zone {name} is of the kind {header.kind}, and this process uses {form.kind}; {switch} where it is the odd one out, "
            f"or stop the processes that use it, and {_remove(name)}"
        )
    if form.size is not None and header.size != form.size:
        had = spelling_from_size(header.size)
        raise ConfigError(
            f"zone {name} has a size of {had}, not {spelling_from_size(form.size)}; write size={had}, "
            f"or stop the processes that use it, and {_remove(name)}"
        )


def _check_owner(name: str, path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        problem = "is no regular file"
    elif status.st_uid != os.geteuid():
        problem = "belongs to another user"
    elif stat.S_IMODE(status.st_mode) & 0o077:
        problem = (
            f"may be read or written by others (mode {stat.S_IMODE(status.st_mode):o}, not 600)"
        )
    elif status.st_nlink > 1:
        problem = "is linked from elsewhere"
    else:
        return
    raise ConfigError(f"zone {name} is refused: {path} {problem}; remove it, or write another name")


def _refused(name: str, path: Path, error: OSError) -> ConfigError:
    problem = "is a symbolic link" if error.errno == errno.ELOOP else f"{error.strerror}"
    return ConfigError(
        f"zone {name} is refused: {path}: {problem}; remove it, or write another name"
    )


def _remove(name: str) -> str:
    return f"remove it: diana zone {name} --remove"


def _let_go(descriptor: int, place: tuple[int, int]) -> None:
    """Closing it gives up every lock that this process has on the file, also one taken by way of another descriptor. This may run
    wherever the garbage collector does, so nothing is waited for."""
    file = _open_files.get(place)
    if file is None:
        os.close(descriptor)
    elif file.lock.acquire(blocking=False):
        os.close(descriptor)
        file.lock.release()
    else:
        _abandoned.append((descriptor, place))


def _close_abandoned() -> None:
    for _ in range(len(_abandoned)):
        _let_go(*_abandoned.pop())
