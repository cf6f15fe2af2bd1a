//! The lookup of deployed functions, workflows and routes, in place or still pending.

pub(crate) mod catalogue;
pub(crate) mod pending;

use std::{collections::BTreeMap, sync::Arc};

use ports::runtime::Function;

use self::{
    catalogue::{Catalogue, DeployedFunction},
    pending::Pending,
};
use crate::{
    error::{Error, Result},
    manifest::workflow::Workflow,
    routes::RouteMatch,
};

#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// The applications in place: their functions run here.
    pub(crate) catalogue: Catalogue,
    /// The applications that could not be put in place.
    pub(crate) pending: Pending,
}

impl Lookup {
    pub(crate) fn function(&self, name: &str) -> Option<Arc<Function>> {
        let deployed = self.catalogue.function(name)?;
        Some(Arc::clone(&deployed.function))
    }

    /// The deployed function `name`. Errors: `NoSuchFunction`; `Port` for one that is pending.
    pub(crate) fn deployed(&self, name: &str) -> Result<Arc<DeployedFunction>> {
        let deployed = self.catalogue.function(name);
        deployed.ok_or_else(|| match self.pending.promised.function(name) {
            Some(_) => ports::Error::unavailable(format!(
                "find {name:?}, which is deployed and not yet in place"
            ))
            .into(),
            None => Error::NoSuchFunction(name.to_owned()),
        })
    }

    /// Waits until the function `name` is in place, unless it is not deployed.
    pub(crate) async fn until_in_place(&self, name: &str) {
        loop {
            let changed = self.pending.promised.changed();
            if self.catalogue.function(name).is_some()
                || self.pending.promised.function(name).is_none()
            {
                return;
            }
            changed.await;
        }
    }

    /// The workflow `name`, in place or pending.
    pub(crate) fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        self.catalogue
            .workflow(name)
            .or_else(|| self.pending.promised.workflow(name))
    }

    /// All workflows by name, in place or pending.
    pub(crate) fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        let mut all = self.pending.promised.workflows();
        all.extend(self.catalogue.workflows());
        all
    }

    pub(crate) fn route(&self, method: &str, path: &[String]) -> RouteMatch {
        match self.catalogue.route(method, path) {
            RouteMatch::Route(routed) => RouteMatch::Route(routed),
            none => match self.pending.promised.route(method, path) {
                RouteMatch::Route(_) => RouteMatch::NotYet,
                _ => none,
            },
        }
    }

    /// The function that learns of the permanent failures of function `name`.
    pub(crate) fn on_failure(&self, name: &str) -> Option<String> {
        self.catalogue.function(name)?.table.on_failure.clone()
    }

    /// How many further attempts an event of function `name` gets.
    pub(crate) fn retries(&self, name: &str) -> Option<u32> {
        let deployed = self
            .catalogue
            .function(name)
            .or_else(|| self.pending.promised.function(name));
        deployed.map(|deployed| deployed.table.retries)
    }
}
