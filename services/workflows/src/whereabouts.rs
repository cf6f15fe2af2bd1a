//! In which homes the runs of a workflow lie: where those lie that begin now, and where earlier definitions of it had theirs.
//!
//! Near rows say which workflows have some where. They are read at the start, and what this process adds it knows. Another process on
//! the same store may have added more since, as where a workflow was deployed with another `far` meanwhile; so among others they are
//! read again before a run is begun that has a name, and before it is said that there is none.

use functions::manifest::workflow::Workflow;

use crate::{Error, Result, Service, active::Claim, homes::Home, service::Inner, store::Store};

impl Inner {
    /// Where the runs of a workflow lie as far as is known here: first of all where those lie that begin now.
    pub(crate) fn homes_of(&self, name: &str) -> Result<Vec<Home>> {
        let now = self
            .parts
            .runner
            .workflow(name)
            .map(|workflow| self.homes.of(&workflow));
        let earlier = self.listed.lock().get(name).cloned().unwrap_or_default();
        let homes: Vec<Home> = now
            .iter()
            .cloned()
            .chain(
                earlier
                    .into_iter()
                    .filter(|home| Some(home) != now.as_ref()),
            )
            .collect();
        if homes.is_empty() {
            Err(Error::NoSuchWorkflow(name.to_owned()))
        } else {
            Ok(homes)
        }
    }

    /// The same with what other processes have noted.
    pub(crate) async fn all_homes_of(&self, name: &str) -> Result<Vec<Home>> {
        if self.options.among_others {
            self.learn_homes_of(name).await?;
        }
        self.homes_of(name)
    }

    /// One read, and another one where the workflow is not known to have rows near.
    async fn learn_homes_of(&self, name: &str) -> Result<()> {
        let near = self.homes.near();
        let mut noted = Vec::new();
        for address in near.homes_of(name).await? {
            noted.push(self.homes.found_at(&address));
        }
        let is_near = self
            .parts
            .runner
            .workflow(name)
            .is_some_and(|workflow| workflow.far.is_none());
        let is_known = self
            .listed
            .lock()
            .get(name)
            .is_some_and(|homes| homes.contains(&Home::Near));
        if !is_near && !is_known && near.is_listed(name).await? {
            noted.push(Home::Near);
        }
        if !noted.is_empty() {
            self.listed
                .lock()
                .entry(name.to_owned())
                .or_default()
                .extend(noted);
        }
        Ok(())
    }
}

impl Service {
    /// Whether a run of this id was begun where its workflow was at home earlier, or is for another process.
    pub(crate) async fn goes_on_elsewhere(&self, claim: &Claim, now: &Home) -> Result<bool> {
        let (name, id) = claim.key();
        for home in self
            .inner
            .all_homes_of(name)
            .await?
            .iter()
            .filter(|home| *home != now)
        {
            let store = self.inner.homes.store_to_search(home).await?;
            if let Some(store) = store
                && store.run(name, id).await?.is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes that a workflow has rows, so that a start finds its runs.
    pub(crate) async fn list(&self, store: &Store, name: &str, workflow: &Workflow) -> Result<()> {
        let home = self.inner.homes.of(workflow);
        if self
            .inner
            .listed
            .lock()
            .get(name)
            .is_some_and(|homes| homes.contains(&home))
        {
            return Ok(());
        }
        store.list(name).await?;
        if let Some(address) = &workflow.far {
            self.inner.homes.near().list_home(name, address).await?;
        }
        self.inner
            .listed
            .lock()
            .entry(name.to_owned())
            .or_default()
            .insert(home);
        Ok(())
    }

    /// Looks no more for rows in a far store that can have none; an earlier build may have noted some.
    pub(crate) async fn let_go(&self, home: &Home, why: &Error) -> Result<()> {
        tracing::warn!(%home, error = %why, "a far store is not used");
        self.inner.homes.unlist(home).await?;
        self.inner.listed.lock().retain(|_, homes| {
            homes.remove(home);
            !homes.is_empty()
        });
        Ok(())
    }
}
