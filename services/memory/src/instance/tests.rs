//! Instances in the simulated provider, which run the real loop of function memory.

use std::{
    pin::pin,
    sync::atomic::{AtomicU32, AtomicUsize},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, future::select, stream};
use parking_lot::Mutex;
use ports::{ErrorKind, instances::Death};
use simulated::{
    World,
    instances::{End, Inside, Program},
    percent, run,
};

use super::*;
use crate::function::{CHUNKS_PER_REMOVAL_MAX, Function, PAGE_BYTES, Request, Wire, serve};

const PAGES: u64 = 512;

/// A channel as a simulated instance sees it; `twist` changes what goes through.
struct Twisted<T> {
    end: End,
    twist: Arc<T>,
}

/// The faults of an instance.
#[async_trait]
trait Twist: Send + Sync + 'static {
    /// Called with each request; none: the instance closes the channel instead.
    async fn receive(&self, request: Bytes) -> Option<Bytes> {
        Some(request)
    }
    /// The reply that is sent instead.
    fn reply(&self, reply: Bytes) -> Bytes {
        reply
    }
}

#[async_trait]
impl<T: Twist> Wire for Twisted<T> {
    async fn receive(&self) -> Option<Bytes> {
        let request = self.end.receive().await?;
        self.twist.receive(request).await
    }
    async fn send(&self, message: Bytes) -> bool {
        self.end.send(self.twist.reply(message)).await
    }
}

/// The program of function memory, with a twist.
fn program<T: Twist>(twist: T) -> Program {
    let twist = Arc::new(twist);
    Arc::new(move |inside: Inside| {
        let twist = Arc::clone(&twist);
        Box::pin(async move {
            let environment = inside.spec.environment.clone();
            let function = Function::from_environment(|name| environment.get(name).cloned());
            let function = function.expect("the daemon sets it");
            let wires = stream::unfold(inside, |mut inside| async move {
                Some((inside.accept().await?, inside))
            });
            let wires = wires.map(|end| Twisted {
                end,
                twist: Arc::clone(&twist),
            });
            serve(&function, wires).await;
            Death::Exited(0)
        })
    })
}

struct Honest;
impl Twist for Honest {}

fn name(index: u8) -> ChunkName {
    ChunkName {
        segment: 5,
        fragment: 0,
        index,
    }
}

fn options() -> InstanceOptions {
    InstanceOptions {
        command: vec!["function".to_owned()],
        memory_bytes: 1 << 20,
        shared_bytes: PAGES * PAGE_BYTES,
        ..InstanceOptions::default()
    }
}

async fn try_start(world: &World, program: Program) -> ports::Result<Arc<Instance>> {
    let instances = world.instances(program);
    Instance::start(
        &instances,
        &options(),
        InstanceId(4),
        Epoch(77),
        world.clock(),
    )
    .await
}

async fn start(world: &World, program: Program) -> Arc<Instance> {
    try_start(world, program).await.expect("it starts")
}

async fn put(instance: &Arc<Instance>, content: &[u8]) -> HeldChunk {
    let slot = instance.reserve(name(0), content.len() as u64).await;
    let slot = slot.expect("there is space");
    slot.write(0, content).expect("it is alive");
    slot.seal().await.expect("it is alive")
}

fn content(chunk: &HeldChunk) -> ports::Result<Vec<u8>> {
    let mut content = vec![0; chunk.bytes() as usize];
    chunk.read(0, &mut content)?;
    Ok(content)
}

fn is_unavailable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable { .. })
}

/// Waits until the instance uses so many pages. Each wait is a round trip, after which removals
/// that were queued before have been sent.
async fn until_used(instance: &Arc<Instance>, pages: u64) {
    for _ in 0..1000 {
        if instance.used_bytes() == pages * PAGE_BYTES {
            return;
        }
        let counts = instance.link.call(Lane::Small, Call::Counts).await;
        counts.expect("it is alive");
    }
    panic!("it uses {} bytes", instance.used_bytes());
}

#[test]
fn a_chunk_is_read_as_it_was_written() {
    run(async {
        let instance = start(&World::new(1), program(Honest)).await;
        assert_eq!(instance.id(), InstanceId(4));
        assert_eq!(instance.capacity_bytes(), PAGES * PAGE_BYTES);
        assert_eq!(instance.used_bytes(), 0);
        let small = put(&instance, b"small").await;
        let large = vec![7; (1 << 20) + 1];
        let large_chunk = put(&instance, &large).await;
        assert_eq!(content(&small).expect("alive"), b"small");
        assert!(content(&large_chunk).expect("alive") == large);
        assert_eq!(instance.used_bytes(), (1 + 257) * PAGE_BYTES);
        assert_eq!(small.instance().id(), instance.id());
        let mut part = [0; 3];
        small.read(2, &mut part).expect("inside");
        assert_eq!(&part, b"all");
        for offset in [3, 6, u64::MAX] {
            let error = small.read(offset, &mut part).expect_err("outside");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{offset}");
        }
    });
}

#[test]
fn a_write_outside_of_the_chunk_is_refused() {
    run(async {
        let instance = start(&World::new(1), program(Honest)).await;
        let slot = instance.reserve(name(0), 10).await.expect("space");
        for offset in [9, 11, u64::MAX] {
            let error = slot.write(offset, b"ab").expect_err("outside");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{offset}");
        }
        slot.write(8, b"ab").expect("inside");
    });
}

#[test]
fn a_full_instance_refuses_and_takes_chunks_again_after_removals() {
    run(async {
        let instance = start(&World::new(1), program(Honest)).await;
        let half = PAGES / 2 * PAGE_BYTES;
        let one = instance.reserve(name(0), half).await.expect("space");
        let two = instance.reserve(name(1), half).await.expect("space");
        for bytes in [1, PAGES * PAGE_BYTES + 1, u64::MAX] {
            let refused = instance.reserve(name(2), bytes).await;
            assert_eq!(refused.expect_err("full"), ReserveError::Full, "{bytes}");
        }
        drop(one);
        until_used(&instance, PAGES / 2).await;
        instance.reserve(name(2), half).await.expect("space");
        assert!(!instance.is_dead());
        drop(two);
    });
}

#[test]
fn a_chunk_is_removed_after_its_last_reader_and_its_memory_is_discarded() {
    run(async {
        let instance = start(&World::new(1), program(Honest)).await;
        let chunk = put(&instance, &[9; 5000]).await;
        let reader = chunk.clone();
        drop(chunk);
        let other = put(&instance, b"other").await;
        until_used(&instance, 3).await;
        assert_eq!(content(&reader).expect("alive"), vec![9; 5000]);
        drop(reader);
        until_used(&instance, 1).await;
        let region = instance.link.region().expect("alive");
        let mut pages = vec![1; 2 * PAGE_BYTES as usize];
        region.read(0, &mut pages).expect("inside");
        assert!(pages.iter().all(|byte| *byte == 0), "discarded");
        // The space of the first is used again, and the other is as it was.
        let slot = instance.reserve(name(1), 6000).await.expect("space");
        slot.write(0, &[3; 6000]).expect("alive");
        assert_eq!(content(&other).expect("alive"), b"other");
        region.read(0, &mut pages[..1]).expect("inside");
        assert_eq!(pages[0], 3);
    });
}

/// The space of shared bytes is not given to another chunk.
#[test]
fn a_chunk_is_removed_after_the_last_of_its_shared_bytes() {
    run(async {
        let instance = start(&World::new(1), program(Honest)).await;
        let chunk = put(&instance, &[9; 5000]).await;
        let other = put(&instance, b"other").await;
        let shared = chunk.share(10, 4000).expect("inside");
        let part = shared.slice(7..);
        for offset in [4991, u64::MAX] {
            let error = chunk.share(offset, 10).expect_err("outside");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{offset}");
        }
        drop((chunk, shared));
        drop(other);
        until_used(&instance, 2).await;
        assert_eq!(part, vec![9; 3993]);
        drop(part);
        until_used(&instance, 0).await;
    });
}

#[test]
fn many_removals_at_once_are_sent_in_bounded_batches() {
    struct Bounded(Arc<AtomicUsize>);
    #[async_trait]
    impl Twist for Bounded {
        async fn receive(&self, request: Bytes) -> Option<Bytes> {
            if let Ok(Request {
                call: Call::Remove(ids),
                ..
            }) = Request::decode(&request)
            {
                assert!(ids.len() <= CHUNKS_PER_REMOVAL_MAX);
                self.0.fetch_max(ids.len(), Ordering::Relaxed);
            }
            Some(request)
        }
    }
    run(async {
        let most = Arc::new(AtomicUsize::new(0));
        let instance = start(&World::new(1), program(Bounded(Arc::clone(&most)))).await;
        let mut chunks = Vec::new();
        for _ in 0..PAGES {
            chunks.push(put(&instance, b"x").await);
        }
        drop(chunks);
        until_used(&instance, 0).await;
        assert_eq!(most.load(Ordering::Relaxed), CHUNKS_PER_REMOVAL_MAX);
    });
}

#[test]
fn a_dropped_reservation_frees_its_space() {
    run(async {
        let instance = start(&World::new(1), program(Honest)).await;
        let mut is_in_flight = false;
        for polls in 0..6 {
            let mut call = Box::pin(instance.reserve(name(0), 2 * PAGE_BYTES));
            for _ in 0..polls {
                if call.as_mut().now_or_never().is_some() {
                    break;
                }
                is_in_flight = true;
                tokio::task::yield_now().await;
            }
            drop(call);
        }
        assert!(is_in_flight, "some calls were on their way");
        let slot = instance.reserve(name(1), 1).await.expect("space");
        until_used(&instance, 1).await;
        drop(slot);
    });
}

/// Kills the instance in the midst of the call that `is` names, before it has an effect.
struct DiesAt(fn(&Call) -> bool);

#[async_trait]
impl Twist for DiesAt {
    async fn receive(&self, request: Bytes) -> Option<Bytes> {
        let request_is = Request::decode(&request).expect("well formed");
        (!(self.0)(&request_is.call)).then_some(request)
    }
}

#[test]
fn a_cut_channel_fails_the_call_on_it_and_ends_the_instance() {
    run(async {
        let program = program(DiesAt(|call| matches!(call, Call::Reserve { .. })));
        let instance = start(&World::new(1), program).await;
        let refused = instance.reserve(name(0), 10).await.expect_err("cut");
        assert_eq!(refused, ReserveError::Dead);
        instance.died().await;
        assert!(instance.is_dead());
    });
}

#[test]
fn a_death_while_a_chunk_is_sealed_fails_the_seal_and_all_reads() {
    run(async {
        let program = program(DiesAt(|call| matches!(call, Call::Seal(ChunkId(1)))));
        let instance = start(&World::new(1), program).await;
        let whole = put(&instance, b"whole").await;
        let slot = instance.reserve(name(1), 3).await.expect("space");
        slot.write(0, b"new").expect("alive");
        assert_eq!(slot.seal().await.expect_err("cut"), Dead);
        instance.died().await;
        let error = content(&whole).expect_err("dead");
        assert!(is_unavailable(&error), "{error}");
    });
}

#[test]
fn a_death_while_a_chunk_is_removed_is_learned() {
    run(async {
        let program = program(DiesAt(|call| matches!(call, Call::Remove(_))));
        let instance = start(&World::new(1), program).await;
        let kept = put(&instance, b"kept").await;
        drop(put(&instance, b"gone").await);
        instance.died().await;
        assert!(content(&kept).is_err());
    });
}

#[test]
fn a_death_between_writes_fails_the_next_write_and_the_seal() {
    run(async {
        let instance = start(&World::new(1), program(Honest)).await;
        let slot = instance.reserve(name(0), 10).await.expect("space");
        slot.write(0, b"first").expect("alive");
        instance.end();
        instance.died().await;
        let error = slot.write(5, b"then").expect_err("dead");
        assert!(is_unavailable(&error), "{error}");
        assert_eq!(slot.seal().await.expect_err("dead"), Dead);
        let refused = instance.reserve(name(0), 1).await.expect_err("dead");
        assert_eq!(refused, ReserveError::Dead);
    });
}

#[test]
fn a_dead_instance_holds_no_region_even_while_chunks_are_held() {
    run(async {
        let instance = start(&World::new(1), program(Honest)).await;
        let chunk = put(&instance, b"held").await;
        let region = Arc::downgrade(&instance.link.region().expect("alive"));
        instance.end();
        instance.died().await;
        assert!(region.upgrade().is_none(), "its memory is free");
        drop(chunk);
    });
}

#[test]
fn the_last_handle_or_chunk_ends_the_instance() {
    struct CountsEnds(Arc<AtomicU32>);
    impl Drop for CountsEnds {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    impl Twist for CountsEnds {}
    run(async {
        let ends = Arc::new(AtomicU32::new(0));
        let instance = start(&World::new(1), program(CountsEnds(Arc::clone(&ends)))).await;
        let link = Arc::clone(&instance.link);
        let chunk = put(&instance, b"held").await;
        drop(instance);
        assert_eq!(content(&chunk).expect("alive"), b"held");
        drop(chunk);
        link.died().await;
        assert_eq!(ends.load(Ordering::Relaxed), 1, "the program was dropped");
    });
}

/// An instance whose second life begins with a request of the first one.
struct Reborn {
    function: Mutex<Function>,
    request: Mutex<Option<Request>>,
    requests: AtomicU32,
    /// The epoch of the second life.
    epoch: Epoch,
    born_at: u32,
    /// Whether it refuses requests of other epochs.
    refuses: bool,
}

impl Reborn {
    fn new(epoch: Epoch, born_at: u32) -> Self {
        Self {
            function: Mutex::new(Function::new(Epoch(77), PAGES * PAGE_BYTES)),
            request: Mutex::default(),
            requests: AtomicU32::new(0),
            epoch,
            born_at,
            refuses: true,
        }
    }
}

#[async_trait]
impl Twist for Reborn {
    async fn receive(&self, request: Bytes) -> Option<Bytes> {
        if self.requests.fetch_add(1, Ordering::Relaxed) == self.born_at {
            *self.function.lock() = Function::new(self.epoch, PAGES * PAGE_BYTES);
        }
        *self.request.lock() = Request::decode(&request).ok();
        Some(request)
    }
    fn reply(&self, _: Bytes) -> Bytes {
        let mut request = self.request.lock().take().expect("it was received");
        if !self.refuses && self.requests.load(Ordering::Relaxed) > self.born_at {
            request.epoch = self.epoch;
        }
        self.function.lock().answer(&request).encode()
    }
}

async fn start_broken(program: Program, mutant: Mutant<Broken>) -> Arc<Instance> {
    let world = World::new(1);
    let instances = world.instances(program);
    let options = InstanceOptions {
        mutant,
        ..options()
    };
    let started = Instance::start(
        &instances,
        &options,
        InstanceId(4),
        Epoch(77),
        world.clock(),
    );
    started.await.expect("it starts")
}

/// M3.
#[test]
fn a_reply_of_another_epoch_is_void_and_the_instance_is_ended() {
    struct OtherEpoch(AtomicU32);
    impl Twist for OtherEpoch {
        fn reply(&self, reply: Bytes) -> Bytes {
            let mut reply = crate::function::Reply::decode(&reply).expect("a reply");
            // The first reply is that to the start.
            if self.0.fetch_add(1, Ordering::Relaxed) > 0 {
                reply.epoch = Epoch(76);
            }
            reply.encode()
        }
    }
    run(async {
        let twist = || program(OtherEpoch(AtomicU32::new(0)));
        let instance = start(&World::new(1), twist()).await;
        let refused = instance.reserve(name(0), 10).await.expect_err("void");
        assert_eq!(refused, ReserveError::Dead);
        instance.died().await;
        assert_eq!(instance.used_bytes(), 0, "its counts are void, too");
        let instance = start_broken(twist(), Mutant::of(Broken::AcceptsOtherEpochs)).await;
        assert!(instance.reserve(name(0), 10).await.is_ok());
    });
}

/// M3: of two live instances of one function, the older one is fenced. It refuses a call that it takes
/// for the newer one, and if it does not, its reply is void.
#[test]
fn an_older_instance_that_takes_a_call_is_ended() {
    let accepts = Mutant::of(Broken::AcceptsOtherEpochs);
    for (refuses, mutant) in [
        (true, Mutant::NONE),
        (false, Mutant::NONE),
        (false, accepts),
    ] {
        run(async {
            let older = Reborn {
                refuses,
                ..Reborn::new(Epoch(76), 1)
            };
            let instance = start_broken(program(older), mutant).await;
            let reserved = instance.reserve(name(0), 10).await;
            assert_eq!(reserved.is_ok(), mutant.is_any());
            if !mutant.is_any() {
                assert_eq!(reserved.expect_err("void"), ReserveError::Dead);
                instance.died().await;
            }
        });
    }
}

/// Section 5.5.1: a call finds that the instance is another one than before.
#[test]
fn an_instance_that_lost_its_chunks_is_found_by_the_next_call_and_ended() {
    for mutant in [Mutant::NONE, Mutant::of(Broken::ForgetsRecords)] {
        run(async {
            // It starts, reserves and seals a chunk.
            let instance = start_broken(program(Reborn::new(Epoch(77), 3)), mutant).await;
            let chunk = put(&instance, b"content").await;
            assert_eq!(chunk.bytes(), 7);
            let call = instance.link.call(Lane::Small, Call::Counts).await;
            assert_eq!(call.is_err(), mutant == Mutant::NONE);
            assert_eq!(instance.is_dead(), mutant == Mutant::NONE);
        });
    }
}

#[test]
fn a_program_that_replies_nonsense_does_not_start() {
    struct Nonsense;
    impl Twist for Nonsense {
        fn reply(&self, _: Bytes) -> Bytes {
            Bytes::from_static(&[255; 9])
        }
    }
    run(async {
        let error = try_start(&World::new(1), program(Nonsense)).await;
        let error = error.expect_err("no function memory");
        assert!(is_unavailable(&error), "{error}");
    });
}

#[test]
fn a_provider_that_shares_no_such_region_is_refused_with_its_limit() {
    run(async {
        let world = World::new(1);
        let instances = world.instances(program(Honest));
        for shared_bytes in [0, u64::MAX] {
            let options = InstanceOptions {
                shared_bytes,
                ..options()
            };
            let refused =
                Instance::start(&instances, &options, InstanceId(1), Epoch(1), world.clock()).await;
            let error = refused.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error.to_string().contains("shares 1 to 67108864"),
                "{error}"
            );
        }
    });
}

/// M7: every call that a death meets ends, and no read returns bytes of another chunk.
#[test]
fn calls_end_and_reads_are_right_wherever_the_instance_dies() {
    let deaths = (0..60).filter(|seed| dies_with_right_reads(*seed)).count();
    assert!((20..60).contains(&deaths), "{deaths}");
}

fn dies_with_right_reads(seed: u64) -> bool {
    run(async {
        let world = World::new(seed);
        let instance = start(&world, program(Honest)).await;
        world.faults().kill_instances(percent(1));
        let mut held = std::collections::VecDeque::new();
        for round in 0..40_u8 {
            let bytes = 1 + u64::from(round) * 997 % (3 * PAGE_BYTES);
            let Ok(slot) = instance.reserve(name(round), bytes).await else {
                break;
            };
            if slot.write(0, &vec![round; bytes as usize]).is_err() {
                break;
            }
            let Ok(chunk) = slot.seal().await else {
                break;
            };
            held.push_back((round, chunk));
            if held.len() > 5 {
                held.pop_front();
            }
            for (round, chunk) in &held {
                if let Ok(content) = content(chunk) {
                    assert!(content.iter().all(|byte| byte == round));
                }
            }
        }
        if held.iter().all(|(_, chunk)| content(chunk).is_ok()) {
            return false;
        }
        let died = pin!(instance.died());
        let clock = world.clock();
        let late = clock.sleep(std::time::Duration::from_mins(1));
        select(died, late).await;
        assert!(instance.is_dead());
        true
    })
}

/// Does not answer any reservation, and lives on.
struct Hangs;
#[async_trait]
impl Twist for Hangs {
    async fn receive(&self, request: Bytes) -> Option<Bytes> {
        let is_reservation = Request::decode(&request)
            .is_ok_and(|request| matches!(request.call, crate::function::Call::Reserve { .. }));
        if is_reservation {
            std::future::pending::<()>().await;
        }
        Some(request)
    }
}

#[test]
fn an_instance_that_does_not_answer_is_ended() {
    run(async {
        let world = World::new(1);
        let instance = start(&world, program(Hangs)).await;
        let refused = instance.reserve(name(0), 100).await.expect_err("it hangs");
        assert!(matches!(refused, ReserveError::Dead));
        instance.died().await;
    });
}
