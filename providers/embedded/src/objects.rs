//! Objects as files under the data directory, synced with their names (O1).

use std::{path::Path, sync::Arc};

use object_store::{ObjectStore, local::LocalFileSystem};

use crate::error::OpenError;

/// The store of objects in `directory`, which is made if it is not there.
pub(crate) fn open(directory: &Path) -> Result<Arc<dyn ObjectStore>, OpenError> {
    let attempted = || format!("make {}", directory.display());
    std::fs::create_dir_all(directory).map_err(OpenError::io(attempted()))?;
    let store = LocalFileSystem::new_with_prefix(directory)
        .map_err(|error| OpenError::io(attempted())(std::io::Error::other(error)))?;
    Ok(Arc::new(store.with_fsync(true)))
}
