"""A results store: every version of every file of a results folder, under the digest of its content.

An object is written once and never changed, so any number of writers may add at the same time, and one that is
killed leaves nothing half written.  A folder on this machine holds its objects in `.store` and shows them as
plain asv results, which is what everything else reads; any other fsspec address (`s3://bucket/results`) holds
objects only.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dashboards import merge
from dashboards.merge import Conflict

FORMAT = 1
HIDDEN = ".store"
KEY, DIGEST = 16, 40
STALE = 3600.0  # seconds after which a half written file is nobody's any more
MAX_BYTES = 256 << 20
# One put of these is all or nothing; elsewhere a file is written beside and moved.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"}


class StoreError(Exception):
    """The store cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Aside:
    """A file that was damaged: where it was, why, and where it lies now (empty: left where it was)."""

    name: str
    reason: str
    place: str = ""


@dataclass
class Report:
    """What came of adding to a store."""

    files: int = 0
    added: int = 0
    shown: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.conflicts and not self.aside


def key_of(path: str) -> str:
    """What all versions of one file share in their names; no name of a file is ever used as a path."""
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:KEY]


def pack(path: str, content: bytes) -> tuple[str, bytes]:
    """Name and bytes of the object that holds one version of a file."""
    head = json.dumps({"store": FORMAT, "path": path}).encode() + b"\n"
    digest = hashlib.sha256(head + content).hexdigest()[:DIGEST]
    return f"{key_of(path)}-{digest}.gz", gzip.compress(head + content, 3, mtime=0)


def unpack(name: str, data: bytes) -> tuple[str, bytes]:
    """Path and content of an object; ValueError where it is not what its name says."""
    try:
        whole = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cut off or not gzip: {error}") from None
    head, _, content = whole.partition(b"\n")
    key, _, digest = name.removesuffix(".gz").partition("-")
    if hashlib.sha256(whole).hexdigest()[:DIGEST] != digest:
        raise ValueError("its content is not what its name says")
    path = json.loads(head)["path"]
    if key_of(path) != key or merge.kind_of(path) is None:
        raise ValueError("its name is that of another file")
    return path, content


class LocalObjects:
    """Objects below a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> dict[str, list[str]]:
        """Key -> names of all its objects."""
        found: dict[str, list[str]] = {}
        with contextlib.suppress(FileNotFoundError):
            for shard in os.scandir(self.root / "objects"):
                for one in os.listdir(shard.path):
                    found.setdefault(one[:KEY], []).append(one)
        return found

    def names_of(self, key: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [one for one in os.listdir(self.root / "objects" / key[:2]) if one.startswith(key + "-")]
        return []

    def size(self, name: str) -> int | None:
        try:
            return self._place(name).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes:
        return self._place(name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        write_file(self._place(name), data, self.root / "tmp")

    def move_aside(self, name: str) -> str:
        target = self.root / "aside" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another writer was first
            os.replace(self._place(name), target)
        return str(target)

    def tidy(self) -> None:
        """Remove what writers that died left half written."""
        with contextlib.suppress(FileNotFoundError):
            for one in os.scandir(self.root / "tmp"):
                with contextlib.suppress(OSError):
                    if time.time() - one.stat().st_mtime > STALE:
                        os.unlink(one.path)

    def _place(self, name: str) -> Path:
        return self.root / "objects" / name[:2] / name


class RemoteObjects:
    """Objects below an fsspec address."""

    def __init__(self, address: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise StoreError(f"{address} needs fsspec: pip install fsspec") from None
        try:
            self.fs, root = fsspec.core.url_to_fs(address, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StoreError(f"{address}: {error}") from None
        self.root = root.rstrip("/")
        protocols = {self.fs.protocol} if isinstance(self.fs.protocol, str) else set(self.fs.protocol)
        self.direct = bool(protocols & OBJECT_STORES)

    def names(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in self._list(f"{self.root}/objects", deep=True):
            one = path.rpartition("/")[2]
            found.setdefault(one[:KEY], []).append(one)
        return found

    def names_of(self, key: str) -> list[str]:
        paths = self._list(f"{self.root}/objects/{key[:2]}")
        return [one for one in (path.rpartition("/")[2] for path in paths) if one.startswith(key + "-")]

    def size(self, name: str) -> int | None:
        try:
            return self.fs.info(self._place(name))["size"]
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes:
        return self.fs.cat_file(self._place(name))

    def write(self, name: str, data: bytes) -> None:
        place = self._place(name)
        if self.direct:
            self.fs.pipe_file(place, data)
            return
        part = f"{self.root}/tmp/{uuid.uuid4().hex}"
        for folder in (part, place):
            self.fs.makedirs(folder.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(part, data)
        self.fs.mv(part, place)

    def move_aside(self, name: str) -> str:
        target = f"{self.root}/aside/{name}"
        self.fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.fs.mv(self._place(name), target)
        return target

    def tidy(self) -> None:
        """Half written files of an address without a clock we know are left to its owner."""

    def _list(self, folder: str, deep: bool = False) -> list[str]:
        self.fs.invalidate_cache()
        try:
            return self.fs.find(folder) if deep else self.fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []

    def _place(self, name: str) -> str:
        return f"{self.root}/objects/{name[:2]}/{name}"


def write_file(place: Path, data: bytes, scratch: Path) -> None:
    """The whole file or nothing: written beside, synced, moved."""
    scratch.mkdir(parents=True, exist_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = scratch / uuid.uuid4().hex
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def is_remote(address: str | os.PathLike[str]) -> bool:
    """Whether an address is one for fsspec."""
    return "://" in os.fspath(address)


class Store:
    """Versions of files, and for a folder of this machine the plain results made of them."""

    def __init__(self, address: str | os.PathLike[str]) -> None:
        self.address = os.fspath(address)
        self.folder = None if is_remote(address) else Path(address)
        self._cached: tuple[tuple[int, int, int], dict[str, _Shown]] | None = None
        self.objects: LocalObjects | RemoteObjects = (
            RemoteObjects(self.address) if self.folder is None else LocalObjects(self.folder / HIDDEN)
        )

    def put(self, path: str, content: bytes) -> bool:
        """Add one version of a file; False where it is there already.  Safe with any number of writers."""
        if merge.kind_of(path) is None:
            raise ValueError(f"not a name that a results folder has: {path!r}")
        name, data = pack(path, content)
        return self._put(name, data)

    def _put(self, name: str, data: bytes) -> bool:
        size = self.objects.size(name)
        if size == len(data):
            return False
        if size is not None:  # cut off, or compressed by another zlib
            with contextlib.suppress(ValueError, FileNotFoundError):
                unpack(name, self.objects.read(name))
                return False
        self.objects.write(name, data)
        return True

    def versions(self, key: str, names: Iterable[str], aside: list[Aside]) -> tuple[str, list[bytes]]:
        """Path and all versions of one file; damaged ones are moved aside and named."""
        path, found = "", []
        for name in sorted(names):
            try:
                path, content = unpack(name, self.objects.read(name))
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError) as error:
                aside.append(Aside(name, str(error)[:200], self.objects.move_aside(name)))
                continue
            found.append(content)
        return path, found

    def files(self, report: Report) -> Iterator[tuple[str, list[bytes]]]:
        """Every file with its versions, for reading; plain files too that are not made of the objects."""
        for _, names in sorted(self.objects.names().items()):
            path, found = "", []
            for name in sorted(names):
                try:
                    path, content = unpack(name, self.objects.read(name))
                except FileNotFoundError:
                    continue
                except (ValueError, KeyError, TypeError) as error:
                    report.aside.append(Aside(f"{self.address}: {name}", str(error)[:200]))
                    continue
                found.append(content)
            if found:
                yield path, found
        if self.folder is not None:
            # read before the record of what was made of objects, so that nothing of ours passes for foreign
            for path, content in plain_files(self.folder, report):
                if not self._ours(key_of(path), content):
                    yield path, [content]

    def _ours(self, key: str, content: bytes) -> bool:
        seen = self._shown_now()
        return hashlib.sha256(content).hexdigest() in seen.get(key, _NOTHING).views

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One at a time makes plain results of a folder's objects; the lock ends with the process."""
        assert self.folder is not None
        (self.folder / HIDDEN).mkdir(parents=True, exist_ok=True)
        with open(self.folder / HIDDEN / "lock", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def absorb(self, report: Report) -> None:
        """Take in plain files that asv or somebody else put into the folder; damaged ones are moved aside."""
        assert self.folder is not None
        shown = self._shown_now()
        found: list[Aside] = []
        for path, content in plain_files(self.folder, report, found.append):
            if hashlib.sha256(content).hexdigest() not in shown.get(key_of(path), _NOTHING).views:
                report.added += self.put(path, content)
        for one in found:
            place = self.folder / HIDDEN / "aside" / f"{uuid.uuid4().hex[:8]}-{Path(one.name).name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.folder / one.name, place)
            report.aside.append(Aside(one.name, one.reason, str(place)))

    def refresh(
        self,
        report: Report,
        keys: Collection[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Make plain results of what changed: of all files, or of those under `keys`.  Call it under the lock."""
        assert self.folder is not None
        shown = self._shown_now()
        names = self.objects.names() if keys is None else {key: self.objects.names_of(key) for key in keys}
        stale = [key for key in sorted(names) if names[key] and self._is_stale(key, names[key], shown)]
        for done, key in enumerate(stale, 1):
            self._show(key, names[key], shown, report)
            if progress:
                progress(done, len(stale))
        self._compact(shown)

    def conflicts(self, report: Report, keys: Collection[str] | None = None) -> None:
        """Name the conflicts of an address that shows no plain results."""
        names = self.objects.names() if keys is None else {key: self.objects.names_of(key) for key in keys}
        for key, some in sorted(names.items()):
            if len(some) > 1:
                path, versions = self.versions(key, some, report.aside)
                if versions:
                    report.conflicts += merge.join(path, versions).conflicts

    def _is_stale(self, key: str, names: list[str], shown: Mapping[str, _Shown]) -> bool:
        assert self.folder is not None
        one = shown.get(key)
        return one is None or one.made_of != _made_of(names) or not (self.folder / one.path).is_file()

    def _show(self, key: str, names: list[str], shown: dict[str, _Shown], report: Report) -> None:
        assert self.folder is not None
        path, versions = self.versions(key, names, report.aside)
        if not versions:
            return
        place = self.folder / path
        try:
            there = place.read_bytes()
        except FileNotFoundError:
            there = None
        known = shown.get(key, _NOTHING)
        if there is not None and hashlib.sha256(there).hexdigest() not in known.views and there not in versions:
            # somebody wrote it while this one waited for the lock
            if merge.unreadable(path, there) is None:
                self.put(path, there)
                return self._show(key, self.objects.names_of(key), shown, report)
        joined = merge.join(path, versions)
        for at, reason in joined.unread.items():
            ordered = sorted(set(versions), key=lambda one: hashlib.sha256(one).hexdigest())
            name = pack(path, ordered[at])[0]
            report.aside.append(Aside(f"{path} ({name})", reason, self.objects.move_aside(name)))
        report.conflicts += joined.conflicts
        if joined.content or len(joined.unread) < len(set(versions)):
            view = hashlib.sha256(joined.content).hexdigest()
            one = _Shown(path, _made_of(self.objects.names_of(key)), _last((*known.views, view)))
            # on record before it is there, so that it never passes for somebody else's
            self._note(key, one, view, shown)
            if there != joined.content:
                write_file(place, joined.content, self.folder / HIDDEN / "tmp")
            report.shown += 1

    def _shown_now(self) -> dict[str, _Shown]:
        """What the folder's plain results were made of; lines of a writer that was killed may be cut off."""
        assert self.folder is not None
        place = self.folder / HIDDEN / "shown.jsonl"
        found: dict[str, _Shown] = {}
        try:
            facts = place.stat()
            cached = self._cached
            if cached and cached[0] == (facts.st_ino, facts.st_size, facts.st_mtime_ns):
                return cached[1]
            lines = place.read_bytes().split(b"\n")
        except FileNotFoundError:
            return found
        for line in lines:
            try:
                row = json.loads(line)
                key, path, made_of, views = row["key"], row["path"], row["of"], tuple(row["views"])
            except (ValueError, KeyError, TypeError):
                continue
            if merge.kind_of(path) is not None:
                found[key] = _Shown(path, made_of, _last(found.get(key, _NOTHING).views + views))
        self._cached = ((facts.st_ino, facts.st_size, facts.st_mtime_ns), found)
        return found

    def _note(self, key: str, one: _Shown, view: str, shown: dict[str, _Shown]) -> None:
        assert self.folder is not None
        row = {"key": key, "path": one.path, "of": one.made_of, "views": [view]}
        place = self.folder / HIDDEN / "shown.jsonl"
        place.parent.mkdir(parents=True, exist_ok=True)
        # a newline in front ends whatever a killed writer left
        with open(place, "ab", buffering=0) as file:
            file.write(b"\n" + json.dumps(row).encode())
            facts = os.fstat(file.fileno())
        shown[key] = one
        self._cached = ((facts.st_ino, facts.st_size, facts.st_mtime_ns), shown)

    def _compact(self, shown: Mapping[str, _Shown]) -> None:
        assert self.folder is not None
        place = self.folder / HIDDEN / "shown.jsonl"
        if not place.is_file() or place.stat().st_size < 4096 + 1000 * len(shown):
            return
        rows = [
            {"key": key, "path": one.path, "of": one.made_of, "views": one.views} for key, one in shown.items()
        ]
        write_file(place, b"\n".join(json.dumps(row).encode() for row in rows), self.folder / HIDDEN / "tmp")


@dataclass(frozen=True, slots=True)
class _Shown:
    """A plain file made of objects: of which, and digests of what was ever written there."""

    path: str = ""
    made_of: str = ""
    views: tuple[str, ...] = ()


_NOTHING = _Shown()


def _last(views: tuple[str, ...]) -> tuple[str, ...]:
    """The latest few: a reader may still hold the one before."""
    return tuple(dict.fromkeys(reversed(views)))[:4][::-1]


def _made_of(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:24]


def plain_files(
    folder: Path, report: Report, damaged: Callable[[Aside], None] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Files of a plain results folder as (path below it, content); what cannot be used is named."""
    tell = damaged or (lambda one: report.aside.append(Aside(f"{folder}: {one.name}", one.reason)))
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted(files):
            place = Path(base, name)
            path = place.relative_to(folder).as_posix()
            if merge.kind_of(path) is None:
                continue
            try:
                if place.is_symlink() or place.stat().st_size > MAX_BYTES:
                    tell(Aside(path, f"a link, or larger than {MAX_BYTES >> 20} MiB"))
                    continue
                content = place.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                tell(Aside(path, f"cannot be read: {error.strerror or error}"))
                continue
            reason = merge.unreadable(path, content)
            if reason:
                tell(Aside(path, reason))
            else:
                yield path, content


def merge_into(
    sources: Iterable[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Add every file of `sources` to `target`, which keeps all versions and shows one of each file."""
    report = Report()
    goal = Store(target)
    goal.objects.tidy()
    ahead = time.time() + 60
    touched: set[str] = set()
    for source in sources:
        origin = Store(source)
        if origin.folder is not None and not origin.folder.is_dir():
            raise StoreError(f"no results folder: {origin.address}")
        for path, versions in origin.files(report):
            report.files += 1
            touched.add(key_of(path))
            for content in versions:
                report.added += goal.put(path, content)
                if _latest(path, content) > ahead * 1000:
                    report.ahead.append(f"{origin.address}: {path}")
            if progress:
                progress("reading", report.files, 0)
    if goal.folder is None:
        goal.conflicts(report, touched)
        return report
    with goal.locked():
        goal.absorb(report)
        goal.refresh(report, progress=(lambda done, of: progress("writing", done, of)) if progress else None)
    return report


def check(address: str | os.PathLike[str]) -> Report:
    """Read every object, move damaged ones aside, make the plain results whole again; a folder that is no store
    is only read."""
    report = Report()
    store = Store(address)
    if store.folder is not None and not store.folder.is_dir():
        raise StoreError(f"no results folder: {store.address}")
    if store.folder is not None and not (store.folder / HIDDEN).is_dir():
        report.files = sum(1 for _ in plain_files(store.folder, report))
        return report
    store.objects.tidy()
    with store.locked() if store.folder is not None else contextlib.nullcontext():
        for key, names in sorted(store.objects.names().items()):
            report.files += bool(store.versions(key, names, report.aside)[1])
        if store.folder is not None:
            store.absorb(report)
            store.refresh(report)
        report.conflicts.clear()  # of all files, not only of those that were stale
        store.conflicts(report)
    return report


def _latest(path: str, content: bytes) -> float:
    """The latest time a sidecar or result file speaks of, in milliseconds."""
    kind = merge.kind_of(path)
    try:
        if kind == merge.RESULT:
            return merge.last_start(json.loads(content))
        if kind == merge.STATES:
            tail = content.rstrip(b"\n").rpartition(b"\n")[2]
            return float(json.loads(tail)["at"])
    except (ValueError, KeyError, TypeError):
        pass
    return 0.0


def free_bytes(folder: Path) -> int:
    """Free space where `folder` lies or will lie."""
    place = folder
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
