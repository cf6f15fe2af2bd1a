//! Binds the address, and serves S3 on the listener that the front ends share.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use http_client::Trust;
use listener::{FilesInMemory, Timeouts, Tls};
use memory::model::SEGMENT_BYTES_MAX;
use s3s::{
    Body,
    config::{S3Config, StaticConfigProvider},
    dto::StreamingBlob,
    service::{S3Service, S3ServiceBuilder},
};
use tokio::{net::TcpListener, sync::Semaphore};
use tower_service::Service;

use crate::{
    access::{Access, Credentials, Functions, Hosts, Keys, is_for_s3, is_form, is_version_2},
    errors::Refusal,
    forward::{Forwarded, Forwarding},
    handler::Handler,
    ingress::{Ingress, RequestBody},
    repair::Repair,
    response::{self, About, Ids},
};

/// The longest XML body: 10,000 parts with their checksums.
const XML_BYTES_MAX: u64 = 4 << 20;
/// The largest file of a form. s3s holds it in memory.
const FORM_BYTES_MAX: u64 = 32 << 20;
/// Forms that are served at once.
const FORMS_AT_ONCE: usize = 4;
/// Bytes that the framing of a body adds at most: a line and a signature for each 8 KiB.
const FRAMING_BYTES_MAX: u64 = SEGMENT_BYTES_MAX / 64;

/// How to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on; port 0 picks a free one.
    pub address: SocketAddr,
    /// The keys that sign all requests but those of functions.
    pub credentials: Credentials,
    /// The functions, which have keys of their own.
    pub functions: Arc<dyn Functions>,
    /// Connections that are served at once. Past this limit new ones are refused.
    pub connections_max: usize,
    /// The files that function memory lies in.
    pub files: Arc<dyn FilesInMemory>,
    /// The TLS of this listener, and the authorities of the other servers' certificates. None:
    /// connections have none, here and between the servers.
    pub tls: Option<(Tls, Trust)>,
}

/// A bound listener: connections queue up until `run`.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local_address: SocketAddr,
    connections_max: usize,
    files: Arc<dyn FilesInMemory>,
    tls: Option<Tls>,
    endpoint: Endpoint,
}

/// Binds the address.
///
/// Errors: the system's, such as an address in use.
pub async fn bind(config: Config, service: memory::Service) -> io::Result<Server> {
    let listener = TcpListener::bind(config.address).await?;
    Ok(Server {
        local_address: listener.local_addr()?,
        listener,
        connections_max: config.connections_max,
        files: Arc::clone(&config.files),
        tls: config.tls.as_ref().map(|(tls, _)| tls.clone()),
        endpoint: Endpoint::new(config, service),
    })
}

impl Server {
    /// The address with the port that was picked.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The same for callers in this process.
    pub fn in_process(&self) -> InProcess {
        InProcess(self.endpoint.clone())
    }

    /// Serves requests until `shutdown` completes, then ends within [`Timeouts::drain`]. A write
    /// that is cut off may take effect, as if its client had hung up.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) {
        let config = listener::Config {
            connections_max: self.connections_max,
            body_bytes_max: SEGMENT_BYTES_MAX + FRAMING_BYTES_MAX,
            timeouts: Timeouts::default(),
            files: Some(self.files),
            tls: self.tls,
        };
        let refusal = self.endpoint.refusing();
        listener::serve(self.listener, config, self.endpoint, refusal, shutdown).await;
    }
}

/// Answers requests of functions, which reach the process by another way than the listener.
#[derive(Debug, Clone)]
pub struct InProcess(Endpoint);

impl InProcess {
    /// Whether it is the one to answer the request.
    pub fn is_for<B>(request: &Request<B>) -> bool {
        is_for_s3(request.uri(), request.headers())
    }

    /// Whether the request is a form.
    pub fn is_form<B>(request: &Request<B>) -> bool {
        is_form(request)
    }

    /// The response to a request that may be repeated.
    pub fn refuse_for_now(why: &str) -> Response<Body> {
        response::of(Refusal::new(
            "ServiceUnavailable",
            StatusCode::SERVICE_UNAVAILABLE,
            why,
        ))
    }

    /// The response to a request that cannot succeed.
    pub fn refuse(why: &str) -> Response<Body> {
        response::of(Refusal::bad("InvalidRequest", why))
    }

    /// Answers a request, whose path names the bucket. Its body makes progress, or fails.
    pub async fn call<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: BodyExt<Data = Bytes, Error = io::Error> + Send + 'static,
    {
        let request = request.map(BodyExt::boxed_unsync);
        self.0.clone().answer(request).await
    }
}

/// Answers requests. Clones share it.
#[derive(Debug, Clone)]
struct Endpoint {
    shared: Arc<Shared>,
    /// Whether the connection is past the limit.
    is_refusing: bool,
}

#[derive(Debug)]
struct Shared {
    s3: S3Service,
    forwarding: Forwarding,
    ids: Ids,
    forms: Semaphore,
    connections_max: usize,
}

impl Endpoint {
    fn new(config: Config, service: memory::Service) -> Self {
        let trust = config.tls.map(|(_, trust)| trust);
        let forwarding = Forwarding::new(service.clone(), &config.credentials, trust);
        let handler = Handler { service };
        let keys = Keys {
            own: config.credentials,
            functions: config.functions,
        };
        let verified = builder(handler.clone()).build();
        let mut builder = builder(handler);
        builder.set_auth(keys.clone());
        builder.set_access(Access(keys.clone()));
        builder.set_route(Repair { verified, keys });
        let shared = Shared {
            s3: builder.build(),
            forwarding,
            ids: Ids::new(),
            forms: Semaphore::new(FORMS_AT_ONCE),
            connections_max: config.connections_max,
        };
        Self {
            shared: Arc::new(shared),
            is_refusing: false,
        }
    }

    fn refusing(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            is_refusing: true,
        }
    }

    /// Answers a request of a client, or has the owner of its key answer it.
    async fn receive(self, request: Request<RequestBody>) -> Response<Body> {
        if self.is_refusing {
            return self.answer(request).await;
        }
        let about = about(&request, self.shared.ids.next());
        match self.shared.forwarding.forward(request).await {
            Forwarded::Answered(response) => response,
            Forwarded::Lost(refusal) => response::refused(refusal, &about).await,
            Forwarded::Here(request) => self.answer(request).await,
        }
    }

    async fn answer(self, request: Request<RequestBody>) -> Response<Body> {
        let about = about(&request, self.shared.ids.next());
        if self.is_refusing {
            return response::refused(too_many(self.shared.connections_max), &about).await;
        }
        if is_version_2(request.headers()) {
            let message = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";
            return response::refused(Refusal::bad("InvalidRequest", message), &about).await;
        }
        let _form = match self.form(&request) {
            Ok(form) => form,
            Err(refusal) => return response::refused(refusal, &about).await,
        };
        let (parts, body) = request.into_parts();
        let (ingress, mut rest) = Ingress::new(body, &parts.headers);
        let body = Body::from(StreamingBlob::new(ingress));
        match self.shared.s3.call(Request::from_parts(parts, body)).await {
            Ok(answer) => {
                let mut answer = response::finish(answer, &about, rest.trouble()).await;
                if answer.status() != StatusCode::OK && !rest.discard().await {
                    let close = HeaderValue::from_static("close");
                    answer.headers_mut().insert(header::CONNECTION, close);
                }
                answer
            }
            Err(error) => {
                tracing::error!(?error, "s3: a response could not be written; report this");
                let code = "InternalError";
                let refusal = Refusal::new(code, StatusCode::INTERNAL_SERVER_ERROR, "See the log.");
                response::refused(refusal, &about).await
            }
        }
    }

    /// The place of a form, whose file s3s holds in memory before it looks at the signature of all
    /// but a policy.
    fn form(
        &self,
        request: &Request<RequestBody>,
    ) -> Result<Option<tokio::sync::SemaphorePermit<'_>>, Refusal> {
        if !is_form(request) {
            return Ok(None);
        }
        self.shared.forms.try_acquire().map(Some).map_err(|_| {
            let message = format!("{FORMS_AT_ONCE} forms are being served. Try again, or use PUT.");
            Refusal::new("SlowDown", StatusCode::SERVICE_UNAVAILABLE, message)
        })
    }
}

fn builder(handler: Handler) -> S3ServiceBuilder {
    let mut config = S3Config::default();
    config.xml_max_body_size = XML_BYTES_MAX as usize;
    config.post_object_max_file_size = FORM_BYTES_MAX;
    config.form_max_field_size = 64 << 10;
    config.form_max_fields_size = 256 << 10;
    config.form_max_parts = 100;
    let mut builder = S3ServiceBuilder::new(handler);
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    builder.set_host(Hosts);
    builder
}

fn about(request: &Request<RequestBody>, id: String) -> About {
    let hash = request.headers().get("x-amz-content-sha256");
    let bytes = request.headers().get(header::CONTENT_LENGTH);
    let bytes = bytes.and_then(|bytes| bytes.to_str().ok()?.parse::<u64>().ok());
    About {
        id,
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        is_hashed: hash.is_some_and(|hash| hash.len() == 64),
        is_long: bytes.is_some_and(|bytes| bytes > XML_BYTES_MAX),
    }
}

fn too_many(connections_max: usize) -> Refusal {
    let message = format!("The server has {connections_max} connections, its limit. Try again.");
    Refusal::new("SlowDown", StatusCode::SERVICE_UNAVAILABLE, message)
}

impl Service<Request<listener::RequestBody>> for Endpoint {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<listener::RequestBody>) -> Self::Future {
        let (endpoint, request) = (self.clone(), request.map(BodyExt::boxed_unsync));
        Box::pin(async move { Ok(endpoint.receive(request).await) })
    }
}
