//! The functions of these tests; [`super::definitions`] has their workflows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use fastrand::Rng;
use functions::manifest::workflow::Workflow;
use ports::{
    Clock,
    runtime::{FunctionError, Invocation, Ran},
};
use transactions::{Effect, model};
use workflows::{Runner, Service, StepStart};

use super::{
    checks::Claim,
    definitions::{
        BEFORE, COUNTS, DAWDLES_FOR, FIRST, HURRY, LATE_BY, SECOND, SENDS, SHARES, SLOW_FOR, TURNS,
        TURNS_TAKEN, deployed,
    },
    far::SPOILT,
    receivers::{QUEUE, Receivers},
};
use crate::transactions::crashable::Life;

/// Runs functions in place.
#[derive(Debug)]
pub struct Code {
    pub(crate) service: OnceLock<Service>,
    pub(crate) engine: transactions::Engine,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) receivers: Receivers,
    pub(crate) life: Life,
    pub(crate) rng: Mutex<Rng>,
    /// Runs of [`LATE`] that have had their first attempts.
    pub(crate) late: Mutex<BTreeSet<String>>,
    /// How often a step fails after all its work; zero: never.
    pub(crate) fails_one_in: usize,
    /// Whether workflows have the far store.
    pub(crate) is_far: bool,
    /// When a write to the far store returns.
    pub(crate) synchrony: &'static str,
}

#[allow(clippy::needless_pass_by_value)] // Why: it is given to `map_err`.
fn failed(why: impl ToString) -> String {
    why.to_string()
}

fn number(value: Option<&Bytes>) -> u64 {
    value.map_or(0, |value| {
        String::from_utf8_lossy(value).parse().expect("a number")
    })
}

impl Code {
    fn is_drawn(&self, one_in: usize) -> bool {
        self.rng
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .usize(..one_in)
            == 0
    }

    fn service(&self) -> &Service {
        self.service.get().expect("it serves")
    }

    async fn do_as(&self, function: &str, token: &str, run: &str) -> Result<(), String> {
        match function {
            "add" => self.add(token, run).await.map(drop),
            "tells" => self.tell(token, run).await,
            "hears" => self.hear(token, run).await,
            "fails" => Err(failed("for good")),
            "waits" => {
                self.clock.sleep(SLOW_FOR).await;
                Ok(())
            }
            "dawdles" => {
                self.clock.sleep(DAWDLES_FOR).await;
                Ok(())
            }
            "tells-late" => {
                self.clock.sleep(SLOW_FOR).await;
                self.tell(token, run).await
            }
            "shares" => {
                let count = number(self.get(token, SHARES).await?.as_ref()) + 1;
                self.clock.sleep(LATE_BY).await;
                self.put(token, SHARES, &count.to_string()).await
            }
            "late" => self.ask_late(token, run).await,
            "overflows" => {
                for key in 0..200 {
                    self.put(token, &format!("many/{run}/{key}"), "1").await?;
                }
                drop(self.service().externalize(token).await);
                Ok(())
            }
            "spoils" => self.put(token, SPOILT, "1").await,
            "rests" => {
                let seen = self.get(token, SPOILT).await?;
                self.put(
                    token,
                    &format!("rests/{run}"),
                    if seen.is_some() { "1" } else { "0" },
                )
                .await
            }
            "copies" => self.copy(token, run).await,
            "turns" => self.turn(token, run).await,
            "handles" => self.handle(token, run).await,
            "peeks" | "looks" => self.peek(token, run).await,
            "hurries" => self.hurry(token, run).await,
            "minds" => self.mind(token, run).await,
            "asks" => {
                let input = format!("\"{run}\"").into();
                match self
                    .service()
                    .call_step(token, "looks", input)
                    .await
                    .map_err(failed)?
                {
                    Ok(_) => Ok(()),
                    Err(told) => Err(failed(String::from_utf8_lossy(&told))),
                }
            }
            "may" if self.is_drawn(2) => Err(failed("this time")),
            "may" => Ok(()),
            other => panic!("there is no function {other}"),
        }
    }

    async fn get(&self, token: &str, key: &str) -> Result<Option<Bytes>, String> {
        self.service()
            .get(token, &Bytes::from(key.to_owned()))
            .await
            .map_err(failed)
    }

    async fn put(&self, token: &str, key: &str, value: &str) -> Result<(), String> {
        let (key, value) = (Bytes::from(key.to_owned()), Bytes::from(value.to_owned()));
        self.service()
            .put(token, key, Some(value))
            .await
            .map_err(failed)
    }

    async fn say(&self, token: &str, text: String) -> Result<(), String> {
        let effect = Effect::Message {
            queue: QUEUE.to_owned(),
            group: Bytes::new(),
            body: text.into(),
        };
        self.service().send(token, effect).await.map_err(failed)
    }

    async fn add(&self, token: &str, run: &str) -> Result<u64, String> {
        let key = format!("count/{run}");
        let count = number(self.get(token, &key).await?.as_ref()) + 1;
        self.put(token, &key, &count.to_string()).await?;
        for more in SENDS {
            self.say(token, format!("{COUNTS} {run} {} {more}", count - 1))
                .await?;
        }
        Ok(count)
    }

    async fn tell(&self, token: &str, run: &str) -> Result<(), String> {
        self.put(token, &format!("told/{run}"), run).await?;
        self.service().externalize(token).await.map_err(failed)?;
        if self.is_far {
            let claim = Claim::State {
                key: format!("told/{run}"),
                value: run.to_owned(),
            };
            self.receivers.received_messages().claim(claim);
        }
        self.put(token, &format!("more/{run}"), "1").await?;
        self.say(token, format!("{FIRST} {run} 0")).await
    }

    /// Each attempt continues from the last write that the previous one externalized.
    async fn turn(&self, token: &str, run: &str) -> Result<(), String> {
        let key = format!("turn/{run}");
        let turn = number(self.get(token, &key).await?.as_ref());
        self.say(token, format!("{TURNS} {run}/{turn}")).await?;
        if turn == TURNS_TAKEN {
            return Ok(());
        }
        self.put(token, &key, &(turn + 1).to_string()).await?;
        self.service().externalize(token).await.map_err(failed)?;
        Err(failed("it is not done yet"))
    }

    async fn hear(&self, token: &str, run: &str) -> Result<(), String> {
        let told = self
            .get(token, &format!("told/{run}"))
            .await?
            .ok_or_else(|| failed("nothing is told"))?;
        self.put(
            token,
            &format!("heard/{run}"),
            &String::from_utf8_lossy(&told),
        )
        .await?;
        self.say(token, format!("{SECOND} {run} 0")).await
    }

    /// W7.
    async fn ask_late(&self, token: &str, run: &str) -> Result<(), String> {
        let key = format!("tried/{run}");
        if !self
            .late
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(run.to_owned())
        {
            // The run is in progress at the request; only the attempt has ended.
            self.clock.sleep(2 * LATE_BY).await;
            return self.put(token, &key, "1").await;
        }
        let (service, clock) = (self.service().clone(), Arc::clone(&self.clock));
        let (token, late) = (token.to_owned(), Bytes::from(format!("late/{run}")));
        tokio::spawn(async move {
            clock.sleep(LATE_BY).await;
            // The test looks at the state, not at this result.
            drop(service.put(&token, late, Some(Bytes::from("1"))).await);
            drop(service.externalize(&token).await);
        });
        Err(failed("it has ended, and leaves something behind"))
    }

    /// The next step of the code: whether it returned `output`, or failed at random.
    async fn step_or_fail(
        &self,
        token: &str,
        name: &str,
        output: &str,
    ) -> Result<Result<Bytes, Bytes>, String> {
        let step = match self
            .service()
            .open_step(token, name)
            .await
            .map_err(failed)?
        {
            StepStart::Committed(result) => return Ok(result),
            StepStart::Open { step, .. } => step,
        };
        if self.is_drawn(2) {
            let said = Bytes::from_static(br#"{"errorType":"Chance","errorMessage":"this time"}"#);
            return Ok(Err(self
                .service()
                .fail_step(&step, name, &said)
                .await
                .map_err(failed)?));
        }
        let output = Bytes::from(format!("\"{output}\""));
        self.service()
            .finish_step(&step, name, output)
            .await
            .map_err(failed)
    }

    /// W2: later steps and messages show which branch the code took. A repeat must not take another
    /// one.
    async fn handle(&self, token: &str, run: &str) -> Result<(), String> {
        let first = self.step_or_fail(token, "first", "done").await?.is_ok();
        let called = self
            .service()
            .call_step(token, "may", format!("\"{run}\"").into())
            .await
            .map_err(failed)?;
        let way = format!("{first} {}", called.is_ok());
        let behind = self.step_or_fail(token, "behind", &way).await?;
        if behind
            .as_ref()
            .is_ok_and(|behind| *behind != format!("\"{way}\""))
        {
            return self
                .put(
                    token,
                    &format!("torn/{run}"),
                    &format!("{way} for {behind:?}"),
                )
                .await;
        }
        let way = format!("{way} {}", behind.is_ok());
        let key = model::Key::new(format!("went/{run}")).map_err(failed)?;
        self.service().settle(token).await.map_err(failed)?;
        let before = self.engine.get_now(&key).await.map_err(failed)?.value;
        if before
            .as_ref()
            .is_some_and(|before| **before != *way.as_bytes())
        {
            return self
                .put(
                    token,
                    &format!("torn/{run}"),
                    &format!("{way} for {before:?}, receivers"),
                )
                .await;
        }
        self.engine
            .put_now(key, Some(way.into()))
            .await
            .map(drop)
            .map_err(failed)
    }

    async fn peek(&self, token: &str, run: &str) -> Result<(), String> {
        self.clock.sleep(SLOW_FOR).await;
        let seen = self.get(token, &format!("count/{BEFORE}")).await?;
        self.put(
            token,
            &format!("seen/{run}"),
            if seen.is_some() { "all" } else { "nothing" },
        )
        .await
    }

    async fn hurry(&self, token: &str, run: &str) -> Result<(), String> {
        self.clock.sleep(SLOW_FOR).await;
        self.put(token, &format!("seen/{run}"), "all").await?;
        tokio::select! {
            biased;
            done = self.service().externalize(token) => done.map_err(failed),
            () = self.clock.sleep(HURRY) => Err(failed("it takes too long")),
        }
    }

    /// Treats a failed step like one that found nothing.
    async fn mind(&self, token: &str, run: &str) -> Result<(), String> {
        self.clock.sleep(SLOW_FOR).await;
        let opened = self
            .service()
            .open_step(token, "looks")
            .await
            .map_err(failed)?;
        let StepStart::Open { step, .. } = opened else {
            return Err(failed("it is made once"));
        };
        let seen = if self.get(&step, &format!("count/{BEFORE}")).await.is_ok() {
            let counted = self
                .service()
                .finish_step(&step, "looks", "\"all\"".into())
                .await
                .map_err(failed)?;
            counted.map_err(|told| failed(String::from_utf8_lossy(&told)))?;
            "all"
        } else {
            let said = Bytes::from_static(
                br#"{"errorType":"Away","errorMessage":"the function times out"}"#,
            );
            self.service()
                .fail_step(&step, "looks", &said)
                .await
                .map_err(failed)?;
            "nothing"
        };
        self.put(token, &format!("seen/{run}"), seen).await
    }

    /// Writes the count of the run in a separate transaction, as the routes of transactions do.
    async fn copy(&self, token: &str, run: &str) -> Result<(), String> {
        let count = self
            .get(token, &format!("count/{run}"))
            .await?
            .unwrap_or_default();
        let key = model::Key::new(format!("copy/{run}")).map_err(failed)?;
        self.service().settle(token).await.map_err(failed)?;
        self.engine
            .put_now(key, Some(count))
            .await
            .map(drop)
            .map_err(failed)
    }
}

#[async_trait]
impl Runner for Code {
    fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        deployed(self.is_far.then_some(self.synchrony)).remove(name)
    }

    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        deployed(self.is_far.then_some(self.synchrony))
    }

    fn retries(&self, function: &str) -> Option<u32> {
        Some(if matches!(function, "may" | "looks") {
            0
        } else {
            10_000
        })
    }

    async fn run(&self, function: &str, invocation: Invocation) -> Result<Ran, String> {
        let token = invocation.scope.as_deref().expect("a step");
        let run = String::from_utf8(invocation.payload.to_vec())
            .expect("text")
            .trim_matches('"')
            .to_owned();
        let done = tokio::select! {
            biased;
            () = self.life.over() => std::future::pending().await,
            done = self.do_as(function, token, &run) => done,
        };
        let fails = self.fails_one_in > 0 && function != "may" && self.is_drawn(self.fails_one_in);
        let done = if fails {
            Err(failed("it fails after all that it does"))
        } else {
            done
        };
        let error = |why: String| FunctionError {
            payload: Bytes::from(serde_json::json!({ "errorMessage": why }).to_string()),
        };
        Ok(Ran {
            result: done.map(|()| invocation.payload).map_err(error),
            log_tail: Bytes::new(),
        })
    }
}
