//! Runtimes that break U1 to U5.

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Broken,
    logs::{KeepsNoLines, MixesInvocations, twisted_logs},
};
use crate::{
    Runtime,
    contract::runtime::Subject,
    runtime::{Figures, Function, FunctionError, Invocation, Ran, Refused},
};

/// Every broken runtime, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("U1", "StartsAnewEachTime", |subject| {
        twisted(subject, StartsAnewEachTime)
    }),
    Broken::new("U1", "NeverThrottles", |subject| {
        twisted(subject, NeverThrottles)
    }),
    Broken::new("U2", "NeverTimesOut", |subject| {
        twisted(subject, NeverTimesOut)
    }),
    Broken::new("U2", "TakesAnEndForAnAnswer", |subject| {
        twisted(subject, TakesAnEndForAnAnswer)
    }),
    Broken::new("U3", "CutsAnswers", |subject| twisted(subject, CutsAnswers)),
    Broken::new("U3", "TriesAgain", |subject| twisted(subject, TriesAgain)),
    Broken::new("U3", "HidesReasons", |subject| {
        twisted(subject, HidesReasons)
    }),
    Broken::new("U3", "NamesAnew", |subject| twisted(subject, NamesAnew)),
    Broken::new("U4", "NeverRetires", |subject| {
        twisted(subject, NeverRetires)
    }),
    Broken::new("U4", "KeepsRevisions", |subject| {
        twisted(subject, KeepsRevisions)
    }),
    Broken::new("U4", "GoesBack", |subject| twisted(subject, GoesBack)),
    Broken::new("U5", "MixesInvocations", |subject| {
        twisted_logs(subject, MixesInvocations)
    }),
    Broken::new("U5", "KeepsNoLines", |subject| {
        twisted_logs(subject, KeepsNoLines)
    }),
];

/// Runtimes that differ from honest ones in what they override.
#[async_trait]
trait Twist: Debug + Send + Sync + 'static {
    fn honest(&self) -> &Arc<dyn Runtime>;

    async fn run(&self, function: &Arc<Function>, invocation: Invocation) -> Result<Ran, Refused> {
        self.honest().run(function, invocation).await
    }
    fn renew(&self, function: &Arc<Function>) {
        self.honest().renew(function);
    }
    fn retire(&self, function: &str) {
        self.honest().retire(function);
    }
}

/// Makes a [`Twist`] a port.
#[derive(Debug)]
struct Twisted<T>(T);

#[async_trait]
impl<T: Twist> Runtime for Twisted<T> {
    async fn check(&self, function: &Function) -> Result<(), String> {
        self.0.honest().check(function).await
    }
    async fn run(&self, function: &Arc<Function>, invocation: Invocation) -> Result<Ran, Refused> {
        self.0.run(function, invocation).await
    }
    fn renew(&self, function: &Arc<Function>) {
        self.0.renew(function);
    }
    fn retire(&self, function: &str) {
        self.0.retire(function);
    }
    async fn close(&self) {
        self.0.honest().close().await;
    }
    fn figures(&self) -> Figures {
        self.0.honest().figures()
    }
}

fn twisted<T: Twist>(subject: Subject, around: fn(Arc<dyn Runtime>) -> T) -> Subject {
    Subject {
        runtime: Arc::new(Twisted(around(subject.runtime))),
        ..subject
    }
}

/// A twist that says only how it runs.
macro_rules! runs {
    ($(#[$doc:meta])* $name:ident, |$honest:ident, $function:ident, $invocation:ident| $run:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $name(Arc<dyn Runtime>);

        #[async_trait]
        impl Twist for $name {
            fn honest(&self) -> &Arc<dyn Runtime> {
                &self.0
            }
            async fn run(&self, $function: &Arc<Function>, $invocation: Invocation) -> Result<Ran, Refused> {
                let $honest = &self.0;
                $run
            }
        }
    };
}

runs! {
    /// Uses a new instance for every invocation (U1).
    StartsAnewEachTime, |honest, function, invocation| {
        let ran = honest.run(function, invocation).await;
        honest.retire(&function.name);
        ran
    }
}

runs! {
    /// Lets every call wait (U1).
    NeverThrottles, |honest, function, invocation| {
        honest.run(function, Invocation { waits: true, ..invocation }).await
    }
}

runs! {
    /// Lets every invocation finish (U2).
    NeverTimesOut, |honest, function, invocation| {
        let patient = Function { timeout: Duration::from_hours(1), ..(**function).clone() };
        honest.run(&Arc::new(patient), Invocation { timeout: None, ..invocation }).await
    }
}

runs! {
    /// Reports the end of a process as a success (U2).
    TakesAnEndForAnAnswer, |honest, function, invocation| {
        let ran = honest.run(function, invocation).await?;
        Ok(Ran { result: ran.result.or_else(|_| Ok(Bytes::from("null"))), ..ran })
    }
}

runs! {
    /// Returns the beginning of a result (U3).
    CutsAnswers, |honest, function, invocation| {
        let ran = honest.run(function, invocation).await?;
        Ok(Ran { result: ran.result.map(|answer| answer.slice(..answer.len().min(1 << 20))), ..ran })
    }
}

runs! {
    /// Repeats a failed invocation (U3).
    TriesAgain, |honest, function, invocation| {
        let again = Invocation::new(invocation.id.clone(), invocation.payload.clone(), invocation.waits);
        let ran = honest.run(function, invocation).await?;
        if ran.result.is_ok() { Ok(ran) } else { honest.run(function, again).await }
    }
}

runs! {
    /// Hides the reason of a failure (U3).
    HidesReasons, |honest, function, invocation| {
        let ran = honest.run(function, invocation).await?;
        let payload = Bytes::from(r#"{"errorType":"Error","errorMessage":"it failed"}"#);
        Ok(Ran { result: ran.result.map_err(|_| FunctionError { payload }), ..ran })
    }
}

runs! {
    /// Gives each invocation another id (U3).
    NamesAnew, |honest, function, invocation| {
        let id = ["renamed-", &invocation.id].concat();
        honest.run(function, Invocation { id, ..invocation }).await
    }
}

/// Retires nothing (U4).
#[derive(Debug)]
struct NeverRetires(Arc<dyn Runtime>);

#[async_trait]
impl Twist for NeverRetires {
    fn honest(&self) -> &Arc<dyn Runtime> {
        &self.0
    }
    fn retire(&self, _: &str) {}
}

/// Runs the first revision forever (U4).
#[derive(Debug)]
struct KeepsRevisions(Arc<dyn Runtime>);

#[async_trait]
impl Twist for KeepsRevisions {
    fn honest(&self) -> &Arc<dyn Runtime> {
        &self.0
    }
    fn renew(&self, _: &Arc<Function>) {}
}

runs! {
    /// Makes the revision of each call the current one (U4).
    GoesBack, |honest, function, invocation| {
        honest.renew(function);
        honest.run(function, invocation).await
    }
}
