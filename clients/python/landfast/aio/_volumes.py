"""Volumes and their files, for asyncio."""

from __future__ import annotations

from typing import List, Optional

from .._requests import Key, Value
from .._volumes import ENTRIES_MAX, Entry, EntryPage, FileCalls, Part, Volume, VolumeCalls
from ._connection import Connections


class Volumes:
    """As `landfast.Volumes`: the volumes of the server."""

    def __init__(self, calls: VolumeCalls, connections: Connections) -> None:
        self._calls = calls
        self._connections = connections

    async def list(self) -> List[Volume]:
        """All volumes, in the order of their names."""
        return await self._connections.drive(self._calls.list())

    async def get(self, name: str) -> Volume:
        """A volume, and the space that it takes."""
        return await self._connections.drive(self._calls.get(name))

    async def create(self, name: str, *, block_bytes: Optional[int] = None, quota_bytes: Optional[int] = None) -> None:
        """Creates an empty volume; see `landfast.Volumes.create`."""
        await self._connections.drive(self._calls.create(name, block_bytes, quota_bytes))

    async def set_quota(self, name: str, quota_bytes: Optional[int]) -> None:
        """Sets the most bytes that a volume may take; see `landfast.Volumes.set_quota`."""
        await self._connections.drive(self._calls.set_quota(name, quota_bytes))

    async def delete(self, name: str) -> None:
        """Deletes a volume with all its files and snapshots."""
        await self._connections.drive(self._calls.delete(name))

    async def clone(self, name: str, to: str, *, snapshot: Optional[str] = None) -> None:
        """Creates a volume with the content of another; see `landfast.Volumes.clone`."""
        await self._connections.drive(self._calls.clone(name, to, snapshot))

    async def snapshots(self, name: str) -> List[str]:
        """The names of a volume's snapshots, in order."""
        return await self._connections.drive(self._calls.snapshots(name))

    async def take_snapshot(self, name: str, snapshot: str) -> None:
        """Keeps a volume as it is now readable; see `landfast.Volumes.take_snapshot`."""
        await self._connections.drive(self._calls.take_snapshot(name, snapshot))

    async def delete_snapshot(self, name: str, snapshot: str) -> None:
        """Deletes a snapshot, whether or not it exists."""
        await self._connections.drive(self._calls.delete_snapshot(name, snapshot))


class Files:
    """As `landfast.Files`: the files of one volume."""

    def __init__(self, calls: FileCalls, connections: Connections) -> None:
        self._calls = calls
        self._connections = connections

    async def read(self, path: Key, *, snapshot: Optional[str] = None) -> bytes:
        """The content of a file; see `landfast.Files.read`."""
        return await self._connections.drive(self._calls.read(path, snapshot))

    async def read_part(
        self, path: Key, offset: int, count: int, *, if_match: Optional[str] = None, snapshot: Optional[str] = None
    ) -> Part:
        """Some bytes of a file; see `landfast.Files.read_part`."""
        return await self._connections.drive(self._calls.read_part(path, offset, count, if_match, snapshot))

    async def write(
        self,
        path: Key,
        data: Value,
        *,
        offset: Optional[int] = None,
        mode: Optional[int] = None,
        parents: bool = False,
        if_absent: bool = False,
        if_match: Optional[str] = None,
    ) -> Optional[str]:
        """Replaces the content of a file, or a part of it; see `landfast.Files.write`."""
        steps = self._calls.write(path, data, offset, mode, parents, if_absent, if_match)
        return await self._connections.drive(steps)

    async def append(self, path: Key, data: Value, *, mode: Optional[int] = None, parents: bool = False) -> None:
        """Appends to a file, or makes it; see `landfast.Files.append`."""
        await self._connections.drive(self._calls.append(path, data, mode, parents))

    async def stat(self, path: Key, *, snapshot: Optional[str] = None) -> Entry:
        """The attributes of what is at a path; symbolic links are followed."""
        return await self._connections.drive(self._calls.stat(path, snapshot))

    async def list(
        self, path: Key = b"", *, page: Optional[str] = None, limit: int = ENTRIES_MAX, snapshot: Optional[str] = None
    ) -> EntryPage:
        """Entries of a directory; see `landfast.Files.list`."""
        return await self._connections.drive(self._calls.list(path, page, limit, snapshot))

    async def mkdir(self, path: Key, *, mode: Optional[int] = None, parents: bool = False) -> None:
        """Makes a directory; see `landfast.Files.mkdir`."""
        await self._connections.drive(self._calls.mkdir(path, mode, parents))

    async def rename(self, path: Key, to: Key, *, replace: bool = True) -> None:
        """Renames a file or a directory within the volume."""
        await self._connections.drive(self._calls.rename(path, to, replace))

    async def set_attributes(self, path: Key, **changes: int) -> None:
        """Changes `mode`, `uid`, `gid`, `size`, `atime_ns` or `mtime_ns`."""
        await self._connections.drive(self._calls.set_attributes(path, changes))

    async def remove(self, path: Key, *, if_match: Optional[str] = None) -> None:
        """Removes a file, a symbolic link or an empty directory."""
        await self._connections.drive(self._calls.remove(path, if_match))
