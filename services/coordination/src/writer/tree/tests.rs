use super::*;

const ID: UpdateId = UpdateId {
    session: SessionId(7),
    sequence: 1,
};

fn state(creates: i32, children: i32, owner: Option<i64>) -> NodeState {
    let last = UpdateId {
        session: SessionId(1),
        sequence: 1,
    };
    let owner = owner.map(|session| UpdateId {
        session: SessionId(session),
        sequence: 1,
    });
    NodeState {
        version: 3,
        aversion: 0,
        creates,
        children,
        kind: owner.map_or(Kind::Persistent, Kind::Ephemeral),
        acl: Bytes::new(),
        last,
    }
}

fn locked(path: &str, state: Option<NodeState>) -> Locked<'_> {
    Locked { path, state }
}

static NONE: Identities = Identities::NONE;

static ASKED: Asked<'_> = Asked {
    identities: &NONE,
    now_ms: 5,
    bytes_max: 1 << 20,
};

static OPEN: Bytes = Bytes::new();

/// Notes, point 19.
#[test]
fn creates_are_refused_in_zookeepers_order() {
    assert_eq!(check_create("a"), Err(Error::BadArguments));
    assert_eq!(check_create("/a\0"), Err(Error::BadArguments));
    assert_eq!(check_create("/a//b"), Ok("/a/"));
    assert_eq!(check_create("/"), Ok("/"));
    assert_eq!(check_delete("/a\0"), Err(Error::BadArguments));
    let ephemeral = locked("/e", Some(state(0, 0, Some(9))));
    let exists = locked("/e/x", Some(state(0, 0, None)));
    assert_eq!(
        create(
            ID,
            ASKED,
            ephemeral.clone(),
            exists,
            (Lifetime::Persistent, &OPEN)
        ),
        Err(Error::NodeExists)
    );
    let free = locked("/e/x", None);
    assert_eq!(
        create(
            ID,
            ASKED,
            ephemeral,
            free.clone(),
            (Lifetime::Persistent, &OPEN)
        ),
        Err(Error::NoChildrenForEphemerals)
    );
    assert_eq!(
        create(
            ID,
            ASKED,
            locked("/n", None),
            free,
            (Lifetime::Persistent, &OPEN)
        ),
        Err(Error::NoNode)
    );
}

/// Notes, points 21 and 22: the suffix is the number of earlier creates, and a name may be empty.
#[test]
fn a_sequential_name_ends_in_the_parents_count_of_creates() {
    assert_eq!(
        name("/q/n-", Naming::Sequential, &state(2, 1, None)),
        Ok("/q/n-0000000002".into())
    );
    assert_eq!(
        name("/q/", Naming::Sequential, &state(3, 0, None)),
        Ok("/q/0000000003".into())
    );
    assert_eq!(
        name("/a", Naming::Given, &state(3, 0, None)),
        Ok("/a".into())
    );
    assert_eq!(
        name("/q/..", Naming::Given, &state(3, 0, None)),
        Err(Error::BadArguments)
    );
    assert_eq!(
        name("/", Naming::Sequential, &state(3, 0, None)),
        Ok("/0000000003".into())
    );
    for invalid in ["//", "//a", "/q//a"] {
        assert_eq!(
            name(invalid, Naming::Sequential, &state(3, 0, None)),
            Err(Error::BadArguments),
            "{invalid}"
        );
    }
}

#[test]
fn a_create_and_a_delete_update_the_counts_of_the_parent() {
    let created = create(
        ID,
        ASKED,
        locked("/p", Some(state(4, 2, None))),
        locked("/p/c", None),
        (Lifetime::Ephemeral, &OPEN),
    );
    let created = created.expect("created");
    let parent = created[0].becomes.clone().expect("stays");
    assert_eq!((parent.creates, parent.children, parent.last), (5, 3, ID));
    let made = created[1].becomes.clone().expect("made");
    assert_eq!(made.owner(), Some(ID));
    let deleted = delete(
        ID,
        &NONE,
        locked("/p", Some(parent)),
        locked("/p/c", Some(made)),
        0,
    )
    .expect("deleted");
    assert_eq!(
        deleted[0]
            .becomes
            .as_ref()
            .map(|parent| (parent.creates, parent.children)),
        Some((5, 2))
    );
    assert_eq!(deleted[1].becomes, None);
}

/// Notes, point 28: the version is checked before the children.
#[test]
fn a_delete_checks_the_version_before_the_children() {
    let parent = locked("/p", Some(state(1, 1, None)));
    let node = locked("/p/c", Some(state(1, 1, None)));
    assert_eq!(
        delete(ID, &NONE, parent.clone(), node.clone(), 9),
        Err(Error::BadVersion)
    );
    assert_eq!(
        delete(ID, &NONE, parent.clone(), node, 3),
        Err(Error::NotEmpty)
    );
    assert_eq!(
        delete(ID, &NONE, parent, locked("/p/c", None), 9),
        Err(Error::NoNode)
    );
}

#[test]
fn data_is_set_at_the_version_asked_for_or_any() {
    let node = locked("/n", Some(state(0, 0, None)));
    assert_eq!(set_data(ID, ASKED, node.clone(), 2), Err(Error::BadVersion));
    for version in [3, -1] {
        assert_eq!(
            set_data(ID, ASKED, node.clone(), version).expect("set")[0]
                .becomes
                .as_ref()
                .map(|state| state.version),
            Some(4)
        );
    }
}

#[test]
fn the_end_of_a_session_deletes_its_ephemerals_and_no_others() {
    let nodes = [
        locked("/p", Some(state(5, 3, None))),
        locked("/p/a", Some(state(0, 0, Some(7)))),
        locked("/p/b", Some(state(0, 0, Some(8)))),
        locked("/p/c", Some(state(0, 0, Some(7)))),
        locked("/p/gone", None),
    ];
    let (touched, deleted) = close(ID, SessionId(7), &nodes);
    assert_eq!(deleted, ["/p/a", "/p/c"]);
    assert_eq!(touched.len(), 3);
    let parent = touched[0].becomes.as_ref();
    assert_eq!(parent.map(|parent| parent.children), Some(1));
}
