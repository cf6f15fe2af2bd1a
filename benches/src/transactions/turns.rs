//! Stores that are measured in turns, several short ones each, since a core of a virtual machine
//! may be twice as fast in one minute as in the next.
//!
//! A turn begins after the deferred work of the turn before, such as collection. The CPU time of
//! that work is charged to the store that deferred it. Each round begins with another store than
//! the round before, so that no store is always first.

use std::time::Duration;

use anyhow::{Context, Result};
use simulation::transactions::workload::Mix;

use super::{
    report::Cell,
    run::{Amount, Clients, Measured},
};

/// Deferred work is done once all processes of a turn use little CPU for this long.
const QUIET_LOOK: Duration = Duration::from_millis(100);
/// The bound of "little": two ticks of the kernel's CPU accounting, for tasks that never stop.
const QUIET_CPU: Duration = Duration::from_millis(20);
/// After this many checks the next turn begins anyway.
const QUIET_LOOKS_MAX: usize = 20;

/// A watched process: its name, and the CPU time it has taken.
pub type Watched<'a> = (&'static str, Box<dyn Fn() -> Result<Duration> + 'a>);

/// One of the stores.
pub struct Entrant<'a> {
    store: &'static str,
    mix: Mix,
    clients: Clients,
    watched: Vec<Watched<'a>>,
    measured: Option<Measured>,
    cpu: Vec<Duration>,
}

impl<'a> Entrant<'a> {
    /// `store` with its `clients`, which run `mix`, and the processes that take part.
    pub fn new(store: &'static str, mix: Mix, clients: Clients, watched: Vec<Watched<'a>>) -> Self {
        let cpu = vec![Duration::ZERO; watched.len()];
        Self {
            store,
            mix,
            clients,
            watched,
            measured: None,
            cpu,
        }
    }

    async fn turn(&mut self, amount: Amount) -> Result<()> {
        let before = self.taken()?;
        let measured = self
            .clients
            .run(amount)
            .await
            .with_context(|| self.store.to_owned())?;
        let after = self.taken_until_quiet().await?;
        for (cpu, (after, before)) in self.cpu.iter_mut().zip(after.into_iter().zip(before)) {
            *cpu += after.saturating_sub(before);
        }
        match &mut self.measured {
            Some(all) => all.add(&measured)?,
            None => self.measured = Some(measured),
        }
        Ok(())
    }

    fn taken(&self) -> Result<Vec<Duration>> {
        self.watched.iter().map(|(_, cpu)| cpu()).collect()
    }

    async fn taken_until_quiet(&self) -> Result<Vec<Duration>> {
        let mut taken = self.taken()?;
        for _ in 0..QUIET_LOOKS_MAX {
            tokio::time::sleep(QUIET_LOOK).await;
            let before: Duration = taken.iter().sum();
            taken = self.taken()?;
            if taken.iter().sum::<Duration>().saturating_sub(before) <= QUIET_CPU {
                break;
            }
        }
        Ok(taken)
    }

    /// The results of all its turns.
    pub fn cell(&self) -> Result<Cell> {
        let figures = self
            .measured
            .as_ref()
            .context("a store has had a turn")?
            .figures();
        let each =
            |taken: &Duration| taken.as_secs_f64() * 1e6 / figures.transactions.max(1) as f64;
        let names = self.watched.iter().map(|(name, _)| (*name).to_owned());
        Ok(Cell {
            store: self.store,
            zipf: self.mix.zipf,
            clients: self.mix.clients,
            value_bytes: self.mix.value_bytes,
            figures,
            anomalies: self.clients.anomalies(),
            cpu_us: names.zip(self.cpu.iter().map(each)).collect(),
        })
    }
}

/// Gives each of `entrants` a turn of `amount`; `number` is the number of the round.
pub async fn round(entrants: &mut [Entrant<'_>], number: u32, amount: Amount) -> Result<()> {
    let first = number as usize % entrants.len().max(1);
    let (rest, begin) = entrants.split_at_mut(first);
    for entrant in begin.iter_mut().chain(rest) {
        entrant.turn(amount).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use transactions::Config;

    use super::{
        super::{
            engine::{embedded, start},
            run::{Anomalies, Watching},
            target::Target,
        },
        *,
    };

    /// A store whose CPU time is read is having its turn.
    #[tokio::test(flavor = "multi_thread")]
    async fn each_round_begins_with_the_next_store_and_all_turns_are_counted_together() {
        let data = std::env::temp_dir().join(format!("landfast-turns-{}", std::process::id()));
        let mix = Mix {
            clients: 2,
            keys: 20,
            value_bytes: 256,
            ..Mix::default()
        };
        let store = embedded(&data).await.expect("a store");
        let (engine, background) = start(store.key_value(), Config::default())
            .await
            .expect("an engine");
        let turns = RefCell::new(Vec::new());
        let mut entrants = Vec::new();
        for name in ["a", "b", "c"] {
            let targets = (0..mix.clients).map(|_| Target::engine(&engine)).collect();
            let clients = Clients::prepare(targets, mix, Watching::Anomalies, 1)
                .await
                .expect("prepared");
            let turns = &turns;
            let cpu = move || {
                let mut turns = turns.borrow_mut();
                if turns.last() != Some(&name) {
                    turns.push(name);
                }
                Ok(Duration::ZERO)
            };
            entrants.push(Entrant::new(
                name,
                mix,
                clients,
                vec![("all", Box::new(cpu))],
            ));
        }
        for number in 0..4 {
            round(&mut entrants, number, Amount::Transactions(6))
                .await
                .expect("measured");
        }
        assert_eq!(
            turns.borrow().concat(),
            "abc".to_owned() + "bca" + "cab" + "abc"
        );
        for entrant in &entrants {
            let cell = entrant.cell().expect("it had its turns");
            assert_eq!(
                (cell.figures.transactions, cell.anomalies),
                (24, Some(Anomalies::default()))
            );
        }
        drop((entrants, engine, background));
        store.close().await;
        std::fs::remove_dir_all(&data).expect("removed");
    }
}
