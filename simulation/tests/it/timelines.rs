//! P5: a restored store beside the objects of the lost time, which went on from the same sessions.

use std::sync::Arc;

use bytes::Bytes;
use coordination::{
    Config,
    broken::Broken,
    config::DataPlacement,
    model::{Lifetime, Output, Request, Response, Timeline, Watching},
};
use ports::{
    faults::Calm,
    objects::{ObjectPath, ObjectStoreExt as _},
};
use simulated::World;

use crate::single_service::{connect, create, following, result, shown};

/// Data travels in a temporary object, or is stored in an object of its own.
fn in_temporary() -> Config {
    Config {
        message_payload_bytes_max: 10,
        ..Config::default()
    }
}

fn in_objects() -> Config {
    Config {
        placement: DataPlacement::Objects,
        ..Config::default()
    }
}

/// The history until the backup, with objects from after it. Then a session sets a znode for the
/// first time. Returns the znode's data and the names of all objects that were there.
async fn set_beside(lost: &[String], config: Config) -> (Bytes, Vec<String>) {
    let world = World::new(1);
    let service = following(&world, Arc::new(Calm), config).await;
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    let made = result(&mut client, create("/a", Lifetime::Persistent)).await;
    made.expect("it is made");
    for name in lost {
        let (objects, path) = (world.objects(), ObjectPath::from(&**name));
        let put = objects.put(&path, "of the lost time".into()).await;
        put.expect("a calm world");
    }
    let set = Request::SetData {
        path: "/a".into(),
        data: Some("of this timeline".into()),
        version: -1,
    };
    result(&mut client, set).await.expect("it is set");
    let get = Request::GetData {
        path: "/a".into(),
        watching: Watching::No,
    };
    let outputs = shown(&mut client, get).await.expect("the session lives");
    let Some(Output::Reply {
        result: Ok(Response::Data {
            data: Some(data), ..
        }),
        ..
    }) = outputs.last()
    else {
        panic!("{outputs:?}");
    };
    let trace = world.trace();
    let subjects = trace.entries().map(|entry| entry.subject.clone());
    let names = subjects.filter(|subject| {
        ["temporary/", "znodes/"]
            .iter()
            .any(|folder| subject.starts_with(folder))
    });
    (data.clone(), names.collect())
}

/// The data that a restored store reads back, if the store had gone on after the backup.
fn restored(config: &Config, broken: Option<Broken>) -> Bytes {
    let of_lost_time = simulated::run(set_beside(&[], config.clone()));
    assert!(!of_lost_time.1.is_empty(), "no object was put");
    let config = Config {
        timeline: Some(Timeline(7)),
        mutant: broken.into(),
        ..config.clone()
    };
    simulated::run(async move { set_beside(&of_lost_time.1, config).await.0 })
}

/// P5: the same session and the same numbers name another object than in the lost time.
#[test]
fn an_object_of_the_lost_time_is_not_taken_for_one_of_this_timeline() {
    for config in [in_temporary(), in_objects()] {
        assert_eq!(restored(&config, None), "of this timeline", "{config:?}");
    }
}

/// P5, broken.
#[test]
fn forgetting_the_timeline_is_caught() {
    for config in [in_temporary(), in_objects()] {
        let read = restored(&config, Some(Broken::ForgetsTheTimeline));
        assert_eq!(read, "of the lost time", "{config:?}");
    }
}
