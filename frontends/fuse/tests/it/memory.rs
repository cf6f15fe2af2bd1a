//! A small file system in memory, for the tests of mounts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fuse_frontend::{
    Handler, Responder,
    wire::{
        Attributes, DirectoryEntry, DirectoryList, Entry, Errno, ExtendedAttributes, FileLock,
        FileSystemUsage, LockKind, LockRequest, LockStyle, OPEN_DIRECT_IO, Opened, Operation,
        ROOT_INODE, Reply, Request, Time, init::InitReply,
    },
};
use parking_lot::{Condvar, Mutex};

const DIRECTORY: u32 = 0o040_000;
/// The time of creation of every inode.
const BORN: Time = Time {
    seconds: 1_234_567,
    nanoseconds: 89,
};

#[derive(Default)]
pub(crate) struct Memory {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    nodes: BTreeMap<u64, Node>,
    locks: Vec<(u64, LockRequest)>,
    waiting: BTreeMap<u64, (u64, LockRequest, Responder)>,
    pub(crate) terms: Option<InitReply>,
    pub(crate) interrupts: usize,
    pub(crate) forgotten: u64,
    pub(crate) has_ended: bool,
    /// Requests that were answered with EOPNOTSUPP.
    pub(crate) unsupported: Vec<String>,
}

#[derive(Default)]
struct Node {
    mode: u32,
    uid: u32,
    gid: u32,
    data: Vec<u8>,
    entries: BTreeMap<Vec<u8>, u64>,
}

type Answer = Result<Reply<'static>, Errno>;

impl Memory {
    pub(crate) fn new() -> Arc<Self> {
        let memory = Self::default();
        let root = Node {
            mode: DIRECTORY | 0o755,
            ..Node::default()
        };
        memory.state.lock().nodes.insert(ROOT_INODE, root);
        Arc::new(memory)
    }

    /// Waits until the state is as `condition` says.
    pub(crate) fn wait_until(&self, condition: impl Fn(&State) -> bool) {
        let mut state = self.state.lock();
        let is_late = self
            .changed
            .wait_while_for(
                &mut state,
                |state| !condition(state),
                Duration::from_secs(30),
            )
            .timed_out();
        assert!(!is_late, "the condition does not come true within 30 s");
    }

    pub(crate) fn of<T>(&self, query: impl FnOnce(&State) -> T) -> T {
        query(&self.state.lock())
    }
}

impl Handler for Memory {
    fn started(&self, terms: InitReply) {
        self.state.lock().terms = Some(terms);
    }

    fn handle(&self, request: Request<'_>, responder: Responder) {
        let mut state = self.state.lock();
        let inode = request.header.inode;
        match request.operation {
            Operation::SetLockWait(wanted) if state.is_free(inode, &wanted) => {
                responder.send(&state.set_lock(inode, wanted));
                state.grant();
            }
            Operation::SetLockWait(_) if responder.is_interrupted() => responder.fail(Errno::EINTR),
            Operation::SetLockWait(wanted) => {
                state
                    .waiting
                    .insert(responder.unique(), (inode, wanted, responder));
            }
            Operation::Read(read) => {
                let data = state.nodes.get(&inode).map_or(&[][..], |node| &node.data);
                let from = (read.offset as usize).min(data.len());
                let until = (from + read.size as usize).min(data.len());
                responder.send(&Reply::Data(&data[from..until]));
            }
            Operation::ReadDir(read) | Operation::ReadDirPlus(read) => {
                let with = matches!(request.operation, Operation::ReadDirPlus(_));
                let mut list = DirectoryList::new(read.size);
                state.list(inode, read.offset, with, &mut list);
                responder.send(&list.reply());
            }
            operation => match state.answer(&request, operation) {
                Ok(reply) => responder.send(&reply),
                Err(errno) => responder.fail(errno),
            },
        }
        self.changed.notify_all();
    }

    fn forget(&self, _inode: u64, lookups: u64) {
        self.state.lock().forgotten += lookups;
        self.changed.notify_all();
    }

    fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        // The kernel also interrupts the FLUSH of a process that was killed.
        if let Some((_, _, responder)) = state.waiting.remove(&unique) {
            state.interrupts += 1;
            responder.fail(Errno::EINTR);
        }
        self.changed.notify_all();
    }

    fn ended(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }
}

impl State {
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn styles(&self) -> Vec<LockStyle> {
        self.locks.iter().map(|(_, lock)| lock.style).collect()
    }

    fn answer(&mut self, request: &Request<'_>, operation: Operation<'_>) -> Answer {
        let (header, inode) = (request.header, request.header.inode);
        match operation {
            Operation::Lookup(name) => {
                let found = self
                    .node(inode)?
                    .entries
                    .get(name)
                    .copied()
                    .ok_or(Errno::ENOENT)?;
                Ok(Reply::Entry(self.entry(found)?))
            }
            Operation::GetAttr(_) => Ok(Reply::Attributes(
                self.entry(inode)?.attributes,
                Duration::ZERO,
            )),
            Operation::SetAttr(set) => {
                let node = self.nodes.get_mut(&inode).ok_or(Errno::ENOENT)?;
                if let Some(size) = set.size {
                    node.data.resize(size as usize, 0);
                }
                node.mode = set.mode.unwrap_or(node.mode);
                Ok(Reply::Attributes(
                    self.entry(inode)?.attributes,
                    Duration::ZERO,
                ))
            }
            Operation::MkDir { name, mode, .. } => {
                let node = Node {
                    mode: mode | DIRECTORY,
                    uid: header.uid,
                    gid: header.gid,
                    ..Node::default()
                };
                Ok(Reply::Entry(self.make(inode, name, node)?))
            }
            Operation::Create { name, mode, .. } => {
                let node = Node {
                    mode,
                    uid: header.uid,
                    gid: header.gid,
                    ..Node::default()
                };
                Ok(Reply::Created(self.make(inode, name, node)?, opened()))
            }
            Operation::Unlink(name) | Operation::RmDir(name) => {
                let directory = self.nodes.get_mut(&inode).ok_or(Errno::ENOENT)?;
                directory.entries.remove(name).ok_or(Errno::ENOENT)?;
                Ok(Reply::Done)
            }
            other => self.answer_content(inode, other),
        }
    }

    fn answer_content(&mut self, inode: u64, operation: Operation<'_>) -> Answer {
        match operation {
            Operation::Open { flags, .. } => {
                if flags & nix::libc::O_TRUNC as u32 != 0 {
                    self.nodes
                        .get_mut(&inode)
                        .ok_or(Errno::ENOENT)?
                        .data
                        .clear();
                }
                Ok(Reply::Opened(opened()))
            }
            Operation::OpenDir(_) => Ok(Reply::Opened(Opened::default())),
            Operation::Write(write) => {
                let data = &mut self.nodes.get_mut(&inode).ok_or(Errno::ENOENT)?.data;
                let is_append = write.flags & nix::libc::O_APPEND as u32 != 0;
                let from = if is_append {
                    data.len()
                } else {
                    write.offset as usize
                };
                data.resize(data.len().max(from + write.data.len()), 0);
                data[from..from + write.data.len()].copy_from_slice(write.data);
                Ok(Reply::Written(write.data.len() as u32))
            }
            Operation::StatFs => Ok(Reply::Usage(FileSystemUsage {
                block_bytes: 4096,
                name_bytes_max: 255,
                ..FileSystemUsage::default()
            })),
            other => self.answer_open(inode, other),
        }
    }

    fn answer_open(&mut self, inode: u64, operation: Operation<'_>) -> Answer {
        match operation {
            Operation::GetLock(wanted) => {
                let unlocked = FileLock {
                    kind: LockKind::Unlocked,
                    ..wanted.lock
                };
                let in_the_way = self
                    .in_the_way(inode, &wanted)
                    .map_or(unlocked, |held| held.lock);
                Ok(Reply::Lock(in_the_way))
            }
            Operation::SetLock(wanted) if self.is_free(inode, &wanted) => {
                let reply = self.set_lock(inode, wanted);
                self.grant();
                Ok(reply)
            }
            Operation::SetLock(_) => Err(Errno::EAGAIN),
            Operation::Flush { lock_owner, .. } => {
                self.drop_locks(inode, LockStyle::Posix, lock_owner);
                Ok(Reply::Done)
            }
            Operation::Release(release) => {
                if let Some(owner) = release.flock_owner {
                    self.drop_locks(inode, LockStyle::Flock, owner);
                }
                Ok(Reply::Done)
            }
            Operation::ReleaseDir(_) | Operation::FSync { .. } | Operation::FSyncDir { .. } => {
                Ok(Reply::Done)
            }
            Operation::StatX { .. } => {
                let extended = ExtendedAttributes {
                    basic: self.entry(inode)?.attributes,
                    mask: 0xfff,
                    btime: BORN,
                };
                Ok(Reply::ExtendedAttributes(extended, Duration::ZERO))
            }
            other => {
                self.unsupported.push(format!("{inode} {other:?}"));
                Err(Errno::EOPNOTSUPP)
            }
        }
    }

    fn node(&self, inode: u64) -> Result<&Node, Errno> {
        self.nodes.get(&inode).ok_or(Errno::ENOENT)
    }

    fn entry(&self, inode: u64) -> Result<Entry, Errno> {
        let node = self.node(inode)?;
        let attributes = Attributes {
            inode,
            size: node.data.len() as u64,
            mode: node.mode,
            links: 1,
            uid: node.uid,
            gid: node.gid,
            block_bytes: 4096,
            ..Attributes::default()
        };
        Ok(Entry {
            attributes,
            ..Entry::default()
        })
    }

    fn make(&mut self, directory: u64, name: &[u8], node: Node) -> Result<Entry, Errno> {
        let inode = self
            .nodes
            .keys()
            .next_back()
            .map_or(ROOT_INODE, |last| last + 1);
        let directory = self.nodes.get_mut(&directory).ok_or(Errno::ENOENT)?;
        directory.entries.insert(name.to_vec(), inode);
        self.nodes.insert(inode, node);
        self.entry(inode)
    }

    fn list(&self, inode: u64, from: u64, with: bool, list: &mut DirectoryList) {
        let entries = self
            .nodes
            .get(&inode)
            .into_iter()
            .flat_map(|node| &node.entries);
        for (index, (name, inode)) in entries.enumerate().skip(from as usize) {
            let Ok(found) = self.entry(*inode) else {
                continue;
            };
            let mode = found.attributes.mode;
            let entry = DirectoryEntry {
                inode: *inode,
                cookie: index as u64 + 1,
                mode,
                name,
            };
            let fits = if with {
                list.push_with(&found, entry)
            } else {
                list.push(entry)
            };
            if !fits {
                break;
            }
        }
    }

    fn in_the_way(&self, inode: u64, wanted: &LockRequest) -> Option<&LockRequest> {
        let of_inode = self
            .locks
            .iter()
            .filter(|(of, _)| *of == inode)
            .map(|(_, held)| held);
        of_inode.into_iter().find(|held| {
            held.style == wanted.style
                && held.owner != wanted.owner
                && held.lock.start <= wanted.lock.end
                && wanted.lock.start <= held.lock.end
                && (held.lock.kind == LockKind::Exclusive
                    || wanted.lock.kind == LockKind::Exclusive)
        })
    }

    fn is_free(&self, inode: u64, wanted: &LockRequest) -> bool {
        wanted.lock.kind == LockKind::Unlocked || self.in_the_way(inode, wanted).is_none()
    }

    /// Whole files only: a lock replaces all others of its owner.
    fn set_lock(&mut self, inode: u64, wanted: LockRequest) -> Reply<'static> {
        self.locks.retain(|(of, held)| {
            *of != inode || held.style != wanted.style || held.owner != wanted.owner
        });
        if wanted.lock.kind != LockKind::Unlocked {
            self.locks.push((inode, wanted));
        }
        Reply::Done
    }

    fn drop_locks(&mut self, inode: u64, style: LockStyle, owner: u64) {
        self.locks
            .retain(|(of, held)| *of != inode || held.style != style || held.owner != owner);
        self.grant();
    }

    fn grant(&mut self) {
        let free = |state: &Self| {
            let waiting = state.waiting.iter();
            let mut free = waiting.filter(|(_, (inode, wanted, _))| state.is_free(*inode, wanted));
            free.next().map(|(unique, _)| *unique)
        };
        while let Some(unique) = free(self) {
            let Some((inode, wanted, responder)) = self.waiting.remove(&unique) else {
                break;
            };
            responder.send(&self.set_lock(inode, wanted));
        }
    }
}

fn opened() -> Opened {
    Opened {
        handle: 1,
        flags: OPEN_DIRECT_IO,
    }
}
