//! Several nodes on one store: who they are, what they tell each other, and how a call reaches its node.

pub(crate) mod announce;
pub(crate) mod announcement_batch;
pub(crate) mod follow;
pub(crate) mod forward;
pub mod membership;
pub mod peers;
mod presence;
pub(crate) mod probe;
