//! The real service of functions, over functions that run in place. Other tests cover processes.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use in_process::{Functions, SystemClock, SystemEntropy};
use ports::{
    Clock, CodeStore, Logs, Runtime,
    logs::{Line, Page},
    runtime::{Function, FunctionError, Invocation, Ran, Refused},
};

use crate::{code, engine::Engine, problem};

/// The end of a call: a result, or how the function failed; or why it was not run.
pub(crate) type Came = Result<Result<Bytes, Bytes>, Refused>;
/// A function of these tests: it gets its handler's name and its event.
pub(crate) type Code = Box<dyn Fn(&str, Bytes) -> BoxFuture<'static, Came> + Send + Sync>;

/// Runs functions in place. An archive is a manifest and nothing else.
struct InPlace {
    archives: Mutex<BTreeMap<String, Bytes>>,
    code: Code,
    /// How long an archive takes to unpack, on a clock that a test may pause.
    unpacks_for: Duration,
}

impl fmt::Debug for InPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("InPlace")
    }
}

#[async_trait]
impl Runtime for InPlace {
    async fn close(&self) {}

    fn figures(&self) -> ports::runtime::Figures {
        ports::runtime::Figures::default()
    }

    async fn run(&self, function: &Arc<Function>, invocation: Invocation) -> Result<Ran, Refused> {
        let is_there = self
            .archives
            .lock()
            .expect("nobody panics holding it")
            .contains_key(&function.archive);
        if !is_there {
            return Err(Refused::Unavailable("its code is gone".to_owned()));
        }
        let result = (self.code)(&function.handler, invocation.payload).await?;
        Ok(Ran {
            result: result.map_err(|payload| FunctionError { payload }),
            log_tail: Bytes::new(),
        })
    }

    fn retire(&self, _: &str) {}
}

#[async_trait]
impl CodeStore for InPlace {
    async fn install(&self, name: &str, content: Bytes) -> ports::Result<()> {
        SystemClock.sleep(self.unpacks_for).await;
        self.archives
            .lock()
            .expect("nobody panics holding it")
            .insert(name.to_owned(), content);
        Ok(())
    }

    async fn file(&self, archive: &str, _: &str, _: usize) -> ports::Result<Option<Bytes>> {
        Ok(self
            .archives
            .lock()
            .expect("nobody panics holding it")
            .get(archive)
            .cloned())
    }

    async fn keep_archives(&self, kept: &[String]) -> ports::Result<()> {
        self.archives
            .lock()
            .expect("nobody panics holding it")
            .retain(|name, _| kept.contains(name));
        Ok(())
    }
}

#[async_trait]
impl Logs for InPlace {
    async fn lines(&self, _: &str, _: Page) -> io::Result<Vec<Line>> {
        Ok(Vec::new())
    }

    async fn more_lines(&self, _: &str, _: u64) {
        std::future::pending::<()>().await;
    }
}

/// The service on the store of `engine`, with nothing deployed.
pub(crate) async fn service(engine: &Engine, code: Code) -> functions::Service {
    service_that_unpacks_for(Duration::ZERO, engine, code).await
}

async fn service_that_unpacks_for(
    unpacks_for: Duration,
    engine: &Engine,
    code: Code,
) -> functions::Service {
    let provider = engine.provider();
    let runtime = Arc::new(InPlace {
        archives: Mutex::default(),
        code,
        unpacks_for,
    });
    let service = functions::Service::new(functions::Parts {
        key_value: provider.key_value(),
        objects: provider.objects(),
        queue: provider.queue(),
        queue_admin: provider.queue_admin(),
        queue_name: transactions::effects::queue_name,
        check_far: |_| Ok(()),
        among_others: false,
        serves_objects: false,
        functions: Arc::new(Functions::new(provider.queue())),
        code_store: Arc::clone(&runtime) as Arc<_>,
        logs: Arc::clone(&runtime) as Arc<_>,
        runtime,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy::default()),
    });
    service.start().await.expect("nothing is deployed yet");
    service
}

/// A manifest of functions, each with its handler and its triggers.
pub(crate) fn manifest(functions: &[(&str, &str, &str)]) -> Bytes {
    let tables = functions.iter().map(|(name, handler, triggers)| {
        format!("[functions.{name}]\nruntime = \"executable\"\ncode = \"code\"\nhandler = \"{handler}\"\ntriggers = [{triggers}]\n")
    });
    Bytes::from(tables.collect::<Vec<_>>().concat())
}

/// A deployment of very many files takes longer than a body may stall.
#[tokio::test]
async fn a_deployment_that_takes_long_is_answered() {
    let engine = Engine::open().await;
    let echo: Code = Box::new(|_, event| std::future::ready(Ok(Ok(event))).boxed());
    let service = service_that_unpacks_for(Duration::from_mins(1), &engine, echo).await;
    let server = engine.serve_functions("127.0.0.1:0", None, service).await;
    let manifest = manifest(&[("f", "echo", "")]);
    let manifest = std::str::from_utf8(&manifest).expect("it was text");
    tokio::time::pause();
    let answer = server
        .send("PUT", "/v1/applications/one", "", manifest)
        .await;
    assert_eq!(code(&answer), 200, "{answer}");
}

/// A name whose `?` was not encoded is not that of the application before it.
#[tokio::test]
async fn a_query_after_an_application_removes_nothing() {
    let engine = Engine::open().await;
    let service = service(
        &engine,
        Box::new(|_, event| std::future::ready(Ok(Ok(event))).boxed()),
    )
    .await;
    service
        .deploy("one", manifest(&[("f", "echo", "")]))
        .await
        .expect("it is deployed");
    let server = engine.serve_functions("127.0.0.1:0", None, service).await;
    for (method, path) in [
        ("DELETE", "applications/one?x"),
        ("PUT", "applications/one?x"),
        ("DELETE", "functions/f/timer?x"),
        ("PUT", "functions/f/timer?x"),
    ] {
        let answer = server.send(method, &format!("/v1/{path}"), "", "").await;
        assert_eq!(
            problem(&answer),
            (400, "invalid-request".to_owned()),
            "{method} {path}: {answer}"
        );
    }
    let answer = server.send("DELETE", "/v1/applications/one", "", "").await;
    assert_eq!(code(&answer), 204, "{answer}");
}

/// A5.
#[tokio::test]
async fn a_timer_takes_the_periods_that_a_manifest_takes() {
    let engine = Engine::open().await;
    let service = service(
        &engine,
        Box::new(|_, event| std::future::ready(Ok(Ok(event))).boxed()),
    )
    .await;
    service
        .deploy("one", manifest(&[("f", "echo", "")]))
        .await
        .expect("it is deployed");
    let server = engine.serve_functions("127.0.0.1:0", None, service).await;
    for (period, status) in [
        ("0", 400),
        ("1", 204),
        ("31622400", 204),
        ("31622401", 400),
        ("99999999999", 400),
        ("-1", 400),
        ("1e3", 400),
    ] {
        let body = format!("{{\"every_s\": {period}}}");
        let answer = server.send("PUT", "/v1/functions/f/timer", "", &body).await;
        assert_eq!(code(&answer), status, "{period}: {answer}");
        let in_a_list = server
            .send("PUT", "/v1/functions/f/timer", "", &format!("[{period}]"))
            .await;
        assert_eq!(
            problem(&in_a_list),
            (400, "invalid-request".to_owned()),
            "{in_a_list}"
        );
        if status == 400 {
            assert_eq!(
                problem(&answer),
                (400, "invalid-request".to_owned()),
                "{answer}"
            );
        }
    }
}

/// A3. The response was 200, with the letters that were redriven.
#[tokio::test]
async fn a_dead_letter_that_is_not_there_is_neither_sent_again_nor_removed() {
    let engine = Engine::open().await;
    let service = service(
        &engine,
        Box::new(|_, event| std::future::ready(Ok(Ok(event))).boxed()),
    )
    .await;
    service
        .deploy("one", manifest(&[("f", "echo", "")]))
        .await
        .expect("it is deployed");
    let server = engine.serve_functions("127.0.0.1:0", None, service).await;
    for (method, path, status, name) in [
        ("POST", "f/dead-letters?id=:0", 404, "no-such-dead-letter"),
        ("DELETE", "f/dead-letters?id=:7", 404, "no-such-dead-letter"),
        ("DELETE", "f/dead-letters?id=7", 400, "invalid-request"),
        ("POST", "g/dead-letters?id=:0", 404, "no-such-function"),
    ] {
        let answer = server
            .send(method, &format!("/v1/functions/{path}"), "", "")
            .await;
        assert_eq!(
            problem(&answer),
            (status, name.to_owned()),
            "{method} {path}: {answer}"
        );
    }
    for method in ["POST", "DELETE"] {
        let path = "/v1/functions/f/dead-letters";
        let answer = server.send(method, path, "", r#"{"id":":7"}"#).await;
        assert_eq!(
            problem(&answer),
            (400, "invalid-request".to_owned()),
            "{method}: {answer}"
        );
        assert!(answer.contains("?id=ID"), "{method}: {answer}");
        let answer = server.send(method, path, "", "").await;
        assert_eq!(code(&answer), 200, "all of none: {answer}");
    }
}
