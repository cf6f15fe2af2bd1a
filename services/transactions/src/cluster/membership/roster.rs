//! The roster: interprets the znodes of members and elections, without any I/O.
//!
//! A node is a znode under its id, which holds its address. A candidate in an election is a
//! sequential znode, and the one with the lowest number leads. All are ephemerals of the process's
//! session, so they vanish with it at once. The roster is told the results of reads and which
//! watches fired, and answers with the next reads. When nothing is left to read, the result becomes
//! a view.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coordination::model::{Acl, Lifetime, Naming, Output, Request, Response, Watching};

use crate::model::NodeId;

use super::{Address, Election, Members};

/// The parents of the lists, in the order of their creation.
const PARENTS: [&str; 2] = ["/landfast", "/landfast/transactions"];
const MEMBERS: &str = "/landfast/transactions/members";

/// Every watched list of znodes.
const LISTS: [List; 3] = [
    List::Members,
    List::Election(Election::Collector),
    List::Election(Election::Sequencer),
];

/// ZooKeeper's permission to read. Changes are for members, which pass every ACL: a client that
/// changed an address would receive what members send each other, and their token with it.
const READ: i32 = 1;

/// A znode whose children are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum List {
    Members,
    Election(Election),
}

impl List {
    fn path(self) -> &'static str {
        match self {
            Self::Members => MEMBERS,
            Self::Election(Election::Collector) => "/landfast/transactions/collector",
            Self::Election(Election::Sequencer) => "/landfast/transactions/sequencer-0",
        }
    }
}

/// The purpose of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    List(List),
    AddressOf(NodeId),
    /// The node of the sequencer's candidate with that number.
    Sequencer(u64),
}

/// The present members, and the elections that this node leads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Present {
    /// The roster does not number them.
    pub(super) members: Members,
    pub(super) leads: BTreeSet<Election>,
}

/// The znodes as far as they were read.
#[derive(Debug)]
pub(super) struct Roster {
    /// The candidate znodes that this node has created.
    candidates: BTreeMap<Election, String>,
    /// The elections in which those candidates were seen.
    stands_for: BTreeSet<Election>,
    present: Present,
    /// The number of the sequencer's candidate.
    sequencer: Option<u64>,
    /// Members whose address was not read yet.
    unknown: BTreeSet<NodeId>,
    asked: BTreeMap<i32, Asked>,
    tag: i32,
}

impl Roster {
    /// A roster for a node with these candidates. Nothing is read yet.
    pub(super) fn new(candidates: BTreeMap<Election, String>) -> Self {
        let (stands_for, unknown, asked) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        Self {
            candidates,
            stands_for,
            present: Present::default(),
            sequencer: None,
            unknown,
            asked,
            tag: 0,
        }
    }

    /// Reads everything, for a connection that has no watch yet.
    pub(super) fn read_all(&mut self) -> Vec<(i32, Request)> {
        self.asked.clear();
        self.unknown.clear();
        LISTS.map(|list| self.list(list)).into()
    }

    /// Takes in a response or event, and returns the reads that it requires.
    pub(super) fn take(&mut self, output: Output) -> Vec<(i32, Request)> {
        match output {
            Output::Event { path, .. } => {
                let listed = LISTS.into_iter().filter(|list| list.path() == path);
                listed.map(|list| self.list(list)).collect()
            }
            Output::Reply { tag, result, .. } => match (self.asked.remove(&tag), result) {
                (Some(Asked::List(List::Members)), Ok(Response::Children { children, .. })) => {
                    self.members(&children)
                }
                (
                    Some(Asked::List(List::Election(election))),
                    Ok(Response::Children { children, .. }),
                ) => self.lead(election, &children).into_iter().collect(),
                (Some(Asked::AddressOf(node)), Ok(Response::Data { data, .. })) => {
                    let address = String::from_utf8_lossy(&data.unwrap_or_default()).into_owned();
                    if self.unknown.remove(&node) {
                        self.present.members.nodes.insert(node, Address(address));
                    }
                    Vec::new()
                }
                (Some(Asked::Sequencer(number)), Ok(Response::Data { data, .. })) => {
                    if self.sequencer == Some(number) {
                        let data = data.unwrap_or_default();
                        let node = std::str::from_utf8(&data).ok();
                        let node = node.and_then(|node| node.parse().ok());
                        self.present.members.sequencer = node.map(NodeId);
                    }
                    Vec::new()
                }
                // A member that has gone meanwhile; the watch reports it. A missing list has no
                // watch.
                _ => Vec::new(),
            },
        }
    }

    /// The result, once everything was read.
    pub(super) fn whole(&self) -> Option<&Present> {
        self.asked.is_empty().then_some(&self.present)
    }

    /// Whether everything that `node` has created is there.
    pub(super) fn has_all_of(&self, node: NodeId) -> bool {
        self.present.members.nodes.contains_key(&node)
            && self.stands_for.len() == self.candidates.len()
    }

    fn list(&mut self, list: List) -> (i32, Request) {
        let path = list.path().to_owned();
        self.ask(
            Asked::List(list),
            Request::GetChildren {
                path,
                watching: Watching::Yes,
            },
        )
    }

    fn ask(&mut self, asked: Asked, request: Request) -> (i32, Request) {
        self.tag += 1;
        self.asked.insert(self.tag, asked);
        (self.tag, request)
    }

    fn members(&mut self, names: &[String]) -> Vec<(i32, Request)> {
        // Other znodes that clients created there are no members.
        let there: BTreeSet<NodeId> = names
            .iter()
            .filter_map(|name| name.parse().ok().map(NodeId))
            .collect();
        self.present
            .members
            .nodes
            .retain(|node, _| there.contains(node));
        self.unknown = there
            .into_iter()
            .filter(|node| !self.present.members.nodes.contains_key(node))
            .collect();
        let unknown = self.unknown.clone();
        let look = |node| {
            self.ask(
                Asked::AddressOf(node),
                Request::GetData {
                    path: member_path(node),
                    watching: Watching::No,
                },
            )
        };
        unknown.into_iter().map(look).collect()
    }

    /// Notes who leads. Returns the read that tells which node the sequencer is.
    fn lead(&mut self, election: Election, candidates: &[String]) -> Option<(i32, Request)> {
        let own = self
            .candidates
            .get(&election)
            .map(|path| path.rsplit('/').next().unwrap_or_default());
        let first = candidates
            .iter()
            .min_by_key(|name| number(name))
            .map(String::as_str);
        let keep = |set: &mut BTreeSet<Election>, is_in: bool| {
            if is_in {
                set.insert(election)
            } else {
                set.remove(&election)
            };
        };
        keep(&mut self.present.leads, own.is_some() && own == first);
        keep(
            &mut self.stands_for,
            own.is_some_and(|own| candidates.iter().any(|name| name == own)),
        );
        if election != Election::Sequencer {
            return None;
        }
        let known = self
            .sequencer
            .filter(|_| self.present.members.sequencer.is_some());
        self.sequencer = first.map(number);
        if known.is_some() && known == self.sequencer {
            return None;
        }
        self.present.members.sequencer = None;
        let first = first?;
        let path = format!("{}/{first}", List::Election(election).path());
        let watching = Watching::No;
        Some(self.ask(
            Asked::Sequencer(number(first)),
            Request::GetData { path, watching },
        ))
    }
}

/// Creates the znodes under which everything else is created.
pub(super) fn parents() -> Vec<Request> {
    let lists = LISTS.iter().map(|list| list.path());
    let paths = PARENTS.into_iter().chain(lists);
    paths
        .map(|path| {
            create(
                path.to_owned(),
                Bytes::new(),
                Lifetime::Persistent,
                Naming::Given,
            )
        })
        .collect()
}

/// The znode of a member.
pub(super) fn member(node: NodeId, address: &Address) -> Request {
    let address = Bytes::copy_from_slice(address.0.as_bytes());
    create(
        member_path(node),
        address,
        Lifetime::Ephemeral,
        Naming::Given,
    )
}

/// Creates a candidate of `node` for `election`.
pub(super) fn candidate(node: NodeId, election: Election) -> Request {
    let path = format!("{}/n-", List::Election(election).path());
    create(
        path,
        Bytes::from(node.0.to_string()),
        Lifetime::Ephemeral,
        Naming::Sequential,
    )
}

fn member_path(node: NodeId) -> String {
    format!("{MEMBERS}/{}", node.0)
}

/// The sequence number of a candidate; a malformed one sorts last.
fn number(name: &str) -> u64 {
    name.strip_prefix("n-")
        .and_then(|number| number.parse().ok())
        .unwrap_or(u64::MAX)
}

fn create(path: String, data: Bytes, lifetime: Lifetime, naming: Naming) -> Request {
    let acl = vec![Acl {
        permissions: READ,
        scheme: "world".into(),
        id: "anyone".into(),
    }];
    Request::Create {
        path,
        data: Some(data),
        acl,
        lifetime,
        naming,
    }
}

#[cfg(test)]
mod tests {
    use coordination::{
        Error,
        model::{EventKind, Stat, Zxid},
    };

    use super::*;

    fn replied(tag: i32, result: Result<Response, Error>) -> Output {
        Output::Reply {
            tag,
            zxid: Zxid(1),
            result,
        }
    }

    fn children(names: &[&str]) -> Response {
        let children = names.iter().map(|name| (*name).to_owned()).collect();
        Response::Children {
            children,
            stat: Stat::default(),
        }
    }

    fn address(address: &'static str) -> Response {
        Response::Data {
            data: Some(Bytes::from_static(address.as_bytes())),
            stat: Stat::default(),
        }
    }

    /// A roster of node 7, which was second in one election and first in the other.
    fn read() -> Roster {
        let path = |election| List::Election(election).path();
        let candidates = BTreeMap::from([
            (
                Election::Collector,
                format!("{}/n-0000000012", path(Election::Collector)),
            ),
            (
                Election::Sequencer,
                format!("{}/n-0000000003", path(Election::Sequencer)),
            ),
        ]);
        let mut roster = Roster::new(candidates);
        let tags: Vec<i32> = roster.read_all().into_iter().map(|(tag, _)| tag).collect();
        let looks = roster.take(replied(tags[0], Ok(children(&["7", "3", "notes"]))));
        roster.take(replied(
            tags[1],
            Ok(children(&["n-0000000012", "n-0000000009", "x"])),
        ));
        let sequencer = roster.take(replied(
            tags[2],
            Ok(children(&["n-0000000003", "n-0000000004"])),
        ));
        assert_eq!(roster.whole(), None, "the addresses are missing");
        assert_eq!(roster.take(replied(sequencer[0].0, Ok(address("7")))), []);
        for ((tag, _), of) in looks.into_iter().zip(["a:1", "b:2"]) {
            assert_eq!(roster.take(replied(tag, Ok(address(of)))), []);
        }
        roster
    }

    #[test]
    fn clients_may_read_and_change_nothing() {
        let elections = [Election::Collector, Election::Sequencer];
        let candidates = elections.map(|election| candidate(NodeId(7), election));
        let member = member(NodeId(7), &Address("a:1".into()));
        for request in parents().into_iter().chain([member]).chain(candidates) {
            let Request::Create { acl, path, .. } = request else {
                panic!("a create")
            };
            let granted: Vec<_> = acl
                .iter()
                .map(|entry| (&*entry.id, entry.permissions))
                .collect();
            assert_eq!(granted, [("anyone", READ)], "{path}");
        }
    }

    #[test]
    fn whoever_is_first_in_line_leads() {
        let roster = read();
        let present = roster.whole().expect("all is read");
        let nodes = [
            (NodeId(3), Address("a:1".into())),
            (NodeId(7), Address("b:2".into())),
        ];
        assert_eq!(present.members.nodes, BTreeMap::from(nodes));
        assert_eq!(present.leads, BTreeSet::from([Election::Sequencer]));
        assert_eq!(present.members.sequencer, Some(NodeId(7)));
        assert!(roster.has_all_of(NodeId(7)) && !roster.has_all_of(NodeId(8)));
    }

    #[test]
    fn a_node_whose_candidate_was_deleted_is_not_all_there() {
        let mut roster = read();
        let (tag, _) = roster.list(List::Election(Election::Sequencer));
        let read = roster.take(replied(tag, Ok(children(&["n-0000000004"]))));
        assert!(!roster.has_all_of(NodeId(7)));
        assert_eq!(roster.whole(), None, "its node is not known");
        roster.take(replied(read[0].0, Ok(address("3"))));
        let present = roster.whole().expect("all is read");
        assert_eq!(present.leads, BTreeSet::new());
        assert_eq!(present.members.sequencer, Some(NodeId(3)));
    }

    #[test]
    fn a_list_is_read_again_when_it_has_changed_and_only_what_is_new() {
        let mut roster = read();
        let kind = EventKind::NodeChildrenChanged;
        let event = |list: List| Output::Event {
            zxid: Some(Zxid(9)),
            kind,
            path: list.path().into(),
        };
        let [(members, _)] = &roster.take(event(List::Members))[..] else {
            panic!("one list")
        };
        assert_eq!(
            roster.take(replied(*members, Ok(children(&["7"])))),
            [],
            "its address is known"
        );
        let [(collector, _)] = &roster.take(event(List::Election(Election::Collector)))[..] else {
            panic!("one list")
        };
        assert_eq!(roster.whole(), None);
        roster.take(replied(*collector, Ok(children(&["n-0000000012"]))));
        let present = roster.whole().expect("all is read");
        assert_eq!(
            present.members.nodes.keys().collect::<Vec<_>>(),
            [&NodeId(7)]
        );
        assert_eq!(
            present.leads,
            BTreeSet::from([Election::Collector, Election::Sequencer])
        );
    }

    #[test]
    fn a_member_that_goes_before_its_address_is_read_is_none() {
        let mut roster = Roster::new(BTreeMap::new());
        let tags: Vec<i32> = roster.read_all().into_iter().map(|(tag, _)| tag).collect();
        let looks = roster.take(replied(tags[0], Ok(children(&["7"]))));
        roster.take(replied(tags[1], Ok(children(&[]))));
        roster.take(replied(tags[2], Ok(children(&[]))));
        roster.take(replied(looks[0].0, Err(Error::NoNode)));
        assert_eq!(roster.whole(), Some(&Present::default()));
    }
}
