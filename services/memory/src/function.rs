//! The program of an instance of function memory: its table of chunks, and its replies to the daemon.
//!
//! The bytes of chunks lie in a region that the daemon shares with the instance. The daemon copies
//! them in and out. The instance decides where each chunk lies, so the space ends with the
//! instance that owns it. The program has no I/O of its own: channels arrive as a stream.
//!
//! ```text
//!  log       the insertion log
//!  protocol  requests and replies
//!  memory    the table of chunks and the free space of the region
//!  serve     the loop that answers requests
//! ```

mod log;
mod memory;
mod protocol;
mod serve;

pub use memory::{Memory, PAGE_BYTES};
pub use protocol::{
    CHUNKS_PER_REMOVAL_MAX, Call, ChunkId, ChunkName, Counts, EPOCH_VARIABLE, Epoch, Outcome,
    Partition, REGION_VARIABLE, REQUEST_BYTES_MAX, Record, Reply, Request,
};
pub use serve::{CHANNELS_MAX, Function, Wire, serve};
