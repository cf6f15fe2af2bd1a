//! Checks of the promises: they compare the outputs of every client with the log.
//!
//! Each check returns the violations that it finds. A test expects none of the real service and
//! some of a mutant.

mod lasting;
mod leftovers;

use std::collections::BTreeMap;

use coordination::{
    model::{
        EventKind, Naming, Output, Request, Response, SessionId, Stat, WatchKind, Watched,
        Watching, Zxid,
    },
    records::UpdateAnswer,
};

use self::lasting::LastingWatches;
pub use self::leftovers::nothing_is_left;
use crate::{
    history::{History, Moment},
    timeline::Timeline,
};

/// The length of the data of the containers that scenarios make, by which the checks know them.
pub const CONTAINER_BYTES: i32 = 30;

/// The length of the data of their znodes with a time to live.
pub const TIME_TO_LIVE_BYTES: i32 = 40;

/// The subtree on which they set a quota.
pub const QUOTA_TOP: &str = "/q";

/// Runs all checks over all of `histories`.
pub fn all(histories: &[History], timeline: &Timeline) -> Vec<String> {
    let mut violations = timeline.violations.clone();
    for history in histories {
        for connection in history.connections() {
            let mut check = Connection::new(history.client, timeline);
            for moment in connection {
                check.take(moment);
            }
            violations.append(&mut check.violations);
        }
    }
    violations.extend(ephemerals_end_with_their_sessions(timeline));
    violations.extend(only_due_znodes_expire(timeline));
    violations.extend(reads_of_one_change_agree(histories));
    violations.extend(only_ended_sessions_expire(histories, timeline));
    violations
}

/// One connection's outputs, in order, checked against the timeline.
struct Connection<'timeline> {
    client: usize,
    timeline: &'timeline Timeline,
    session: Option<SessionId>,
    asked: BTreeMap<i32, Request>,
    /// The expected order of the replies.
    unanswered: Vec<i32>,
    shown: Zxid,
    /// The zxid of the last read.
    last_read: Zxid,
    watches: Vec<Armed>,
    lasting: LastingWatches,
    /// Since when watches are being set again, and which of them have not fired yet.
    setting: (Zxid, Vec<Again>),
    /// Synthetic events for such watches, each with the zxid seen before it. The reply says as of
    /// which zxid they hold.
    made_up: Vec<(EventKind, String, Zxid)>,
    violations: Vec<String>,
}

/// A watch as its client sees it: a reply at `since` armed it.
#[derive(Debug, Clone, PartialEq)]
struct Armed {
    path: String,
    is_of_children: bool,
    since: Zxid,
}

/// A watch that is being set again. It either fires at once for a missed change or is armed.
#[derive(Debug, Clone, PartialEq)]
struct Again {
    path: String,
    watched: Watched,
}

impl Again {
    fn armed(&self, since: Zxid) -> Armed {
        Armed {
            path: self.path.clone(),
            is_of_children: self.watched == Watched::Children,
            since,
        }
    }

    /// The event that the watch missed between `relative` and `zxid`, judged by the znode at
    /// `zxid`.
    fn missed(&self, timeline: &Timeline, relative: Zxid, zxid: Zxid) -> Option<EventKind> {
        match (self.watched, timeline.stat(&self.path, zxid)) {
            (Watched::Existence, stat) => stat.map(|_| EventKind::NodeCreated),
            (Watched::Lasting(_), _) => None,
            (_, None) => Some(EventKind::NodeDeleted),
            (Watched::Data, Some(stat)) => {
                (stat.mzxid > relative).then_some(EventKind::NodeDataChanged)
            }
            (Watched::Children, Some(stat)) => {
                (stat.pzxid > relative).then_some(EventKind::NodeChildrenChanged)
            }
        }
    }
}

impl Armed {
    fn kinds(&self) -> &'static [EventKind] {
        if self.is_of_children {
            &[EventKind::NodeChildrenChanged, EventKind::NodeDeleted]
        } else {
            &[
                EventKind::NodeCreated,
                EventKind::NodeDataChanged,
                EventKind::NodeDeleted,
            ]
        }
    }
}

impl<'timeline> Connection<'timeline> {
    fn new(client: usize, timeline: &'timeline Timeline) -> Self {
        Self {
            client,
            timeline,
            session: None,
            asked: BTreeMap::new(),
            unanswered: Vec::new(),
            shown: Zxid(0),
            last_read: Zxid(0),
            watches: Vec::new(),
            lasting: LastingWatches::default(),
            setting: (Zxid(0), Vec::new()),
            made_up: Vec::new(),
            violations: Vec::new(),
        }
    }

    fn violated(&mut self, what: &str) {
        self.violations.push(format!(
            "client {} in {:?}: {what}",
            self.client, self.session
        ));
    }

    fn take(&mut self, moment: &Moment) {
        match moment {
            Moment::Connected(session) => self.session = Some(*session),
            Moment::Asked(tag, request) => {
                self.asked.insert(*tag, request.clone());
                self.unanswered.push(*tag);
                if let Request::SetWatches { relative, watches } = request {
                    self.set_lasting(watches, (self.shown, Zxid(i64::MAX)));
                    self.setting = (*relative, one_shot(watches));
                }
            }
            Moment::Shown(Output::Reply { tag, zxid, result }) => {
                if self.unanswered.first() != Some(tag) {
                    self.violated(&format!(
                        "tag {tag} was answered before {:?}",
                        self.unanswered.first()
                    ));
                }
                self.unanswered.retain(|unanswered| unanswered != tag);
                let request = self.asked[tag].clone();
                if !is_update(&request) {
                    self.last_read = *zxid;
                } else if *zxid <= self.last_read {
                    self.violated(&format!(
                        "a read at {:?} saw the update asked for later",
                        self.last_read
                    ));
                }
                self.advance(*zxid);
                self.reply(&request, *zxid, result);
            }
            Moment::Shown(Output::Event {
                zxid: Some(zxid),
                kind,
                path,
            }) => self.event(*zxid, *kind, path),
            Moment::Shown(Output::Event {
                zxid: None,
                kind,
                path,
            }) => {
                self.made_up.push((*kind, path.clone(), self.shown));
            }
            Moment::Disconnected | Moment::Expired(_) => {}
        }
    }

    /// Ordered notifications: before an output at `zxid`, the client received all events up to
    /// `zxid`.
    fn advance(&mut self, zxid: Zxid) {
        if zxid < self.shown {
            self.violated(&format!("{zxid:?} was shown after {:?}", self.shown));
        }
        self.shown = zxid;
        self.events_were_shown_through(zxid);
    }

    fn events_were_shown_through(&mut self, zxid: Zxid) {
        for armed in self.watches.clone() {
            if let Some((fired, kind)) =
                self.timeline
                    .first_event(&armed.path, armed.kinds(), armed.since)
                && fired <= zxid
            {
                self.violated(&format!(
                    "{zxid:?} was shown before {kind:?} of {} at {fired:?}",
                    armed.path
                ));
                self.watches.retain(|other| *other != armed);
            }
        }
        for missed in self.lasting.check_through(self.timeline, zxid) {
            self.violated(&missed);
        }
    }

    fn set_lasting(&mut self, watches: &[(Watched, String)], since: (Zxid, Zxid)) {
        for (watched, path) in watches {
            if let Watched::Lasting(mode) = watched {
                self.lasting.set(path, *mode, since);
            }
        }
    }

    fn event(&mut self, zxid: Zxid, kind: EventKind, path: &str) {
        self.arm_what_is_being_set(Zxid(zxid.0 - 1), kind, path);
        let fires = |armed: &Armed| armed.path == path && armed.kinds().contains(&kind);
        self.lasting.shown(zxid, kind, path);
        if !self.watches.iter().any(fires) && !self.lasting.reports(zxid, kind, path) {
            self.violated(&format!("{kind:?} of {path} at {zxid:?} had no watch"));
        }
        for armed in self.watches.iter().filter(|armed| fires(armed)) {
            let first = self.timeline.first_event(path, armed.kinds(), armed.since);
            if first.is_none_or(|(first, _)| first != zxid) {
                self.violations.push(format!(
                    "{kind:?} of {path} came at {zxid:?} instead of {first:?}"
                ));
            }
        }
        self.watches.retain(|armed| !fires(armed));
        if zxid < self.shown {
            self.violated(&format!(
                "{kind:?} of {path} at {zxid:?} was shown after {:?}",
                self.shown
            ));
        }
        // One change may fire several watches, one event after the other.
        self.events_were_shown_through(Zxid(zxid.0 - 1));
        self.shown = self.shown.max(zxid);
    }

    fn reply(
        &mut self,
        request: &Request,
        zxid: Zxid,
        result: &Result<Response, coordination::Error>,
    ) {
        match request {
            request if is_update(request) => {
                self.update_is_logged(zxid, result);
                if let Err(error) = result {
                    self.failure_is_true(request, zxid, *error);
                }
            }
            Request::Exists { path, watching } | Request::GetData { path, watching } => {
                let shown = match result {
                    Ok(Response::Stat(stat) | Response::Data { stat, .. }) => Some(*stat),
                    _ => None,
                };
                self.is_as_of(path, zxid, shown);
                let arms = matches!(request, Request::Exists { .. }) || shown.is_some();
                self.arm(*watching, arms, path, false, zxid);
            }
            Request::GetChildren { path, watching } => {
                let mut shown = None;
                if let Ok(Response::Children { children, stat }) = result {
                    let expected = self.timeline.children(path, zxid);
                    if *children != expected {
                        self.violated(&format!(
                            "{path} has {children:?} at {zxid:?} instead of {expected:?}"
                        ));
                    }
                    shown = Some(*stat);
                }
                self.is_as_of(path, zxid, shown);
                self.arm(*watching, shown.is_some(), path, true, zxid);
            }
            Request::SetWatches { watches, .. } => {
                self.are_set_again(zxid);
                self.set_lasting(watches, (zxid, zxid));
            }
            Request::AddWatch { path, mode } if result.is_ok() => {
                self.lasting.set(path, *mode, (zxid, zxid));
            }
            Request::RemoveWatches {
                path,
                kind,
                only_checks,
            } => self.watches_are_removed(path, *kind, *only_checks, result.is_ok()),
            _ => {}
        }
    }

    fn watches_are_removed(&mut self, path: &str, kind: WatchKind, only_checks: bool, is_ok: bool) {
        if only_checks {
            return;
        }
        let had_lasting = self.lasting.remove(path, kind);
        if had_lasting && !is_ok {
            self.violated(&format!("a watch of {path} was not found"));
        }
        self.watches.retain(|armed| {
            let is_of = match kind {
                WatchKind::Any => true,
                WatchKind::Data => !armed.is_of_children,
                WatchKind::Children => armed.is_of_children,
                WatchKind::Persistent | WatchKind::Recursive => false,
            };
            armed.path != path || !is_of
        });
    }

    /// Single system image: a read at `zxid` shows exactly the state of the path in the log at
    /// `zxid`.
    fn is_as_of(&mut self, path: &str, zxid: Zxid, shown: Option<Stat>) {
        let expected = self.timeline.stat(path, zxid);
        if shown != expected {
            self.violated(&format!(
                "{path} was shown as {shown:?} at {zxid:?} instead of {expected:?}"
            ));
        }
    }

    fn arm(
        &mut self,
        watching: Watching,
        arms: bool,
        path: &str,
        is_of_children: bool,
        since: Zxid,
    ) {
        let armed = Armed {
            path: path.to_owned(),
            is_of_children,
            since,
        };
        let is_armed = |other: &Armed| other.path == path && other.is_of_children == is_of_children;
        if watching == Watching::Yes && arms && !self.watches.iter().any(is_armed) {
            self.watches.push(armed);
        }
    }

    /// A watch that is being set again may fire before all of them are set. It was then armed and
    /// had missed nothing up to `zxid`.
    fn arm_what_is_being_set(&mut self, zxid: Zxid, kind: EventKind, path: &str) {
        let (relative, setting) = std::mem::take(&mut self.setting);
        let is_armed = |again: &Again| {
            let may_fire = again.path == path && again.armed(zxid).kinds().contains(&kind);
            may_fire && again.missed(self.timeline, relative, zxid).is_none()
        };
        let (armed, setting): (Vec<_>, Vec<_>) = setting.into_iter().partition(is_armed);
        self.watches
            .extend(armed.iter().map(|again| again.armed(zxid)));
        self.setting = (relative, setting);
    }

    /// Checks each watch that was set again and has not fired. It has either missed a change, and a
    /// synthetic event followed at once, or it is armed. Both at once is a violation, because a
    /// watch fires once.
    fn are_set_again(&mut self, zxid: Zxid) {
        let (relative, setting) = std::mem::take(&mut self.setting);
        let mut made_up = std::mem::take(&mut self.made_up);
        for again in setting {
            let is_for_it = |(kind, path, shown): &(EventKind, String, Zxid)| {
                let seen = |seen| again.missed(self.timeline, relative, Zxid(seen)) == Some(*kind);
                *path == again.path && (shown.0..=zxid.0).any(seen)
            };
            if let Some(place) = made_up.iter().position(is_for_it) {
                made_up.remove(place);
            } else if let Some(kind) = again.missed(self.timeline, relative, zxid) {
                self.violated(&format!(
                    "{kind:?} of {} was not made up at {zxid:?}",
                    again.path
                ));
            } else {
                let Armed {
                    path,
                    is_of_children,
                    since,
                } = again.armed(zxid);
                self.arm(Watching::Yes, true, &path, is_of_children, since);
            }
        }
        if !made_up.is_empty() {
            self.violated(&format!(
                "{made_up:?} was made up at {zxid:?} since {relative:?}"
            ));
        }
    }

    /// One order for all: a refusal is true of the tree at its zxid.
    fn failure_is_true(&mut self, request: &Request, zxid: Zxid, error: coordination::Error) {
        use coordination::Error;
        let (path, is_create, expected) = match request {
            Request::Create {
                path,
                naming: Naming::Given,
                ..
            } => (path, true, -1),
            Request::Delete { path, version } | Request::SetData { path, version, .. } => {
                (path, false, *version)
            }
            _ => return,
        };
        let node = self.timeline.stat(path, zxid);
        let parent = coordination::path::split(path)
            .and_then(|(parent, _)| self.timeline.stat(parent, zxid));
        let is_true = match error {
            Error::NodeExists => node.is_some(),
            Error::NoNode if is_create => parent.is_none(),
            Error::NoNode => node.is_none(),
            Error::NotEmpty => node.is_some_and(|node| node.num_children > 0),
            Error::BadVersion => node.is_some_and(|node| node.version != expected),
            Error::NoChildrenForEphemerals => {
                parent.is_some_and(|parent| parent.ephemeral_owner != 0)
            }
            _ => true,
        };
        if !is_true {
            self.violated(&format!(
                "{error:?} of {request:?} at {zxid:?}, where the znode is {node:?}"
            ));
        }
    }

    /// Atomicity: the result of an update agrees with the log.
    fn update_is_logged(&mut self, zxid: Zxid, result: &Result<Response, coordination::Error>) {
        let told = match result {
            Ok(Response::Multi(results)) => Ok(multi_answer(results)),
            Ok(Response::Created { path, stat }) => Ok(UpdateAnswer::Created {
                path: path.clone(),
                stat: *stat,
            }),
            Ok(Response::Deleted) => Ok(UpdateAnswer::Deleted),
            Ok(Response::Stat(stat)) => Ok(UpdateAnswer::Set(*stat)),
            Ok(Response::Closed) => Ok(UpdateAnswer::Closed),
            Ok(other) => return self.violated(&format!("an update was answered {other:?}")),
            Err(error) => Err(*error),
        };
        let logged = self.timeline.entries.get(&zxid);
        if logged.is_none_or(|entry| Some(entry.id.session) != self.session || entry.answer != told)
        {
            self.violated(&format!("{told:?} at {zxid:?} is not in the log"));
        }
    }
}

/// The logged answer to a multi with these results.
fn multi_answer(results: &[Result<Response, coordination::Error>]) -> UpdateAnswer {
    let failed = results.iter().enumerate().find_map(|(part, result)| {
        let error = result.as_ref().err()?;
        (*error != coordination::Error::NotDone).then_some((part as u32, *error))
    });
    if let Some((failed, error)) = failed {
        let parts = results.len() as u32;
        return UpdateAnswer::MultiFailed {
            failed,
            parts,
            error,
        };
    }
    let answer = |result: &Result<Response, _>| match result {
        Ok(Response::Created { path, stat }) => UpdateAnswer::Created {
            path: path.clone(),
            stat: *stat,
        },
        Ok(Response::Deleted) => UpdateAnswer::Deleted,
        Ok(Response::Stat(stat)) => UpdateAnswer::Set(*stat),
        _ => UpdateAnswer::Checked,
    };
    UpdateAnswer::Multi(results.iter().map(answer).collect())
}

/// All watches of a request to set them again.
fn one_shot(watches: &[(Watched, String)]) -> Vec<Again> {
    let one_shot = watches
        .iter()
        .filter(|(watched, _)| !matches!(watched, Watched::Lasting(_)));
    one_shot
        .map(|(watched, path)| Again {
            path: path.clone(),
            watched: *watched,
        })
        .collect()
}

fn is_update(request: &Request) -> bool {
    use Request::{Close, Create, Delete, Multi, RefuseUpdate, SetAcl, SetData};
    matches!(
        request,
        Create { .. }
            | Delete { .. }
            | SetData { .. }
            | SetAcl { .. }
            | Multi(_)
            | RefuseUpdate(_)
            | Close
    )
}

/// The end of a session removes all its znodes, and it creates none afterwards.
fn ephemerals_end_with_their_sessions(timeline: &Timeline) -> Vec<String> {
    let closed = timeline
        .entries
        .iter()
        .filter(|(_, entry)| entry.answer == Ok(UpdateAnswer::Closed));
    let closed: BTreeMap<i64, Zxid> = closed
        .map(|(zxid, entry)| (entry.id.session.0, *zxid))
        .collect();
    let mut violations = Vec::new();
    for path in timeline.paths() {
        for (session, zxid) in &closed {
            let is_there = |zxid: Zxid| {
                timeline
                    .stat(path, zxid)
                    .is_some_and(|stat| stat.ephemeral_owner == *session)
            };
            if timeline
                .entries
                .range(*zxid..)
                .any(|(zxid, _)| is_there(*zxid))
            {
                violations.push(format!(
                    "{path} is there after {zxid:?}, which has ended its session {session:x}"
                ));
            }
        }
    }
    violations
}

/// The service itself deletes only containers that had children and znodes with a time to live, and
/// none of them is left without children. The scenario marks them by their length.
fn only_due_znodes_expire(timeline: &Timeline) -> Vec<String> {
    let expires = |path: &str, zxid: Zxid| {
        timeline.stat(path, zxid).is_some_and(|stat| {
            let made = timeline.stat(path, stat.czxid);
            match made.map_or(0, |made| made.data_length) {
                CONTAINER_BYTES => stat.num_children == 0 && stat.cversion > 0,
                TIME_TO_LIVE_BYTES => stat.num_children == 0,
                _ => false,
            }
        })
    };
    let mut violations = Vec::new();
    for (zxid, entry) in &timeline.entries {
        let by_service = entry.id.session == SessionId(0);
        for change in entry.events.iter().filter(|_| by_service) {
            if change.kind == EventKind::NodeDeleted && !expires(&change.path, Zxid(zxid.0 - 1)) {
                violations.push(format!("{} went at {zxid:?} by itself", change.path));
            }
        }
    }
    let left = timeline
        .paths()
        .filter(|path| expires(path, timeline.last()));
    violations.extend(left.map(|path| format!("{path} is left, although it was due")));
    violations
}

/// The sessions whose clients learned that they had expired.
pub fn sessions_that_expired(histories: &[History]) -> Vec<String> {
    let expired = histories
        .iter()
        .flat_map(|history| &history.moments)
        .filter_map(|moment| match moment {
            Moment::Expired(session) => Some(format!("{session:?} expired although it was used")),
            _ => None,
        });
    expired.collect()
}

/// A client learns that its session has expired only if it has.
fn only_ended_sessions_expire(histories: &[History], timeline: &Timeline) -> Vec<String> {
    let has_ended = |session: &SessionId| {
        timeline
            .entries
            .values()
            .any(|entry| entry.id.session == *session && entry.answer == Ok(UpdateAnswer::Closed))
    };
    let told = histories
        .iter()
        .flat_map(|history| &history.moments)
        .filter_map(|moment| match moment {
            Moment::Expired(session) => Some(session),
            _ => None,
        });
    told.filter(|session| !has_ended(session))
        .map(|session| format!("{session:?} did not expire"))
        .collect()
}

/// All readers of one change of a znode see the same value.
fn reads_of_one_change_agree(histories: &[History]) -> Vec<String> {
    let mut seen = BTreeMap::new();
    let mut violations = Vec::new();
    for history in histories {
        let mut asked = BTreeMap::new();
        for moment in &history.moments {
            match moment {
                Moment::Asked(tag, Request::GetData { path, .. }) => {
                    asked.insert(*tag, path);
                }
                Moment::Shown(Output::Reply {
                    tag,
                    result: Ok(Response::Data { data, stat }),
                    ..
                }) => {
                    let path = asked[tag];
                    let earlier = seen.entry((path, stat.mzxid)).or_insert(data);
                    if *earlier != data {
                        violations.push(format!(
                            "{path} at {:?} was {earlier:?} and {data:?}",
                            stat.mzxid
                        ));
                    }
                }
                _ => {}
            }
        }
    }
    violations
}
