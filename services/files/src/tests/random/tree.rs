//! A tree of files in memory.

use std::collections::BTreeMap;

use super::*;

#[derive(Debug, Clone)]
struct Node {
    kind: Kind,
    mode: u32,
    links: u64,
    /// It never had a name, and may be given one.
    is_unnamed: bool,
    data: Vec<u8>,
    entries: BTreeMap<Bytes, Ino>,
    xattrs: BTreeMap<Bytes, Bytes>,
}

/// The reference.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    nodes: BTreeMap<Ino, Node>,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self {
            nodes: BTreeMap::new(),
        };
        tree.make(Ino::ROOT, Kind::Directory, ACCESS.mode, &Bytes::new());
        tree
    }

    /// The answer to `call`. A new inode has the number `made`.
    pub(super) fn call(&mut self, call: &Call, made: Ino) -> Result<Answer> {
        use Call::*;
        match call {
            Lookup(parent, name) => {
                let ino = self.entry(*parent, name)?;
                Ok(Answer::Found(ino, self.nodes[&ino].kind))
            }
            Create(parent, name) => self.bind(*parent, name, made, Kind::File, &Bytes::new()),
            CreateUnnamed(parent) => {
                self.directory(*parent)?;
                self.make(made, Kind::File, ACCESS.mode, &Bytes::new());
                let node = self.at(made);
                (node.links, node.is_unnamed) = (0, true);
                Ok(Answer::Created(made))
            }
            Mkdir(parent, name) => {
                let kind = Kind::Directory;
                let answer = self.bind(*parent, name, made, kind, &Bytes::new())?;
                self.at(*parent).links += 1;
                Ok(answer)
            }
            Symlink(parent, name, target) => self.bind(*parent, name, made, Kind::Symlink, target),
            Readlink(ino) => match self.node(*ino)? {
                node if node.kind == Kind::Symlink => Ok(Answer::Data(node.data.clone().into())),
                _ => Err(Errno::EINVAL),
            },
            Link(ino, parent, name) => self.link(*ino, *parent, name),
            Unlink(parent, name) => self.unlink(*parent, name),
            Rmdir(parent, name) => self.rmdir(*parent, name),
            Rename(from, a, to, b, mode) => self.rename((*from, a), (*to, b), *mode),
            Getattr(ino) => {
                let node = self.node(*ino)?;
                Ok(Answer::Attributes {
                    kind: node.kind,
                    mode: node.mode,
                    links: node.links,
                    size: node.data.len() as u64,
                })
            }
            Chmod(ino, mode) => {
                self.node(*ino)?;
                self.at(*ino).mode = *mode;
                Ok(Answer::Done)
            }
            List(ino) => {
                let names = self.directory(*ino)?.entries.keys().cloned();
                Ok(Answer::Names(names.collect()))
            }
            Setxattr(..) | Getxattr(..) | Removexattr(..) | Listxattr(..) => self.xattr(call),
            _ => self.data(call),
        }
    }

    pub(super) fn reap(&mut self) -> usize {
        let before = self.nodes.len();
        self.nodes.retain(|_, node| node.links > 0);
        before - self.nodes.len()
    }

    /// Whether `answer` is a right answer to a seek: holes are a choice, but never have data.
    pub(super) fn is_position(
        &self,
        ino: Ino,
        seek: Seek,
        offset: u64,
        answer: Result<u64>,
    ) -> bool {
        let data = match self.file(ino) {
            Ok(node) => &node.data,
            Err(errno) => return answer == Err(errno),
        };
        let size = data.len() as u64;
        if offset >= size {
            return answer == Err(Errno::ENXIO);
        }
        let zeros = |from: u64, until: u64| {
            let part = &data[from as usize..until.min(size) as usize];
            part.iter().all(|byte| *byte == 0)
        };
        match (seek, answer) {
            (Seek::Data, Err(errno)) => errno == Errno::ENXIO && zeros(offset, size),
            (Seek::Data, Ok(at)) => at < size && zeros(offset, at),
            (Seek::Hole, Ok(at)) => at == size || zeros(at, (at / BLOCK + 1) * BLOCK),
            (Seek::Hole, Err(_)) => false,
        }
    }

    fn data(&mut self, call: &Call) -> Result<Answer> {
        match call {
            Call::Allocate(_, _, _, 0) => Err(Errno::EINVAL),
            Call::Read(ino, offset, count) => {
                let data = &self.file(*ino)?.data;
                let from = data.len().min(*offset as usize);
                let until = data.len().min((*offset + *count) as usize);
                let part = Bytes::copy_from_slice(&data[from..until]);
                Ok(Answer::Data(part))
            }
            Call::Write(ino, offset, data) => {
                self.file(*ino)?;
                self.write(*ino, *offset as usize, data);
                Ok(Answer::Done)
            }
            Call::Append(ino, data) => {
                let end = self.file(*ino)?.data.len();
                self.write(*ino, end, data);
                Ok(Answer::Done)
            }
            Call::Truncate(ino, size) => {
                self.file(*ino)?;
                self.at(*ino).data.resize(*size as usize, 0);
                Ok(Answer::Done)
            }
            Call::Allocate(ino, mode, offset, count) => {
                self.file(*ino)?;
                let data = &mut self.at(*ino).data;
                let (from, end) = (*offset as usize, (offset + count) as usize);
                if matches!(mode, Allocation::Extend | Allocation::ZeroRange) && data.len() < end {
                    data.resize(end, 0);
                }
                if matches!(mode, Allocation::PunchHole | Allocation::ZeroRange) {
                    let (from, end) = (from.min(data.len()), end.min(data.len()));
                    data[from..end].fill(0);
                }
                Ok(Answer::Done)
            }
            call => panic!("{call:?} is no call on data"),
        }
    }

    fn xattr(&mut self, call: &Call) -> Result<Answer> {
        match call {
            Call::Setxattr(ino, mode, name, value) => {
                let is_there = self.node(*ino)?.xattrs.contains_key(name);
                match mode {
                    SetMode::Create if is_there => return Err(Errno::EEXIST),
                    SetMode::Replace if !is_there => return Err(Errno::ENODATA),
                    _ => {}
                }
                self.at(*ino).xattrs.insert(name.clone(), value.clone());
                Ok(Answer::Done)
            }
            Call::Getxattr(ino, name) => {
                let found = self.node(*ino)?.xattrs.get(name).cloned();
                found.map(Answer::Data).ok_or(Errno::ENODATA)
            }
            Call::Removexattr(ino, name) => {
                self.node(*ino)?;
                let removed = self.at(*ino).xattrs.remove(name);
                removed.map(|_| Answer::Done).ok_or(Errno::ENODATA)
            }
            Call::Listxattr(ino) => {
                let names = self.node(*ino)?.xattrs.keys().cloned();
                Ok(Answer::Names(names.collect()))
            }
            call => panic!("{call:?} is no call on attributes"),
        }
    }

    fn node(&self, ino: Ino) -> Result<&Node> {
        self.nodes.get(&ino).ok_or(Errno::ENOENT)
    }

    fn at(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("checked before")
    }

    fn directory(&self, ino: Ino) -> Result<&Node> {
        match self.node(ino)? {
            node if node.kind == Kind::Directory => Ok(node),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn file(&self, ino: Ino) -> Result<&Node> {
        let node = self.node(ino)?;
        match node.kind {
            Kind::File => Ok(node),
            Kind::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn entry(&self, parent: Ino, name: &Bytes) -> Result<Ino> {
        let found = self.directory(parent)?.entries.get(name);
        found.copied().ok_or(Errno::ENOENT)
    }

    fn write(&mut self, ino: Ino, offset: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let (end, whole) = (offset + data.len(), &mut self.at(ino).data);
        whole.resize(whole.len().max(end), 0);
        whole[offset..end].copy_from_slice(data);
    }

    fn make(&mut self, ino: Ino, kind: Kind, mode: u32, data: &Bytes) {
        let node = Node {
            kind,
            mode,
            links: if kind == Kind::Directory { 2 } else { 1 },
            is_unnamed: false,
            data: data.to_vec(),
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
        };
        self.nodes.insert(ino, node);
    }

    fn bind(
        &mut self,
        parent: Ino,
        name: &Bytes,
        made: Ino,
        kind: Kind,
        data: &Bytes,
    ) -> Result<Answer> {
        let above = self.directory(parent)?;
        if above.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let inherits = above.mode & 0o2000 != 0 && kind == Kind::Directory;
        let mode = match kind {
            Kind::Symlink => 0o777,
            _ => ACCESS.mode | if inherits { 0o2000 } else { 0 },
        };
        self.make(made, kind, mode, data);
        self.at(parent).entries.insert(name.clone(), made);
        Ok(Answer::Created(made))
    }

    fn link(&mut self, ino: Ino, parent: Ino, name: &Bytes) -> Result<Answer> {
        if self.node(ino)?.kind == Kind::Directory {
            return Err(Errno::EPERM);
        }
        if self.directory(parent)?.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let node = self.at(ino);
        if node.links == 0 && !std::mem::take(&mut node.is_unnamed) {
            return Err(Errno::ENOENT);
        }
        node.links += 1;
        self.at(parent).entries.insert(name.clone(), ino);
        Ok(Answer::Done)
    }

    fn unlink(&mut self, parent: Ino, name: &Bytes) -> Result<Answer> {
        let ino = self.entry(parent, name)?;
        if self.nodes[&ino].kind == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        self.at(parent).entries.remove(name);
        self.at(ino).links -= 1;
        Ok(Answer::Done)
    }

    fn rmdir(&mut self, parent: Ino, name: &Bytes) -> Result<Answer> {
        let ino = self.entry(parent, name)?;
        if !self.directory(ino)?.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.at(parent).entries.remove(name);
        self.at(parent).links -= 1;
        self.nodes.remove(&ino);
        Ok(Answer::Done)
    }

    fn rename(
        &mut self,
        (from, from_name): (Ino, &Bytes),
        (to, to_name): (Ino, &Bytes),
        mode: RenameMode,
    ) -> Result<Answer> {
        self.directory(from)?;
        self.directory(to)?;
        let source = self.entry(from, from_name)?;
        let target = self.entry(to, to_name).ok();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        let is_directory = |tree: &Self, ino: Ino| tree.nodes[&ino].kind == Kind::Directory;
        if self.holds(source, to) {
            return Err(Errno::EINVAL);
        }
        if target == Some(source) {
            return Ok(Answer::Done);
        }
        if let Some(target) = target {
            if mode == RenameMode::Exchange {
                if self.holds(target, from) {
                    return Err(Errno::EINVAL);
                }
            } else {
                match (is_directory(self, source), is_directory(self, target)) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    (false, false) => drop(self.unlink(to, to_name)?),
                    (true, true) => drop(self.rmdir(to, to_name)?),
                }
            }
        }
        self.at(from).entries.remove(from_name);
        self.place(from, to, to_name, source);
        if let (Some(target), RenameMode::Exchange) = (target, mode) {
            self.place(to, from, from_name, target);
        }
        Ok(Answer::Done)
    }

    fn place(&mut self, from: Ino, to: Ino, name: &Bytes, ino: Ino) {
        self.at(to).entries.insert(name.clone(), ino);
        if self.nodes[&ino].kind == Kind::Directory {
            self.at(from).links -= 1;
            self.at(to).links += 1;
        }
    }

    /// Whether `inner` is `outer` or below it.
    fn holds(&self, outer: Ino, inner: Ino) -> bool {
        outer == inner
            || self.nodes[&outer]
                .entries
                .values()
                .any(|entry| self.holds(*entry, inner))
    }
}
