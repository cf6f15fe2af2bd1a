//! Unlinked files of a volume in memory, with short waits.

use bytes::Bytes;
use files::{Ino, model::Privileges};
use tokio::time::Instant;
use transactions::serializable::{ModelVolumes, model::BlockBytes};

use super::*;

const ACCESS: Access = Access {
    mode: 0o644,
    uid: 0,
    gid: 0,
};
const WAITS: Waits = Waits {
    take_over: Duration::from_millis(300),
    gather: Duration::from_millis(20),
};
/// Longer than any wait of the reaper.
const LONG: Duration = Duration::from_millis(600);
/// No wait of a test takes longer, unless something is broken.
const WAIT_MAX: Duration = Duration::from_mins(1);

async fn client(volumes: &ReapedVolumes, session: u64) -> (FileSystem, Arc<dyn VolumeStore>) {
    let name = VolumeName::new("demo").expect("a name");
    let store = volumes.open(&name).await.expect("opened");
    let entropy = Arc::new(SystemEntropy::default());
    let (shared, session) = (Arc::clone(&store), SessionId(session));
    let opened = FileSystem::open(shared, Arc::new(SystemClock), entropy, session, ACCESS);
    (opened.await.expect("a root"), store)
}

async fn created() -> Arc<ReapedVolumes> {
    let volumes = ReapedVolumes::waiting(Arc::new(ModelVolumes::default()), WAITS);
    let settings = VolumeSettings {
        block_bytes: BlockBytes::new(4096).expect("a power of two"),
        quota_bytes: None,
    };
    let name = VolumeName::new("demo").expect("a name");
    volumes.create(name, settings).await.expect("created");
    volumes
}

async fn keys(store: &Arc<dyn VolumeStore>) -> u64 {
    store.usage().await.expect("a figure").keys
}

/// How long it takes until the volume has this many keys.
async fn reaches(store: &Arc<dyn VolumeStore>, count: u64) -> Duration {
    let began = Instant::now();
    while keys(store).await != count {
        assert!(
            began.elapsed() < WAIT_MAX,
            "it keeps {} keys",
            keys(store).await
        );
        sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

#[tokio::test]
async fn an_unlinked_file_goes_once_it_is_closed_but_not_soon_after_a_take_over() {
    let volumes = created().await;
    let ((files, store), name) = (client(&volumes, 1).await, Bytes::from("f"));
    let before = keys(&store).await;
    let open = files.create(Ino::ROOT, ACCESS, &name).await.expect("made");
    let data = Bytes::from(vec![7; 9_000]);
    let written = files.write(open, 0, Privileges::Keep, &data);
    written.await.expect("written");
    files.hold(open).await.expect("open");
    files.unlink(Ino::ROOT, &name).await.expect("unlinked");
    sleep(LONG).await;
    assert_eq!(files.read(open, 0, 9_000).await, Ok(data.clone()));
    files.close(open).await.expect("closed");
    reaches(&store, before).await;
    // Another one, right away.
    files.create(Ino::ROOT, ACCESS, &name).await.expect("made");
    files.unlink(Ino::ROOT, &name).await.expect("unlinked");
    reaches(&store, before).await;
    // A session that ends lets go of its files.
    let open = files.create(Ino::ROOT, ACCESS, &name).await.expect("made");
    files.hold(open).await.expect("open");
    files.unlink(Ino::ROOT, &name).await.expect("unlinked");
    sleep(LONG).await;
    assert!(keys(&store).await > before);
    store.end_session(SessionId(1)).await.expect("ended");
    reaches(&store, before).await;
}

#[tokio::test]
async fn files_that_a_former_server_left_go_after_the_time_for_sessions_to_come_back() {
    let volumes = created().await;
    let ((files, store), name) = (client(&volumes, 1).await, Bytes::from("f"));
    let before = keys(&store).await;
    files.create(Ino::ROOT, ACCESS, &name).await.expect("made");
    files.unlink(Ino::ROOT, &name).await.expect("unlinked");
    let took = reaches(&store, before).await;
    assert!(took >= WAITS.take_over / 2, "{took:?}");
}

#[tokio::test]
async fn the_task_of_a_volume_ends_with_it() {
    let volumes = created().await;
    drop(client(&volumes, 1).await);
    let name = VolumeName::new("demo").expect("a name");
    sleep(LONG).await;
    assert_eq!(volumes.state().tasks.len(), 1);
    volumes.delete(&name).await.expect("deleted");
    let ended = async {
        loop {
            let ended = volumes.state().tasks.try_join_next();
            if ended.is_some() {
                break;
            }
            sleep(WAITS.gather).await;
        }
    };
    timeout(WAIT_MAX, ended).await.expect("it goes on");
}
