//! Volumes of the real server, over its socket.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use in_process::SystemEntropy;
use tokio::time::timeout;
use transactions::serializable::{
    VolumeStore, Volumes as _,
    model::{At, BlockBytes, Key, Proposal, ProposalId, SessionId, Slot, Verdict, Write, Writes},
    volumes::{VolumeName, VolumeSettings},
};
use volumes_frontend::{RemoteVolumes, remote::Config};

use crate::process::{Server, run, serve, text};

fn key(name: &str) -> Key {
    Key::new("d", name.to_owned()).expect("short")
}

async fn connect(path: &Path) -> RemoteVolumes {
    let connected = RemoteVolumes::connect(Config::new(path), &SystemEntropy::default()).await;
    connected.expect("a server")
}

/// Commits one value durably.
async fn put(volume: &dyn VolumeStore, number: u64, value: &str) {
    let proposal = Proposal {
        at: Slot(0),
        id: ProposalId::new(number.to_be_bytes().to_vec(), 0).expect("short"),
        reads: Vec::new(),
        predicates: Vec::new(),
        writes: Writes::Inline(vec![Write::Put {
            key: key("a"),
            value: value.to_owned().into(),
        }]),
    };
    let decided = volume.commit(proposal).await.expect("a verdict");
    assert!(
        matches!(decided.value, Verdict::Committed { .. }),
        "{decided:?}"
    );
    volume.externalize(decided.point).await.expect("durable");
}

async fn value(volume: &dyn VolumeStore) -> Option<Vec<u8>> {
    let found = volume.get_many(At::Tail, &[key("a")]).await;
    let value = found.expect("a read").value.found.remove(0);
    value.map(|value| value.to_vec())
}

fn on_threads(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let done = runtime.block_on(async { timeout(Duration::from_mins(1), work).await });
    done.expect("it hangs");
}

#[test]
fn a_client_of_volumes_lives_through_a_killed_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(&mut serve(directory.path(), &[]));
    let path = directory.path().join("landfast-data/volumes.sock");
    let socket = fs::metadata(&path).expect("a socket");
    assert!(socket.file_type().is_socket());
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    let status: serde_json::Value =
        serde_json::from_str(&server.get("/v1/status").expect("status")).expect("JSON");
    assert_eq!(status["listeners"]["volumes"], "landfast-data/volumes.sock");
    on_threads(async {
        let volumes = connect(&path).await;
        let name = VolumeName::new("demo").expect("a name");
        let settings = VolumeSettings {
            block_bytes: BlockBytes::new(16 << 10).expect("a power of two"),
            quota_bytes: None,
        };
        volumes
            .create(name.clone(), settings)
            .await
            .expect("created");
        let volume = volumes.open(&name).await.expect("opened");
        put(&*volume, 1, "before").await;
        volume.hold(SessionId(1), key("a")).await.expect("held");
        drop(server);
        let reads = tokio::spawn({
            let volume = Arc::clone(&volume);
            async move { value(&*volume).await }
        });
        let again = Server::start(&mut serve(directory.path(), &[]));
        assert_eq!(
            reads.await.expect("a read").as_deref(),
            Some(&b"before"[..])
        );
        put(&*volume, 2, "after").await;
        assert_eq!(value(&*volume).await.as_deref(), Some(&b"after"[..]));
        assert_eq!(volumes.connected().borrow().restarts, 1);
        let other = connect(&path).await;
        let other = other.open(&name).await.expect("opened");
        assert_eq!(other.is_held(&key("a")).await, Ok(true));
        drop((volume, volumes, other));
        again.signal("TERM");
        let ended = again.ended();
        assert!(ended.status.success(), "{}", ended.stderr);
    });
}

#[test]
fn the_socket_is_elsewhere_or_nowhere_as_asked() {
    let directory = tempfile::tempdir().expect("a directory");
    let usual = directory.path().join("landfast-data/volumes.sock");
    let server = Server::start(&mut serve(
        directory.path(),
        &["--volumes-socket", "here.sock"],
    ));
    assert!(directory.path().join("here.sock").exists() && !usual.exists());
    server.signal("TERM");
    assert!(server.ended().status.success());
    assert!(
        !directory.path().join("here.sock").exists(),
        "no client had locks"
    );
    drop(Server::start(&mut serve(
        directory.path(),
        &["--volumes-socket", "off"],
    )));
    assert!(!usual.exists());
    fs::write(directory.path().join("file"), "").expect("a file");
    let output = run(&mut serve(directory.path(), &["--volumes-socket", "file"]));
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("file exists and is no socket; move it away"),
        "{said}"
    );
}

/// An address of a socket has at most 107 bytes.
#[test]
fn a_long_path_of_the_data_directory_works() {
    let directory = tempfile::tempdir().expect("a directory");
    let long = directory.path().join("d".repeat(90)).join("e".repeat(90));
    fs::create_dir_all(&long).expect("directories");
    let server = Server::start(&mut serve(&long, &[]));
    on_threads(async {
        let volumes = connect(&long.join("landfast-data/volumes.sock")).await;
        assert_eq!(volumes.list().await, Ok(Vec::new()));
    });
    drop(server);
}
