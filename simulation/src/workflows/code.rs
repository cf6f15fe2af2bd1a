//! The functions that workflows are made of here, and those workflows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
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
    checks::{ADDRESS, Claim},
    far::SPOILT,
    outside::{Outside, QUEUE},
};
use crate::transactions::mortal::Life;

/// Adds one for each step, and says so outside.
pub const COUNTS: &str = "counts";
/// Says something half way, and goes on.
pub const FIRST: &str = "first";
/// Waits for that, and rests on it.
pub const SECOND: &str = "second";
/// The same as [`COUNTS`], as a whole or not at all.
pub const WHOLE: &str = "whole";
/// Adds one, and then fails for good: as a whole or not at all.
pub const NOTHING: &str = "nothing";
/// Adds one, writes in a transaction what it has counted, and then fails for good: as a whole or not at all.
pub const LEAKS: &str = "leaks";
/// Adds one to what all its runs add to, and takes a while over it: as a whole or not at all, as if alone.
pub const SHARES: &str = "shares";
/// Waits for longer than its transaction may, and then reads: as a whole or not at all.
pub const LINGERS: &str = "lingers";
/// Waits for long, then adds one.
pub const SLOW: &str = "slow";
/// Adds one, takes some seconds over it, and adds one: as a whole or not at all.
pub const DAWDLES: &str = "dawdles";
/// Adds one, and takes most of the time that it has: as a whole or not at all.
pub const HASTENS: &str = "hastens";
/// Waits for long, then does what [`FIRST`] does.
pub const TELLS_LATE: &str = "tells-late";
/// Its first attempt ends, and asks for something later.
pub const LATE: &str = "late";
/// Writes what the far store refuses for good.
pub const SPOILS: &str = "spoils";
/// Reads that.
pub const RESTS_ON_SPOILT: &str = "rests";
/// Adds one, and then fails for good.
pub const FAILS: &str = "fails";
/// Says something, has that count, and fails; then sees that it was said, and says something else.
pub const TURNS: &str = "turns";
/// Writes more than it can externalize, and takes no notice.
pub const OVERFLOWS: &str = "overflows";
/// Adds one, then writes in a transaction what it has counted.
pub const COPIES: &str = "copies";

/// Adds one, waits for long again and again, and adds one.
pub const LONG: &str = "long";
/// Its code calls steps that fail or not, and goes on by that.
pub const HANDLES: &str = "handles";

/// Waits for long, then reads what is far; it is tried once.
pub const PEEKS: &str = "peeks";
/// Waits for long, then externalizes, and gives up soon; it is tried once.
pub const HURRIES: &str = "hurries";
/// Waits for long, then has a step read what is far, and goes on whether that fails or not.
pub const MINDS: &str = "minds";
/// Has a function of its own do what [`PEEKS`] does.
pub const ASKS: &str = "asks";
/// How long [`HURRIES`] waits.
pub const HURRY: Duration = Duration::from_secs(5);
/// What is far, once a run of [`COUNTS`] of this name has ended.
pub const BEFORE: &str = "before";

/// Steps of [`COUNTS`] and [`WHOLE`].
pub const STEPS: u64 = 4;
/// How often a step of [`TURNS`] fails before it counts.
pub const TURNS_TAKEN: u64 = 2;
/// What each step of [`COUNTS`] sends.
pub const SENDS: [&str; 2] = ["a", "b"];
/// How long a step of [`SLOW`] waits.
pub const SLOW_FOR: Duration = Duration::from_mins(1);
/// How long a step of [`DAWDLES`] waits.
pub const DAWDLES_FOR: Duration = Duration::from_secs(3);
/// How long after its end an attempt of [`LATE`] asks.
pub const LATE_BY: Duration = Duration::from_secs(1);

/// Runs functions in place.
#[derive(Debug)]
pub struct Code {
    pub(crate) service: OnceLock<Service>,
    pub(crate) engine: transactions::Engine,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) outside: Outside,
    pub(crate) life: Life,
    pub(crate) rng: Mutex<Rng>,
    /// Runs of [`LATE`] that have had their first attempts.
    pub(crate) late: Mutex<BTreeSet<String>>,
    /// How often a step fails after all that it does; zero: never.
    pub(crate) fails_one_in: usize,
    /// Whether workflows have the far store.
    pub(crate) is_far: bool,
    /// When a write returns there.
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
    fn defined(&self) -> BTreeMap<String, Arc<Workflow>> {
        let counts = vec!["\"add\""; STEPS as usize].join(",");
        let retried = |function: &str| format!(r#"{{"function":"{function}","backoff_ms":20}}"#);
        let (tells, hears) = (retried("tells"), retried("hears"));
        let far = if self.is_far {
            format!(r#","far":"{ADDRESS}","synchrony":"{}""#, self.synchrony)
        } else {
            String::new()
        };
        let made = |steps: &str, more: &str| {
            let text = format!(r#"{{"steps":[{steps}]{more}}}"#);
            Arc::new(serde_json::from_str(&text).expect("a workflow"))
        };
        let atomic = r#","atomic":true"#;
        let fails = r#""add",{"function":"fails","retries":0}"#;
        let mut all = BTreeMap::from([
            (COUNTS, made(&counts, &far)),
            (FIRST, made(&tells, &far)),
            (SECOND, made(&hears, &far)),
            (TELLS_LATE, made(r#""tells-late""#, &far)),
            (SLOW, made(r#""waits","add""#, &far)),
            (LATE, made(r#""late""#, &far)),
            (COPIES, made(r#""add","copies""#, &far)),
            (TURNS, made(&retried("turns"), &far)),
            (LONG, made(r#""add","waits","waits","waits","add""#, &far)),
            (FAILS, made(fails, &far)),
            (HANDLES, made(r#""handles""#, &far)),
        ]);
        if self.is_far {
            let once =
                |function: &str| made(&format!(r#"{{"function":"{function}","retries":0}}"#), &far);
            all.extend([PEEKS, HURRIES, MINDS, ASKS].map(|name| (name, once(name))));
            all.insert(
                OVERFLOWS,
                made(r#"{"function":"overflows","retries":0}"#, &far),
            );
            all.insert(
                SPOILS,
                made(r#""add",{"function":"spoils","retries":1}"#, &far),
            );
            all.insert(
                RESTS_ON_SPOILT,
                made(r#""add",{"function":"rests","retries":1}"#, &far),
            );
        } else {
            all.insert(WHOLE, made(&counts, atomic));
            all.insert(NOTHING, made(fails, atomic));
            let once = |function: &str| format!(r#"{{"function":"{function}","retries":0}}"#);
            let leaks = format!(r#""add",{},{}"#, once("copies"), once("fails"));
            all.insert(LEAKS, made(&leaks, atomic));
            all.insert(LINGERS, made(r#""waits","waits","rests""#, atomic));
            all.insert(
                DAWDLES,
                made(r#""add","dawdles","dawdles","dawdles","add""#, atomic),
            );
            all.insert(
                HASTENS,
                made(r#""add","dawdles""#, r#","atomic":true,"timeout_s":5"#),
            );
            all.insert(
                SHARES,
                made(
                    r#""shares""#,
                    r#","atomic":true,"isolation":"serializable""#,
                ),
            );
        }
        all.into_iter()
            .map(|(name, workflow)| (name.to_owned(), workflow))
            .collect()
    }

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
            self.outside.noted().claim(claim);
        }
        self.put(token, &format!("more/{run}"), "1").await?;
        self.say(token, format!("{FIRST} {run} 0")).await
    }

    /// Each attempt goes on from what the one before has had count ahead of the step.
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
            // The run is under way while it is asked: what has ended is the attempt alone.
            self.clock.sleep(2 * LATE_BY).await;
            return self.put(token, &key, "1").await;
        }
        let (service, clock) = (self.service().clone(), Arc::clone(&self.clock));
        let (token, late) = (token.to_owned(), Bytes::from(format!("late/{run}")));
        tokio::spawn(async move {
            clock.sleep(LATE_BY).await;
            // Whatever becomes of it is looked for in the state.
            drop(service.put(&token, late, Some(Bytes::from("1"))).await);
            drop(service.externalize(&token).await);
        });
        Err(failed("it has ended, and leaves something behind"))
    }

    /// The next step of the code: whether it has come to `output`, or failed, as it does by chance.
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

    /// W2: which way the code went is written by the steps behind, and outside; it is not to go another one when it is run again.
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
                    &format!("{way} for {before:?}, outside"),
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

    /// Takes a step that fails for one that found nothing.
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
            let said =
                Bytes::from_static(br#"{"errorType":"Away","errorMessage":"nobody answers"}"#);
            self.service()
                .fail_step(&step, "looks", &said)
                .await
                .map_err(failed)?;
            "nothing"
        };
        self.put(token, &format!("seen/{run}"), seen).await
    }

    /// What the run has counted, in a transaction of its own: as the routes of transactions do.
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
        self.defined().remove(name)
    }

    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        self.defined()
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
