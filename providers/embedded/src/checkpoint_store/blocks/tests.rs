//! The two heads under power losses and failed syncs.

use std::ops::Range;

use super::*;

const SALT: u32 = 7;

/// The byte that fills a torn write.
const TORN: u8 = 0xa5;

/// A file whose unsynced writes a power loss destroys.
#[derive(Debug, Default)]
struct Fragile(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    cached: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Range<usize>>,
    /// The power fails after this many writes and syncs; none: never.
    ends_in: Option<usize>,
    /// The sync after this many others fails, and its data stays clean in the page cache but never
    /// reaches the disk.
    fails_in: Option<usize>,
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        match &mut self.ends_in {
            Some(0) => return Err(broken()),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }
}

impl Fragile {
    fn lose_power(&self) {
        let mut state = self.0.lock();
        for range in std::mem::take(&mut state.unsynced) {
            state.durable[range].fill(TORN);
        }
        state.cached = state.durable.clone();
        state.ends_in = None;
    }
}

impl StorageFile for Fragile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().cached.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let offset = offset as usize;
        buffer.copy_from_slice(&self.0.lock().cached[offset..offset + buffer.len()]);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step()?;
        let range = offset as usize..offset as usize + data.len();
        state.cached[range.clone()].copy_from_slice(data);
        state.unsynced.push(range);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.cached.resize(length as usize, 0);
        state.durable.resize(length as usize, 0);
        Ok(())
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step()?;
        let unsynced = std::mem::take(&mut state.unsynced);
        state.fails_in = state.fails_in.map(|syncs| syncs - 1);
        if state.fails_in == Some(0) {
            state.fails_in = None;
            return Err(broken());
        }
        for range in unsynced {
            let State {
                cached, durable, ..
            } = &mut *state;
            durable[range.clone()].copy_from_slice(&cached[range]);
        }
        Ok(())
    }
}

fn file() -> Arc<Fragile> {
    Arc::default()
}

fn create(file: &Arc<Fragile>) -> Blocks {
    let blocks = Blocks::create(
        Arc::clone(file) as Arc<dyn StorageFile>,
        Path::new("f"),
        SALT,
    );
    let blocks = blocks.expect("there is power");
    blocks.set_len(BLOCK_BYTES as u64).expect("there is power");
    blocks
}

fn open(file: &Arc<Fragile>) -> io::Result<Blocks> {
    Blocks::open(
        Arc::clone(file) as Arc<dyn StorageFile>,
        Path::new("f"),
        SALT,
        Writes::Kept,
    )
}

/// Commits a head with the content `number`.
fn commit(blocks: &Blocks, number: u8) -> io::Result<()> {
    blocks.write(0, &[number; 100])?;
    blocks.sync_data()
}

fn number(blocks: &Blocks) -> u8 {
    let mut head = [0];
    blocks.read(0, &mut head).expect("the head is in memory");
    head[0]
}

/// Loses power after `steps` more changes. Returns the last head committed or served by then;
/// `last` if there was none.
fn commit_until_power_is_lost(file: &Arc<Fragile>, steps: usize, last: u8) -> u8 {
    file.0.lock().ends_in = Some(steps);
    let mut last = last;
    if let Ok(blocks) = open(file) {
        last = number(&blocks);
        for number in last + 1..=last + 2 {
            match commit(&blocks, number) {
                Ok(()) => last = number,
                Err(_) => break,
            }
        }
    }
    file.lose_power();
    last
}

/// P6, D1: this holds even if another power loss cuts each start short.
#[test]
fn one_of_the_two_heads_is_whole_whenever_power_is_lost() {
    const STEPS_MAX: usize = 14;
    for first in 0..STEPS_MAX {
        for second in 0..STEPS_MAX {
            for third in 0..STEPS_MAX {
                let file = file();
                let blocks = create(&file);
                commit(&blocks, 1).expect("there is power");
                drop(blocks);
                let mut last = 1;
                for steps in [first, second, third] {
                    last = commit_until_power_is_lost(&file, steps, last);
                    let whole = open(&file).map(|blocks| number(&blocks));
                    let lost = (first, second, third);
                    assert!(
                        whole.as_ref().is_ok_and(|whole| *whole >= last),
                        "{lost:?}: {last}, {whole:?}"
                    );
                    file.lose_power();
                }
            }
        }
    }
}

/// D1: after a failed sync the page cache has the head and the disk does not.
#[test]
fn a_head_whose_sync_failed_is_durable_before_it_is_served() {
    let file = file();
    let blocks = create(&file);
    for number in 1..=2 {
        commit(&blocks, number).expect("there is power");
    }
    // The first sync covers what precedes the head.
    file.0.lock().fails_in = Some(2);
    commit(&blocks, 3).expect_err("its sync fails");
    drop(blocks);
    let served = number(&open(&file).expect("it opens"));
    assert_eq!(served, 3, "the page cache has it");
    file.lose_power();
    assert_eq!(number(&open(&file).expect("it opens")), served);
}
