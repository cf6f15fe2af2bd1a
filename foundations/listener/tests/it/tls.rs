//! TLS as clients see it: handshakes, certificates that change, and peers that do not speak it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use http_client::Trust;
use listener::{ClientCertificates, TlsFiles, tls::HANDSHAKE_MAX, tls::LOOK_EVERY};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;

const FOLDER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/clients/testdata/tls"
);

/// A server with [`loaded`] files.
struct Encrypted {
    server: Fixture,
    tls: Tls,
    directory: TempDir,
}

impl Encrypted {
    async fn start(clients: Option<ClientCertificates>) -> Self {
        let (directory, tls) = loaded(clients);
        let server = Fixture::start_on(8, None, Some(tls.clone())).await;
        Self {
            server,
            tls,
            directory,
        }
    }

    async fn connect(&self, identity: Option<&str>) -> io::Result<TlsStream<TcpStream>> {
        handshake(self.server.connect().await, &client(identity)).await
    }

    /// The status of a request with this certificate.
    async fn ask(&self, identity: Option<&str>) -> io::Result<String> {
        ask(&mut self.connect(identity).await?).await
    }

    /// The subject of the certificate that the server presents.
    async fn presents(&self) -> String {
        let stream = self.connect(None).await.expect("a handshake");
        let chain = stream.get_ref().1.peer_certificates().expect("a chain");
        listener::distinguished_name::of_subject(&chain[0]).expect("a subject")
    }
}

/// The files of `server`, which a test may replace, and TLS with them.
fn loaded(clients: Option<ClientCertificates>) -> (TempDir, Tls) {
    let directory = tempfile::tempdir().expect("a directory");
    put(directory.path(), "server");
    let tls = Tls::load(TlsFiles {
        certificate: directory.path().join("cert.pem"),
        key: directory.path().join("key.pem"),
        client_ca: clients.map(|clients| (format!("{FOLDER}/ca.pem").into(), clients)),
        port: "http",
    });
    (directory, tls.expect("good files"))
}

/// Puts certificate and key of this name in place.
fn put(directory: &Path, name: &str) {
    fs::copy(format!("{FOLDER}/{name}.pem"), directory.join("cert.pem")).expect("copied");
    fs::copy(
        format!("{FOLDER}/{name}-key.pem"),
        directory.join("key.pem"),
    )
    .expect("copied");
}

/// What a client has with the certificate of this name.
fn client(identity: Option<&str>) -> Trust {
    let of = |name: &str| PathBuf::from(format!("{FOLDER}/{name}.pem"));
    let trust = Trust::in_file(&of("ca")).expect("an authority");
    let Some(name) = identity else {
        return trust;
    };
    let trust = trust.with_identity(&of(name), &of(&format!("{name}-key")));
    trust.expect("a certificate and its key")
}

async fn handshake(stream: TcpStream, trust: &Trust) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(trust.config());
    connector.connect(name, stream).await
}

async fn ask(stream: &mut TlsStream<TcpStream>) -> io::Result<String> {
    stream.write_all(GET.as_bytes()).await?;
    let mut bytes = vec![0; 4096];
    let read = stream.read(&mut bytes).await?;
    Ok(status(&String::from_utf8_lossy(&bytes[..read])).to_owned())
}

#[tokio::test]
async fn requests_are_answered_over_tls() {
    let encrypted = Encrypted::start(None).await;
    assert_eq!(encrypted.ask(None).await.expect("served"), "200");
    // Nothing verifies it, so it is not asked for.
    assert_eq!(
        encrypted.ask(Some("stranger")).await.expect("served"),
        "200"
    );
}

#[tokio::test]
async fn a_long_response_arrives_whole_and_from_no_file() {
    let (directory, tls) = loaded(None);
    let file = fs::File::open(directory.path().join("key.pem")).expect("a file");
    let files = Some(Arc::new(Elsewhere(Arc::new(file.into()))) as Arc<dyn FilesInMemory>);
    let server = Fixture::start_on(8, files, Some(tls)).await;
    let connected = handshake(server.connect().await, &client(None)).await;
    let mut stream = connected.expect("a handshake");
    let request = "GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut received = Vec::new();
    stream
        .read_to_end(&mut received)
        .await
        .expect("an orderly end");
    let body = received.windows(4).position(|end| end == b"\r\n\r\n");
    let body = &received[body.expect("a head") + 4..];
    assert!(body.len() == 64 << 20 && body.iter().all(|byte| *byte == b'x'));
}

#[tokio::test]
async fn a_required_client_certificate_is_verified() {
    let encrypted = Encrypted::start(Some(ClientCertificates::Required)).await;
    assert_eq!(encrypted.ask(Some("client")).await.expect("served"), "200");
    encrypted.ask(None).await.expect_err("none");
    encrypted
        .ask(Some("stranger"))
        .await
        .expect_err("of another authority");
}

#[tokio::test]
async fn an_optional_client_certificate_is_verified_if_there_is_one() {
    let encrypted = Encrypted::start(Some(ClientCertificates::Optional)).await;
    assert_eq!(encrypted.ask(Some("client")).await.expect("served"), "200");
    assert_eq!(encrypted.ask(None).await.expect("served"), "200");
    encrypted
        .ask(Some("stranger"))
        .await
        .expect_err("of another authority");
}

/// A certificate that was replaced expires.
#[tokio::test]
async fn a_client_presents_the_certificate_that_its_files_hold_now() {
    let encrypted = Encrypted::start(Some(ClientCertificates::Required)).await;
    let directory = tempfile::tempdir().expect("a directory");
    let of = |name: &str| directory.path().join(name);
    put(directory.path(), "stranger");
    let trust = Trust::in_file(Path::new(&format!("{FOLDER}/ca.pem"))).expect("an authority");
    let trust = trust.with_identity(&of("cert.pem"), &of("key.pem"));
    let trust = trust.expect("a pair");
    let ask_with =
        async || ask(&mut handshake(encrypted.server.connect().await, &trust).await?).await;
    ask_with().await.expect_err("of another authority");
    put(directory.path(), "client");
    assert_eq!(ask_with().await.expect("served"), "200");
}

/// The subject of a client is known, and only of a client that presented a certificate.
#[tokio::test]
async fn the_subject_of_a_client_is_known() {
    let encrypted = Encrypted::start(Some(ClientCertificates::Optional)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    for (identity, subject) in [
        (
            Some("client"),
            Some("CN=kafka-1,OU=Brokers,O=Example\\, Inc.,C=DE"),
        ),
        (None, None),
    ] {
        let connected = tokio::spawn(async move {
            let stream = TcpStream::connect(address).await.expect("connected");
            handshake(stream, &client(identity)).await
        });
        let (stream, _) = listener.accept().await.expect("a connection");
        let accepted = encrypted.tls.accept(stream).await.expect("a handshake");
        assert_eq!(listener::tls::client_subject(&accepted).as_deref(), subject);
        drop(connected.await);
    }
}

#[tokio::test]
async fn a_new_certificate_serves_new_connections_and_open_ones_go_on() {
    let encrypted = Encrypted::start(None).await;
    let mut open = encrypted.connect(None).await.expect("a handshake");
    assert_eq!(ask(&mut open).await.expect("served"), "200");
    assert_eq!(encrypted.presents().await, "CN=server one");
    put(encrypted.directory.path(), "server-next");
    tokio::time::pause();
    tokio::time::advance(LOOK_EVERY).await;
    tokio::time::resume();
    assert_eq!(encrypted.presents().await, "CN=server two");
    assert_eq!(ask(&mut open).await.expect("served"), "200");
}

#[tokio::test]
async fn a_broken_new_certificate_leaves_the_old_one_in_use() {
    let encrypted = Encrypted::start(None).await;
    let directory = encrypted.directory.path();
    let next = fs::read(format!("{FOLDER}/server-next.pem")).expect("a certificate");
    // Half a file; a certificate whose key has not come yet; nothing.
    for broken in [&next[..next.len() / 2], &next[..], b""] {
        fs::write(directory.join("cert.pem"), broken).expect("written");
        tokio::time::pause();
        tokio::time::advance(LOOK_EVERY).await;
        tokio::time::resume();
        assert_eq!(encrypted.presents().await, "CN=server one");
    }
    put(directory, "server-next");
    tokio::time::pause();
    tokio::time::advance(LOOK_EVERY).await;
    tokio::time::resume();
    assert_eq!(encrypted.presents().await, "CN=server two");
}

#[test]
fn files_that_do_not_load_are_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::write(at("empty.pem"), "").expect("written");
    fs::write(at("long.pem"), vec![b'x'; (1 << 20) + 1]).expect("written");
    let of = |name: &str| format!("{FOLDER}/{name}.pem").into();
    for (certificate, key, said) in [
        (
            at("absent.pem"),
            of("server-key"),
            "absent.pem: No such file",
        ),
        (
            at("empty.pem"),
            of("server-key"),
            "empty.pem: it holds no certificate in PEM format",
        ),
        (
            at("long.pem"),
            of("server-key"),
            "long.pem: it is longer than 1048576 bytes",
        ),
        (
            of("server"),
            of("ca"),
            "ca.pem: it holds no private key in PEM format",
        ),
        (of("server"), of("client-key"), "client-key.pem"),
    ] {
        let files = TlsFiles {
            certificate,
            key,
            client_ca: None,
            port: "http",
        };
        let refused = Tls::load(files).expect_err(said).to_string();
        assert!(refused.contains(said), "{refused}");
    }
}

/// A peer that connects and sends nothing holds nothing up, and does not stay.
#[tokio::test(start_paused = true)]
async fn handshakes_have_a_time_limit_and_do_not_hold_up_others() {
    let encrypted = Encrypted::start(None).await;
    let began = Instant::now();
    let silent = encrypted.server.connect().await;
    let half = encrypted.server.send([0x16, 3, 1, 1]).await;
    assert_eq!(encrypted.ask(None).await.expect("served"), "200");
    assert_eq!(rest(silent).await, "");
    assert_eq!(rest(half).await, "");
    let took = began.elapsed();
    assert!(
        took >= HANDSHAKE_MAX && took < HANDSHAKE_MAX + Duration::from_secs(2),
        "{took:?}"
    );
}

/// The places for refusals are few.
#[tokio::test(start_paused = true)]
async fn past_the_limit_a_handshake_has_a_second() {
    let (_directory, tls) = loaded(None);
    let server = Fixture::start_on(0, None, Some(tls)).await;
    let began = Instant::now();
    assert_eq!(rest(server.connect().await).await, "");
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn bytes_that_are_not_tls_end_the_connection() {
    let encrypted = Encrypted::start(None).await;
    for garbage in [
        GET.as_bytes(),
        &[0; 64],
        &[0xff; 64],
        b"\0\0\0\x2d\0\0\0\0\0\0",
    ] {
        let answered = rest(encrypted.server.send(garbage).await).await;
        assert!(!answered.contains("HTTP"), "{answered}");
    }
    assert_eq!(encrypted.ask(None).await.expect("served"), "200");
}

#[tokio::test]
async fn a_hello_of_tls_ends_a_connection_without_tls() {
    let server = Fixture::start(8).await;
    let refused = handshake(server.connect().await, &client(None)).await;
    refused.expect_err("it is no TLS server");
}

/// TLS keeps bytes of its own, which hyper only flushes.
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_of_its_response_is_cut_over_tls() {
    let (_directory, tls) = loaded(None);
    let server = Fixture::start_on(1, None, Some(tls)).await;
    let connect = async || handshake(server.connect().await, &client(None)).await;
    let mut stalled = connect().await.expect("a handshake");
    let request = "GET /large HTTP/1.1\r\nHost: h\r\n\r\n";
    stalled.write_all(request.as_bytes()).await.expect("sent");
    sleep(Duration::from_secs(11)).await;
    // The only place is free again.
    let mut next = connect().await.expect("a handshake");
    assert_eq!(ask(&mut next).await.expect("served"), "200");
    drop(stalled);
}
