//! The child process that the crash tests kill. It writes, waits for durability, and reports each
//! result on a pipe.
//!
//! The child is this test binary, started again to run one test. [`Acknowledged`] holds the results
//! that the parent received. After the crash, [`Acknowledged::check`] opens the directory and
//! compares it with them.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use embedded::{Config, Embedded};

use ports::{
    Event, Functions, Handler, KeyValue, Queue, Update,
    functions::{Definition, Failure, FunctionOptions, QueueTrigger},
    key_value::Action,
    objects::{ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _},
    queue::Message,
};
use tokio::sync::Semaphore;

use crate::world::{block_on, durably, found, key, message, patient, put, put_pair, value};

const DIRECTORY: &str = "LANDFAST_CHILD_DIRECTORY";
const ROUNDS: &str = "LANDFAST_CHILD_ROUNDS";
const IDLE: &str = "LANDFAST_CHILD_IDLE";
const ACKNOWLEDGE_EARLY: &str = "LANDFAST_CHILD_ACKNOWLEDGE_EARLY";

const PAIRS: usize = 4;
const GROUPS: usize = 3;
const OBJECTS: usize = 2;
const QUEUE: &str = "work";

/// The size of an object: more than a sector.
const OBJECT_BYTES: usize = 2_000;

/// An object is written once in this many rounds, because it needs several syncs.
const ROUNDS_PER_OBJECT: u64 = 5;

/// How many messages of a group a child sends ahead of those it has handled, so that the queue
/// stays short across kills.
const AHEAD_MAX: usize = 4;

/// A child that ends by itself has made at least this many checkpoints.
const CHECKPOINTS: u64 = 4;

/// How far the sender of each group may run ahead of the consumer.
type Ahead = Arc<[Semaphore; GROUPS]>;

/// Small segments and frequent checkpoints, so that crashes hit both.
pub(crate) fn config(directory: &Path) -> Config {
    Config {
        journal_segment_bytes: 32 << 10,
        checkpoint_bytes: 48 << 10,
        ..Config::new(directory)
    }
}

/// The orders of a child.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Orders {
    /// The child ends after this many rounds of each task; zero: never.
    pub(crate) rounds: u64,
    /// The child does nothing once it is ready.
    pub(crate) idle: bool,
    /// The child acknowledges before it syncs. The power-loss test must detect this.
    pub(crate) acknowledge_early: bool,
}

/// The command that starts a child on `directory`.
pub(crate) fn command(directory: &Path, orders: Orders) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
    command
        .args([
            "--exact",
            "child::the_child_of_the_crash_tests_works_until_it_is_killed",
            "--nocapture",
        ])
        .env(DIRECTORY, directory)
        .env(ROUNDS, orders.rounds.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if orders.idle {
        command.env(IDLE, "1");
    }
    if orders.acknowledge_early {
        command.env(ACKNOWLEDGE_EARLY, "1");
    }
    command
}

/// Does nothing unless the environment holds orders.
#[test]
fn the_child_of_the_crash_tests_works_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let rounds: u64 = std::env::var(ROUNDS)
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(0);
    let acknowledge_before_sync = std::env::var_os(ACKNOWLEDGE_EARLY).is_some();
    block_on(async {
        let config = Config {
            acknowledge_before_sync,
            ..config(Path::new(&directory))
        };
        let store = Arc::new(
            Embedded::open(config)
                .await
                .expect("the child opens the store"),
        );
        store
            .queue()
            .create(QUEUE, patient())
            .await
            .expect("create answers");
        let receipt = durably(&store.key_value(), put("ready", 1)).await;
        assert!(store.key_value().is_durable(receipt.point));
        if std::env::var_os(IDLE).is_some() {
            return idle(&store).await;
        }
        say(&"ready");
        work(&store, rounds).await;
        found("the child makes checkpoints", async || {
            let more = Update::modify(key("more"), vec![Action::set("data", vec![7; 4000])]);
            durably(&store.key_value(), more).await;
            (store.status().checkpoints >= CHECKPOINTS).then_some(())
        })
        .await;
        std::process::exit(0);
    });
}

/// Writes pairs, messages and objects concurrently, and consumes the messages.
async fn work(store: &Arc<Embedded>, rounds: u64) {
    let ahead: Ahead = Arc::new(std::array::from_fn(|_| Semaphore::new(AHEAD_MAX)));
    let mut tasks = Vec::new();
    for pair in 0..PAIRS {
        tasks.push(tokio::spawn(write_pairs(store.key_value(), pair, rounds)));
    }
    for group in 0..GROUPS {
        tasks.push(tokio::spawn(send(
            Arc::clone(store),
            Arc::clone(&ahead),
            group,
            rounds,
        )));
    }
    for object in 0..OBJECTS {
        tasks.push(tokio::spawn(put_objects(
            Arc::clone(store),
            object,
            rounds / ROUNDS_PER_OBJECT,
        )));
    }
    let consumer = tokio::spawn(consume(store.queue(), ahead));
    for task in tasks {
        task.await.expect("a task of the child ends well");
    }
    consumer.abort();
}

/// Arms a trigger, handles messages, and then has nothing to do.
async fn idle(store: &Embedded) {
    #[derive(Debug)]
    struct Takes;
    #[async_trait]
    impl Handler for Takes {
        async fn handle(&self, _: Event) -> Result<Bytes, Failure> {
            Ok(Bytes::new())
        }
    }
    let definition = Definition {
        name: "takes".into(),
        options: FunctionOptions::default(),
        handler: Arc::new(Takes),
    };
    let functions = in_process::Functions::new(store.queue());
    functions.register(definition);
    let trigger = QueueTrigger {
        queue: QUEUE.to_owned(),
        function: "takes".to_owned(),
        batch_messages_max: 10,
        groups_max: 1,
    };
    functions
        .arm_queue(trigger)
        .await
        .expect("the trigger is armed");
    for number in 0..10 {
        store
            .queue()
            .send(QUEUE, vec![message("group", number.to_string())])
            .await
            .expect("send answers");
    }
    functions
        .send("takes", None, Bytes::new())
        .await
        .expect("an event is sent");
    say(&"ready");
    std::future::pending::<()>().await;
}

/// Writes one line to the pipe in one write.
fn say(line: &dyn std::fmt::Display) {
    let line = format!("{line}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .expect("the parent listens");
}

fn rounds_of(rounds: u64) -> u64 {
    if rounds == 0 { u64::MAX } else { rounds }
}

async fn write_pairs(kv: Arc<dyn KeyValue>, pair: usize, rounds: u64) {
    let (left, right) = (format!("left-{pair}"), format!("right-{pair}"));
    let mut number = value(&kv, &left).await.unwrap_or(0);
    for _ in 0..rounds_of(rounds) {
        number += 1;
        let receipt = put_pair(&kv, &left, &right, number).await;
        kv.externalize(receipt.point)
            .await
            .expect("a pair becomes durable");
        say(&format_args!("pair {pair} {number}"));
    }
}

fn object_path(object: usize) -> ObjectPath {
    ObjectPath::from(format!("child/{object}"))
}

/// Replaces an object repeatedly. Each of its bytes holds its number.
async fn put_objects(store: Arc<Embedded>, object: usize, rounds: u64) {
    let objects = store.objects();
    let mut number = number_in(&*objects, object)
        .await
        .expect("it is whole")
        .unwrap_or(0);
    for _ in 0..rounds_of(rounds) {
        number += 1;
        let body = format!("{number:08}").repeat(OBJECT_BYTES / 8);
        objects
            .put(&object_path(object), body.into())
            .await
            .expect("an object is put");
        say(&format_args!("object {object} {number}"));
    }
}

/// The number of the stored object; none if it is missing.
async fn number_in(objects: &dyn ObjectStore, object: usize) -> Result<Option<i64>, String> {
    let got = match objects.get(&object_path(object)).await {
        Err(ObjectError::NotFound { .. }) => return Ok(None),
        got => got.map_err(|error| format!("object {object}: {error}"))?,
    };
    let bytes = got
        .bytes()
        .await
        .map_err(|error| format!("object {object}: {error}"))?;
    let number = bytes
        .get(..8)
        .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    match number {
        Some(number) if bytes == format!("{number:08}").repeat(OBJECT_BYTES / 8) => {
            Ok(Some(number))
        }
        _ => Err(format!("object {object} is torn: {} bytes", bytes.len())),
    }
}

async fn send(store: Arc<Embedded>, ahead: Ahead, group: usize, rounds: u64) {
    let (kv, queue) = (store.key_value(), store.queue());
    let counter = format!("sent-{group}");
    let mut number = value(&kv, &counter).await.unwrap_or(0);
    for _ in 0..rounds_of(rounds) {
        number += 1;
        ahead[group]
            .acquire()
            .await
            .expect("it is never closed")
            .forget();
        // The message may have survived although its number did not. The id makes the repeat
        // harmless.
        let message = Message {
            group: Bytes::from(group.to_string()),
            deduplication: Some(Bytes::from(format!("{group}-{number}"))),
            body: Bytes::from(number.to_string()),
        };
        queue
            .send(QUEUE, vec![message])
            .await
            .expect("send answers");
        durably(&kv, put(&counter, number)).await;
        say(&format_args!("sent {group} {number}"));
    }
}

/// Checks that the crash did not shorten the journal's last segment.
pub(crate) fn no_crash_makes_it_shorter(store: &Embedded) -> Result<(), String> {
    let cut = store.status().recovery.cut.filter(|cut| cut.missing > 0);
    cut.map_or(Ok(()), |cut| {
        Err(format!("a crash has made the journal shorter: {cut:?}"))
    })
}

async fn consume(queue: Arc<dyn Queue>, ahead: Ahead) {
    let mut last = [None; GROUPS];
    loop {
        queue.ready(QUEUE).await.expect("ready answers");
        for delivery in queue.receive(QUEUE, 3).await.expect("receive answers") {
            let (group, number) = parse(&delivery.handle.group, &delivery.body);
            if last[group].is_some_and(|last: i64| number != last + 1) {
                say(&format_args!(
                    "broken: group {group} gave {number} after {:?}",
                    last[group]
                ));
            }
            last[group] = Some(number);
            let receipt = queue
                .acknowledge(QUEUE, &[delivery.handle])
                .await
                .expect("acknowledge answers");
            queue
                .externalize(receipt.point)
                .await
                .expect("an acknowledgement becomes durable");
            say(&format_args!("done {group} {number}"));
            ahead[group].add_permits(1);
        }
    }
}

fn parse(group: &[u8], body: &[u8]) -> (usize, i64) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        text(group).parse().expect("a group is a number"),
        text(body).parse().expect("a body is a number"),
    )
}

/// The results that a child has acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) ready: bool,
    pairs: [i64; PAIRS],
    sent: [i64; GROUPS],
    done: [i64; GROUPS],
    objects: [i64; OBJECTS],
    broken: Vec<String>,
}

impl Acknowledged {
    /// Notes one line from the pipe.
    pub(crate) fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["ready"] => self.ready = true,
            [what @ ("pair" | "sent" | "done" | "object"), index, number] => {
                let (Ok(index), Ok(number)) = (index.parse::<usize>(), number.parse::<i64>())
                else {
                    return;
                };
                let latest = match what {
                    "pair" => &mut self.pairs[index],
                    "sent" => &mut self.sent[index],
                    "object" => &mut self.objects[index],
                    _ => &mut self.done[index],
                };
                *latest = number.max(*latest);
            }
            _ if line.starts_with("broken") => self.broken.push(line.to_owned()),
            _ => {}
        }
    }

    /// Whether anything was acknowledged.
    pub(crate) fn has_any(&self) -> bool {
        self.ready || self.total() > 0
    }

    /// The number of acknowledgements.
    pub(crate) fn total(&self) -> i64 {
        self.pairs
            .iter()
            .chain(&self.sent)
            .chain(&self.done)
            .chain(&self.objects)
            .sum()
    }

    /// Opens the store and compares it with the acknowledgements. Returns the first difference. The
    /// state found counts as acknowledged from then on.
    pub(crate) async fn check(&mut self, directory: &Path) -> Result<(), String> {
        if let Some(broken) = self.broken.first() {
            return Err(broken.clone());
        }
        let store = Embedded::open(config(directory))
            .await
            .map_err(|error| format!("open: {error}"))?;
        no_crash_makes_it_shorter(&store)?;
        match (
            self.check_store(&store).await,
            self.check_objects(&*store.objects()).await,
        ) {
            (Err(store), Err(objects)) => Err(format!("{store}; {objects}")),
            (store, objects) => store.and(objects),
        }
    }

    /// O1.
    async fn check_objects(&mut self, objects: &dyn ObjectStore) -> Result<(), String> {
        for (object, acknowledged) in self.objects.iter_mut().enumerate() {
            let number = number_in(objects, object).await?.unwrap_or(0);
            if number < *acknowledged || number > *acknowledged + 1 {
                return Err(format!(
                    "object {object} is {number}, although {acknowledged} was acknowledged"
                ));
            }
            *acknowledged = number;
        }
        Ok(())
    }

    async fn check_store(&mut self, store: &Embedded) -> Result<(), String> {
        let kv = store.key_value();
        for (pair, acknowledged) in self.pairs.iter_mut().enumerate() {
            let left = value(&kv, &format!("left-{pair}")).await.unwrap_or(0);
            let right = value(&kv, &format!("right-{pair}")).await.unwrap_or(0);
            if left != right {
                return Err(format!("pair {pair} is torn: {left} and {right}"));
            }
            if left < *acknowledged || left > *acknowledged + 1 {
                return Err(format!(
                    "pair {pair} is {left}, although {acknowledged} was acknowledged"
                ));
            }
            *acknowledged = left;
        }
        self.check_queue(&*store.queue()).await
    }

    async fn check_queue(&mut self, queue: &dyn Queue) -> Result<(), String> {
        if !self.ready {
            return Ok(());
        }
        let mut left: [Vec<i64>; GROUPS] = Default::default();
        loop {
            let taken = queue
                .receive(QUEUE, 256)
                .await
                .map_err(|error| error.to_string())?;
            if taken.is_empty() {
                break;
            }
            for delivery in taken {
                let (group, number) = parse(&delivery.handle.group, &delivery.body);
                left[group].push(number);
            }
        }
        for (group, left) in left.iter().enumerate() {
            let (sent, done) = (self.sent[group], self.done[group]);
            if left.windows(2).any(|pair| pair[1] != pair[0] + 1) {
                return Err(format!(
                    "group {group} has a gap or another order: {left:?}"
                ));
            }
            // The queue is empty, so all messages were handled, perhaps one more than acknowledged.
            let last = left.last().copied().unwrap_or(done + 1);
            let first = left.first().copied().unwrap_or(last);
            if first <= done {
                return Err(format!(
                    "group {group} starts at {first}, and {done} was acknowledged"
                ));
            }
            // One acknowledgement may have become durable before the child could report it.
            let is_all = left.len() < queue.limits().batch_messages_max;
            if first > done + 2 || (is_all && last < sent) {
                return Err(format!(
                    "group {group} holds {first} to {last}; sent {sent}, done {done}"
                ));
            }
            if !left.is_empty() {
                (self.sent[group], self.done[group]) = (last.max(sent), first - 1);
            }
        }
        Ok(())
    }
}

/// A running child and its pipe.
#[derive(Debug)]
pub(crate) struct Talking {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Talking {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the child starts");
        let out = child.stdout.take().expect("its output is piped");
        // The channel is bounded only by the output of a short-lived child.
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Reads lines until `until` holds, or the child ends.
    pub(crate) fn read_until(
        &self,
        acknowledged: &mut Acknowledged,
        mut until: impl FnMut(&Acknowledged) -> bool,
    ) {
        while !until(acknowledged) {
            match self.lines.recv() {
                Ok(line) => acknowledged.note(&line),
                Err(_) => return,
            }
        }
    }

    /// Kills the child and reads the rest of the pipe.
    pub(crate) fn kill(mut self, acknowledged: &mut Acknowledged) {
        self.child.kill().expect("the child is killed");
        self.child.wait().expect("the child is gone");
        while let Ok(line) = self.lines.recv() {
            acknowledged.note(&line);
        }
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the child to end, and returns its error output if it failed.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        while self.lines.recv().is_ok() {}
        let status = self.child.wait().expect("the child ends");
        if status.success() {
            return Ok(());
        }
        let mut complaint = String::new();
        if let Some(mut err) = self.child.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut err, &mut complaint);
        }
        Err(format!("{status}: {complaint}"))
    }
}

impl Drop for Talking {
    /// A failing test leaves no child behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
