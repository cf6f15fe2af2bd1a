//! A test fixture without concurrency: the test calls each function by hand.
//!
//! Each function gets its own store handle, at which it can be interrupted ([`Interrupted`]).

mod interrupted;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use ports::{
    Clock, Event, Handler, KeyValue, Result, Update,
    functions::{Definition, Failure, FunctionOptions},
    key_value::{Action, Change},
    queue::{Delivery, Handle, QueueOptions, Retention, Sequence},
};
use simulated::{Options, World};

pub(crate) use self::interrupted::{Call, Interrupted, Side};
use crate::{
    Client, Config, access,
    client::Attached,
    dependency::TrackedStore,
    distributor::Distributor,
    environment::{Environment, Parts},
    model::{Connection, Lifetime, Naming, Password, SessionId, Zxid},
    queue_names,
    records::{
        Decided, Identities, Kind, NodeState, Operation, Payload, Slot, Submitted, UpdateId, Wake,
        decode, encode,
    },
    storage::{
        node::{self, Locking},
        session::{self, Decision, Row, Transition},
        user_store::{Node, UserStore},
    },
    tail::Tail,
    writer::Writer,
};

/// The timeout of every session.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);
pub(crate) const PASSWORD: Password = Password([7; 16]);

/// The announced slots, in order.
#[derive(Debug, Default)]
struct Announcements(Mutex<Vec<Wake>>);

#[async_trait]
impl Handler for Announcements {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Call { payload, .. } = event else {
            panic!("{event:?}")
        };
        let wake = decode::<Wake>(&payload, "a wake-up")?;
        self.0
            .lock()
            .expect("no panic while it is locked")
            .push(wake);
        Ok(Bytes::new())
    }
}

/// The simulated world with its root znode.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) world: World,
    config: Config,
    announcements: Arc<Announcements>,
}

impl Fixture {
    /// The same world, with processes that apply nothing directly.
    pub(crate) fn with_queue(&self) -> Self {
        Self {
            world: self.world.clone(),
            config: Config {
                applies_directly: false,
                ..self.config.clone()
            },
            announcements: self.announcements.clone(),
        }
    }

    /// A world that simulates a cloud with `options`.
    pub(crate) async fn new(options: Options, config: Config) -> Self {
        let (world, announcements) = (
            World::with_options(1, options),
            Arc::<Announcements>::default(),
        );
        let (options, handler) = (FunctionOptions::default(), announcements.clone());
        world.functions().register(Definition {
            name: queue_names::WATCH.into(),
            options,
            handler,
        });
        let queue = world.queue();
        let transient = QueueOptions {
            retention: Retention::Transient,
            ..QueueOptions::default()
        };
        queue
            .create(queue_names::DISTRIBUTOR_QUEUE, transient)
            .await
            .expect("no fault is injected");
        let fixture = Self {
            world,
            config,
            announcements,
        };
        let state = NodeState::created(Kind::Persistent, Bytes::new(), UpdateId::NONE);
        node::put_if_absent(&*fixture.world.key_value(), "/", state)
            .await
            .expect("no fault is injected");
        let root = Node::created(Zxid(0), 0, 0, Payload::Null, Bytes::new());
        fixture
            .region(fixture.world.key_value())
            .put_if_absent("/", &root)
            .await
            .expect("no fault is injected");
        fixture
    }

    /// The world's store, for one caller.
    pub(crate) fn store(&self) -> Arc<Interrupted> {
        Interrupted::new(self.world.key_value())
    }

    /// A process whose system store and items are `store`.
    pub(crate) fn env(&self, store: Arc<dyn KeyValue>) -> Arc<Environment> {
        self.env_by(store, self.world.clock())
    }

    /// A process on a machine with another clock.
    pub(crate) fn env_by(
        &self,
        store: Arc<dyn KeyValue>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Environment> {
        let parts = Parts {
            system: store.clone(),
            items: store,
            objects: self.world.objects(),
            queue: self.world.queue(),
            functions: self.world.functions(),
            clock,
            entropy: self.world.entropy(),
        };
        let config = self.config.clone();
        Arc::new(Environment { parts, config })
    }

    pub(crate) fn region(&self, items: Arc<dyn KeyValue>) -> UserStore {
        UserStore::of(&self.env(items))
    }

    /// How a process takes locks.
    pub(crate) fn locking(&self) -> Locking {
        Locking::new(self.world.clock(), self.world.entropy(), &self.config)
    }

    /// An instance of the distributor.
    pub(crate) fn distributor(&self, store: &Arc<Interrupted>) -> Arc<Distributor> {
        Arc::new(Distributor::new(self.env(store.clone())))
    }

    /// An instance of the writer.
    pub(crate) fn writer(&self, store: &Arc<Interrupted>) -> Writer {
        self.writer_by(store, self.world.clock())
    }

    /// A writer on a machine with another clock.
    pub(crate) fn writer_by(&self, store: &Arc<Interrupted>, clock: Arc<dyn Clock>) -> Writer {
        let env = self.env_by(store.clone(), clock);
        let distributor = Arc::new(Distributor::new(env.clone()));
        Writer::new(env, &distributor)
    }

    /// The world's store for work that begins.
    pub(crate) fn system(&self) -> TrackedStore {
        TrackedStore::new(self.world.key_value())
    }

    /// Opens a session.
    pub(crate) async fn open(&self, number: u64) -> SessionId {
        let session = SessionId::of_client(number << 2);
        let opened = session::create(&mut self.system(), session, PASSWORD, TIMEOUT).await;
        assert!(opened.expect("no fault is injected"), "it is not there");
        session
    }

    pub(crate) async fn row(&self, session: SessionId) -> Row {
        session::get(&mut self.system(), session)
            .await
            .expect("no fault is injected")
            .expect("it is open")
    }

    /// The messages with which the writer receives `operations` of a session, after those decided
    /// so far.
    pub(crate) async fn asked(
        &self,
        session: SessionId,
        operations: Vec<Operation>,
    ) -> Vec<Delivery> {
        let row = self.row(session).await;
        let submitted =
            operations
                .into_iter()
                .zip(row.request + 1..)
                .map(|(operation, request)| {
                    let request = if operation == Operation::Expire {
                        0
                    } else {
                        request
                    };
                    encode(&Submitted {
                        session,
                        attach: row.attach,
                        request,
                        identities: Identities::NONE,
                        operation,
                    })
                });
        submitted.map(|body| self.delivery(body)).collect()
    }

    /// Has `operations` of a session decided. Returns the messages for the distributor, in order.
    pub(crate) async fn decided(
        &self,
        session: SessionId,
        operations: Vec<Operation>,
    ) -> Vec<Delivery> {
        let before = self.row(session).await.sequence;
        let asked = self.asked(session, operations).await;
        self.writes(&asked).await;
        let row = self.row(session).await;
        self.outbox(session)
            .await
            .split_off((before - row.applied) as usize)
    }

    /// Another writer handles these messages.
    pub(crate) async fn writes(&self, asked: &[Delivery]) {
        let asked = Self::messages(asked.to_vec());
        let written = self.writer(&self.store()).handle(asked).await;
        written.expect("no fault is injected");
    }

    /// What is decided in a session and not applied.
    pub(crate) async fn undelivered(&self, session: SessionId) -> Vec<Decided> {
        let row = self.row(session).await;
        row.outbox_decoded().expect("it decodes")
    }

    /// The distributor's messages for everything that is decided in a session and not applied.
    pub(crate) async fn outbox(&self, session: SessionId) -> Vec<Delivery> {
        self.row(session)
            .await
            .outbox()
            .iter()
            .map(|body| self.delivery(body.clone()))
            .collect()
    }

    /// Puts an entry that does not decode into a session's outbox, and returns the row.
    pub(crate) async fn damage_outbox(&self, session: SessionId) -> Row {
        let row = self.row(session).await;
        let decision = Decision {
            request: row.request + 1,
            closes: false,
            outcomes: vec![Bytes::from_static(b"of another build")],
        };
        match session::decide(&mut self.system(), &row, decision).await {
            Ok(Transition::Done(row)) => row,
            other => panic!("{other:?}"),
        }
    }

    /// The tail of a process with clients. It starts at the cursor and receives no announcements by
    /// itself.
    pub(crate) async fn tail(&self, store: Arc<Interrupted>) -> Arc<Tail> {
        Self::tail_of(self.env(store)).await
    }

    pub(crate) async fn tail_of(env: Arc<Environment>) -> Arc<Tail> {
        let tail = Arc::new(Tail::new(env));
        tail.start().await.expect("no fault is injected");
        let follower = tail.clone();
        tokio::spawn(async move { follower.run().await });
        tail
    }

    /// A client of a new session that counts as attached.
    pub(crate) async fn client(&self, tail: &Arc<Tail>, number: u64) -> Client {
        let attached = Attached {
            connection: Connection {
                session: self.open(number).await,
                attach: 1,
            },
            password: PASSWORD,
            timeout: TIMEOUT,
            asked_at: tail.env.parts.clock.monotonic(),
            renewals: 0,
            store: tail.env.system(),
            incarnation: tail.env.parts.queue.point().incarnation,
        };
        Client::new(tail.clone(), attached)
    }

    /// Delivers all announced slots to the clients, and returns once the view has reached them.
    pub(crate) async fn show(&self, tail: &Tail) {
        let announcements = self
            .announcements
            .0
            .lock()
            .expect("no panic while it is locked")
            .clone();
        let slot = announcements
            .last()
            .map(|wake| decode::<Slot>(&wake.slot, "a slot").expect("it was encoded"));
        for wake in announcements {
            tail.announce(wake);
        }
        tail.reached(slot.map_or(Zxid(0), |slot| slot.last())).await;
    }

    /// The event with which a writer or a distributor is invoked.
    pub(crate) fn messages(deliveries: Vec<Delivery>) -> Event {
        Event::Messages {
            queue: String::new(),
            deliveries,
        }
    }

    fn delivery(&self, body: Bytes) -> Delivery {
        let incarnation = self.world.queue().point().incarnation;
        let handle = Handle {
            group: queue_names::distributor_group(),
            sequence: Sequence(1),
            attempt: 1,
            incarnation,
        };
        Delivery {
            handle,
            deduplication: None,
            failures: 0,
            body: queue_names::packed(&[body], usize::MAX).remove(0),
        }
    }

    /// Makes everything durable and restarts the store, which begins a new incarnation.
    pub(crate) async fn restart(&self) {
        let store = self.world.key_value();
        store
            .externalize(store.point())
            .await
            .expect("no fault is injected");
        self.world.fall_back();
    }

    /// How often this update was announced.
    pub(crate) fn announcements_of(&self, id: UpdateId) -> usize {
        let announcements = self
            .announcements
            .0
            .lock()
            .expect("no panic while it is locked");
        let slots = announcements
            .iter()
            .map(|wake| decode::<Slot>(&wake.slot, "a slot").expect("it was encoded"));
        slots
            .filter(|slot| slot.entries.iter().any(|entry| entry.id == id))
            .count()
    }

    /// The names of all objects.
    pub(crate) async fn objects(&self) -> Vec<String> {
        let listed: Vec<_> = self
            .world
            .objects()
            .list(None)
            .try_collect()
            .await
            .expect("no fault is injected");
        listed
            .into_iter()
            .map(|object| object.location.to_string())
            .collect()
    }
}

/// Creates a znode without data.
pub(crate) fn create(path: &str, lifetime: Lifetime) -> Operation {
    Operation::Create {
        path: path.into(),
        data: Payload::Null,
        acl: access::open(),
        lifetime,
        naming: Naming::Given,
    }
}

/// Sets a znode's data.
pub(crate) fn set(path: &str, data: impl Into<Bytes>) -> Operation {
    Operation::SetData {
        path: path.into(),
        data: Payload::Inline(data.into()),
        version: -1,
    }
}

/// Whether a call updates an item with such an action.
pub(crate) fn makes(call: &Call<'_>, is_meant: impl Fn(&Action) -> bool) -> bool {
    match call {
        Call::Update(Update {
            change: Change::Modify(actions),
            ..
        }) => actions.iter().any(is_meant),
        _ => false,
    }
}

/// Whether a call concerns the row of `session`.
pub(crate) fn is_of_row(call: &Call<'_>, session: SessionId) -> bool {
    let key = match call {
        Call::Get(key) => key,
        Call::Update(update) => &update.key,
        _ => return false,
    };
    key.partition().starts_with(b"session/") && key.sort() == session.0.to_be_bytes().as_slice()
}
