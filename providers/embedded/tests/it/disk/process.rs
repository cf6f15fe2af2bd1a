//! The disk as a running process sees and changes it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use embedded::storage::{Storage, StorageFile};

use crate::whole_pages::WholePages;

use super::{Change, Completeness, Disk, File, NameChange, Named, State, broken, happens, name_of};

/// One process's view of the disk.
#[derive(Debug)]
pub(crate) struct Process {
    pub(super) disk: Disk,
    pub(super) life: u64,
}

#[derive(Debug)]
struct Opened {
    disk: Disk,
    life: u64,
    file: usize,
    path: PathBuf,
}

impl Process {
    fn change_name(&self, change: &NameChange) -> io::Result<()> {
        self.disk.change(
            self.life,
            || format!("{change:?}"),
            |state, completeness| {
                if completeness.is_done(&mut state.random) {
                    state.change_name(change.clone());
                }
            },
        )
    }

    fn named(&self, path: &Path) -> io::Result<Option<Named>> {
        Ok(self.disk.living(self.life)?.names.get(path).copied())
    }
}

impl Storage for Process {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        let known = self.named(path)?.and_then(Named::file);
        let file = if let Some(file) = known {
            file
        } else {
            let file = self.disk.state().new_file();
            self.change_name(&NameChange::Give(path.to_owned(), Named::File(file)))?;
            file
        };
        Ok(Arc::new(Opened {
            disk: self.disk.clone(),
            life: self.life,
            file,
            path: path.to_owned(),
        }))
    }

    fn open_direct(&self, path: &Path) -> Option<Arc<dyn StorageFile>> {
        let pages_max = self.disk.state().direct_pages_max?;
        let file = self.open(path).ok()?;
        Some(Arc::new(WholePages { file, pages_max }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let state = self.disk.living(self.life)?;
        Ok(state
            .names
            .keys()
            .filter(|path| path.parent() == Some(directory))
            .map(|path| name_of(path))
            .collect())
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        let root = self.disk.state().root.clone();
        let row: Vec<&Path> = directory
            .ancestors()
            .take_while(|above| *above != root)
            .collect();
        for directory in row.into_iter().rev() {
            if self.named(directory)?.is_none() {
                let made =
                    self.change_name(&NameChange::Give(directory.to_owned(), Named::Directory));
                if self.disk.state().names.contains_key(directory) {
                    fs::create_dir_all(directory)?;
                }
                made?;
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.named(from)?.ok_or(io::ErrorKind::NotFound)?;
        self.change_name(&NameChange::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.named(path)?.ok_or(io::ErrorKind::NotFound)?;
        self.change_name(&NameChange::Remove(path.to_owned()))
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let mut state = self.disk.living(self.life)?;
        let has_renamed = |(life, change): &(u64, NameChange)| {
            *life == self.life
                && matches!(change, NameChange::Rename(..))
                && change.is_in(directory)
        };
        if state.faults.trusts_names && !state.unsynced_names.iter().any(has_renamed) {
            return Ok(());
        }
        let mut mine = state
            .unsynced_names
            .iter()
            .filter(|(_, change)| change.is_in(directory))
            .peekable();
        if state.faults.trusts_removals
            && mine.peek().is_some()
            && mine
                .all(|(life, change)| *life == self.life && matches!(change, NameChange::Remove(_)))
        {
            return Ok(());
        }
        // The directories of objects are synced in the background, at no fixed time.
        if directory.ends_with("journal")
            && happens(&mut state.faults.dies_in_journal_directory_sync)
        {
            state.log(|| "died before it had synced the journal's directory".to_owned());
            self.disk.is_dead.send_replace(true);
            return Err(broken());
        }
        if happens(&mut state.faults.fails_directory_sync) {
            state.has_failed = true;
            state.log(|| format!("failed to sync {}", name_of(directory)));
            return Err(broken());
        }
        drop(state);
        self.disk.change(
            self.life,
            || format!("sync {}", name_of(directory)),
            |state, completeness| {
                if completeness.is_done(&mut state.random) {
                    state.sync_names(directory);
                }
            },
        )
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        let state = self.disk.living(self.life)?;
        match state.faults.capacity {
            0 => Ok(u64::MAX),
            capacity => Ok(capacity.saturating_sub(state.used())),
        }
    }
}

impl Opened {
    fn change(&self, change: &Change) -> io::Result<()> {
        {
            let state = self.disk.living(self.life)?;
            let longer = change
                .end()
                .saturating_sub(state.files[self.file].cached.len() as u64);
            let capacity = state.faults.capacity;
            if capacity > 0 && longer > 0 && state.used() + longer > capacity {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
        }
        self.disk.change(
            self.life,
            || format!("{change} {}", name_of(&self.path)),
            |state, completeness| {
                let change = match change {
                    Change::Write { offset, data } if completeness == Completeness::Unknown => {
                        let done = state.random.usize(..=data.len());
                        Change::Write {
                            offset: *offset,
                            data: data[..done].to_vec(),
                        }
                    }
                    whole => whole.clone(),
                };
                let file = &mut state.files[self.file];
                change.apply(&mut file.cached);
                file.unsynced.push(change);
            },
        )
    }
}

impl StorageFile for Opened {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.living(self.life)?.files[self.file].cached.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.living(self.life)?;
        let end = offset as usize + buffer.len();
        let read = state.files[self.file].cached.get(offset as usize..end);
        buffer.copy_from_slice(read.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.change(&Change::Write {
            offset,
            data: data.to_vec(),
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change(&Change::Resize(length))
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.change(&Change::Allocate(length))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.living(self.life)?;
        if happens(&mut state.faults.fails_sync) {
            state.has_failed = true;
            state.log(|| format!("failed to sync {}", name_of(&self.path)));
            let State { files, random, .. } = &mut *state;
            let File {
                durable, unsynced, ..
            } = &mut files[self.file];
            for change in unsynced.drain(..) {
                match change {
                    Change::Write { .. } => change.apply_partly(durable, random),
                    length => length.apply(durable),
                }
            }
            return Err(broken());
        }
        drop(state);
        self.disk.change(
            self.life,
            || format!("sync {}", name_of(&self.path)),
            |state, completeness| {
                if completeness.is_done(&mut state.random) {
                    state.sync(self.file);
                }
            },
        )
    }
}
