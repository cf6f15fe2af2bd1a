//! The secure port: sessions over TLS, and peers that do not speak it.

use std::{io, io::Result, net::SocketAddr, path::Path, time::Duration};

use coordination::model::{Acl, Request};
use http_client::Trust;
use listener::{ClientCertificates, Tls, TlsFiles};
use tokio::{
    io::{AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use zookeeper_frontend::Config;

use crate::{
    fixture::{Fixture, Peer, connect_request, get, reply},
    requests::encode,
};

const FOLDER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/clients/testdata/tls"
);
const ANYWHERE: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// A fixture with a secure port, and the address of that.
async fn fixture(clients: Option<ClientCertificates>) -> Result<(Fixture, SocketAddr)> {
    let of = |name: &str| format!("{FOLDER}/{name}.pem").into();
    let tls = Tls::load(TlsFiles {
        certificate: of("server"),
        key: of("server-key"),
        client_ca: clients.map(|clients| (of("ca"), clients)),
        port: "zookeeper",
    })?;
    let config = Config {
        secure: Some((ANYWHERE.into(), tls)),
        ..Config::new(ANYWHERE.into())
    };
    let fixture = Fixture::new(config, coordination::Config::default()).await?;
    let (address, _) = fixture.config.secure.clone().expect("it was configured");
    Ok((fixture, address))
}

/// The address of a program that speaks TLS to `server` for those that connect to it without.
async fn relay(server: SocketAddr) -> Result<SocketAddr> {
    let trust = Trust::in_file(Path::new(&format!("{FOLDER}/ca.pem")))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut plain, _)) = listener.accept().await {
            let trust = trust.clone();
            tokio::spawn(async move {
                let uri = format!("https://{server}")
                    .parse()
                    .map_err(io::Error::other)?;
                let wait_max = Duration::from_secs(10);
                let mut encrypted = http_client::connect(uri, &trust, wait_max).await?;
                copy_bidirectional(&mut plain, &mut encrypted).await
            });
        }
    });
    Ok(address)
}

/// Measured: ZooKeeper 3.9.5 knows the scheme only if it has a secure port.
#[tokio::test]
async fn an_acl_names_a_certificate_only_where_clients_can_present_one() -> Result<()> {
    let entry = Acl {
        permissions: 31,
        scheme: "x509".into(),
        id: "CN=a".into(),
    };
    let set = Request::SetAcl {
        path: "/n".into(),
        acl: vec![entry],
        version: -1,
    };
    let (secure, _) = fixture(None).await?;
    let plain = Fixture::new(
        Config::new(ANYWHERE.into()),
        coordination::Config::default(),
    )
    .await?;
    for (fixture, code) in [(secure, 0), (plain, -114)] {
        let mut client = fixture.client_with_a_znode(40_000, 10).await?;
        let (mut reader, mut writer) = client.peer.stream.split();
        writer.write_all(&encode(9, &set, false)).await?;
        assert_eq!(reply(&mut reader).await?, (9, code));
    }
    Ok(())
}

/// TLS takes bytes that the kernel does not take yet. They go out although nothing follows them.
#[tokio::test]
async fn replies_arrive_in_order_at_a_client_that_was_deaf_for_a_while() -> Result<()> {
    const SENT: i32 = 200;
    let (mut fixture, secure) = fixture(None).await?;
    fixture.config.listen = relay(secure).await?;
    let mut client = fixture.client_with_a_znode(40_000, 100_000).await?;
    let requests: Vec<u8> = (1..=SENT).flat_map(get).collect();
    let sent = fixture.press(&client.peer, &requests).await?;
    client.peer.replies(&requests[sent..], 1..=SENT).await
}

#[tokio::test]
async fn both_ports_serve_the_same_sessions_and_count_them_together() -> Result<()> {
    let (mut fixture, secure) = fixture(Some(ClientCertificates::Optional)).await?;
    let mut plain = fixture.client_with_a_znode(40_000, 10).await?;
    fixture.config.listen = relay(secure).await?;
    let mut encrypted = fixture.client(40_000).await?;
    plain.peer.replies(&get(1), 1..=1).await?;
    encrypted.peer.replies(&get(1), 1..=1).await?;
    assert_eq!(fixture.statistics.connections_open(), 2);
    Ok(())
}

#[tokio::test]
async fn bytes_that_are_not_tls_end_a_connection_of_the_secure_port() -> Result<()> {
    let (fixture, secure) = fixture(None).await?;
    for garbage in [
        &connect_request(10_000)[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 100],
    ] {
        let mut stream = TcpStream::connect(secure).await?;
        stream.write_all(garbage).await?;
        // An alert may come, or a reset.
        if let Ok(rest) = (Peer { stream }).rest().await {
            assert!(rest.len() < 20, "{rest:?}");
        }
    }
    fixture.all_gone().await;
    assert_eq!(fixture.statistics.malformed.get(), 3);
    Ok(())
}

#[tokio::test]
async fn a_client_without_the_required_certificate_gets_no_session() -> Result<()> {
    let (mut fixture, secure) = fixture(Some(ClientCertificates::Required)).await?;
    fixture.config.listen = relay(secure).await?;
    let mut peer = fixture.peer().await?;
    peer.stream.write_all(&connect_request(10_000)).await?;
    let _ = peer.rest().await;
    fixture.all_gone().await;
    assert_eq!(fixture.statistics.malformed.get(), 1);
    Ok(())
}
