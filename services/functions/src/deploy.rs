//! Deployments: changes by callers, and keeping this process in step with the stored rows.

pub(crate) mod deployer;
pub(crate) mod deployment;
pub(crate) mod reconciler;
pub(crate) mod watcher;
