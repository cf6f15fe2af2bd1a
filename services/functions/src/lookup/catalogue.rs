//! The catalogue: deployed functions, workflows and routes by name, for callers.
//!
//! It is held in memory, so that an invocation reads no store.
//!
//! Invariant: an application's entries change together, under one lock. No caller sees a route of
//! one deployment beside the functions of another.

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
    cors::Cors,
    error::{Error, Result},
    manifest::{Change, Manifest, Table, workflow::Workflow},
    routes::{RouteMatch, RouteTable},
};

#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    state: RwLock<State>,
    changes: watch::Sender<()>,
    /// Whether the applications that were deployed before the start are in place.
    is_in_place: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    functions: BTreeMap<String, Arc<DeployedFunction>>,
    /// Each with its application.
    workflows: BTreeMap<String, (String, Arc<Workflow>)>,
    routes: RouteTable,
}

impl State {
    /// Errors: `manifest` as `application` would form a circle of `on_failure` functions, which
    /// would pass an event on without end.
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
        let notified_by = |name: &str| table(name)?.on_failure.as_deref();
        for name in manifest.functions.keys() {
            let mut chain = vec![name.as_str()];
            while let Some(notified) = chain.last().and_then(|last| notified_by(last)) {
                if notified == name {
                    return Err(Error::Invalid(format!(
                        "functions.{name}: on_failure leads back to it ({} -> {name}), so that a failure would never end",
                        chain.join(" -> ")
                    )));
                }
                // A circle that does not contain `name` is reported for its own members.
                if chain.contains(&notified) {
                    break;
                }
                chain.push(notified);
            }
        }
        Ok(())
    }
}

/// A deployed function with its application and its table in the manifest.
#[derive(Debug)]
pub(crate) struct DeployedFunction {
    pub(crate) function: Arc<Function>,
    pub(crate) application: String,
    pub(crate) table: Table,
}

/// A deployed function, for lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// Its application.
    pub application: String,
    /// Changes with every deployment.
    pub revision: String,
    /// Its interpreter, in the manifest's terms.
    pub runtime: &'static str,
    /// Its handler.
    pub handler: String,
    /// The memory limit of an instance, in MB.
    pub memory_mb: u64,
    /// The timeout of an invocation, in seconds.
    pub timeout_s: u64,
    /// The most instances at a time.
    pub concurrency: usize,
}

impl Catalogue {
    pub(crate) fn of<'a>(applications: impl Iterator<Item = (&'a str, &'a Manifest)>) -> Self {
        let all = Self::default();
        for (application, manifest) in applications {
            all.replace(application, Some(manifest), "", "", 0);
        }
        all
    }

    /// Records that all applications that were deployed before the start are here.
    pub(crate) fn put_in_place(&self) {
        self.is_in_place.store(true, Ordering::Release);
    }

    /// Whether a name that is not here is not deployed.
    pub(crate) fn is_in_place(&self) -> bool {
        self.is_in_place.load(Ordering::Acquire)
    }

    /// Replaces all entries of `application` by those of `manifest`; none: removes them. The code
    /// is in `archive`, and each function has this `revision` and `incarnation`.
    pub(crate) fn replace(
        &self,
        application: &str,
        manifest: Option<&Manifest>,
        archive: &str,
        revision: &str,
        incarnation: u64,
    ) {
        let routes = manifest.map(Manifest::routes).transpose();
        let routes = routes.expect("a manifest's routes are checked");
        let cors = manifest.and_then(|manifest| manifest.cors.as_ref());
        let mut state = self.state.write();
        let State {
            functions,
            workflows,
            ..
        } = &mut *state;
        functions.retain(|_, known| known.application != application);
        workflows.retain(|_, (owner, _)| owner != application);
        for (name, table) in manifest.iter().flat_map(|manifest| &manifest.functions) {
            let known = DeployedFunction {
                function: table.function(name, archive, revision, incarnation),
                application: application.to_owned(),
                table: table.clone(),
            };
            functions.insert(name.clone(), Arc::new(known));
        }
        for (name, workflow) in manifest.iter().flat_map(|manifest| &manifest.workflows) {
            let known = (application.to_owned(), Arc::new(workflow.clone()));
            workflows.insert(name.clone(), known);
        }
        state
            .routes
            .replace(application, routes.unwrap_or_default(), cors);
        drop(state);
        self.changes.send_replace(());
    }

    /// Waits for a change after this call, or for the end of the catalogue. It does not keep the
    /// catalogue alive.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.changes.subscribe();
        async move {
            // An error means that the catalogue was dropped.
            let _ = changes.changed().await;
        }
    }

    /// Whether `application` may deploy `manifest`: no other application has its names or routes,
    /// and each `on_failure` function exists.
    pub(crate) fn check(&self, application: &str, manifest: &Manifest) -> Result<()> {
        self.check_names(application, manifest)?;
        let state = self.state.read();
        for (name, table) in &manifest.functions {
            let exists = |notified: &String| {
                manifest.functions.contains_key(notified)
                    || state
                        .functions
                        .get(notified)
                        .is_some_and(|known| known.application != application)
            };
            if let Some(notified) = table
                .on_failure
                .as_ref()
                .filter(|notified| !exists(notified))
            {
                return Err(Error::Invalid(format!(
                    "functions.{name}: on_failure = {notified:?} is no function"
                )));
            }
        }
        state.check_failures_end(application, manifest)
    }

    /// Errors: another application has a function, a workflow or a route of `manifest`.
    pub(crate) fn check_names(&self, application: &str, manifest: &Manifest) -> Result<()> {
        let state = self.state.read();
        let workflow = |name| state.workflows.get(name).map(|known| &known.0);
        let function = |name| state.functions.get(name).map(|known| &known.application);
        let workflows = manifest
            .workflows
            .keys()
            .map(|name| ("workflow", name, workflow(name)));
        let functions = manifest
            .functions
            .keys()
            .map(|name| ("function", name, function(name)));
        for (kind, name, owner) in workflows.chain(functions) {
            if let Some(owner) = owner.filter(|owner| *owner != application) {
                return Err(Error::Conflict(format!(
                    "the {kind} {name:?} is of the application {owner:?}"
                )));
            }
        }
        let routes = manifest.routes().map_err(Error::Invalid)?;
        match state.routes.claimed(application, &routes) {
            None => Ok(()),
            Some((route, owner, theirs)) => {
                let (own, their) = (&route.function, &theirs.function);
                Err(Error::Conflict(format!(
                    "functions.{own}: the route {route} is {theirs} of the function {their:?} of the application {owner:?}"
                )))
            }
        }
    }

    pub(crate) fn function(&self, name: &str) -> Option<Arc<DeployedFunction>> {
        self.state.read().functions.get(name).cloned()
    }

    pub(crate) fn functions(&self) -> Vec<Arc<DeployedFunction>> {
        self.state.read().functions.values().cloned().collect()
    }

    /// The functions that a change of an object starts.
    pub(crate) fn following(&self, bucket: &str, key: &str, change: Change) -> Vec<String> {
        let state = self.state.read();
        let wants = |table: &Table| {
            let rule = table.on_object.as_ref();
            rule.is_some_and(|rule| rule.wants(bucket, key, change))
        };
        let functions = state.functions.iter();
        let following = functions.filter(|(_, deployed)| wants(&deployed.table));
        following.map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        self.state
            .read()
            .workflows
            .get(name)
            .map(|(_, workflow)| Arc::clone(workflow))
    }

    pub(crate) fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        let state = self.state.read();
        state
            .workflows
            .iter()
            .map(|(name, (_, workflow))| (name.clone(), Arc::clone(workflow)))
            .collect()
    }

    pub(crate) fn route(&self, method: &str, path: &[String]) -> RouteMatch {
        self.state.read().routes.find(method, path)
    }

    pub(crate) fn cors(&self, method: &str, path: &[String]) -> Option<Arc<Cors>> {
        self.state.read().routes.cors(method, path)
    }
}

impl DeployedFunction {
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            name: self.function.name.clone(),
            application: self.application.clone(),
            revision: self.function.revision.clone(),
            runtime: self.table.runtime.kind.name(),
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

    /// An application `name` with these functions and their `on_failure` functions.
    fn application(name: &str, notified: &[(&str, Option<&str>)]) -> Manifest {
        let tables = notified.iter().map(|(function, notified)| {
            let notified = notified.map_or_else(String::new, |notified| format!("on_failure = \"{notified}\"\n"));
            format!(
                "[functions.{function}]\nruntime = \"python3\"\ncode = \"code\"\nhandler = \"app.f\"\n{notified}"
            )
        });
        Manifest::parse(&format!(
            "name = \"{name}\"\n{}",
            tables.collect::<String>()
        ))
        .expect("a manifest")
    }

    #[test]
    fn on_failure_circles_are_refused() {
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
        catalogue.replace("one", Some(&chain), "archive", "1", 0);
        let other = application("two", &[("k", Some("f"))]);
        catalogue.check("two", &other).expect("it ends");
        catalogue.replace("two", Some(&other), "archive", "1", 0);
        let across = application("one", &[("f", Some("k"))]);
        assert!(refused("one", &across).contains("f -> k -> f"));
    }
}
