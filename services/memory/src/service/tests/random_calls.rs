//! Random calls beside a model: what each call answers, and what remains after faults.

use md5::{Digest as _, Md5};
use simulated::percent;

use super::*;
use crate::storage::rows::hex;

const KEYS: [&str; 6] = ["a", "a/b", "a/c", "b", "b//", "\u{1f600}"];
const LENGTHS: [usize; 5] = [0, 100, 8192, 3 * STRIPE, 5 * STRIPE + 1];

/// What the bucket has: objects with their ETags, and the ETags of the parts of open uploads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Model {
    objects: BTreeMap<String, (Bytes, String)>,
    uploads: BTreeMap<String, BTreeMap<u16, String>>,
}

/// A call that changes the bucket.
enum Change {
    Put(Bytes, Conditions),
    Copy(&'static str),
    Delete(Conditions),
    Begin,
    Part(u16, Bytes),
    Complete(Vec<u16>, Conditions),
    Abort,
}

fn etag(content: &Bytes) -> String {
    hex(&Md5::digest(content))
}

/// The ETag of an object of one part.
fn etag_of_part(content: &Bytes) -> String {
    format!("{}-1", hex(&Md5::digest(Md5::digest(content))))
}

/// What [`Conditions`] ask for on the present ETag.
fn check(conditions: &Conditions, present: Option<&String>) -> Result<(), &'static str> {
    match (&conditions.if_match, present) {
        (Some(_), None) => return Err("NoSuchObject"),
        (Some(ETags::OneOf(etags)), Some(etag)) if !etags.contains(etag) => {
            return Err("ConditionFailed");
        }
        _ => {}
    }
    match (&conditions.if_none_match, present) {
        (Some(_), Some(_)) => Err("ConditionFailed"),
        _ => Ok(()),
    }
}

struct Run {
    world: World,
    random: fastrand::Rng,
    current: Started,
    model: Model,
    /// The content of each ETag of a part.
    contents: BTreeMap<String, Bytes>,
}

impl Run {
    fn arm(&self) {
        let faults = self.world.faults();
        faults.kill_instances(percent(2));
        faults.refuse(percent(2));
        faults.lose_answer(percent(2));
        faults.delay(percent(30), Duration::ZERO..=Duration::from_millis(20));
    }

    fn content(&mut self) -> Bytes {
        let bytes = LENGTHS[self.random.usize(0..LENGTHS.len())];
        content(self.random.u64(..), bytes)
    }

    fn conditions(&mut self, key: &str) -> Conditions {
        let present = self.model.objects.get(key).map(|(_, etag)| etag.clone());
        let mut conditions = Conditions::default();
        match self.random.u8(0..6) {
            0 => conditions.if_none_match = Some(ETags::Any),
            1 => conditions.if_match = Some(ETags::OneOf(vec![present.unwrap_or_default()])),
            2 => conditions.if_match = Some(ETags::OneOf(vec!["11".repeat(16)])),
            _ => {}
        }
        conditions
    }

    fn change(&mut self, key: &str) -> Change {
        let number = self.random.u16(1..4);
        match self.random.u8(0..10) {
            0..3 => Change::Put(self.content(), self.conditions(key)),
            3 => Change::Copy(KEYS[self.random.usize(0..KEYS.len())]),
            4 => Change::Delete(Conditions {
                if_none_match: None,
                ..self.conditions(key)
            }),
            5 if !self.model.uploads.contains_key(key) => Change::Begin,
            5..8 => Change::Part(number, self.content()),
            8 => {
                let numbers = [vec![number], vec![1, 2], vec![2, 1]];
                let numbers = numbers[self.random.usize(0..3)].clone();
                Change::Complete(numbers, self.conditions(key))
            }
            _ => Change::Abort,
        }
    }

    /// The model after `change`, or the refusal.
    fn after(&mut self, key: &str, change: &Change) -> Result<Model, &'static str> {
        let mut after = self.model.clone();
        let present = self.model.objects.get(key).map(|(_, etag)| etag);
        let upload = after.uploads.get_mut(key).ok_or("NoSuchUpload");
        match change {
            Change::Put(content, conditions) => {
                check(conditions, present)?;
                let object = (content.clone(), etag(content));
                after.objects.insert(key.to_owned(), object);
            }
            Change::Copy(from) => {
                let (content, _) = self.model.objects.get(*from).ok_or("NoSuchObject")?;
                let object = (content.clone(), etag(content));
                after.objects.insert(key.to_owned(), object);
            }
            Change::Delete(conditions) => {
                check(conditions, present)?;
                after.objects.remove(key);
            }
            Change::Begin => drop(after.uploads.insert(key.to_owned(), BTreeMap::new())),
            Change::Part(number, content) => {
                upload?.insert(*number, etag(content));
                self.contents.insert(etag(content), content.clone());
            }
            Change::Complete(numbers, conditions) => {
                let parts = upload?;
                for (index, number) in numbers.iter().enumerate() {
                    parts.get(number).ok_or("InvalidPart")?;
                    if index + 1 < numbers.len() {
                        return Err("PartTooSmall");
                    }
                }
                check(conditions, present)?;
                let content = self.contents[&parts[&numbers[0]]].clone();
                let object = (content.clone(), etag_of_part(&content));
                after.objects.insert(key.to_owned(), object);
                after.uploads.remove(key);
            }
            Change::Abort => {
                upload?;
                after.uploads.remove(key);
            }
        }
        Ok(after)
    }

    async fn call(&self, key: &str, change: &Change) -> Result<()> {
        let service = &self.current.service;
        let none = Conditions::default();
        let upload = async || {
            let open = service.uploads("b", key, None, 100).await?;
            let open = open.into_iter().find(|upload| upload.key == key);
            open.map(|upload| upload.id).ok_or(Error::NoSuchUpload)
        };
        match change {
            Change::Put(content, conditions) => {
                put_under(service, key, content, conditions).await?;
            }
            Change::Copy(from) => {
                let content = get(service, from).await?.into();
                put_under(service, key, &content, &none).await?;
            }
            Change::Delete(conditions) => service.delete("b", key, conditions).await?,
            Change::Begin => {
                let attributes = Attributes::default();
                service.begin_upload("b", key, attributes).await?;
            }
            Change::Part(number, content) => {
                let (upload, stored) = (upload().await?, store(service, content).await?);
                let part = service.commit_part("b", key, upload, *number, stored, BTreeMap::new());
                part.await?;
            }
            Change::Complete(numbers, conditions) => {
                let parts = self.model.uploads.get(key).cloned().unwrap_or_default();
                let named = numbers.iter().map(|number| NamedPart {
                    number: *number,
                    etag: parts.get(number).cloned().unwrap_or_default(),
                });
                let (named, upload) = (named.collect::<Vec<_>>(), upload().await?);
                let sums = BTreeMap::new();
                let done = service.complete_upload("b", key, upload, &named, sums, conditions);
                done.await?;
            }
            Change::Abort => service.abort_upload("b", key, upload().await?).await?,
        }
        Ok(())
    }

    /// Makes a change, which may be interrupted, and compares what it answers or leaves.
    async fn step(&mut self, key: &'static str) {
        let change = self.change(key);
        let after = self.after(key, &change);
        let given_up = self.random.u8(0..10) == 0;
        let patience = Duration::from_millis(if given_up { 15 } else { 3_600_000 });
        let outcome = {
            let (call, clock) = (Box::pin(self.call(key, &change)), self.world.clock());
            match futures_util::future::select(call, clock.sleep(patience)).await {
                futures_util::future::Either::Left((outcome, _)) => Some(outcome),
                futures_util::future::Either::Right(_) => None,
            }
        };
        match (outcome, after) {
            (Some(Ok(())), Ok(after)) => self.model = after,
            (None | Some(Err(Error::Unavailable(_) | Error::Contended)), after) => {
                self.world.faults().calm();
                self.world.clock().sleep(Duration::from_mins(1)).await;
                let found = self.observe().await;
                let is_either = found == self.model || after.is_ok_and(|after| found == after);
                let seed = self.world.seed();
                assert!(is_either, "seed {seed}: an unclear call left another state");
                self.model = found;
                self.arm();
            }
            (Some(Err(error)), Err(due)) => {
                let seed = self.world.seed();
                let error = format!("{error:?}");
                assert!(error.starts_with(due), "seed {seed}: {error}, not {due}");
            }
            (Some(Ok(())), Err(due)) => {
                panic!("seed {}: success instead of {due}", self.world.seed())
            }
            (Some(Err(error)), Ok(_)) => {
                panic!("seed {}: {error:?} instead of success", self.world.seed())
            }
        }
    }

    /// The state as clients see it.
    async fn observe(&self) -> Model {
        let service = &self.current.service;
        let mut found = Model::default();
        let all = List {
            items_max: 100,
            ..List::default()
        };
        for object in service.list("b", &all).await.expect("listed").objects {
            let content = get(service, &object.key).await.expect("read").into();
            found.objects.insert(object.key, (content, object.etag));
        }
        for upload in service.uploads("b", "", None, 100).await.expect("listed") {
            let parts = service.parts("b", &upload.key, upload.id, 0, 100).await;
            let parts = parts.expect("listed").1.into_iter();
            let parts = parts.map(|part| (part.number, part.etag)).collect();
            found.uploads.insert(upload.key, parts);
        }
        found
    }

    async fn read(&mut self, key: &str) {
        let opened = match self.current.service.open("b", key).await {
            Ok(opened) => opened,
            Err(Error::NoSuchObject) => return assert!(!self.model.objects.contains_key(key)),
            Err(error) => return assert!(matches!(error, Error::Unavailable(_)), "{error:?}"),
        };
        let (content, etag) = &self.model.objects[key];
        assert_eq!(opened.object().etag, *etag);
        let start = self.random.usize(0..=content.len());
        let end = self.random.usize(start..=content.len());
        match read(opened, start as u64..end as u64).await {
            Ok(read) => assert!(read == content[start..end], "{start}..{end} of {key}"),
            Err(error) => assert!(matches!(error, Error::Unavailable(_)), "{error:?}"),
        }
    }

    async fn list(&mut self) {
        let prefix = ["", "a", "a/", "b", "c"][self.random.usize(0..5)];
        let mut list = List {
            prefix: prefix.to_owned(),
            delimiter: self.random.bool().then(|| "/".to_owned()),
            items_max: self.random.usize(1..5),
            ..List::default()
        };
        let shown = self.model.objects.keys().filter_map(|key| {
            let rest = key.strip_prefix(prefix)?;
            let end = list.delimiter.as_ref().and_then(|_| rest.find('/'));
            Some(end.map_or(key.clone(), |end| key[..=prefix.len() + end].to_owned()))
        });
        let mut expected: Vec<_> = shown.collect();
        expected.dedup();
        let mut found = Vec::new();
        loop {
            let Ok(page) = self.current.service.list("b", &list).await else {
                return;
            };
            let keys = page.objects.into_iter().map(|object| object.key);
            let mut items: Vec<_> = keys.chain(page.prefixes).collect();
            items.sort();
            found.extend(items);
            let Some(next) = page.next else { break };
            list.after = Some(next);
        }
        assert_eq!(found, expected, "{list:?}");
    }
}

/// M1, M2, M4, M6, M7.
#[test]
fn random_calls_answer_as_a_model_does_under_faults() {
    let config = ageing();
    for seed in seeds(200) {
        run(async {
            let world = World::new(seed);
            let current = start_with(&world, world.clock(), &config);
            let made = current.service.create_bucket("b").await;
            made.expect("made");
            let mut run = Run {
                world: world.clone(),
                random: fastrand::Rng::with_seed(seed),
                current,
                model: Model::default(),
                contents: BTreeMap::new(),
            };
            run.arm();
            for _ in 0..40 {
                let key = KEYS[run.random.usize(0..KEYS.len())];
                match run.random.u8(0..12) {
                    0..6 => run.step(key).await,
                    6..9 => run.read(key).await,
                    9 => run.list().await,
                    10 => {
                        run.current.run.abort();
                        run.current.service.end();
                        world.crash();
                        run.current = start_with(&world, world.clock(), &config);
                    }
                    _ => {
                        let pause = run.random.u64(0..500);
                        world.clock().sleep(Duration::from_millis(pause)).await;
                    }
                }
            }
            world.faults().calm();
            assert!(run.observe().await == run.model, "seed {seed}");
            let objects = run.model.objects.values().map(|(content, _)| content.len());
            let parts = run.model.uploads.values().flat_map(BTreeMap::values);
            let parts = parts.map(|etag| run.contents[etag].len());
            let large = objects.chain(parts).filter(|bytes| *bytes > 8192).count();
            until(&world, || async { stored_objects(&world).await == large }).await;
        });
    }
}
