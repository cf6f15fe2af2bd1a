use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::future::{self, join_all};
use md5::{Digest as _, Md5};
use proptest::prelude::*;

use super::{Block, INITIAL, Kernel, Lane, Md5Pool, Md5Stream, State, scalar};

fn random_bytes(rng: &mut Rng, bytes: usize) -> Bytes {
    let mut content = vec![0; bytes];
    rng.fill(&mut content);
    content.into()
}

fn expected(content: &[u8]) -> [u8; 16] {
    Md5::digest(content).into()
}

/// Hashes `content` in pieces of random lengths up to `piece_bytes_max`.
async fn hashed(
    pool: &Arc<Md5Pool>,
    mut content: Bytes,
    piece_bytes_max: usize,
    seed: u64,
) -> [u8; 16] {
    let mut rng = Rng::with_seed(seed);
    let mut stream = pool.stream();
    while !content.is_empty() {
        let bytes = rng.usize(0..=piece_bytes_max.min(content.len()));
        stream.update(content.split_to(bytes)).await;
    }
    stream.finish()
}

#[test]
fn every_length_around_that_of_blocks_is_padded_as_it_must() {
    let pool = Md5Pool::new();
    for bytes in 0..=260 {
        let content = random_bytes(&mut Rng::with_seed(1), bytes);
        let found = simulated::run(hashed(&pool, content.clone(), 70, 2));
        assert_eq!(found, expected(&content), "{bytes} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn streams_beside_each_other_are_hashed_as_alone(
        lengths in prop::collection::vec(0_usize..100_000, 1..40),
        piece_bytes_max in 1_usize..50_000,
        seed: u64,
    ) {
        let mut rng = Rng::with_seed(seed);
        let contents: Vec<Bytes> = lengths.into_iter().map(|bytes| random_bytes(&mut rng, bytes)).collect();
        let pool = Md5Pool::new();
        let streams = contents.iter().map(|content| {
            hashed(&pool, content.clone(), piece_bytes_max.max(content.len() / 20), rng.u64(..))
        });
        let found = simulated::run(join_all(streams.collect::<Vec<_>>()));
        for (found, content) in found.into_iter().zip(&contents) {
            prop_assert_eq!(found, expected(content));
        }
    }
}

/// Some of these updates hold the turn when they are dropped, and others wait for it.
#[test]
fn cancelled_updates_leave_the_turn_to_others() {
    let content = random_bytes(&mut Rng::with_seed(3), 4_000_000);
    simulated::run(async {
        let pool = Md5Pool::new();
        let mut streams: Vec<Md5Stream> = (0..40).map(|_| pool.stream()).collect();
        let updates = streams
            .iter_mut()
            .map(|stream| Box::pin(stream.update(content.clone())));
        let mut updates: Vec<_> = updates.collect();
        while updates.len() > 1 {
            for update in &mut updates {
                assert!(future::poll_immediate(update).await.is_none());
            }
            // The second may have got the turn of the first, and was not polled since.
            drop(updates.drain(..2.min(updates.len() - 1)));
        }
        for update in updates {
            update.await;
        }
        let last = streams.pop().expect("a stream");
        assert_eq!(last.finish(), expected(&content));
        let mut after = pool.stream();
        after.update(content.clone()).await;
        assert_eq!(after.finish(), expected(&content), "the pool goes on");
    });
}

/// Advances as many streams as `kernel` has lanes, or fewer, beside the scalar steps.
#[cfg(target_arch = "x86_64")]
fn assert_equals_the_scalar(kernel: Kernel) {
    let mut rng = Rng::with_seed(4);
    for streams in 1..=kernel.lanes() {
        for _ in 0..8 {
            let content: Vec<Vec<Block>> = (0..streams)
                .map(|_| {
                    let mut blocks = vec![[0; 64]; rng.usize(1..6)];
                    rng.fill(blocks.as_flattened_mut());
                    blocks
                })
                .collect();
            let shortest = content.iter().map(Vec::len).min().expect("a stream");
            let mut found: Vec<State> = vec![INITIAL; streams];
            let lanes = found.iter_mut().zip(&content);
            let mut lanes: Vec<Lane<'_>> = lanes
                .map(|(state, blocks)| Lane { state, blocks })
                .collect();
            kernel.advance(&mut lanes);
            assert!(
                lanes
                    .iter()
                    .zip(&content)
                    .all(|(lane, blocks)| lane.blocks.len() == blocks.len() - shortest)
            );
            for (found, blocks) in found.into_iter().zip(&content) {
                let mut state = INITIAL;
                scalar(&mut Lane {
                    state: &mut state,
                    blocks: &blocks[..shortest],
                });
                assert_eq!(found, state, "{streams} streams");
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod on_x86_64 {
    use super::{super::Kernel, assert_equals_the_scalar};

    fn compare(kernel: Option<Kernel>, test: &str, instructions: &str) {
        if let Some(kernel) = kernel {
            assert_equals_the_scalar(kernel);
        } else {
            eprintln!("skipped: md5_lanes::{test}: this processor lacks {instructions}");
        }
    }

    #[test]
    fn avx2_advances_as_the_scalar() {
        compare(Kernel::avx2(), "avx2_advances_as_the_scalar", "AVX2");
    }

    #[test]
    fn avx512_advances_as_the_scalar() {
        compare(Kernel::avx512(), "avx512_advances_as_the_scalar", "AVX-512");
    }
}
