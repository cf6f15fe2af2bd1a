//! Tests on the reference volume: each call's rules, random calls beside a model, conflicts.

mod anomalies;
mod check;
mod conflicts;
pub(crate) mod granting;
mod keys;
mod large;
mod locks;
mod lossy;
mod names;
mod orphans;
mod random;
mod remembered;
mod round_trips;
mod rules;

use std::sync::Arc;

use bytes::Bytes;
use primitives::Mutant;
use simulated::World;
use transactions::serializable::{
    ModelVolume,
    model::{BlockBytes, SessionId},
};

use crate::{FileSystem, Result, broken::Broken, model::Access};

/// The size of the volume's blocks.
const BLOCK: u64 = 4_096;
/// The access of new inodes.
const ACCESS: Access = Access {
    mode: 0o644,
    uid: 1_000,
    gid: 100,
};

fn volume() -> Arc<ModelVolume> {
    let block_bytes = BlockBytes::new(BLOCK as u32).expect("a power of two");
    Arc::new(ModelVolume::new(block_bytes))
}

/// A client of `volume`. Its session is also its seed.
async fn client(volume: &Arc<ModelVolume>, session: u64, mutant: Mutant<Broken>) -> FileSystem {
    let world = World::new(session);
    let (clock, entropy) = (world.clock(), world.entropy());
    let session = SessionId(session);
    let opened = FileSystem::broken(volume.clone(), clock, entropy, session, ACCESS, mutant);
    opened.await.expect("opened")
}

async fn fresh() -> FileSystem {
    client(&volume(), 1, Mutant::NONE).await
}

fn name(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Runs `scenario`, which must panic.
pub(crate) fn must_fail(scenario: impl FnOnce() + std::panic::UnwindSafe) {
    assert!(
        std::panic::catch_unwind(scenario).is_err(),
        "no test notices the mutant"
    );
}

/// Asserts a refusal.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, errno: crate::Errno) {
    assert_eq!(result.map(|_| ()), Err(errno));
}
