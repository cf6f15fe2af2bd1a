"""Files of volumes as an fsspec file system: `landfast://VOLUME/PATH`.

fsspec finds it by its entry point, so that pandas, pyarrow and others open such URLs. The extra `landfast[fsspec]`
installs fsspec; the rest of the client does not need it.

A file that is written appears whole when it is closed: a long one is written beside its place first, and renamed. A
file that is read is that of one moment: if it is replaced meanwhile, the next read raises an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from ._client import Client, connect
from ._problems import ConditionNotMet, Error, FileConflict, NoRoom, NoSuchFile, NoSuchSnapshot, NoSuchVolume, QuotaExceeded
from ._repeat import Limits
from ._volumes import PART_BYTES, Entry, Files

_TYPES = {"file": "file", "directory": "directory", "symlink": "link"}


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Raises the operating system's errors, which users of file systems expect."""
    try:
        yield
    except (NoSuchFile, NoSuchVolume, NoSuchSnapshot) as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from error
    except FileConflict as error:
        raise OSError(getattr(errno, error.code or "", errno.EIO), str(error), path) from error
    except QuotaExceeded as error:
        raise OSError(errno.EDQUOT, str(error), path) from error
    except NoRoom as error:
        raise OSError(errno.ENOSPC, str(error), path) from error
    except ConditionNotMet as error:
        raise OSError(errno.ESTALE, str(error), path) from error
    except Error as error:
        raise OSError(errno.EIO, str(error), path) from error


class LandfastFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The volumes of a server. The first name of a path is the volume.

    `url` and `token` are as of `landfast.connect`. With `snapshot`, every volume is read as it was
    when its snapshot of this name was taken. With `auto_mkdir`, a write makes missing directories.
    """

    protocol = "landfast"
    root_marker = ""
    sep = "/"

    def __init__(
        self,
        url: Optional[str] = None,
        token: Optional[str] = None,
        timeout: float = Limits.call_s,
        snapshot: Optional[str] = None,
        auto_mkdir: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.client: Client = connect(url, token=token, timeout=timeout)
        self.snapshot = snapshot
        self.auto_mkdir = auto_mkdir

    def files(self, path: str) -> Tuple[Files, str]:
        """The files of the volume, and the path in it."""
        volume, _, rest = self._strip_protocol(path).partition("/")
        if not volume:
            raise OSError(errno.EINVAL, "the first name of a path is a volume", path)
        return self.client.files(volume), rest

    def ls(self, path: str, detail: bool = True, **options: Any) -> List[Any]:
        path = self._strip_protocol(path)
        with _os_errors(path):
            if not path:
                found = [_directory(volume.name) for volume in self.client.volumes().list()]
            else:
                found = self._entries(path)
        return found if detail else [entry["name"] for entry in found]

    def _entries(self, path: str) -> List[Dict[str, Any]]:
        files, inside = self.files(path)
        entries: List[Entry] = []
        page: Optional[str] = None
        try:
            while True:
                found = files.list(inside, page=page, snapshot=self.snapshot)
                entries += found.entries
                page = found.next
                if page is None:
                    return [_info(f"{path}/{os.fsdecode(entry.name)}", entry) for entry in entries]
        except FileConflict as error:
            if error.code != "ENOTDIR":
                raise
        return [_info(path, files.stat(inside, snapshot=self.snapshot))]

    def info(self, path: str, **options: Any) -> Dict[str, Any]:
        path = self._strip_protocol(path)
        if not path:
            return _directory("")
        files, inside = self.files(path)
        with _os_errors(path):
            return _info(path, files.stat(inside, snapshot=self.snapshot))

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)

    def ukey(self, path: str) -> str:
        return str(self.info(path)["etag"])

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        files, inside = self.files(path)
        with _os_errors(path):
            parent, _, _ = inside.rpartition("/")
            if create_parents and parent:
                files.mkdir(parent, parents=True)
            files.mkdir(inside)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not exist_ok:
            return self.mkdir(path)
        files, inside = self.files(path)
        with _os_errors(path):
            files.mkdir(inside, parents=True)

    def rmdir(self, path: str) -> None:
        if self.info(path)["type"] != "directory":
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._rm(path)

    def _rm(self, path: str) -> None:
        files, inside = self.files(path)
        with _os_errors(path):
            files.remove(inside)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: Optional[int] = None, **options: Any) -> None:
        (files, from_), (_, to) = self.files(path1), self.files(path2)
        if self._strip_protocol(path1).partition("/")[0] != self._strip_protocol(path2).partition("/")[0]:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        with _os_errors(path1):
            files.rename(from_, to)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        if self.isdir(path1):
            return self.makedirs(path2, exist_ok=True)
        with self.open(path1, "rb") as source, self.open(path2, "wb") as copy:
            while data := source.read(PART_BYTES):
                copy.write(data)

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **options: Any) -> bytes:
        files, inside = self.files(path)
        with _os_errors(path):
            if start is None and end is None:
                return files.read(inside, snapshot=self.snapshot)
        with self.open(path, "rb", cache_type="none") as file:
            first, last, _ = slice(start, end).indices(file.size)
            file.seek(first)
            data: bytes = file.read(max(last - first, 0))
            return data

    def pipe_file(self, path: str, value: Union[bytes, bytearray, memoryview], mode: str = "overwrite", **options: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        files, inside = self.files(path)
        with _os_errors(path):
            if truncate or not self.exists(path):
                files.write(inside, b"", parents=self.auto_mkdir)
            else:
                files.set_attributes(inside, mtime_ns=int(datetime.now(timezone.utc).timestamp() * 1e9))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Optional[Dict[str, Any]] = None,
        **options: Any,
    ) -> LandfastFile:
        if mode in ("wb", "ab", "xb"):
            block_size = block_size or PART_BYTES
        return LandfastFile(
            self, path, mode, block_size or "default", autocommit=autocommit, cache_options=cache_options, **options
        )


class LandfastFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file."""

    fs: LandfastFileSystem

    def __init__(self, fs: LandfastFileSystem, path: str, *arguments: Any, **options: Any) -> None:
        self.files, self.inside = fs.files(path)
        self.beside: Optional[str] = None
        super().__init__(fs, path, *arguments, **options)
        if self.mode == "ab":
            self.loc = fs.info(path)["size"] if fs.exists(path) else 0
        if self.mode == "rb" and self.details["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)

    def _fetch_range(self, start: int, end: int) -> bytes:
        parts: List[bytes] = []
        while start < end:
            with _os_errors(self.path):
                part = self.files.read_part(
                    self.inside,
                    start,
                    min(end - start, PART_BYTES),
                    if_match=self.details["etag"],
                    snapshot=self.fs.snapshot,
                )
            if not part.data:
                break
            parts.append(part.data)
            start += len(part.data)
        return b"".join(parts)

    def _initiate_upload(self) -> None:
        """The first part says whether it is the only one."""

    def _upload_chunk(self, final: bool = False) -> bool:
        data, parents = self.buffer.getvalue(), self.fs.auto_mkdir
        with _os_errors(self.path):
            if self.mode == "ab":
                self.files.append(self.inside, data, parents=parents)
                return True
            if self.beside is None:
                if final and self.autocommit:
                    self._write_whole(data)
                    return True
                directory, _, name = self.inside.rpartition("/")
                self.beside = f"{directory}/.{name[:100]}.part-{uuid.uuid4().hex}"
                self.files.write(self.beside, data, parents=parents)
            else:
                self.files.write(self.beside, data, offset=self.offset)
        if final and self.autocommit:
            self.commit()
        return True

    def _write_whole(self, data: bytes) -> None:
        is_new = self.mode == "xb"
        try:
            self.files.write(self.inside, data, parents=self.fs.auto_mkdir, if_absent=is_new)
        except ConditionNotMet as error:
            raise FileExistsError(errno.EEXIST, str(error), self.path) from error

    def commit(self) -> None:
        """Renames the written file to its place."""
        if self.beside is not None:
            with _os_errors(self.path):
                self.files.rename(self.beside, self.inside, replace=self.mode != "xb")
            self.beside = None

    def discard(self) -> None:
        """Removes what was written."""
        if self.beside is not None:
            with _os_errors(self.path):
                self.files.remove(self.beside)
            self.beside = None


def _directory(name: str) -> Dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _info(name: str, entry: Entry) -> Dict[str, Any]:
    return {
        "name": name,
        "size": entry.size,
        "type": _TYPES.get(entry.type, "other"),
        "islink": entry.type == "symlink",
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "nlink": entry.links,
        "ino": entry.ino,
        "mtime": entry.mtime_ns / 1e9,
        "etag": entry.etag,
    }
