//! Many starts on one disk: each ends in a death at some change to it, many with a loss of power beside.
//!
//! One start alone shows nothing of what the next one takes from the page cache for durable, so deaths and losses of
//! power are mixed over one directory here. What each start finds must be what the first so many updates
//! left, all that were acknowledged among them; and what it serves has become durable by that.
//!
//! A seed decides what is done and what happens to the disk, and not how the store's threads take turns: one that
//! failed may have to be run more than once. `SEEDS` says how many there are, `SEED` which one alone.

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

/// More than a start changes the disk by, without recovery.
const CHANGES_OF_A_START: u64 = 40;

/// What goes wrong beside deaths and losses of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    FailedSyncs,
    LittleRoom,
    /// The store is broken: it takes a name that it finds for durable.
    TrustedNames,
    /// The store is broken: it syncs no removal.
    TrustedRemovals,
}

/// The values of the items there are.
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

/// The items as a scan has them, which single reads agree with.
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

/// How a start ends early.
#[derive(Debug)]
enum End {
    /// The process has died.
    Death,
    /// It broke a promise.
    Broken(String),
}

struct Run {
    _directory: TempDir,
    data: PathBuf,
    disk: Disk,
    random: fastrand::Rng,
    trouble: Trouble,
    /// Of a journal segment, and of the journal between two checkpoints.
    sizes: (u64, u64),
    /// All that was acknowledged.
    durable: Items,
    /// What was done since, in order.
    since: Vec<Change>,
    /// Of the last change.
    incarnation: Incarnation,
    value: i64,
}

impl Run {
    fn new(seed: u64, trouble: Trouble) -> Self {
        let directory = directory();
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            // A first start makes more than one directory.
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

    /// Starts, works and dies again and again. Errors: the promise that was broken.
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
        // A first start may need more than there is.
        let has_begun = self.incarnation > Incarnation(0);
        if self.trouble == Trouble::LittleRoom && has_begun && random.u8(..3) > 0 {
            // As much as the ballast is for getting out of a full disk.
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
                // It is on its way back to the durable state.
                Err(_) if self.disk.has_failed() => self.serves(kv, None).await?,
                Err(error) => return Err(End::Broken(format!("{change:?}: {error}"))),
            }
        }
        Ok(())
    }

    /// A change was made; perhaps its durability is waited for.
    async fn made(
        &mut self,
        kv: &dyn KeyValue,
        change: Change,
        receipt: Receipt,
    ) -> Result<(), End> {
        if receipt.point.incarnation != self.incarnation {
            // The store has been back at its durable state since the change before.
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

    /// Waits until the store serves something durable, and holds that to what was done: to the first of the changes since the
    /// last that was acknowledged, and perhaps to `last`, which was made after some of those were lost.
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

    /// The changes that `items` are the result of.
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

    /// Waits for `point` to become durable; it may be lost where a sync has failed.
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

/// Segments in `data` that a start goes on in unless they are half full.
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
            run.disk.told()
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
fn many_starts_that_die_and_lose_power_lose_nothing_that_was_acknowledged() {
    none_is_broken(Trouble::None);
}

/// D1, D2, P3.
#[test]
fn many_starts_with_syncs_that_fail_lose_nothing_that_was_acknowledged() {
    none_is_broken(Trouble::FailedSyncs);
}

/// D1, D2, P6.
#[test]
fn many_starts_on_a_disk_with_little_room_lose_nothing_that_was_acknowledged() {
    none_is_broken(Trouble::LittleRoom);
}

/// The tests above would notice.
#[test]
fn a_store_that_takes_the_names_it_finds_for_durable_is_caught() {
    assert!(
        broken(0..200, Trouble::TrustedNames).next().is_some(),
        "losing writes went unnoticed"
    );
}

/// The tests above would notice.
#[test]
fn a_store_that_removes_a_segment_before_the_older_one_is_gone_for_good_is_caught() {
    assert!(
        broken(0..200, Trouble::TrustedRemovals).next().is_some(),
        "a gap went unnoticed"
    );
}

/// Starts on what is left of `disk`, which the last process left without its syncs, acknowledges a write and loses all that
/// is not durable then; what a start after that finds of it.
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

/// Has a start die in change number `dies_in`; whether it came to its end before.
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

/// D1: directories, the checkpoint store, the `format` record and the first segment have names that nobody may have synced.
#[test]
fn in_whatever_change_a_first_start_dies_the_next_one_keeps_what_it_acknowledges() {
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
                    disk.told()
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

/// What a start has kept of its write that goes on in a segment whose name its predecessor did not live to sync.
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
    // No checkpoint is made meanwhile: the first directory that is synced is the journal's, for a new segment.
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
fn a_segment_that_was_named_by_a_start_that_died_before_its_sync_keeps_what_is_acknowledged_in_it()
{
    let kept = block_on(go_on_in_an_unsynced_segment(Faults::default()));
    assert!(matches!(kept, Ok(Some(1))), "{kept:?}");
}

/// The test above would notice.
#[test]
fn a_start_that_does_not_sync_the_name_it_goes_on_under_is_caught() {
    let kept = block_on(go_on_in_an_unsynced_segment(Faults {
        trusts_names: true,
        ..Faults::default()
    }));
    assert!(
        !matches!(kept, Ok(Some(1))),
        "losing an acknowledged write went unnoticed"
    );
}
