//! One pass over a tree: each znode of the source is compared with the target's, and copied if it
//! differs.
//!
//! The walk goes depth first, parents before their children, with many znodes in flight. It holds
//! the data of those only, and the names of the open parents' children.

use std::{cell::RefCell, collections::BTreeSet};

use anyhow::Context as _;
use bytes::Bytes;
use coordination::{
    access,
    model::{Acl, Stat},
};
use futures_util::{
    StreamExt as _,
    future::{join, join_all},
    stream::FuturesUnordered,
};
use indicatif::ProgressBar;
use zookeeper_frontend::jute::Malformed;

use super::{
    connection::{Client, Side, Unanswered},
    kinds::{Kind, Kinds},
    protocol::{INVALID_ACL, NO_NODE, NODE_EXISTS, OK, Reply, Request, creates},
    report::{Finding, Report},
};

/// The most znodes in flight.
const WINDOW_MAX: usize = 256;
/// The fewest, for a tree of long data.
const WINDOW_MIN: usize = 8;
/// The data of all znodes in flight on one side, about.
const WINDOW_BYTES: usize = 32 << 20;
/// The requests that delete, or raise a counter, which are in flight together.
const BATCH: usize = 256;
/// The most children that are created and deleted to raise one sequence counter.
const RAISE_MAX: i64 = 1_000_000;
/// The name of such a child.
const FILLER: &str = "landfast-copy-raises-the-counter";
/// The hash of a password, as the server shows it to accounts without ADMIN.
const HIDDEN: &str = ":x";
/// The digits of a sequence number.
const SEQUENCE_DIGITS: usize = 10;

/// ZooKeeper's own subtree.
pub(super) const RESERVED: &str = "zookeeper";
/// The part of it that may be copied.
pub(super) const QUOTAS: &str = "/zookeeper/quota";
/// The server itself counts in these.
const QUOTA_STATISTICS: &str = "/zookeeper_stats";

/// Both sides of a copy.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) from: Client,
    pub(super) to: Client,
    pub(super) kinds: Kinds,
    pub(super) deletes: bool,
    pub(super) raises_counters: bool,
    /// All visits run in one task.
    pub(super) report: RefCell<Report>,
}

/// A znode to visit.
#[derive(Debug)]
struct Next {
    path: String,
    /// The visit of its parent has just created that, so it can not be there.
    is_new: bool,
}

/// A znode as one side has it.
#[derive(Debug)]
struct Znode {
    data: Option<Bytes>,
    acl: Vec<Acl>,
    stat: Stat,
}

impl Znode {
    fn is_ephemeral(&self) -> bool {
        Kind::of_owner(self.stat.ephemeral_owner).is_none()
    }
}

/// A visit, and its result.
#[derive(Debug, Default)]
struct Visit {
    path: String,
    bytes: usize,
    is_different: bool,
    next: Vec<Next>,
}

/// Why a visit ended early.
#[derive(Debug)]
enum Stop {
    /// The whole copy ends.
    Broken(anyhow::Error),
    /// The other znodes go on.
    Here(Finding),
}

type Step<T> = Result<T, Stop>;

impl Walk {
    /// Visits `top` and everything below it.
    pub(super) async fn pass(&self, top: &str, bar: &ProgressBar) -> anyhow::Result<()> {
        let path = top.to_owned();
        let mut stack = vec![Next {
            path,
            is_new: false,
        }];
        let (mut running, mut window) = (FuturesUnordered::new(), WINDOW_MIN);
        loop {
            while running.len() < window
                && let Some(next) = stack.pop()
            {
                running.push(self.visit(next));
            }
            let Some(visit) = running.next().await else {
                return Ok(());
            };
            let visit = visit?;
            let by_bytes = WINDOW_BYTES / visit.bytes.max(1);
            window = (window + 1).min(by_bytes).clamp(WINDOW_MIN, WINDOW_MAX);
            bar.inc(1);
            stack.extend(visit.next);
        }
    }

    async fn visit(&self, Next { path, is_new }: Next) -> anyhow::Result<Visit> {
        let mut visit = Visit {
            path: path.clone(),
            ..Visit::default()
        };
        match self.compare(&mut visit, is_new).await {
            Ok(()) => {}
            Err(Stop::Broken(error)) => return Err(error.context(path)),
            Err(Stop::Here(finding)) => self.found(&mut visit, path, finding),
        }
        Ok(visit)
    }

    fn found(&self, visit: &mut Visit, path: String, finding: Finding) {
        visit.is_different = true;
        self.report.borrow_mut().last.add(path, finding);
    }

    fn changed(&self, visit: &mut Visit, what: &'static str) {
        self.found(visit, visit.path.clone(), Finding::Changed(what));
    }

    async fn compare(&self, visit: &mut Visit, is_new: bool) -> Step<()> {
        let path = visit.path.clone();
        let (source, target) = if is_new {
            (read(&self.from, &path).await, Ok(None))
        } else {
            join(read(&self.from, &path), read(&self.to, &path)).await
        };
        let (source, mut target) = (source?, target?);
        let Some(source) = source else {
            return Err(Stop::Here(Finding::Changed("it went on the source")));
        };
        visit.bytes = source.data.as_ref().map_or(0, Bytes::len);
        let Some(kind) = Kind::of_owner(source.stat.ephemeral_owner) else {
            self.report.borrow_mut().last.ephemerals += 1;
            return match target {
                Some(target) if !target.is_ephemeral() => self.extra(visit, path).await,
                _ => Ok(()),
            };
        };
        refuse_hidden(&source, "--from-auth")?;
        let mut is_created = false;
        if target.is_none() {
            is_created = self.create(&path, &source, kind).await?;
            if is_created {
                self.changed(visit, "created");
            } else {
                target = read(&self.to, &path).await?;
            }
        }
        match &target {
            Some(target) => self.update(visit, &source, target).await?,
            None if is_created => {}
            None => {
                return Err(Stop::Here(Finding::Changed(
                    "it comes and goes on the target",
                )));
            }
        }
        self.children(visit, &source, target.as_ref()).await?;
        self.report.borrow_mut().last.equal += u64::from(!visit.is_different);
        Ok(())
    }

    /// Creates a znode above the copied tree, if the target lacks it.
    pub(super) async fn create_ancestor(&self, path: &str) -> anyhow::Result<()> {
        let made = async {
            if let Some(source) = read(&self.from, path).await? {
                self.ancestor(path, &source).await?;
            }
            Ok(())
        };
        made.await.map_err(|stop| match stop {
            Stop::Broken(error) => error.context(path.to_owned()),
            Stop::Here(finding) => anyhow::anyhow!("{path}: {}", finding.text()),
        })
    }

    async fn ancestor(&self, path: &str, source: &Znode) -> Step<()> {
        if call(&self.to, Request::exists(path)).await?.code == OK {
            return Ok(());
        }
        refuse_hidden(source, "--from-auth")?;
        self.create(path, source, Kind::Persistent).await?;
        Ok(())
    }

    /// Returns whether the znode was created. Otherwise it exists. `said` is the kind that its Stat
    /// gives.
    async fn create(&self, path: &str, source: &Znode, said: Kind) -> Step<bool> {
        let kind = self.kinds.of(path, said);
        let request = Request::create(path, source.data.as_deref(), &source.acl, kind);
        match call(&self.to, request).await?.code {
            OK => {
                let report = &mut *self.report.borrow_mut();
                report.created += 1;
                report.containers += u64::from(kind == Kind::Container);
                report.ttls += u64::from(matches!(kind, Kind::Ttl(_)));
                Ok(true)
            }
            NODE_EXISTS => Ok(false),
            // Its parent was a container, or had a TTL, or was deleted by a client.
            NO_NODE => Err(Stop::Here(Finding::Changed(
                "its parent went on the target",
            ))),
            code => Err(with_acl(self.to.side(), "create", code, &source.acl)),
        }
    }

    /// Makes data and ACL of the target those of the source.
    async fn update(&self, visit: &mut Visit, source: &Znode, target: &Znode) -> Step<()> {
        if target.is_ephemeral() {
            let why = "an ephemeral znode of a live session is there on the target";
            return Err(Stop::Here(Finding::Failed(why.to_owned())));
        }
        let path = visit.path.clone();
        let is_counted = path.starts_with(QUOTAS) && path.ends_with(QUOTA_STATISTICS);
        if source.data != target.data && !is_counted {
            let set = Request::set_data(&path, source.data.as_deref());
            accept(&self.to, "setData", call(&self.to, set).await?)?;
            self.changed(visit, "the data differed");
        }
        if source.acl != target.acl {
            refuse_hidden(target, "--to-auth")?;
            let set = Request::set_acl(&path, &source.acl);
            let reply = call(&self.to, set).await?;
            if reply.code == INVALID_ACL {
                return Err(with_acl(self.to.side(), "setACL", reply.code, &source.acl));
            }
            accept(&self.to, "setACL", reply)?;
            self.changed(visit, "the ACL differed");
        }
        self.report.borrow_mut().updated += u64::from(visit.is_different);
        Ok(())
    }

    /// Finds the children to visit, and those that only the target has.
    async fn children(
        &self,
        visit: &mut Visit,
        source: &Znode,
        target: Option<&Znode>,
    ) -> Step<()> {
        let path = visit.path.clone();
        let counts = |znode: &Znode| znode.stat.num_children > 0;
        let (here, there) = join(
            children(&self.from, &path, counts(source)),
            children(&self.to, &path, target.is_some_and(counts)),
        )
        .await;
        let (here, there) = (here?, there?);
        let is_new = target.is_none();
        visit.next = here
            .iter()
            .map(|name| Next {
                path: child(&path, name),
                is_new,
            })
            .collect();
        for name in there.difference(&here) {
            self.extra(visit, child(&path, name)).await?;
        }
        match target {
            Some(target) => self.counter(visit, source, target, &here).await,
            None => Ok(()),
        }
    }

    /// Compares the next sequence numbers of the children.
    async fn counter(
        &self,
        visit: &mut Visit,
        source: &Znode,
        target: &Znode,
        children: &BTreeSet<String>,
    ) -> Step<()> {
        let behind = creates(&source.stat) - creates(&target.stat);
        let path = &visit.path;
        if behind <= 0 || path.starts_with(QUOTAS) {
            return Ok(());
        }
        if !self.raises_counters {
            let is_low = children.iter().any(|name| is_sequential(name));
            self.report.borrow_mut().last.low_counters += u64::from(is_low);
            return Ok(());
        }
        if behind > RAISE_MAX {
            let why = format!(
                "its sequence counter is {behind} behind; at most {RAISE_MAX} can be made up for"
            );
            return Err(Stop::Here(Finding::Failed(why)));
        }
        let filler = child(path, FILLER);
        let acl = access::open();
        // Requests of one session take effect in their order.
        for start in (0..behind).step_by(BATCH) {
            let count = (behind - start).min(BATCH as i64);
            let filling = (0..count).flat_map(|_| {
                let create = Request::create(&filler, None, &acl, Kind::Persistent);
                [create, Request::delete(&filler)]
            });
            for filled in join_all(filling.map(|request| call(&self.to, request))).await {
                match filled?.code {
                    // A connection was lost, and the request was sent twice.
                    OK | NODE_EXISTS | NO_NODE => {}
                    code => return Err(refused(self.to.side(), "the sequence counter", code)),
                }
            }
        }
        call(&self.to, Request::delete(&filler)).await?;
        self.report.borrow_mut().raised_counters += 1;
        self.changed(visit, "its sequence counter was lower");
        Ok(())
    }

    /// Reports a subtree that only the target has, or deletes it. One that live sessions own a part
    /// of stays.
    async fn extra(&self, visit: &mut Visit, top: String) -> Step<()> {
        let (mut paths, mut next, mut why) = (vec![top.clone()], 0, String::new());
        while next < paths.len() && self.deletes {
            let path = paths[next].clone();
            let reply = call(&self.to, Request::exists(&path)).await?;
            let stat = decoded(&self.to, accept(&self.to, "exists", reply)?.stat())?;
            if Kind::of_owner(stat.ephemeral_owner).is_none() {
                why = format!("; it stays, because {path} is an ephemeral znode of a live session");
                break;
            }
            next += 1;
            let names = children(&self.to, &path, stat.num_children > 0).await?;
            paths.extend(names.iter().map(|name| child(&path, name)));
        }
        if next < paths.len() {
            self.found(visit, top, Finding::Extra(why));
            return Ok(());
        }
        for batch in paths.rchunks(BATCH) {
            let batch = batch.iter().rev();
            let deleting = batch.map(|path| call(&self.to, Request::delete(path)));
            for deleted in join_all(deleting).await {
                let reply = deleted?;
                if reply.code != NO_NODE {
                    accept(&self.to, "delete", reply)?;
                    self.report.borrow_mut().deleted += 1;
                }
            }
        }
        let deleted = Finding::Changed("only on the target, and deleted");
        self.found(visit, top, deleted);
        Ok(())
    }
}

fn decoded<T>(client: &Client, decoded: Result<T, Malformed>) -> Step<T> {
    let broken = || format!("{}: a reply does not decode", client.side());
    decoded.with_context(broken).map_err(Stop::Broken)
}

async fn call(client: &Client, request: Request) -> Step<Reply> {
    let reply = client.call(request).await;
    reply.map_err(|error| match error.downcast::<Unanswered>() {
        Ok(refused) => Stop::Here(Finding::Failed(refused.to_string())),
        Err(error) => Stop::Broken(error),
    })
}

fn accept(client: &Client, what: &'static str, reply: Reply) -> Step<Reply> {
    match reply.code {
        OK => Ok(reply),
        // The next pass sees how it is then.
        NO_NODE => Err(Stop::Here(Finding::Changed("it went meanwhile"))),
        code => Err(refused(client.side(), what, code)),
    }
}

fn refused(side: &Side, call: &'static str, code: i32) -> Stop {
    let why = format!("{call}: {}", side.refusal(code));
    Stop::Here(Finding::Failed(why))
}

/// The same for a call with an ACL. The code does not tell a long one from a wrong one.
fn with_acl(side: &Side, call: &'static str, code: i32, acl: &[Acl]) -> Stop {
    if code != INVALID_ACL || !access::is_too_long(acl) {
        return refused(side, call, code);
    }
    let (entries_max, bytes_max) = (access::ENTRIES_MAX, access::BYTES_MAX);
    let why = format!(
        "{call}: {side} takes ACLs of up to {entries_max} entries and {bytes_max} bytes, and this one is longer"
    );
    Stop::Here(Finding::Failed(why))
}

/// The znode at `path`, if there is one.
async fn read(client: &Client, path: &str) -> Step<Option<Znode>> {
    let data = call(client, Request::get_data(path));
    let (data, acl) = join(data, call(client, Request::get_acl(path))).await;
    let (data, acl) = (data?, acl?);
    if data.code == NO_NODE || acl.code == NO_NODE {
        return Ok(None);
    }
    let acl = decoded(client, accept(client, "getACL", acl)?.acl())?;
    let (data, stat) = decoded(client, accept(client, "getData", data)?.data())?;
    Ok(Some(Znode { data, acl, stat }))
}

/// The names of the children, if there are any. Those of ZooKeeper itself are left out.
async fn children(client: &Client, path: &str, has_any: bool) -> Step<BTreeSet<String>> {
    if !has_any {
        return Ok(BTreeSet::new());
    }
    let reply = accept(
        client,
        "getChildren",
        call(client, Request::get_children(path)).await?,
    )?;
    let mut names: BTreeSet<String> = decoded(client, reply.children())?.into_iter().collect();
    if path == "/" {
        names.remove(RESERVED);
    }
    Ok(names)
}

/// A copy of a hidden hash would lock everybody out.
fn refuse_hidden(znode: &Znode, flag: &str) -> Step<()> {
    let is_hidden = |grant: &Acl| grant.scheme == "digest" && grant.id.ends_with(HIDDEN);
    if znode.acl.iter().any(is_hidden) {
        let why =
            format!("its ACL is hidden; give {flag} of an account with ADMIN there, or super");
        return Err(Stop::Here(Finding::Failed(why)));
    }
    Ok(())
}

fn is_sequential(name: &str) -> bool {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    digits >= SEQUENCE_DIGITS
}

fn child(path: &str, name: &str) -> String {
    let path = path.trim_end_matches('/');
    format!("{path}/{name}")
}

#[cfg(test)]
mod tests {
    use http_client::Trust;

    use super::{super::connection::End, *};

    #[test]
    fn a_refusal_names_its_side_and_a_long_acl_is_told_from_a_wrong_one() {
        let side = Side {
            end: End::Target,
            hosts: "tls://a:1".parse().expect("hosts"),
            trust: Trust::default(),
            credentials: None,
        };
        let long = vec![access::open().remove(0); access::ENTRIES_MAX + 1];
        for (acl, code, said) in [
            (&long[..], INVALID_ACL, "up to 256 entries and 4096 bytes"),
            (&long, -102, "answers NoAuth: give --to-auth "),
            (&long[..1], INVALID_ACL, "answers InvalidACL"),
        ] {
            let Stop::Here(Finding::Failed(why)) = with_acl(&side, "setACL", code, acl) else {
                panic!("the others go on");
            };
            assert!(why.starts_with("setACL: the target tls://a:1 "), "{why}");
            assert!(why.contains(said), "{why}");
        }
    }
}
