//! MD5 of several streams side by side, in the lanes of wide registers.
//!
//! An ETag is the MD5 of an object. Each step of MD5 needs the result of the one before, so one
//! stream leaves most of a processor idle: half a gigabyte a second is about the most. Steps of
//! different streams are independent: one instruction does the same step of 8 or 16 of them.
//!
//! `Lane` and `Kernel` are the core without a schedule: they advance the states of streams by whole
//! blocks. `pool` decides which streams advance together.

mod pool;
mod rounds;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use self::pool::{Md5Pool, Md5Stream};
use self::rounds::rounds;

const BLOCK_BYTES: usize = 64;
type Block = [u8; BLOCK_BYTES];
type State = [u32; 4];

/// The state of a stream without content, from RFC 1321.
const INITIAL: State = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// A stream's state, and the blocks that it has still to take in.
#[derive(Debug)]
struct Lane<'a> {
    state: &'a mut State,
    blocks: &'a [Block],
}

/// The instructions that advance lanes. A variant exists only where the processor has them.
#[derive(Debug, Clone, Copy)]
enum Kernel {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
}

impl Kernel {
    /// The fastest instructions of this processor that hash as the scalar code does.
    fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        return [Self::avx512(), Self::avx2()]
            .into_iter()
            .flatten()
            .find(|kernel| kernel.hashes_as_scalar())
            .unwrap_or(Self::Scalar);
        #[cfg(not(target_arch = "x86_64"))]
        Self::Scalar
    }

    #[cfg(target_arch = "x86_64")]
    fn hashes_as_scalar(self) -> bool {
        let blocks: Vec<[Block; 3]> = (0..self.lanes() as u8)
            .map(|lane| {
                [
                    [lane; BLOCK_BYTES],
                    [0xa5; BLOCK_BYTES],
                    [!lane; BLOCK_BYTES],
                ]
            })
            .collect();
        let (mut states, mut expected) = (vec![INITIAL; blocks.len()], vec![INITIAL; blocks.len()]);
        let lanes = states.iter_mut().zip(&blocks);
        let mut lanes: Vec<_> = lanes
            .map(|(state, blocks)| Lane { state, blocks })
            .collect();
        self.advance(&mut lanes);
        for (state, blocks) in expected.iter_mut().zip(&blocks) {
            scalar(&mut Lane { state, blocks });
        }
        states == expected
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2() -> Option<Self> {
        x86::Avx2::detect().map(Self::Avx2)
    }

    #[cfg(target_arch = "x86_64")]
    fn avx512() -> Option<Self> {
        x86::Avx512::detect().map(Self::Avx512)
    }

    /// Lanes that advance at the price of one.
    fn lanes(self) -> usize {
        match self {
            Self::Scalar => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => x86::Avx2::LANES,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => x86::Avx512::LANES,
        }
    }

    /// The fewest streams that advance faster beside each other on one processor than each on its
    /// own of two.
    fn streams_min(self) -> usize {
        match self {
            Self::Scalar => usize::MAX,
            // A step on a register of AVX2 takes almost twice as long: it has no rotation.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => 4,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => 2,
        }
    }

    /// Advances every lane by as many blocks as the shortest has.
    ///
    /// # Panics
    /// If there are more lanes than [`Self::lanes`].
    fn advance(self, lanes: &mut [Lane<'_>]) {
        let Some(blocks) = lanes.iter().map(|lane| lane.blocks.len()).min() else {
            return;
        };
        match self {
            // One stream has no use for lanes, whose steps take longer.
            _ if lanes.len() == 1 => scalar(&mut lanes[0]),
            Self::Scalar => panic!("one lane at a time"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(here) => {
                side_by_side(lanes, blocks, |states, blocks| {
                    here.advance(states, blocks);
                });
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(here) => {
                side_by_side(lanes, blocks, |states, blocks| {
                    here.advance(states, blocks);
                });
            }
        }
    }
}

/// The lanes that no stream uses repeat the first one, and their results are dropped.
fn side_by_side<const LANES: usize>(
    lanes: &mut [Lane<'_>],
    blocks: usize,
    advance: impl FnOnce(&mut [State; LANES], &[&[Block]; LANES]),
) {
    assert!(lanes.len() <= LANES, "{LANES} lanes at a time");
    let lane = |index: usize| lanes.get(index).unwrap_or(&lanes[0]);
    let mut states: [State; LANES] = std::array::from_fn(|index| *lane(index).state);
    let content: [&[Block]; LANES] = std::array::from_fn(|index| &lane(index).blocks[..blocks]);
    advance(&mut states, &content);
    for (lane, state) in lanes.iter_mut().zip(states) {
        *lane.state = state;
        lane.blocks = &lane.blocks[blocks..];
    }
}

fn scalar(lane: &mut Lane<'_>) {
    for block in std::mem::take(&mut lane.blocks) {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(block.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        *lane.state = rounds!(*lane.state, words, add, constant, rotate, [f, g, h, i]);
    }
}

fn add(a: u32, b: u32) -> u32 {
    a.wrapping_add(b)
}

fn constant(value: u32) -> u32 {
    value
}

fn rotate<const LEFT: u32, const RIGHT: u32>(a: u32) -> u32 {
    a.rotate_left(LEFT)
}

fn f(b: u32, c: u32, d: u32) -> u32 {
    ((c ^ d) & b) ^ d
}

fn g(b: u32, c: u32, d: u32) -> u32 {
    f(d, b, c)
}

fn h(b: u32, c: u32, d: u32) -> u32 {
    b ^ c ^ d
}

fn i(b: u32, c: u32, d: u32) -> u32 {
    c ^ (b | !d)
}
