//! The calls of the service. It composes the parts, and has no state of its own.

mod abandoned;
mod changes;
mod stored;
#[cfg(test)]
mod tests;
mod uploads;

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use futures_util::{
    StreamExt as _,
    future::{OptionFuture, join, join3, join4},
    stream,
};
use parking_lot::Mutex;
use ports::{
    Clock, DurabilityPoint, Entropy, Instances, KeyValue,
    metering::function_memory::{FunctionMemoryMeter, FunctionMemoryUsage, MeteredInstances},
    objects::ObjectStore,
};
use primitives::Mutant;
use tokio::sync::mpsc;

use self::abandoned::UploadLimit;
pub use self::stored::Stored;
use crate::{
    Error, Result,
    adoption::Adoption,
    broken::Broken,
    buffer::{Buffer, BufferParts},
    buffers::Buffers,
    collector::{Collector, GRACE, Queue},
    durable::DurableFragments,
    erasure::Code,
    events::{Outbox, Subscribers},
    fragment::{Fragment, Segment, SegmentId, Shape, UNIT_BYTES},
    groups::{GroupOptions, Groups},
    holds::{Hold, Holds},
    instance::InstanceOptions,
    md5_lanes::Md5Pool,
    members::Members,
    migration::Migration,
    model::{
        Attributes, Body, Bucket, Conditions, Content, KEY_BYTES_MAX, List, Listing, Object,
        SEGMENT_BYTES_MAX,
    },
    reader::Reader,
    recovery::Recovery,
    residency::{Residency, Wanted},
    resumption::Resumption,
    sliding::Sliding,
    storage::{
        buckets, objects,
        own::{MemberId, Own},
        pending,
        rows::{ObjectRow, Place},
        table::{Found, Table},
    },
    warming::{WarmUps, Warming},
    window::{Cap, Options, Pace, Scaling},
    writer::{self, Writer},
};

/// The largest object that lies in its row. A larger one needs a put into the object store, whose
/// sync costs more than all else.
const INLINE_BYTES_MAX: u64 = 8 << 10;
/// The largest body without a length. It is collected in memory.
const UNSIZED_BYTES_MAX: usize = 16 << 20;
/// The buffers of all PUTs together: some 100 MB.
const BUFFERS_MAX: usize = 64;

/// What the service stands on.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The rows. One change of it spans partitions.
    pub key_value: Arc<dyn KeyValue>,
    /// The durable copies.
    pub objects: Arc<dyn ObjectStore>,
    /// The buffer before a distant store of the durable copies: a durable store on this machine, for
    /// this service alone. None: the durable copies are written at once.
    pub buffer: Option<Arc<dyn ObjectStore>>,
    /// The function memory.
    pub instances: Arc<dyn Instances>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
}

/// The settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The program of an instance and its arguments.
    pub command: Vec<String>,
    /// The environment of an instance.
    pub environment: BTreeMap<String, String>,
    /// The memory limit of an instance: its region for chunks and its program.
    pub instance_bytes: u64,
    /// The bound on the memory of all instances together.
    pub memory_bytes_max: u64,
    /// The percent of an instance's memory for chunks that stored objects never take, at most 90: the least
    /// that is left for cached ones. The rest of it up to 100 is HARDCAP.
    pub cache_percent: u8,
    /// The data units of a stripe.
    pub data_units: u8,
    /// The parity units of a stripe: the instances of a group that may be dead at a time.
    pub parity_units: u8,
    /// The bytes of a unit.
    pub unit_bytes: u32,
    /// The time between two steps of the window of function memory, at least 10 ms.
    pub gc_interval: Duration,
    /// The intervals in which new memory is active (M), at least 1.
    pub active_intervals: u32,
    /// The intervals in which it is degraded after that, before it is released (N).
    pub degraded_intervals: u32,
    /// How the window grows.
    pub scaling: Scaling,
    /// How instances are kept warm. None: the provider does not reclaim idle instances. The local ones
    /// are processes of the server, which end with it alone.
    pub warm_ups: Option<WarmUps>,
    /// The bytes in the buffer beyond which PUTs wait, and then fail.
    pub buffer_bytes_max: u64,
    /// The rule that tests break.
    pub mutant: Mutant<Broken>,
    /// How long an upload in parts may be open before it is aborted.
    pub upload_age_max: Duration,
    /// Whether other servers share the stores. Then call [`Service::join`] before requests are served.
    pub is_shared: bool,
}

impl Default for Config {
    /// 10+2 units, GC each 10 minutes, M = 6 and N = 12, as in `infinistore.txt`, section 6.1.1. The paper
    /// gives no number for the fraction that HARDCAP excludes (section 5.3.1).
    fn default() -> Self {
        Self {
            command: Vec::new(),
            environment: BTreeMap::new(),
            instance_bytes: 512 << 20,
            memory_bytes_max: 6 << 30,
            cache_percent: 5,
            data_units: 10,
            parity_units: 2,
            unit_bytes: UNIT_BYTES,
            gc_interval: Duration::from_mins(10),
            active_intervals: 6,
            degraded_intervals: 12,
            scaling: Scaling::Linear,
            warm_ups: None,
            buffer_bytes_max: 4 << 30,
            mutant: Mutant::NONE,
            upload_age_max: Duration::from_hours(7 * 24),
            is_shared: false,
        }
    }
}

/// The memory of an instance that is not for chunks: its program (`infinistore.txt`, section 5.3.1).
const OVERHEAD_BYTES: u64 = 16 << 20;
/// The most of an instance's memory for chunks that is kept from stored objects.
const CACHE_PERCENT_MAX: u8 = 90;
/// The requests on their way to an instance. Further chunks go to another group.
const REQUESTS_MAX: u32 = 256;
/// The shortest GC interval.
const GC_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// The rounds of compaction in a GC interval.
const ROUNDS: u32 = 10;
/// The fragments that wait for compaction. Further reads mark none.
const MARKS_MAX: usize = 10_000;

/// The memory service. Clones share it.
#[derive(Debug, Clone)]
pub struct Service {
    table: Table,
    shape: Shape,
    writer: Writer,
    reader: Reader,
    holds: Holds,
    garbage: Arc<Queue>,
    groups: Arc<Groups>,
    outbox: Arc<Outbox>,
    upload_limit: Arc<UploadLimit>,
    /// The servers of a shared store.
    members: Option<Arc<Members>>,
    background: Arc<Mutex<Option<Background>>>,
}

/// The work of [`Service::run`].
#[derive(Debug)]
struct Background {
    adoption: Option<Adoption>,
    collector: Collector,
    resumption: Resumption,
    migration: Migration,
    sliding: Sliding,
    warming: Warming,
    buffer: Option<Arc<Buffer>>,
    wanted: mpsc::Receiver<Wanted>,
    recovery: Recovery,
}

impl Service {
    /// Composes the service. It starts no instance before the first object.
    pub fn new(parts: Parts, config: &Config) -> Self {
        let mut table = Table {
            key_value: parts.key_value,
            clock: parts.clock,
            entropy: parts.entropy,
            mutant: config.mutant,
            own: None,
        };
        let members = config.is_shared.then(|| {
            let own = Arc::new(Own::new(MemberId(table.unique())));
            table.own = Some(Arc::clone(&own));
            Arc::new(Members::new(table.clone(), own))
        });
        let shape = Shape {
            data: config.data_units,
            parity: config.parity_units,
            unit_bytes: config.unit_bytes,
        };
        let options = group_options(config, shape);
        let clock = Arc::clone(&table.clock);
        let meter = FunctionMemoryMeter::new(Arc::clone(&clock));
        let instances = MeteredInstances::new(parts.instances, Arc::clone(&meter));
        let groups = Groups::new(Arc::new(instances), clock, options);
        let (residency, wanted) = Residency::new(Arc::clone(&groups), Arc::clone(&meter));
        let first = table.first_segment();
        let buffer = parts.buffer.map(|files| {
            Buffer::new(BufferParts {
                files,
                behind: Arc::clone(&parts.objects),
                clock: Arc::clone(&table.clock),
                entropy: Arc::clone(&table.entropy),
                first,
                bytes_max: config.buffer_bytes_max,
                mutant: config.mutant,
            })
        });
        let durable = DurableFragments::new(parts.objects, buffer, meter, first);
        let (writer, reader) = streams(shape, &durable, &residency);
        let service = Self {
            outbox: Arc::new(Outbox::new(table.clone())),
            table,
            shape,
            writer,
            reader,
            holds: Holds::default(),
            garbage: Arc::default(),
            groups,
            upload_limit: UploadLimit::new(config.upload_age_max),
            members,
            background: Arc::default(),
        };
        *service.background.lock() = Some(service.background(config, wanted));
        service
    }

    fn background(&self, config: &Config, wanted: mpsc::Receiver<Wanted>) -> Background {
        let (table, groups, holds) = (self.table.clone(), self.groups.clone(), self.holds.clone());
        let residency = Arc::clone(&self.reader.residency);
        let clock = Arc::clone(&table.clock);
        let migration = Migration {
            reader: self.reader.clone(),
            residency: Arc::clone(&residency),
            holds: holds.clone(),
        };
        Background {
            recovery: Recovery::new(
                self.reader.clone(),
                groups.clone(),
                holds.clone(),
                clock.clone(),
            ),
            resumption: Resumption {
                table: table.clone(),
                migration: migration.clone(),
                changes: Arc::clone(&residency.changes),
                hot: config.gc_interval * config.active_intervals,
            },
            sliding: Sliding {
                groups: Arc::clone(&groups),
                residency: Arc::clone(&residency),
                clock: Arc::clone(&clock),
                entropy: Arc::clone(&table.entropy),
                round: group_options(config, self.shape).window.pace.round,
            },
            warming: Warming {
                groups,
                clock,
                meter: Arc::clone(&self.reader.residency.meter),
                every: config.warm_ups,
            },
            adoption: self.members.as_ref().map(|members| Adoption {
                table: table.clone(),
                members: Arc::clone(members),
                garbage: Arc::clone(&self.garbage),
                outbox: Arc::clone(&self.outbox),
                mutant: config.mutant,
            }),
            collector: Collector {
                grace: match &self.members {
                    Some(_) if !config.mutant.breaks(Broken::CollectsAtOnce) => GRACE,
                    _ => Duration::ZERO,
                },
                table,
                durable: self.reader.durable.clone(),
                residency,
                holds,
                queue: Arc::clone(&self.garbage),
            },
            migration,
            buffer: self.writer.durable.buffer().cloned(),
            wanted,
        }
    }

    /// Resumes memory, collects garbage and abandoned uploads, loads fragments, recovers chunks, releases memory and
    /// empties the buffer, until it is dropped. The second call does nothing.
    pub async fn run(&self) {
        let Some(background) = self.background.lock().take() else {
            return;
        };
        let Background {
            adoption,
            collector,
            resumption,
            migration,
            sliding,
            warming,
            buffer,
            wanted,
            recovery,
        } = background;
        let uploads = self.collect_uploads();
        let moves = join(migration.load_wanted(wanted), recovery.run());
        let window = join3(sliding.run(), warming.run(), resumption.run());
        let collect = join3(collector.run(), uploads, self.outbox.run());
        let shared = async {
            if let (Some(members), Some(adoption)) = (&self.members, adoption) {
                join(members.run(), adoption.run()).await;
            }
        };
        let copies = OptionFuture::from(buffer.as_ref().map(|buffer| buffer.run()));
        let shared = join(shared, copies);
        join4(collect, moves, window, shared).await;
    }

    /// Becomes one of the servers of a shared store, which others reach at `address`. Call it before
    /// requests are served and before [`Self::run`]. It does nothing if the store is not shared.
    pub async fn join(&self, address: String) -> Result<()> {
        match &self.members {
            Some(members) => members.join(address).await,
            None => Ok(()),
        }
    }

    /// The address of the server that owns the key. None: this one. Only its memory should hold the
    /// object; any server may serve it.
    pub fn owner(&self, bucket: &str, key: &str) -> Option<String> {
        self.members.as_ref()?.owner(bucket, key)
    }

    /// Waits until the server at `address` owns no key any more.
    pub async fn lapsed(&self, address: &str) {
        if let Some(members) = &self.members {
            members.lapsed(address).await;
        }
    }

    /// Tells `subscribers` of changes from now on, once each is durable, at least once. Call it before
    /// [`Self::run`].
    pub fn subscribe(&self, subscribers: Arc<dyn Subscribers>) {
        self.outbox.subscribe(subscribers);
    }

    /// Ends all instances.
    pub fn end(&self) {
        self.groups.end();
    }

    /// Makes a bucket. Errors: `BucketExists`.
    pub async fn create_bucket(&self, bucket: &str) -> Result<()> {
        buckets::create(&self.table, bucket).await
    }

    /// Deletes an empty bucket. Errors: `NoSuchBucket`, `BucketNotEmpty`.
    pub async fn delete_bucket(&self, bucket: &str) -> Result<()> {
        self.clean_bucket(bucket).await?;
        buckets::delete(&self.table, bucket).await
    }

    /// The bucket. Errors: `NoSuchBucket`.
    pub async fn bucket(&self, bucket: &str) -> Result<Bucket> {
        buckets::get(&self.table, bucket).await
    }

    /// All buckets in the order of their names.
    pub async fn buckets(&self) -> Result<Vec<Bucket>> {
        buckets::list(&self.table).await
    }

    /// Stores a body of `bytes`. It is under no key yet.
    ///
    /// Errors: `Body` if it fails or has another length; `TooLarge`; `NoRoom`.
    pub async fn store(&self, bucket: &str, body: Body, bytes: Option<u64>) -> Result<Stored> {
        buckets::find(&self.table, bucket).await?;
        let (body, bytes) = if let Some(bytes) = bytes {
            (body, bytes)
        } else {
            let (whole, _) = writer::collect(body, UNSIZED_BYTES_MAX).await?;
            let bytes = whole.len() as u64;
            (Box::pin(stream::iter([Ok(whole)])) as Body, bytes)
        };
        if !self.table.key_value.has_room() {
            return Err(Error::NoRoom(
                "the store of rows is full; objects can be read and deleted".into(),
            ));
        }
        if bytes > SEGMENT_BYTES_MAX {
            return Err(Error::TooLarge("one PUT or part has at most 5 GiB"));
        }
        if bytes <= INLINE_BYTES_MAX {
            return Stored::inline(body, bytes).await;
        }
        self.store_segment(body, bytes).await
    }

    /// Runs to its end even if the caller leaves: the collector must not look at a segment while a put
    /// of it is under way. The body fails once its client is gone.
    async fn store_segment(&self, body: Body, bytes: u64) -> Result<Stored> {
        self.to_its_end(|service| async move { service.write_segment(body, bytes).await })
            .await
    }

    /// Runs `work` to its end, even if the caller leaves.
    async fn to_its_end<T: Send + 'static, F>(&self, work: impl FnOnce(Self) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let done = tokio::spawn(work(self.clone()));
        done.await
            .unwrap_or_else(|_| Err(Error::Unavailable("the server stops".into())))
    }

    async fn write_segment(&self, body: Body, bytes: u64) -> Result<Stored> {
        let segment = Segment {
            id: SegmentId(self.table.unique()),
            bytes,
            shape: self.shape,
        };
        let hold = self.holds.hold(segment.id);
        let hold = hold.ok_or_else(|| Error::Unavailable("an id was drawn twice".into()))?;
        let (id, noted) = pending::note(&self.table, segment).await?;
        let mut stored = Stored::segment(segment, id, hold, Arc::clone(&self.garbage));
        // The note is durable as soon as the content is: both are synced at the same time.
        let written = self.writer.write(segment, body);
        let (written, noted) = join(written, self.table.externalize(noted.point)).await;
        noted?;
        stored.set_md5(written?);
        Ok(stored)
    }

    /// Makes `stored` the object under `key` (M1). It is durable then.
    ///
    /// Errors: `NoSuchBucket`, `ConditionFailed`, `NoSuchObject` where an ETag was to match,
    /// `Contended`.
    pub async fn commit(
        &self,
        bucket: &str,
        key: &str,
        mut stored: Stored,
        attributes: Attributes,
        conditions: &Conditions,
    ) -> Result<Object> {
        let (bucket, key, conditions) = (bucket.to_owned(), key.to_owned(), conditions.clone());
        self.to_its_end(|service| async move {
            let row = ObjectRow {
                version: changes::version(&service.table),
                modified: service.table.now(),
                etag: stored.etag(),
                attributes,
                place: stored.place(),
            };
            let named = stored.pending();
            let named = named.map(|id| pending::remove(&service.table, id));
            let put = service.put_row(&bucket, &key, (row, stored.kind()), named, &conditions);
            let object = put.await?;
            stored.set_committed();
            Ok(object)
        })
        .await
    }

    /// The present version. Errors: `NoSuchBucket`, `NoSuchObject`.
    pub async fn head(&self, bucket: &str, key: &str) -> Result<Object> {
        let (found, point) = self.find(bucket, key).await?;
        self.table.externalize(point).await?;
        Ok(found.row.object(key))
    }

    /// The present version, ready to be read. Errors: `NoSuchBucket`, `NoSuchObject`.
    pub async fn open(&self, bucket: &str, key: &str) -> Result<Opened> {
        loop {
            let deletions = self.holds.deletions();
            let (found, _) = self.find(bucket, key).await?;
            let holds = self.hold_all(&found.row.place.segments);
            // A deletion may have come between the read and the hold.
            let (again, point) = if holds.is_some() && deletions == self.holds.deletions() {
                (found.clone(), self.table.key_value.point())
            } else {
                self.find(bucket, key).await?
            };
            let Some(holds) = holds.filter(|_| again.version == found.version) else {
                continue;
            };
            self.table.externalize(point).await?;
            return Ok(Opened {
                object: found.row.object(key),
                place: found.row.place,
                reader: self.reader.clone(),
                holds,
            });
        }
    }

    fn hold_all(&self, segments: &[Segment]) -> Option<Vec<Hold>> {
        if self.table.mutant.breaks(Broken::HoldsNothing) {
            return Some(Vec::new());
        }
        segments.iter().map(|one| self.holds.hold(one.id)).collect()
    }

    async fn find(&self, bucket: &str, key: &str) -> Result<(Found<ObjectRow>, DurabilityPoint)> {
        let bucket = buckets::find(&self.table, bucket).await?;
        let (found, point) = objects::read(&self.table, bucket.id, key).await?;
        if let Some(found) = found {
            return Ok((found, point));
        }
        self.table.externalize(point).await?;
        Err(Error::NoSuchObject)
    }

    /// One page of a bucket. Errors: `NoSuchBucket`.
    pub async fn list(&self, bucket: &str, list: &List) -> Result<Listing> {
        let bucket = buckets::find(&self.table, bucket).await?;
        objects::list(&self.table, bucket.id, list).await
    }

    /// The metered use of function memory.
    pub fn usage(&self) -> FunctionMemoryUsage {
        self.reader.residency.meter.usage()
    }

    /// The size of function memory.
    pub fn figures(&self) -> Figures {
        let groups = self.groups.figures();
        let buffer = self.writer.durable.buffer();
        let waiting = buffer.map(|buffer| buffer.waiting()).unwrap_or_default();
        Figures {
            instances: self.groups.instances_count(),
            fragments: self.reader.residency.count(),
            fragments_cached: self.reader.residency.cached_count(),
            groups_active: groups.active,
            groups_degraded: groups.degraded,
            groups_released: groups.released,
            fragments_refused: groups.refused,
            recoveries: groups.recoveries,
            buffered_fragments: waiting.fragments,
            buffered_bytes: waiting.bytes,
        }
    }
}

/// The size of function memory at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Instances.
    pub instances: usize,
    /// Fragments in memory.
    pub fragments: usize,
    /// Those of them that are cached: they make room for others.
    pub fragments_cached: usize,
    /// Groups of instances that are active.
    pub groups_active: usize,
    /// Groups that are degraded: they are released later, unless their fragments are read.
    pub groups_degraded: usize,
    /// Groups that were released since the start.
    pub groups_released: u64,
    /// Fragments since the start that had no place in memory, and are in the object store alone.
    pub fragments_refused: u64,
    /// Instances that were replaced since the start.
    pub recoveries: u64,
    /// Fragments in the buffer, which the object store does not have yet.
    pub buffered_fragments: usize,
    /// Bytes of the buffer that are used, with those of PUTs under way.
    pub buffered_bytes: u64,
}

/// The ways of content in and out.
fn streams(
    shape: Shape,
    durable: &DurableFragments,
    residency: &Arc<Residency>,
) -> (Writer, Reader) {
    let code = Arc::new(Code::new(shape.data.into(), shape.parity.into()));
    let largest = Segment {
        id: SegmentId(0),
        bytes: shape.stripe_bytes(),
        shape,
    };
    let stripe = largest.fragments().next().map_or(0, Fragment::stored_bytes);
    let writer = Writer {
        code: Arc::clone(&code),
        buffers: Buffers::new(BUFFERS_MAX, stripe as usize),
        durable: durable.clone(),
        residency: Arc::clone(residency),
        md5: Md5Pool::new(),
    };
    let reader = Reader {
        code,
        durable: durable.clone(),
        residency: Arc::clone(residency),
    };
    (writer, reader)
}

fn group_options(config: &Config, shape: Shape) -> GroupOptions {
    let group_bytes = config.instance_bytes * shape.total() as u64;
    let shared_bytes = config.instance_bytes.saturating_sub(OVERHEAD_BYTES);
    let gc_interval = config.gc_interval.max(GC_INTERVAL_MIN);
    let storage_percent = 100 - u64::from(config.cache_percent.min(CACHE_PERCENT_MAX));
    GroupOptions {
        window: Options {
            total: shape.total() as u8,
            cap: Cap {
                storage_bytes_max: shared_bytes / 100 * storage_percent,
                bytes_max: shared_bytes,
                requests_max: REQUESTS_MAX,
            },
            gc_interval,
            active_intervals: config.active_intervals.max(1),
            degraded_intervals: config.degraded_intervals,
            scaling: config.scaling,
            groups_max: (config.memory_bytes_max / group_bytes.max(1)) as usize,
            pace: Pace {
                round: gc_interval / ROUNDS,
                compaction_max: gc_interval / 2,
                marks_max: MARKS_MAX,
            },
        },
        instance: InstanceOptions {
            command: config.command.clone(),
            environment: config.environment.clone(),
            memory_bytes: config.instance_bytes,
            shared_bytes,
            mutant: config.mutant,
        },
    }
}

/// Checks a key. Errors: `TooLarge`.
fn check_key(key: &str) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::TooLarge("a key has 1 to 1024 bytes"));
    }
    Ok(())
}

/// A version of an object that can be read whatever happens to its key (M6).
#[derive(Debug)]
pub struct Opened {
    object: Object,
    place: Place,
    reader: Reader,
    holds: Vec<Hold>,
}

impl Opened {
    /// The version.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Its bytes in `range`, which lies inside of it.
    pub fn read(self, range: Range<u64>) -> Content {
        let Place { segments, rest } = self.place;
        let stored: u64 = segments.iter().map(|segment| segment.bytes).sum();
        let rest = rest.slice(
            range.start.saturating_sub(stored) as usize..range.end.saturating_sub(stored) as usize,
        );
        let rest = stream::iter((!rest.is_empty()).then_some(Ok(rest)));
        if segments.is_empty() {
            return Box::pin(rest);
        }
        let range = range.start.min(stored)..range.end.min(stored);
        Box::pin(self.reader.read(segments, range, self.holds).chain(rest))
    }
}
