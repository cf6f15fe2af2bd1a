//! Which streams advance together: those whose pieces wait at the same time.
//!
//! There is no thread for it. Few pieces are hashed alone, each by its submitter, since idle
//! processors then help more than lanes. Of more pieces, one submitter takes a *turn*: it lets other
//! tasks run once, so that they submit too. Then it advances its own piece with those that wait. The
//! others sleep until their piece is hashed. When its own piece is, the submitter passes the turn on
//! to one of them, with the unfinished pieces. So each stream works for others only as long as for
//! itself. Another turn begins only when a full set of lanes waits.
//!
//! Invariants
//! - While a piece waits, there is a turn. A turn that is dropped anywhere, as in a cancelled
//!   request, puts its pieces back and passes on.
//! - A stream has at most one piece here. The queue is as long as there are streams at most.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{BLOCK_BYTES, Block, INITIAL, Kernel, Lane, State, scalar};

/// Pieces of at most this size cost less than to wait for company.
const ALONE_BYTES_MAX: usize = 4 << 10;
/// Blocks of each lane between two yields to other tasks: about a millisecond for all lanes.
const RUN_BLOCKS_MAX: usize = 1024;

/// The place where streams meet. All streams of a process share one.
#[derive(Debug)]
pub struct Md5Pool {
    kernel: Kernel,
    schedule: Mutex<Schedule>,
}

#[derive(Debug, Default)]
struct Schedule {
    /// Pieces of all submitters, waiting or not.
    pieces: usize,
    waiting: VecDeque<Waiting>,
    turns: usize,
}

/// The rest of a piece: whole blocks.
#[derive(Debug)]
struct Piece {
    state: State,
    bytes: Bytes,
}

/// A piece whose submitter sleeps.
#[derive(Debug)]
struct Waiting {
    piece: Piece,
    wake: oneshot::Sender<Wake>,
}

/// Why a submitter wakes.
#[derive(Debug)]
enum Wake {
    /// The state after its piece.
    Hashed(State),
    /// The turn is its own now, with the rest of its piece.
    Turn(Turn, Piece),
}

/// The right to advance pieces, and those of others that advance with it.
#[derive(Debug)]
struct Turn {
    pool: Arc<Md5Pool>,
    others: Vec<Waiting>,
}

impl Md5Pool {
    /// A pool on the fastest instructions of this processor.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            kernel: Kernel::fastest(),
            schedule: Mutex::default(),
        })
    }

    /// A stream without content.
    pub fn stream(self: &Arc<Self>) -> Md5Stream {
        Md5Stream {
            pool: self.clone(),
            state: Some(INITIAL),
            bytes: 0,
            rest: [0; BLOCK_BYTES],
        }
    }

    async fn hash(self: &Arc<Self>, piece: Piece) -> State {
        // It counts until it is dropped here, also where this call is cancelled.
        let _counted = Counted(self);
        let (turn, piece) = match self.submit(piece) {
            Submitted::Alone(piece) => return piece.alone().await,
            Submitted::Turn(turn, piece) => (turn, piece),
            Submitted::Waiting(wake) => match wake.await {
                Ok(Wake::Turn(turn, piece)) => (turn, piece),
                Ok(Wake::Hashed(state)) => return state,
                Err(_) => unreachable!("a waiting piece is hashed, or its submitter gets the turn"),
            },
        };
        turn.work(piece).await
    }

    fn submit(self: &Arc<Self>, piece: Piece) -> Submitted {
        let mut schedule = self.schedule.lock();
        schedule.pieces += 1;
        if schedule.pieces < self.kernel.streams_min() {
            return Submitted::Alone(piece);
        }
        let is_full = schedule.waiting.len() + 1 >= self.kernel.lanes();
        if schedule.turns == 0 || is_full {
            schedule.turns += 1;
            return Submitted::Turn(Turn::new(self), piece);
        }
        let (wake, woken) = oneshot::channel();
        schedule.waiting.push_back(Waiting { piece, wake });
        Submitted::Waiting(woken)
    }
}

/// What becomes of a submitted piece.
#[derive(Debug)]
enum Submitted {
    /// The submitter hashes it, and no other.
    Alone(Piece),
    /// The submitter has the turn.
    Turn(Turn, Piece),
    /// The submitter sleeps.
    Waiting(oneshot::Receiver<Wake>),
}

/// A piece that counts as present.
struct Counted<'a>(&'a Md5Pool);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.schedule.lock().pieces -= 1;
    }
}

impl Piece {
    async fn alone(mut self) -> State {
        while !self.bytes.is_empty() {
            tokio::task::yield_now().await;
            let bytes = self.bytes.len().min(RUN_BLOCKS_MAX * BLOCK_BYTES);
            advance(&mut self.state, self.bytes.split_to(bytes).as_chunks().0);
        }
        self.state
    }
}

impl Turn {
    fn new(pool: &Arc<Md5Pool>) -> Self {
        Self {
            pool: pool.clone(),
            others: Vec::new(),
        }
    }

    /// Advances `own` to its end, and others beside it.
    async fn work(mut self, mut own: Piece) -> State {
        while !own.bytes.is_empty() {
            // Tasks that are ready submit their pieces, and do what is not hashing.
            tokio::task::yield_now().await;
            self.fill();
            self.run(&mut own);
        }
        own.state
    }

    fn fill(&mut self) {
        self.others.retain(|other| !other.wake.is_closed());
        let mut schedule = self.pool.schedule.lock();
        while self.others.len() + 1 < self.pool.kernel.lanes() {
            let Some(next) = schedule.waiting.pop_front() else {
                break;
            };
            if !next.wake.is_closed() {
                self.others.push(next);
            }
        }
    }

    /// Advances all pieces by the shortest, and wakes the submitters of those that are at their end.
    fn run(&mut self, own: &mut Piece) {
        let lengths = self.others.iter().map(|other| other.piece.bytes.len());
        let shortest = lengths.fold(own.bytes.len(), usize::min);
        let bytes = shortest.min(RUN_BLOCKS_MAX * BLOCK_BYTES);
        let others = self.others.iter_mut().map(|other| &mut other.piece);
        let (content, states): (Vec<Bytes>, Vec<&mut State>) = others
            .chain([own])
            .map(|piece| (piece.bytes.split_to(bytes), &mut piece.state))
            .unzip();
        let lanes = content.iter().zip(states);
        let mut lanes: Vec<Lane<'_>> = lanes
            .map(|(content, state)| Lane {
                state,
                blocks: content.as_chunks().0,
            })
            .collect();
        self.pool.kernel.advance(&mut lanes);
        let is_hashed = |other: &mut Waiting| other.piece.bytes.is_empty();
        for other in self.others.extract_if(.., is_hashed) {
            // A submitter that was cancelled just now needs no answer.
            let _ = other.wake.send(Wake::Hashed(other.piece.state));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut schedule = self.pool.schedule.lock();
        for other in self.others.drain(..).rev() {
            schedule.waiting.push_front(other);
        }
        while let Some(next) = schedule.waiting.pop_front() {
            if !next.wake.is_closed() {
                drop(schedule);
                let turn = Self::new(&self.pool);
                // If this submitter was cancelled just now, the turn is dropped here and passes on.
                let _ = next.wake.send(Wake::Turn(turn, next.piece));
                return;
            }
        }
        schedule.turns -= 1;
    }
}

/// The MD5 of one stream of bytes.
#[derive(Debug)]
pub struct Md5Stream {
    pool: Arc<Md5Pool>,
    /// None while a piece is in the pool.
    state: Option<State>,
    bytes: u64,
    /// The begin of a block that is not whole yet.
    rest: Block,
}

impl Md5Stream {
    /// Takes in the next bytes. It copies none of them but those of a block that is not whole.
    ///
    /// # Panics
    /// If an earlier call was cancelled: the stream has lost bytes then.
    pub async fn update(&mut self, mut piece: Bytes) {
        let mut state = self.state.take().expect("no earlier update was cancelled");
        let held = self.bytes as usize % BLOCK_BYTES;
        self.bytes += piece.len() as u64;
        if held > 0 {
            let missing = piece.split_to(piece.len().min(BLOCK_BYTES - held));
            self.rest[held..][..missing.len()].copy_from_slice(&missing);
            if held + missing.len() == BLOCK_BYTES {
                advance(&mut state, &[self.rest]);
            }
        }
        let mut blocks = piece;
        let rest = blocks.split_off(blocks.len() / BLOCK_BYTES * BLOCK_BYTES);
        if blocks.len() <= ALONE_BYTES_MAX {
            advance(&mut state, blocks.as_chunks().0);
        } else {
            let piece = Piece {
                state,
                bytes: blocks,
            };
            state = self.pool.hash(piece).await;
        }
        self.rest[..rest.len()].copy_from_slice(&rest);
        self.state = Some(state);
    }

    /// The MD5 of all bytes.
    ///
    /// # Panics
    /// If an update was cancelled.
    pub fn finish(self) -> [u8; 16] {
        let mut state = self.state.expect("no update was cancelled");
        let held = self.bytes as usize % BLOCK_BYTES;
        // The content ends with a bit, zeros and its length in bits.
        let mut end = [0; 2 * BLOCK_BYTES];
        end[..held].copy_from_slice(&self.rest[..held]);
        end[held] = 0x80;
        let bytes = if held < 56 {
            BLOCK_BYTES
        } else {
            2 * BLOCK_BYTES
        };
        end[bytes - 8..bytes].copy_from_slice(&(self.bytes * 8).to_le_bytes());
        advance(&mut state, end[..bytes].as_chunks().0);
        let mut digest = [0; 16];
        for (bytes, word) in digest.as_chunks_mut().0.iter_mut().zip(state) {
            *bytes = word.to_le_bytes();
        }
        digest
    }
}

fn advance(state: &mut State, blocks: &[Block]) {
    scalar(&mut Lane { state, blocks });
}
