//! Many starts on one disk. Each ends in a crash at some change to the disk, and many in a power
//! loss as well.
//!
//! A single start cannot show that the next one takes unsynced data in the page cache for durable.
//! These tests therefore mix crashes and power losses over one directory. Each start must find the
//! result of the first n updates, for some n that includes all acknowledged ones. Data that a start
//! serves must have become durable.
//!
//! A seed decides the updates and the faults, but not the schedule of the store's threads. A failed
//! seed may therefore need several runs. `SEEDS` sets the number of seeds, and `SEED` selects one.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use embedded::{Config, Embedded, OpenError};
use ports::{
    DurabilityPoint, Error, ErrorKind, Incarnation, Key, KeyValue, Receipt, Update,
    key_value::{Action, Scan, Transacted},
};
use tempfile::TempDir;

use crate::{
    child::no_crash_makes_it_shorter,
    disk::{Disk, Faults, Unsynced},
    world::{block_on, directory, durably, found, put, value},
};

const PARTITION: &str = "many";
const ITEMS: u8 = 40;
const BLOB_BYTES_MAX: usize = 3_000;

/// How often a directory is opened.
const STARTS: usize = 12;

/// More than the changes to the disk of a start, without recovery.
const CHANGES_OF_A_START: u64 = 40;

/// The faults beside crashes and power losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    FailedSyncs,
    LittleRoom,
    /// The store is broken: it takes a name that it finds for durable.
    TrustedNames,
    /// The store is broken: it does not sync removals.
    TrustedRemovals,
}

/// The values of the existing items.
type Items = BTreeMap<u8, i64>;

#[derive(Debug, Clone, Copy)]
enum Change {
    Put(u8, i64),
    PutBoth(u8, u8, i64),
    Delete(u8),
}

impl Change {
    fn any(random: &mut fastrand::Rng, value: i64) -> Self {
        let item = random.u8(..ITEMS);
        match random.u8(..8) {
            0 | 1 => Self::Delete(item),
            2 => Self::PutBoth(item, (item + 1) % ITEMS, value),
            _ => Self::Put(item, value),
        }
    }

    fn apply(self, items: &mut Items) {
        match self {
            Self::Put(item, value) => {
                items.insert(item, value);
            }
            Self::PutBoth(left, right, value) => {
                items.insert(left, value);
                items.insert(right, value);
            }
            Self::Delete(item) => {
                items.remove(&item);
            }
        }
    }

    async fn make(self, kv: &dyn KeyValue, blob_bytes: usize) -> Result<Receipt, Error> {
        let put = |item, value: i64| {
            let blob = Bytes::from(vec![value as u8; blob_bytes]);
            let actions = vec![
                Action::set_integer("value", value),
                Action::set("blob", blob),
            ];
            Update::modify(key(item), actions)
        };
        match self {
            Self::Put(item, value) => Ok(kv.update(put(item, value)).await?.receipt),
            Self::Delete(item) => Ok(kv.update(Update::delete(key(item))).await?.receipt),
            Self::PutBoth(left, right, value) => {
                match kv
                    .transact(vec![put(left, value), put(right, value)])
                    .await?
                {
                    Transacted::Done { receipt, .. } => Ok(receipt),
                    conflict @ Transacted::Conflict { .. } => panic!("{conflict:?}"),
                }
            }
        }
    }
}

fn key(item: u8) -> Key {
    Key::new(PARTITION, [item])
}

/// The items by a scan, after a check that single reads agree.
async fn read(kv: &dyn KeyValue) -> Result<Items, Error> {
    let mut items = Items::new();
    for (sort, item) in kv
        .scan(&Scan::partition(PARTITION, 1 + usize::from(ITEMS)))
        .await?
        .value
        .items
    {
        let value = item.integer("value").expect("every item has one");
        let blob = item.bytes("blob").expect("every item has one");
        assert!(
            blob.iter().all(|byte| *byte == value as u8),
            "torn: {item:?}"
        );
        items.insert(sort[0], value);
    }
    for item in 0..ITEMS {
        let single = kv
            .get(&key(item))
            .await?
            .value
            .and_then(|item| item.integer("value"));
        assert_eq!(
            single,
            items.get(&item).copied(),
            "a read and a scan differ at {item}"
        );
    }
    Ok(items)
}

/// Why a start ended early.
#[derive(Debug)]
enum End {
    /// The process died.
    Death,
    /// The store broke a promise.
    Broken(String),
}

struct Run {
    _directory: TempDir,
    data: PathBuf,
    disk: Disk,
    random: fastrand::Rng,
    trouble: Trouble,
    /// The sizes of a journal segment, and of the journal between two checkpoints.
    sizes: (u64, u64),
    /// The result of all acknowledged changes.
    durable: Items,
    /// The changes since then, in order.
    since: Vec<Change>,
    /// The incarnation of the last change.
    incarnation: Incarnation,
    value: i64,
}

impl Run {
    fn new(seed: u64, trouble: Trouble) -> Self {
        let directory = directory();
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            // A first start creates more than one directory.
            data: directory.path().join("volume/store"),
            disk: Disk::new(directory.path(), random.u64(..)),
            _directory: directory,
            sizes: (random.u64(16..64) << 10, random.u64(20..80) << 10),
            random,
            trouble,
            durable: Items::new(),
            since: Vec::new(),
            incarnation: Incarnation(0),
            value: 0,
        }
    }

    /// Starts, works and dies repeatedly. Errors: the broken promise.
    async fn starts(&mut self) -> Result<(), String> {
        for _ in 0..STARTS {
            if let Err(End::Broken(how)) = self.start().await {
                return Err(how);
            }
            if self.random.bool() {
                self.disk.lose_power(Unsynced::Some);
            }
        }
        Ok(())
    }

    async fn start(&mut self) -> Result<(), End> {
        let storage = Arc::new(self.disk.process());
        let (journal_segment_bytes, checkpoint_bytes) = self.sizes;
        let config = Config {
            storage,
            journal_segment_bytes,
            checkpoint_bytes,
            ..small(&self.data)
        };
        let dies_early = self.random.u8(..4) == 0;
        let faults = self.faults_of_opening(dies_early);
        self.disk.set_faults(faults);
        let store = match Embedded::open(config).await {
            Ok(store) => store,
            Err(_) if self.disk.is_dead() || self.disk.has_failed() => return Err(End::Death),
            Err(error) => return Err(End::Broken(format!("refuses to open: {error}"))),
        };
        no_crash_makes_it_shorter(&store).map_err(End::Broken)?;
        let kv = store.key_value();
        let mut ended = self.serves(&*kv, None).await;
        if ended.is_ok() {
            if !dies_early {
                let faults = self.faults_of_working(faults);
                self.disk.set_faults(faults);
            }
            ended = self.work(&*kv).await;
        }
        if self.random.u8(..3) == 0 && ended.is_ok() {
            store.close().await;
            if !self.disk.is_dead() && self.trouble == Trouble::None {
                self.acknowledged();
            }
        }
        self.disk.kill();
        ended
    }

    fn faults_of_opening(&mut self, dies_early: bool) -> Faults {
        let random = &mut self.random;
        let (trusts_names, trusts_removals) = (
            self.trouble == Trouble::TrustedNames,
            self.trouble == Trouble::TrustedRemovals,
        );
        let mut faults = Faults {
            trusts_names,
            trusts_removals,
            ..Faults::default()
        };
        if dies_early {
            faults.dies_in = random.u64(1..=CHANGES_OF_A_START);
        }
        if self.trouble == Trouble::FailedSyncs && random.u8(..4) == 0 {
            faults.fails_sync = random.u64(..8);
            faults.fails_directory_sync = random.u64(..8);
        }
        // A first start may need more room than there is.
        let has_begun = self.incarnation > Incarnation(0);
        if self.trouble == Trouble::LittleRoom && has_begun && random.u8(..3) > 0 {
            // Room for the ballast, which gets the store out of a full disk.
            faults.capacity = self.disk.used_beside("ballast") + (1 << 20) + random.u64(1..200_000);
        }
        faults
    }

    fn faults_of_working(&mut self, mut faults: Faults) -> Faults {
        let random = &mut self.random;
        if random.u8(..8) > 0 {
            faults.dies_in = random.u64(1..400);
        }
        if random.u8(..3) == 0 {
            faults.dies_in_journal_directory_sync = random.u64(1..8);
        }
        if self.trouble == Trouble::FailedSyncs {
            faults.fails_sync = random.u64(..100);
            faults.fails_directory_sync = random.u64(..10);
        }
        faults
    }

    async fn work(&mut self, kv: &dyn KeyValue) -> Result<(), End> {
        for _ in 0..self.random.usize(..120) {
            self.value += 1;
            let change = Change::any(&mut self.random, self.value);
            match change.make(kv, self.random.usize(..BLOB_BYTES_MAX)).await {
                Ok(receipt) => self.made(kv, change, receipt).await?,
                Err(_) if self.disk.is_dead() => return Err(End::Death),
                Err(error)
                    if error.kind() == ErrorKind::NoRoom && self.trouble != Trouble::None => {}
                // The store is returning to its durable state.
                Err(_) if self.disk.has_failed() => self.serves(kv, None).await?,
                Err(error) => return Err(End::Broken(format!("{change:?}: {error}"))),
            }
        }
        Ok(())
    }

    /// Notes a change, and sometimes waits for its durability.
    async fn made(
        &mut self,
        kv: &dyn KeyValue,
        change: Change,
        receipt: Receipt,
    ) -> Result<(), End> {
        if receipt.point.incarnation != self.incarnation {
            // The store has returned to its durable state since the change before.
            return self.serves(kv, Some(change)).await;
        }
        self.since.push(change);
        if self.random.u8(..3) > 0 {
            return Ok(());
        }
        if self.is_durable(kv, receipt.point).await? {
            self.acknowledged();
            return Ok(());
        }
        self.serves(kv, None).await
    }

    /// Waits until the store serves a durable state, and compares it with the changes. It must be
    /// the result of the first n changes since the last acknowledged one. `last`, which was made
    /// after some of those were lost, may follow.
    async fn serves(&mut self, kv: &dyn KeyValue, last: Option<Change>) -> Result<(), End> {
        loop {
            let disk = self.disk.clone();
            let look = async || match read(kv).await {
                Ok(items) => Some(Ok(items)),
                Err(_) if disk.is_dead() => Some(Err(End::Death)),
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable { .. }) => None,
                Err(error) => Some(Err(End::Broken(format!("cannot be read: {error}")))),
            };
            let point = kv.point();
            let items = found("the store serves", look).await?;
            self.since = self.held(&items, last).map_err(End::Broken)?;
            if self.is_durable(kv, point).await? {
                self.acknowledged();
                self.incarnation = point.incarnation;
                return Ok(());
            }
        }
    }

    /// The changes that produce `items`.
    fn held(&self, items: &Items, last: Option<Change>) -> Result<Vec<Change>, String> {
        let mut state = self.durable.clone();
        let mut held = None;
        for count in 0..=self.since.len() {
            if count > 0 {
                self.since[count - 1].apply(&mut state);
            }
            let changes = || self.since[..count].iter().copied();
            if state == *items {
                held = Some(changes().collect());
            }
            let mut with_last = state.clone();
            if let Some(last) = last {
                last.apply(&mut with_last);
                if with_last == *items {
                    held = Some(changes().chain([last]).collect());
                }
            }
        }
        let (durable, since) = (&self.durable, &self.since);
        held.ok_or_else(|| {
            format!("serves {items:?} where {durable:?} was acknowledged, and then came {since:?}, {last:?}")
        })
    }

    fn acknowledged(&mut self) {
        for change in std::mem::take(&mut self.since) {
            change.apply(&mut self.durable);
        }
    }

    /// Waits until `point` is durable. After a failed sync it may be lost.
    async fn is_durable(&self, kv: &dyn KeyValue, point: DurabilityPoint) -> Result<bool, End> {
        tokio::select! {
            biased;
            answer = kv.externalize(point) => match answer {
                Ok(()) => Ok(true),
                Err(_) if self.disk.is_dead() => Err(End::Death),
                Err(error) if error.kind() == ErrorKind::Lost && self.disk.has_failed() => Ok(false),
                Err(error) => Err(End::Broken(format!("wait for {point:?}: {error}"))),
            },
            () = self.disk.death() => Err(End::Death),
        }
    }
}

/// A configuration of `data` in which a start continues in the last segment unless it is half full.
pub(crate) fn small(data: &Path) -> Config {
    Config {
        journal_segment_bytes: 48 << 10,
        cache_bytes: 1 << 16,
        ..Config::new(data)
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The runs that broke a promise.
fn broken(seeds: impl IntoIterator<Item = u64>, trouble: Trouble) -> impl Iterator<Item = String> {
    seeds.into_iter().filter_map(move |seed| {
        let mut run = Run::new(seed, trouble);
        let how = block_on(run.starts()).err()?;
        Some(format!(
            "SEED={seed} with {trouble:?}, after\n{}: {how}",
            run.disk.trace()
        ))
    })
}

fn none_is_broken(trouble: Trouble) {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(15),
    };
    if let Some(first) = broken(seeds, trouble).next() {
        panic!("{first}");
    }
}

/// D1, D2, K1, K5.
#[test]
fn many_starts_with_crashes_and_power_losses_lose_nothing_acknowledged() {
    none_is_broken(Trouble::None);
}

/// D1, D2, P3.
#[test]
fn many_starts_with_failed_syncs_lose_nothing_acknowledged() {
    none_is_broken(Trouble::FailedSyncs);
}

/// D1, D2, P6.
#[test]
fn many_starts_on_a_disk_with_little_room_lose_nothing_acknowledged() {
    none_is_broken(Trouble::LittleRoom);
}

/// The tests above detect this.
#[test]
fn a_store_that_takes_the_names_it_finds_for_durable_is_caught() {
    assert!(
        broken(0..200, Trouble::TrustedNames).next().is_some(),
        "losing writes went unnoticed"
    );
}

/// The tests above detect this.
#[test]
fn a_store_that_removes_a_segment_before_the_older_one_is_durably_gone_is_caught() {
    assert!(
        broken(0..200, Trouble::TrustedRemovals).next().is_some(),
        "a gap went unnoticed"
    );
}

/// Starts on `disk` after a process that left unsynced data, acknowledges a write, and loses all
/// data that is not durable. Returns the value that the next start finds.
async fn start_and_lose_power(
    disk: &Disk,
    data: &Path,
    faults: Faults,
) -> Result<Option<i64>, OpenError> {
    let storage = Arc::new(disk.process());
    disk.set_faults(faults);
    let store = Embedded::open(Config {
        storage,
        ..small(data)
    })
    .await?;
    durably(&store.key_value(), put("acknowledged", 1)).await;
    disk.kill();
    drop(store);
    disk.lose_power(Unsynced::None);
    let store = Embedded::open(Config {
        storage: Arc::new(disk.process()),
        ..small(data)
    })
    .await?;
    Ok(value(&store.key_value(), "acknowledged").await)
}

/// Lets a start die in change number `dies_in`. Returns whether the start was complete before that.
async fn start_and_die(disk: &Disk, data: &Path, dies_in: u64) -> bool {
    let storage = Arc::new(disk.process());
    disk.set_faults(Faults {
        dies_in,
        ..Faults::default()
    });
    let store = Embedded::open(Config {
        storage,
        ..small(data)
    })
    .await;
    disk.kill();
    store.is_ok()
}

/// D1: the names of the directories, the checkpoint store, the `format` record and the first
/// segment may never have been synced.
#[test]
fn a_first_start_may_die_in_any_change_and_the_next_one_keeps_its_acknowledged_writes() {
    block_on(async {
        for dies_in in 1.. {
            let mut is_over = true;
            for seed in 0..number("SEEDS").unwrap_or(1) {
                let directory = directory();
                let data = directory.path().join("volume/store");
                let disk = Disk::new(directory.path(), 1_000 * seed + dies_in);
                is_over &= start_and_die(&disk, &data, dies_in).await;
                let kept = start_and_lose_power(&disk, &data, Faults::default()).await;
                assert!(
                    matches!(kept, Ok(Some(1))),
                    "change {dies_in}, seed {seed}: {kept:?}\n{}",
                    disk.trace()
                );
            }
            if is_over {
                assert!(
                    dies_in > CHANGES_OF_A_START / 2,
                    "the start was over after {dies_in} changes"
                );
                return;
            }
        }
    });
}

/// Starts in a segment whose name the process before did not live to sync. Returns the value that
/// survives.
async fn go_on_in_an_unsynced_segment(faults: Faults) -> Result<Option<i64>, OpenError> {
    let directory = directory();
    let (disk, data) = (
        Disk::new(directory.path(), 1),
        directory.path().join("store"),
    );
    let store = Embedded::open(Config {
        storage: Arc::new(disk.process()),
        ..small(&data)
    })
    .await?;
    let kv = store.key_value();
    // No checkpoint runs meanwhile, so the first directory sync is that of the journal, for a new
    // segment.
    disk.set_faults(Faults {
        dies_in_journal_directory_sync: 1,
        ..Faults::default()
    });
    let fill = async {
        loop {
            durably(&kv, put("filling", 0)).await;
        }
    };
    tokio::select! {
        biased;
        () = disk.death() => {}
        () = fill => {}
    }
    drop((store, kv));
    start_and_lose_power(&disk, &data, faults).await
}

/// D1.
#[test]
fn a_segment_whose_name_was_never_synced_keeps_acknowledged_writes() {
    let kept = block_on(go_on_in_an_unsynced_segment(Faults::default()));
    assert!(matches!(kept, Ok(Some(1))), "{kept:?}");
}

/// The test above detects this.
#[test]
fn a_start_that_does_not_sync_the_name_of_its_segment_is_caught() {
    let kept = block_on(go_on_in_an_unsynced_segment(Faults {
        trusts_names: true,
        ..Faults::default()
    }));
    assert!(
        !matches!(kept, Ok(Some(1))),
        "losing an acknowledged write went unnoticed"
    );
}
