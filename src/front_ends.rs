//! The listeners that clients connect to: HTTP, routes, S3, ZooKeeper and volumes. They start at
//! different times of the server's start, and stop together.

use std::{future::Future, net::SocketAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use coordination::Gateway;
use http_client::Trust;
use http_frontend::{Backend, Limits, Services};
use in_process::SystemEntropy;
use listener::{Tls, signature::Keys};
use sandbox::SharedFiles;
use tokio::{sync::watch, task::JoinSet};
use transactions::{membership::Address, serializable::Volumes};

use crate::{
    bind::bound,
    from_functions::Objects,
    memory_service,
    open_files::Connections,
    overview::Overview,
    settings::{HostName, Listen, Port, Secret, Security, Settings, VolumesSocket},
};

/// The time for ZooKeeper connections to finish when the server stops.
const ZOOKEEPER_STOP_MAX: Duration = Duration::from_secs(2);

/// The running front ends, and the signal that stops them.
#[derive(Debug)]
pub(crate) struct FrontEnds {
    running: JoinSet<&'static str>,
    bound: Vec<(&'static str, SocketAddr)>,
    connections: Connections,
    stop: watch::Sender<bool>,
}

impl FrontEnds {
    /// None yet. The open files that the process may have are divided among them here.
    pub(crate) fn none() -> Self {
        Self {
            running: JoinSet::new(),
            bound: Vec::new(),
            connections: Connections::allowed(),
            stop: watch::Sender::new(false),
        }
    }

    /// The limits of the main listener, which requests from functions share. A body that is longer
    /// than any value is refused before it is received.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections.http,
            value_bytes_max: transactions::Config::default().value_bytes_max,
            ..Limits::default()
        }
    }

    /// The most connections to volumes.
    pub(crate) fn volume_connections(&self) -> usize {
        self.connections.volumes
    }

    /// The `ready` line with the addresses, and its line end.
    pub(crate) fn ready_line(&self) -> String {
        let mut bound = self.bound.clone();
        // HTTP is bound first.
        let order = ["zookeeper", "zookeeper-secure", "s3", "http", "routes"];
        bound.sort_by_key(|(front_end, _)| order.iter().position(|name| name == front_end));
        let word = |(front_end, address)| format!(" {front_end}={address}");
        let words: Vec<_> = bound.into_iter().map(word).collect();
        format!("ready{}\n", words.concat())
    }

    /// Tells all to stop, and returns when they have.
    pub(crate) async fn stop(&mut self) {
        self.stop.send_replace(true);
        while self.running.join_next().await.is_some() {}
    }

    /// The address at which other processes reach the HTTP listener, if there is one: as
    /// configured, or where it is bound to.
    pub(crate) fn address_for_others(&self, settings: &Settings) -> Address {
        if let Some(address) = &settings.advertise {
            return Address(address.clone());
        }
        let Some((_, address)) = self.bound.iter().find(|(name, _)| *name == "http") else {
            return Address::default();
        };
        Address(reachable(*address))
    }

    /// Returns when a front end ended by itself; never, if there is none.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<()> {
        match self.running.join_next().await {
            Some(Ok(name)) => Err(anyhow!("{name} ended by itself")),
            Some(Err(error)) => Err(error).context("a front end failed"),
            None => std::future::pending().await,
        }
    }

    /// Starts the main listener and that of routes. Both share one budget for bodies.
    pub(crate) async fn start_http(
        &mut self,
        settings: &Settings,
        overview: &Arc<Overview>,
        services: &Arc<Services>,
    ) -> anyhow::Result<()> {
        let limits = self.limits();
        let backend = Arc::new(Backend::new(Arc::clone(services), &limits));
        if let Listen::At(address) = settings.http {
            let security = &settings.security;
            self.start_main(address, security, overview, Arc::clone(&backend))
                .await?;
        }
        if let Listen::At(address) = settings.routes {
            self.start_routes(address, settings, overview, backend)
                .await?;
        }
        Ok(())
    }

    async fn start_main(
        &mut self,
        address: SocketAddr,
        security: &Security,
        overview: &Arc<Overview>,
        backend: Arc<Backend>,
    ) -> anyhow::Result<()> {
        let token = security.token_at(address);
        let is_open = token.is_none() && !security.requires_certificate(Port::Http);
        if is_open && !address.ip().is_loopback() {
            tracing::warn!(%address, "anyone who reaches this address may run functions and change state: no token is asked for; give --http-token-file");
        }
        let keys = memory_service::given_keys()?;
        let config = http_frontend::Config {
            address,
            token,
            keys: keys.map(|keys| Keys {
                access_key: keys.access_key,
                secret_key: keys.secret_key,
            }),
            tls: loaded(security, Port::Http)?,
            limits: self.limits(),
        };
        let server = bound("--http", address, || http_frontend::bind(config.clone())).await?;
        self.bind("http", server.local_address(), overview);
        let snapshot = Arc::clone(overview) as Arc<_>;
        let running = server.run(snapshot, backend, self.stopped());
        self.run("http", running);
        Ok(())
    }

    async fn start_routes(
        &mut self,
        address: SocketAddr,
        settings: &Settings,
        overview: &Arc<Overview>,
        backend: Arc<Backend>,
    ) -> anyhow::Result<()> {
        let hosts = &settings.routes_hosts;
        let config = http_frontend::RoutesConfig {
            address,
            hosts: hosts.iter().map(|HostName(host)| host.clone()).collect(),
            tls: loaded(&settings.security, Port::Routes)?,
            limits: Limits {
                connections_max: self.connections.routes,
                ..self.limits()
            },
        };
        let bind = || http_frontend::bind_routes(config.clone());
        let server = bound("--routes", address, bind).await?;
        self.bind("routes", server.local_address(), overview);
        let running = server.run(backend, self.stopped());
        self.run("routes", running);
        Ok(())
    }

    pub(crate) async fn start_zookeeper(
        &mut self,
        address: SocketAddr,
        settings: &Settings,
        gateway: Gateway,
        overview: &Arc<Overview>,
    ) -> anyhow::Result<()> {
        let security = &settings.security;
        let secure = match security.zookeeper_secure {
            Listen::At(address) => loaded(security, Port::Zookeeper)?.map(|tls| (address, tls)),
            Listen::Off => None,
        };
        let super_digest = security.zookeeper_super_digest.clone();
        let config = zookeeper_frontend::Config {
            secure,
            requires_authentication: security.zookeeper_requires_authentication,
            super_digest: super_digest
                .map(|Secret(digest)| zookeeper_frontend::authentication::SuperDigest(digest)),
            accounts: security.zookeeper_accounts.clone(),
            connections_max: self.connections.zookeeper,
            connections_per_address_max: settings.zookeeper_connections_per_address,
            packet_bytes_max: settings.zookeeper_packet_bytes_max,
            four_letter_words: settings.zookeeper_four_letter_words.clone(),
            data_directory: Some(settings.data_dir.clone()),
            stop_timeout: ZOOKEEPER_STOP_MAX,
            ..zookeeper_frontend::Config::new(address)
        };
        let gateway = Arc::new(gateway);
        let bind = || zookeeper_frontend::bind(config.clone(), Arc::clone(&gateway));
        let server = bound("--zookeeper", address, bind).await?;
        self.bind("zookeeper", server.local_address(), overview);
        if let Some(address) = server.secure_address() {
            self.bind("zookeeper-secure", address, overview);
        }
        overview.counts(server.statistics());
        self.run("zookeeper", server.run(self.stopped()));
        Ok(())
    }

    pub(crate) async fn start_s3(
        &mut self,
        address: SocketAddr,
        settings: &Settings,
        objects: &Arc<Objects>,
        credentials: s3_frontend::Credentials,
        (service, files): (memory::Service, SharedFiles),
        overview: &Arc<Overview>,
    ) -> anyhow::Result<()> {
        let config = s3_frontend::Config {
            address,
            credentials,
            functions: Arc::clone(objects) as Arc<_>,
            connections_max: self.connections.s3,
            files: Arc::new(FilesOfMemory(files)),
            tls: loaded(&settings.security, Port::S3)?.zip(trusted(&settings.security)?),
        };
        let bind = || s3_frontend::bind(config.clone(), service.clone());
        let server = bound("--s3", address, bind).await?;
        let local = server.local_address();
        self.bind("s3", local, overview);
        let joined = service.join(s3_for_others(local, settings.advertise.as_deref()));
        joined.await.context("join the servers of the store")?;
        objects.serve(server.in_process());
        self.run("s3", server.run(self.stopped()));
        Ok(())
    }

    /// Listens for client processes of volumes. A data directory that holds no sockets is no reason
    /// to serve nothing else.
    pub(crate) fn start_volumes(
        &mut self,
        settings: &Settings,
        volumes: Arc<dyn Volumes>,
        overview: &Overview,
    ) -> anyhow::Result<()> {
        let (VolumesSocket::Usual(path) | VolumesSocket::At(path)) = &settings.volumes_socket
        else {
            return Ok(());
        };
        let config = volumes_frontend::server::Config {
            connections_max: self.connections.volumes,
            ..volumes_frontend::server::Config::new(path)
        };
        let named = || {
            format!(
                "--volumes-socket {}: it cannot listen there",
                path.display()
            )
        };
        let bound = volumes_frontend::bind(config, volumes, &SystemEntropy::default());
        let server = match bound.with_context(named) {
            Ok(server) => server,
            Err(error) if matches!(settings.volumes_socket, VolumesSocket::Usual(_)) => {
                tracing::warn!("{error:#}; volumes cannot be mounted: give another path");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        overview.listens("volumes", path.display());
        self.run("volumes", server.run(self.stopped()));
        Ok(())
    }

    fn bind(&mut self, front_end: &'static str, address: SocketAddr, overview: &Overview) {
        self.bound.push((front_end, address));
        overview.listens(front_end, address);
    }

    fn run(&mut self, name: &'static str, running: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(async move {
            running.await;
            name
        });
    }

    fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop.subscribe();
        async move {
            // An error means that the server is gone, which is a stop too.
            let _ = stop.wait_for(|is_stopped| *is_stopped).await;
        }
    }
}

/// The address at which other machines reach a listener.
fn reachable(address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    // It listens on every interface: the machine's name works from anywhere.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), address.port())
}

/// The same for S3: at the host that is advertised, unless it listens on loopback alone.
fn s3_for_others(address: SocketAddr, advertise: Option<&str>) -> String {
    let host = advertise.and_then(|advertise| advertise.rsplit_once(':'));
    match host {
        Some((host, _)) if !address.ip().is_loopback() => format!("{host}:{}", address.port()),
        _ => reachable(address),
    }
}

/// The files of function memory, as the listener of S3 asks for them.
#[derive(Debug)]
struct FilesOfMemory(SharedFiles);

impl s3_frontend::FilesInMemory for FilesOfMemory {
    fn file_of(&self, bytes: &[u8]) -> Option<(Arc<OwnedFd>, u64)> {
        self.0.file_of(bytes)
    }
}

/// The certificate of a port. None: it has no TLS. Errors: it cannot be used.
fn loaded(security: &Security, port: Port) -> anyhow::Result<Option<Tls>> {
    let loaded = security.tls_at(port).map(Tls::load).transpose();
    loaded.context("--tls-cert, --tls-key and --tls-client-ca")
}

/// The authorities of the other servers' certificates, and this server's own, which they may ask
/// for. None: no port has TLS.
///
/// Errors: they cannot be read.
pub(crate) fn trusted(security: &Security) -> anyhow::Result<Option<Trust>> {
    let Some(files) = &security.tls else {
        return Ok(None);
    };
    let trust = match &security.trusted {
        Some(path) => Trust::in_file(path).context("--tls-ca")?,
        // Without any, the other servers are not trusted, and there may be none.
        None => Trust::in_system().unwrap_or_default(),
    };
    let trust = trust.with_identity(&files.certificate, &files.key);
    Ok(Some(trust.context("--tls-cert and --tls-key")?))
}
