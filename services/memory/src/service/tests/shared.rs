//! Several servers on one store: each is a service with function memory of its own.

use futures_util::future::join;

use super::*;
use crate::{
    collector::GRACE,
    events::{Event, Kind, Subscribers},
};

/// Long enough for others to take a server for gone, and to collect what it left.
const LONG: Duration = Duration::from_mins(4);

async fn server(world: &World, address: &str, mutant: Mutant<Broken>) -> Started {
    let config = Config {
        is_shared: true,
        mutant,
        ..config()
    };
    let started = start_with(world, world.clock(), &config);
    let joined = started.service.join(address.to_owned());
    joined.await.expect("it is a member");
    started
}

async fn servers(world: &World, mutant: Mutant<Broken>) -> (Started, Started) {
    let one = server(world, "one:1", mutant).await;
    let two = server(world, "two:2", mutant).await;
    one.service.create_bucket("b").await.expect("made");
    world.clock().sleep(Duration::from_secs(3)).await;
    (one, two)
}

/// The keys that a server owns.
fn owned(service: &Service) -> usize {
    let owners = (0..100).map(|number| service.owner("b", &format!("{number}")));
    owners.filter(Option::is_none).count()
}

/// M1: one of racing writes at several servers wins, and all see it.
#[test]
fn of_racing_puts_at_two_servers_that_expect_no_object_one_succeeds() {
    for seed in seeds(30) {
        run(async {
            let world = races::slow_world(seed);
            let (one, two) = servers(&world, Mutant::NONE).await;
            let absent = Conditions {
                if_none_match: Some(ETags::Any),
                if_match: None,
            };
            let contents = [content(1, 5 * STRIPE), content(2, 5 * STRIPE)];
            let (first, second) = join(
                put_under(&one.service, "k", &contents[0], &absent),
                put_under(&two.service, "k", &contents[1], &absent),
            )
            .await;
            let winner = match (first, second) {
                (Ok(_), Err(Error::ConditionFailed)) => 0,
                (Err(Error::ConditionFailed), Ok(_)) => 1,
                other => panic!("seed {seed}: {other:?}"),
            };
            for server in [&one, &two] {
                let found = get(&server.service, "k").await.expect("it is there");
                assert!(found == contents[winner], "seed {seed}");
            }
            until(&world, || async { stored_objects(&world).await == 1 }).await;
        });
    }
}

/// Whether a reader at one server reads its version to the end, although another one replaces it.
async fn reads_on(mutant: Mutant<Broken>) -> bool {
    let world = World::new(7);
    let (one, two) = servers(&world, mutant).await;
    let whole = content(1, 5 * STRIPE);
    put(&one.service, "k", &whole).await;
    let opened = two.service.open("b", "k").await.expect("opened");
    put(&one.service, "k", &content(2, 3 * STRIPE)).await;
    world.clock().sleep(GRACE / 2).await;
    let found = read(opened, 0..whole.len() as u64).await;
    world.clock().sleep(GRACE).await;
    assert_eq!(stored_objects(&world).await, 1, "the old one is collected");
    found.is_ok_and(|found| found == whole)
}

/// M6.
#[test]
fn a_reader_at_one_server_outlives_an_overwrite_at_another() {
    run(async {
        assert!(reads_on(Mutant::NONE).await);
        assert!(!reads_on(Mutant::of(Broken::CollectsAtOnce)).await);
    });
}

/// M2: what a server stored and did not commit is collected after its death, and not before.
#[test]
fn content_of_a_server_that_dies_before_its_commit_is_collected() {
    run(async {
        let world = World::new(8);
        let (one, two) = servers(&world, Mutant::NONE).await;
        let stored = store(&two.service, &content(1, 5 * STRIPE)).await;
        let third = server(&world, "three:3", Mutant::NONE).await;
        world.clock().sleep(LONG).await;
        assert_eq!(stored_objects(&world).await, 1, "its server is alive");
        std::mem::forget(stored);
        drop(two);
        world.clock().sleep(LONG).await;
        assert_eq!(stored_objects(&world).await, 0);
        drop((one, third));
    });
}

/// The outcome of a commit at a server that did not renew its row, and what is read then.
async fn late_commit(mutant: Mutant<Broken>) -> (Result<Object>, Result<Vec<u8>>) {
    let world = World::new(9);
    let (one, two) = servers(&world, mutant).await;
    let whole = content(1, 5 * STRIPE);
    let stored = store(&two.service, &whole).await.expect("stored");
    two.run.abort();
    world.clock().sleep(Duration::from_secs(90)).await;
    let (attributes, none) = (Attributes::default(), Conditions::default());
    let commit = two.service.commit("b", "k", stored, attributes, &none);
    let committed = commit.await;
    world.clock().sleep(LONG).await;
    (committed, get(&one.service, "k").await)
}

/// M2.
#[test]
fn a_server_that_was_taken_for_gone_commits_no_content_that_is_collected() {
    run(async {
        let (committed, found) = late_commit(Mutant::NONE).await;
        assert!(
            matches!(committed, Err(Error::Unavailable(_))),
            "{committed:?}"
        );
        assert!(matches!(found, Err(Error::NoSuchObject)), "{found:?}");
    });
    run(async {
        let (committed, found) = late_commit(Mutant::of(Broken::CommitsAfterEnd)).await;
        assert!(
            committed.is_ok() && found.is_err(),
            "{committed:?}, {found:?}"
        );
    });
}

#[test]
fn a_server_that_was_taken_for_gone_goes_on_under_another_id() {
    run(async {
        let world = World::new(10);
        let (one, two) = servers(&world, Mutant::NONE).await;
        two.run.abort();
        world.clock().sleep(Duration::from_secs(90)).await;
        let whole = content(1, 5 * STRIPE);
        let refused = store(&two.service, &whole).await;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
        two.service.join(String::new()).await.expect("joins again");
        put(&two.service, "k", &whole).await;
        world.clock().sleep(LONG).await;
        assert!(get(&one.service, "k").await.expect("it is there") == whole);
        assert_eq!(stored_objects(&world).await, 1);
    });
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<String>>);

#[async_trait::async_trait]
impl Subscribers for Recorder {
    fn want(&self, _: &str, _: &str, _: Kind) -> bool {
        true
    }
    async fn deliver(&self, event: &Event) -> ports::Result<()> {
        self.0.lock().push(event.key.clone());
        Ok(())
    }
}

/// Events of a server that died are delivered by another one, and those of live ones once.
#[test]
fn each_server_delivers_its_events_and_those_of_the_dead() {
    run(async {
        let world = World::new(11);
        let (one, two) = servers(&world, Mutant::NONE).await;
        let recorders = [Arc::<Recorder>::default(), Arc::<Recorder>::default()];
        one.service.subscribe(Arc::clone(&recorders[0]) as Arc<_>);
        two.service.subscribe(Arc::clone(&recorders[1]) as Arc<_>);
        put(&two.service, "k", &content(1, 100)).await;
        world.clock().sleep(LONG).await;
        assert_eq!(recorders[1].0.lock().as_slice(), ["k"]);
        // It dies with a change that is not delivered.
        two.run.abort();
        put(&two.service, "last", &content(1, 100)).await;
        drop(two);
        world.clock().sleep(LONG).await;
        assert_eq!(recorders[0].0.lock().as_slice(), ["last"]);
    });
}

#[test]
fn keys_have_one_owner_while_their_servers_live() {
    run(async {
        let world = World::new(12);
        let (one, two) = servers(&world, Mutant::NONE).await;
        let (first, second) = (owned(&one.service), owned(&two.service));
        assert_eq!(first + second, 100);
        assert!(first > 20 && second > 20, "{first} and {second}");
        drop(two);
        one.service.lapsed("two:2").await;
        assert_eq!(owned(&one.service), 100);
    });
}
