//! Volumes of a server behave like local volumes.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use transactions::{
    Error,
    serializable::{
        VolumeStore, Volumes, contract as suite,
        model::{At, BlockBytes, KeyRange, PageLimits, PinName, Slot, StageId, Usage},
        volumes::VolumeName,
    },
};
use volumes_frontend::RemoteVolumes;

use crate::world::{World, demo, key, put, settings, soon};

/// Opens a new volume of the server for each call.
///
/// The suite wants a volume at once, so they are created before.
async fn several(client: &RemoteVolumes, count: u32) -> Vec<Arc<dyn VolumeStore>> {
    let mut volumes = Vec::new();
    for number in 0..count {
        let name = VolumeName::new(format!("v{number}")).expect("a name");
        client
            .create(name.clone(), settings())
            .await
            .expect("created");
        volumes.push(client.open(&name).await.expect("opened"));
    }
    volumes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_of_volumes_passes() {
    const SEEDS: u32 = 30;
    let world = World::new().await;
    let client = world.client().await;
    let volumes = several(&client, SEEDS + 6).await;
    let next = AtomicU32::new(0);
    let open = || Arc::clone(&volumes[next.fetch_add(1, Ordering::Relaxed) as usize]);
    soon(async {
        suite::histories_are_strictly_serializable(&open, u64::from(SEEDS)).await;
        suite::a_proposal_commits_at_most_once(&open).await;
        suite::numbers_have_their_range(&open).await;
        suite::a_stage_takes_effect_as_a_whole(&open).await;
        suite::pages_at_one_slot_are_one_state(&open).await;
        suite::changes_are_listed_once(&open).await;
        let volume = suite::a_pinned_state_stays_readable(&open).await;
        let pin = PinName::new("run").expect("short");
        assert_eq!(volume.pins().await, Ok(vec![(pin, Slot(1))]));
    })
    .await;
    assert_eq!(next.load(Ordering::Relaxed), SEEDS + 6);
}

#[tokio::test]
async fn volumes_are_managed() {
    let world = World::new().await;
    let client = world.client().await;
    let other = VolumeName::new("other").expect("a name");
    assert_eq!(
        client.create(demo(), settings()).await,
        Err(Error::VolumeExists)
    );
    let volume = client.open(&demo()).await.expect("opened");
    assert_eq!(
        volume.block_bytes(),
        BlockBytes::new(4096).expect("a power of two")
    );
    volume.commit(put(1, "a", b"1")).await.expect("committed");
    client.set_quota(&demo(), Some(1 << 20)).await.expect("set");
    client
        .clone_volume(&demo(), None, other.clone())
        .await
        .expect("cloned");
    let found = client.list().await.expect("a list");
    let usage = Usage {
        bytes: 2,
        keys: 1,
        quota_bytes: Some(1 << 20),
    };
    assert_eq!((found[0].name.clone(), found[0].usage), (demo(), usage));
    assert_eq!(found[1].name, other);
    assert_eq!(volume.usage().await, Ok(usage));
    let numbers = [
        volume.reserve_numbers().await,
        volume.reserve_numbers().await,
    ];
    assert_eq!(numbers, [Ok(1_024..2_048), Ok(2_048..3_072)]);
    client.delete(&other).await.expect("deleted");
    assert_eq!(client.delete(&other).await, Err(Error::NoSuchVolume));
    let opened = client.open(&other).await;
    assert_eq!(opened.map(drop), Err(Error::NoSuchVolume));
}

#[tokio::test]
async fn errors_have_their_kind_and_text() {
    let world = World::new().await;
    let client = world.client().await;
    let volume = client.open(&demo()).await.expect("opened");
    let range = KeyRange::all("d").expect("short");
    let page = volume.scan(At::Slot(Slot(9)), &range, PageLimits::default());
    let why = "the slot of a read is not written yet";
    assert_eq!(page.await, Err(Error::Invalid(why)));
}

/// A socket that is full is written again, also while answers arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_requests_and_answers_cross() {
    const PART: usize = 300 << 10;
    let world = World::new().await;
    let client = world.client().await;
    let volume = client.open(&demo()).await.expect("opened");
    let value = put(1, "a", &vec![7; 60_000]);
    volume.commit(value).await.expect("committed");
    let callers = (0..16).map(|caller: u8| {
        let volume = Arc::clone(&volume);
        tokio::spawn(async move {
            for part in 0..40 {
                let staged = volume.stage(StageId([caller; 16]), part, vec![0; PART].into());
                let keys = [key("a"), key("a"), key("a")];
                let (staged, read) = tokio::join!(staged, volume.get_many(At::Tail, &keys));
                staged.expect("stored");
                assert_eq!(read.expect("a read").value.found.len(), 3);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        soon(caller).await.expect("no call hangs");
    }
}
