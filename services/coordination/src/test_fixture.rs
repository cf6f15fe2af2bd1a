//! A calm world in which a test calls each function by hand, and nobody else does.
//!
//! Each function is given a store of its own, where it can be interrupted ([`Interrupted`]).

mod interrupted;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use ports::{
    Clock, Event, Handler, KeyValue, Result,
    functions::{Definition, Failure, FunctionOptions},
    queue::{Delivery, Handle, QueueOptions, Retention, Sequence},
};
use primitives::FencedLog;
use simulated::{Options, World};

pub(crate) use self::interrupted::{Call, Interrupted, Side};
use crate::{
    Client, Config,
    client::{Attached, Shared},
    dependency::Basis,
    distributor::{Distributor, LOG_PARTITION},
    model::{Acl, Lifetime, Naming, Password, SessionId, Zxid},
    queue_names,
    records::{NodeState, Operation, Payload, Slot, Submitted, UpdateId, Wake, decode, encode},
    storage::{
        node::Nodes,
        session::{Decision, Moved, Row, Sessions},
        user_store::{Node, UserStore, encode_acl},
    },
    tail::Tail,
    writer::Writer,
};

/// Of every session.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);
pub(crate) const PASSWORD: Password = Password([7; 16]);

/// What the distributors have told, in order.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<Wake>>);

#[async_trait]
impl Handler for Told {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Call { payload, .. } = event else {
            panic!("{event:?}")
        };
        let wake = decode::<Wake>(&payload, "what is told")?;
        self.0.lock().expect("nobody panics holding it").push(wake);
        Ok(Bytes::new())
    }
}

/// The world with its root, and what a test asks of it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) world: World,
    config: Config,
    told: Arc<Told>,
}

impl Stage {
    /// A world that imitates a cloud with `options`.
    pub(crate) async fn new(options: Options, config: Config) -> Self {
        let (world, told) = (World::with_options(1, options), Arc::<Told>::default());
        let (options, handler) = (FunctionOptions::default(), told.clone());
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
            .expect("calm");
        let stage = Self {
            world,
            config,
            told,
        };
        let last = UpdateId {
            session: SessionId(0),
            sequence: 0,
        };
        let state = NodeState {
            version: 0,
            creates: 0,
            children: 0,
            owner: None,
            last,
        };
        stage
            .nodes(stage.world.key_value())
            .put_if_absent("/", state)
            .await
            .expect("calm");
        let root = Node::created(Zxid(0), 0, 0, Payload::Null, encode_acl(&[]));
        stage
            .region(stage.world.key_value())
            .put_if_absent("/", &root)
            .await
            .expect("calm");
        stage
    }

    /// The world's store, for one caller.
    pub(crate) fn store(&self) -> Arc<Interrupted> {
        Interrupted::new(self.world.key_value())
    }

    pub(crate) fn region(&self, items: Arc<dyn KeyValue>) -> UserStore {
        UserStore::new(items, self.world.objects(), self.config.placement)
    }

    pub(crate) fn nodes(&self, system: Arc<dyn KeyValue>) -> Nodes {
        self.nodes_by(system, self.world.clock())
    }

    /// The same on a machine with another clock.
    pub(crate) fn nodes_by(&self, system: Arc<dyn KeyValue>, clock: Arc<dyn Clock>) -> Nodes {
        Nodes::new(system, clock, self.world.entropy(), &self.config)
    }

    /// An instance of the distributor.
    pub(crate) fn distributor(&self, store: &Arc<Interrupted>) -> Arc<Distributor> {
        let regions = vec![self.region(store.clone())];
        let (nodes, functions) = (self.nodes(store.clone()), self.world.functions());
        Arc::new(Distributor::new(
            store.clone(),
            regions,
            nodes,
            functions,
            &self.config,
        ))
    }

    /// An instance of the writer.
    pub(crate) fn writer(&self, store: &Arc<Interrupted>) -> Writer {
        self.writer_by(store, self.world.clock())
    }

    /// The same on a machine with another clock.
    pub(crate) fn writer_by(&self, store: &Arc<Interrupted>, clock: Arc<dyn Clock>) -> Writer {
        let nodes = self.nodes_by(store.clone(), clock.clone());
        Writer::new(
            store.clone(),
            self.world.queue(),
            clock,
            nodes,
            &self.config,
        )
    }

    pub(crate) fn sessions(&self) -> Sessions {
        Sessions::new(self.world.key_value())
    }

    /// Opens a session.
    pub(crate) async fn open(&self, number: u64) -> SessionId {
        let session = SessionId::of_client(number << 2);
        let opened = self
            .sessions()
            .create(session, PASSWORD, TIMEOUT, &mut Basis::default())
            .await;
        assert!(opened.expect("calm"), "it is not there");
        session
    }

    pub(crate) async fn row(&self, session: SessionId) -> Row {
        self.sessions()
            .get(session, &mut Basis::default())
            .await
            .expect("calm")
            .expect("it is open")
    }

    /// `operations` of a session as the writer is given them, behind what was decided.
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
                        operation,
                    })
                });
        submitted.map(|body| self.delivery(body)).collect()
    }

    /// Has `operations` of a session decided; what the distributor is given of them, in order.
    pub(crate) async fn decided(
        &self,
        session: SessionId,
        operations: Vec<Operation>,
    ) -> Vec<Delivery> {
        let before = self.row(session).await.sequence;
        let asked = self.asked(session, operations).await;
        self.writer(&self.store())
            .handle(Stage::messages(asked))
            .await
            .expect("calm");
        let row = self.row(session).await;
        self.outbox(session)
            .await
            .split_off((before - row.applied) as usize)
    }

    /// What the distributor would be given of everything that is decided in a session and not applied.
    pub(crate) async fn outbox(&self, session: SessionId) -> Vec<Delivery> {
        self.row(session)
            .await
            .outbox()
            .iter()
            .map(|body| self.delivery(body.clone()))
            .collect()
    }

    /// Leaves what nobody can read in a session's outbox; its row then.
    pub(crate) async fn damage_outbox(&self, session: SessionId) -> Row {
        let Row {
            sequence,
            request,
            fence,
            attach,
            state: expected,
            ..
        } = self.row(session).await;
        let first = UpdateId {
            session,
            sequence: sequence + 1,
        };
        let outcomes = vec![Bytes::from_static(b"of another build")];
        let request = request + 1;
        let decision = Decision {
            first,
            fence,
            attach,
            expected,
            request,
            closes: false,
            outcomes,
        };
        match self
            .sessions()
            .decide(decision, &mut Basis::default())
            .await
        {
            Ok(Moved::Done(row)) => row,
            other => panic!("{other:?}"),
        }
    }

    /// What clients of one process share, which begins where the region is applied, and is shown nothing by itself.
    pub(crate) async fn shared(&self, store: Arc<Interrupted>) -> Arc<Shared> {
        let (region, clock) = (self.region(store.clone()), self.world.clock());
        let log = FencedLog::new(store.clone(), LOG_PARTITION);
        let tail = Arc::new(Tail::new(region.clone(), log, clock.clone(), &self.config));
        tail.start_at_cursor().await.expect("calm");
        let follower = tail.clone();
        tokio::spawn(async move { follower.run().await });
        Arc::new(Shared {
            config: self.config.clone(),
            sessions: Sessions::new(store),
            region,
            temporary: self.world.objects(),
            queue: self.world.queue(),
            functions: self.world.functions(),
            clock,
            entropy: self.world.entropy(),
            tail,
        })
    }

    /// A client of a new session, which is taken for attached.
    pub(crate) async fn client(&self, shared: &Arc<Shared>, number: u64) -> Client {
        let attached = Attached {
            session: self.open(number).await,
            password: PASSWORD,
            attach: 1,
            timeout: TIMEOUT,
            asked_at: shared.clock.monotonic(),
            renewals: 0,
            basis: Basis::default(),
            incarnation: shared.queue.point().incarnation,
        };
        Client::new(shared.clone(), attached)
    }

    /// Shows them everything that was told; returns once the view is there.
    pub(crate) async fn show(&self, shared: &Shared) {
        let told = self
            .told
            .0
            .lock()
            .expect("nobody panics holding it")
            .clone();
        let slot = told
            .last()
            .map(|wake| decode::<Slot>(&wake.slot, "a slot").expect("it was encoded"));
        for wake in told {
            shared.tail.offer(wake);
        }
        shared
            .tail
            .reached(slot.map_or(Zxid(0), |slot| slot.last()))
            .await;
    }

    /// What a writer or a distributor is given.
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
            body,
        }
    }

    /// Makes everything durable, and has the store go back to that: it is another start of it.
    pub(crate) async fn restart(&self) {
        let store = self.world.key_value();
        store.externalize(store.point()).await.expect("calm");
        self.world.fall_back();
    }

    /// How often each update was told of.
    pub(crate) fn told(&self, id: UpdateId) -> usize {
        let told = self.told.0.lock().expect("nobody panics holding it");
        let slots = told
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
            .expect("calm");
        listed
            .into_iter()
            .map(|object| object.location.to_string())
            .collect()
    }
}

/// Makes a znode without data.
pub(crate) fn create(path: &str, lifetime: Lifetime) -> Operation {
    let acl = vec![Acl {
        permissions: 31,
        scheme: "world".into(),
        id: "anyone".into(),
    }];
    Operation::Create {
        path: path.into(),
        data: Payload::Null,
        acl,
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

/// Whether a call is about the row of `session`.
pub(crate) fn is_of_row(call: &Call<'_>, session: SessionId) -> bool {
    let key = match call {
        Call::Get(key) => key,
        Call::Update(update) => &update.key,
        _ => return false,
    };
    key.partition().starts_with(b"session/") && key.sort() == session.0.to_be_bytes().as_slice()
}
