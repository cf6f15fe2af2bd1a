//! State shared by the clients of one process.

use std::sync::Arc;

use ports::{Clock, Entropy, Functions, Queue, objects::ObjectStore};

use crate::{
    config::Config,
    storage::{session::Sessions, user_store::UserStore},
    tail::Tail,
};

/// State shared by the clients of one process.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) sessions: Sessions,
    pub(crate) region: UserStore,
    pub(crate) temporary: Arc<dyn ObjectStore>,
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) functions: Arc<dyn Functions>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) tail: Arc<Tail>,
}
