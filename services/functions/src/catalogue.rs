//! What is deployed, as whoever calls finds it: functions, workflows and routes.
//!
//! Known in memory as a whole, so that an invocation asks no store.
//!
//! Invariant: what an application has changes as a whole, under one lock. Nobody finds a route of one deployment and no
//! function for it in the next.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::RwLock;
use ports::runtime::Function;
use serde::Serialize;
use tokio::sync::watch;

use crate::{
    deployment::Changing,
    manifest::{Manifest, Table, workflow::Workflow},
    routes::{self, Found},
    service::{Error, Result},
};

/// What is deployed.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    state: RwLock<State>,
    /// Told of each change.
    changes: watch::Sender<()>,
    /// What is deployed has been put in place since the start.
    is_in_place: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    functions: BTreeMap<String, Arc<Known>>,
    workflows: BTreeMap<String, KnownWorkflow>,
    routes: routes::Table,
}

impl State {
    /// Whether each failure comes to an end once `application` has what `manifest` says: functions that are told of each other's
    /// failures in a circle would hand on an event for ever, as fast as they fail.
    fn check_failures_end(&self, application: &str, manifest: &Manifest) -> Result<()> {
        let table = |name: &str| {
            let others = self
                .functions
                .get(name)
                .filter(|known| known.application != application);
            manifest
                .functions
                .get(name)
                .or_else(|| others.map(|known| &known.table))
        };
        let told_by = |name: &str| table(name)?.on_failure.as_deref();
        for name in manifest.functions.keys() {
            let mut chain = vec![name.as_str()];
            while let Some(told) = chain.last().and_then(|last| told_by(last)) {
                if told == name {
                    return Err(Error::Invalid(format!(
                        "functions.{name}: on_failure leads back to it ({} -> {name}), so that a failure would never end",
                        chain.join(" -> ")
                    )));
                }
                // A circle further on is told at one of those that it leads through.
                if chain.contains(&told) {
                    break;
                }
                chain.push(told);
            }
        }
        Ok(())
    }
}

/// A function that is deployed.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) function: Arc<Function>,
    pub(crate) application: String,
    pub(crate) table: Table,
}

/// A workflow that is deployed.
#[derive(Debug)]
struct KnownWorkflow {
    workflow: Arc<Workflow>,
    application: String,
}

/// A deployed function, for lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// The application it is of.
    pub application: String,
    /// Changes with every deployment of it.
    pub revision: String,
    /// What runs it, as its manifest says.
    pub runtime: &'static str,
    /// Its handler.
    pub handler: String,
    /// What an instance may use, in MB.
    pub memory_mb: u64,
    /// What an invocation may take, in seconds.
    pub timeout_s: u64,
    /// Instances at a time.
    pub concurrency: usize,
}

impl Catalogue {
    /// One of all that `rows` say.
    pub(crate) fn of(rows: &Changing) -> Self {
        let all = Self::default();
        for (application, row) in rows {
            all.replace(application, Some(&row.manifest), "", "");
        }
        all
    }

    /// All that was deployed before is here from now on.
    pub(crate) fn put_in_place(&self) {
        self.is_in_place.store(true, Ordering::Release);
    }

    /// Whether what is not here is not deployed.
    pub(crate) fn is_in_place(&self) -> bool {
        self.is_in_place.load(Ordering::Acquire)
    }

    /// Makes what `manifest` says all that `application` has; none: it has nothing.
    /// The code is in `archive`; `revision` is that of each function.
    pub(crate) fn replace(
        &self,
        application: &str,
        manifest: Option<&Manifest>,
        archive: &str,
        revision: &str,
    ) {
        let functions = manifest
            .map(|manifest| &manifest.functions)
            .into_iter()
            .flatten();
        let functions: Vec<_> = functions
            .map(|(name, table)| {
                let function = table.function(name, archive, revision);
                let known = Known {
                    function,
                    application: application.to_owned(),
                    table: table.clone(),
                };
                (name.clone(), Arc::new(known))
            })
            .collect();
        let workflows = manifest
            .map(|manifest| &manifest.workflows)
            .into_iter()
            .flatten();
        let workflows: Vec<_> = workflows
            .map(|(name, workflow)| {
                let workflow = Arc::new(workflow.clone());
                (
                    name.clone(),
                    KnownWorkflow {
                        workflow,
                        application: application.to_owned(),
                    },
                )
            })
            .collect();
        let routes =
            manifest.map(|manifest| manifest.routes().expect("a manifest's routes are checked"));
        {
            let mut state = self.state.write();
            state
                .functions
                .retain(|_, known| known.application != application);
            state.functions.extend(functions);
            state
                .workflows
                .retain(|_, known| known.application != application);
            state.workflows.extend(workflows);
            state
                .routes
                .replace(application, routes.unwrap_or_default());
        }
        self.changes.send_replace(());
    }

    /// Ends once something has changed since this was called, or nothing will any more. It keeps nothing alive.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.changes.subscribe();
        async move {
            // An error means that there is no catalogue any more.
            let _ = changes.changed().await;
        }
    }

    /// Whether `application` may have what `manifest` says: its names and routes are nobody else's, whoever is told of failures is
    /// there, and no step may take longer than its function.
    pub(crate) fn check(&self, application: &str, manifest: &Manifest) -> Result<()> {
        for (name, workflow) in &manifest.workflows {
            let said = |why| Error::Invalid(format!("workflows.{name}: {why}"));
            workflow.check_anew(&manifest.functions).map_err(said)?;
        }
        self.check_names(application, manifest)?;
        let state = self.state.read();
        for (name, table) in &manifest.functions {
            let is_there = |told: &String| {
                manifest.functions.contains_key(told)
                    || state
                        .functions
                        .get(told)
                        .is_some_and(|known| known.application != application)
            };
            if let Some(told) = table.on_failure.as_ref().filter(|told| !is_there(told)) {
                return Err(Error::Invalid(format!(
                    "functions.{name}: on_failure = {told:?} is no function"
                )));
            }
        }
        state.check_failures_end(application, manifest)
    }

    /// A function, a workflow and a route are of one application.
    pub(crate) fn check_names(&self, application: &str, manifest: &Manifest) -> Result<()> {
        let state = self.state.read();
        for name in manifest.workflows.keys() {
            let other = state
                .workflows
                .get(name)
                .filter(|known| known.application != application);
            if let Some(KnownWorkflow {
                application: owner, ..
            }) = other
            {
                return Err(Error::Conflict(format!(
                    "the workflow {name:?} is of the application {owner:?}"
                )));
            }
        }
        for name in manifest.functions.keys() {
            let other = state
                .functions
                .get(name)
                .filter(|known| known.application != application);
            if let Some(owner) = other.map(|known| &known.application) {
                return Err(Error::Conflict(format!(
                    "the function {name:?} is of the application {owner:?}"
                )));
            }
        }
        let routes = manifest.routes().map_err(Error::Invalid)?;
        match state.routes.claimed(application, &routes) {
            None => Ok(()),
            Some((route, owner, theirs)) => {
                let (own, their) = (route.function(), theirs.function());
                Err(Error::Conflict(format!(
                    "functions.{own}: the route {route} is {theirs} of the function {their:?} of the application {owner:?}"
                )))
            }
        }
    }

    /// A function.
    pub(crate) fn function(&self, name: &str) -> Option<Arc<Known>> {
        self.state.read().functions.get(name).cloned()
    }

    /// All functions, by name.
    pub(crate) fn functions(&self) -> Vec<Arc<Known>> {
        self.state.read().functions.values().cloned().collect()
    }

    /// A workflow.
    pub(crate) fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        self.state
            .read()
            .workflows
            .get(name)
            .map(|known| Arc::clone(&known.workflow))
    }

    /// All workflows, by name.
    pub(crate) fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        let state = self.state.read();
        state
            .workflows
            .iter()
            .map(|(name, known)| (name.clone(), Arc::clone(&known.workflow)))
            .collect()
    }

    /// What there is for a request over HTTP.
    pub(crate) fn route(&self, method: &str, path: &[String]) -> Found {
        self.state.read().routes.find(method, path)
    }
}

impl Known {
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            name: self.function.name.clone(),
            application: self.application.clone(),
            revision: self.function.revision.clone(),
            runtime: self.table.runtime.name(),
            handler: self.function.handler.clone(),
            memory_mb: self.table.memory_mb,
            timeout_s: self.table.timeout_s,
            concurrency: self.table.concurrency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An application `name` whose functions are told of others' failures as `told` says.
    fn application(name: &str, told: &[(&str, Option<&str>)]) -> Manifest {
        let tables = told.iter().map(|(function, told)| {
            let told = told.map_or_else(String::new, |told| format!("on_failure = \"{told}\"\n"));
            format!(
                "[functions.{function}]\nruntime = \"python3\"\ncode = \"code\"\nhandler = \"app.f\"\n{told}"
            )
        });
        Manifest::parse(&format!(
            "name = \"{name}\"\n{}",
            tables.collect::<String>()
        ))
        .expect("a manifest")
    }

    #[test]
    fn failures_that_would_be_handed_on_for_ever_are_refused() {
        let catalogue = Catalogue::default();
        let refused = |application: &str, manifest: &Manifest| {
            catalogue
                .check(application, manifest)
                .expect_err("a circle")
                .to_string()
        };
        let own = application("one", &[("f", Some("f"))]);
        assert!(refused("one", &own).contains("f -> f"));
        let each_other = application("one", &[("f", Some("g")), ("g", Some("f"))]);
        assert!(refused("one", &each_other).contains("f -> g -> f"));
        let further = application(
            "one",
            &[("f", Some("g")), ("g", Some("h")), ("h", Some("g"))],
        );
        assert!(refused("one", &further).contains("g -> h -> g"));
        let chain = application("one", &[("f", Some("g")), ("g", Some("h")), ("h", None)]);
        catalogue.check("one", &chain).expect("it ends");
        catalogue.replace("one", Some(&chain), "archive", "1");
        let other = application("two", &[("k", Some("f"))]);
        catalogue.check("two", &other).expect("it ends");
        catalogue.replace("two", Some(&other), "archive", "1");
        let across = application("one", &[("f", Some("k"))]);
        assert!(refused("one", &across).contains("f -> k -> f"));
    }
}
