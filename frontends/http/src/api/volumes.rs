//! The routes of volumes: their list, settings at creation, quotas, snapshots, clones.
//!
//! They are for clients alone. A function reads and writes files, and makes no volumes.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::StatusCode,
    response::IntoResponse,
    routing::{get, post, put},
};
use files::{check::Options, model::Access};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use transactions::serializable::{
    VolumeStore,
    model::{BlockBytes, PinName, Slot},
    volumes::{VolumeInfo, VolumeName, VolumeSettings},
};

use crate::{
    backend::Backend,
    body,
    open_volumes::ROOT,
    problem::{Kind, Problem},
    request::{BODY_BYTES_MAX, Request},
    response::{self, Answer, no_content},
};

/// The least quota of a new volume.
const QUOTA_BYTES_MIN: u64 = 64 << 10;
/// The size of blocks unless the creator chooses another, in bytes.
const BLOCK_BYTES: u32 = 16 << 10;
/// The place of the volume's name in a path.
const VOLUME: usize = 2;
/// The place of a snapshot's name.
const SNAPSHOT: usize = 4;
const NO_BODY: &str = "this takes no body";

pub(crate) fn routes() -> Router<Arc<Backend>> {
    let volume = get(info).put(create).patch(set_quota).delete(delete);
    let snapshots = "/v1/volumes/{name}/snapshots";
    Router::new()
        .route("/v1/volumes", get(list))
        .route("/v1/volumes/{name}", volume)
        .route("/v1/volumes/{name}/clones", post(clone))
        .route("/v1/volumes/{name}/check", post(check))
        .route(snapshots, get(list_snapshots))
        .route(
            &format!("{snapshots}/{{snapshot}}"),
            put(take_snapshot).delete(drop_snapshot),
        )
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Create {
    block_bytes: Option<u32>,
    quota_bytes: Option<u64>,
    root: Option<Root>,
}

/// The root directory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Root {
    #[serde(default = "root_mode")]
    mode: u32,
    uid: u32,
    gid: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Quota {
    // A field that is left out does not lift the quota.
    #[serde(deserialize_with = "Option::deserialize")]
    quota_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Clone {
    to: String,
    snapshot: Option<String>,
}

#[derive(Serialize)]
struct Info<'a> {
    name: &'a str,
    block_bytes: u32,
    created_ms: u64,
    bytes: u64,
    keys: u64,
    quota_bytes: Option<u64>,
}

impl<'a> From<&'a VolumeInfo> for Info<'a> {
    fn from(info: &'a VolumeInfo) -> Self {
        Self {
            name: info.name.as_str(),
            block_bytes: info.block_bytes.get(),
            created_ms: info.created_ms,
            bytes: info.usage.bytes,
            keys: info.usage.keys,
            quota_bytes: info.usage.quota_bytes,
        }
    }
}

fn root_mode() -> u32 {
    ROOT.mode
}

/// The volume that the path names.
pub(super) fn volume_name(request: &Request) -> Result<VolumeName, Problem> {
    Ok(VolumeName::new(request.name(VOLUME)?)?)
}

/// The slot of a snapshot. Errors: `NoSuchSnapshot`.
pub(super) async fn slot_of(store: &dyn VolumeStore, name: &PinName) -> Result<Slot, Problem> {
    let pins = store.pins().await?;
    let found = pins.iter().find(|(pin, _)| pin == name);
    let why = "GET .../snapshots lists those of the volume";
    let (_, slot) = found.ok_or_else(|| Problem::new(Kind::NoSuchSnapshot, why))?;
    Ok(*slot)
}

/// The body as JSON of this `form`; an empty one is `{}`.
async fn parsed<T: DeserializeOwned>(
    request: &Request,
    body: Body,
    form: &str,
) -> Result<T, Problem> {
    request.refuse_query()?;
    let whole = request.read(body, BODY_BYTES_MAX).await?;
    let bytes = if whole.bytes.is_empty() {
        b"{}"
    } else {
        &whole.bytes[..]
    };
    let parsed = serde_json::from_slice(bytes);
    parsed.map_err(|error| Problem::invalid(format!("{form}: {error}")))
}

async fn list(request: Request) -> Answer {
    request.refuse_query()?;
    let backend = &request.backend;
    let listed = backend.volumes()?.all.list();
    let volumes = backend.in_time(0, Kind::Unavailable, listed).await?;
    let volumes: Vec<_> = volumes.iter().map(Info::from).collect();
    Ok(response::json(&json!({ "volumes": volumes })))
}

async fn info(request: Request) -> Answer {
    request.refuse_query()?;
    let (backend, name) = (&request.backend, volume_name(&request)?);
    let listed = backend.volumes()?.all.list();
    let volumes = backend.in_time(0, Kind::Unavailable, listed).await?;
    let found = volumes.iter().find(|info| info.name == name);
    let found = found.ok_or(transactions::Error::NoSuchVolume)?;
    Ok(response::json(&Info::from(found)))
}

async fn create(request: Request, body: Body) -> Answer {
    let form =
        r#"{"block_bytes": 16384, "quota_bytes": null, "root": {"mode": 493, "uid": 0, "gid": 0}}"#;
    let (backend, name) = (&request.backend, volume_name(&request)?);
    let create: Create = parsed(&request, body, form).await?;
    if create
        .quota_bytes
        .is_some_and(|bytes| bytes < QUOTA_BYTES_MIN)
    {
        // Its root directory would not fit.
        return Err(
            transactions::Error::Invalid("a new volume has a quota of 64 KiB or more").into(),
        );
    }
    let settings = VolumeSettings {
        block_bytes: BlockBytes::new(create.block_bytes.unwrap_or(BLOCK_BYTES))?,
        quota_bytes: create.quota_bytes,
    };
    let root = create.root.map_or(ROOT, |root| Access {
        mode: root.mode & 0o7777,
        uid: root.uid,
        gid: root.gid,
    });
    let volumes = backend.volumes()?;
    let created = async {
        volumes.all.create(name.clone(), settings).await?;
        let volume = volumes.open_with(&name, root).await?;
        volume.files.settle().await?;
        Ok(StatusCode::CREATED.into_response())
    };
    backend.within(0, Kind::OutcomeUnknown, created).await
}

async fn set_quota(request: Request, body: Body) -> Answer {
    let (backend, name) = (&request.backend, volume_name(&request)?);
    let quota: Quota = parsed(&request, body, r#"{"quota_bytes": BYTES or null}"#).await?;
    let set = backend.volumes()?.all.set_quota(&name, quota.quota_bytes);
    backend.in_time(0, Kind::OutcomeUnknown, set).await?;
    Ok(no_content())
}

async fn delete(request: Request, body: Body) -> Answer {
    let (backend, name) = (&request.backend, bare(&request, body).await?);
    let deleted = backend.volumes()?.delete(&name);
    backend.in_time(0, Kind::OutcomeUnknown, deleted).await?;
    Ok(no_content())
}

async fn clone(request: Request, body: Body) -> Answer {
    let (backend, from) = (&request.backend, volume_name(&request)?);
    let clone: Clone = parsed(&request, body, r#"{"to": VOLUME, "snapshot": NAME}"#).await?;
    let (to, volumes) = (VolumeName::new(clone.to)?, backend.volumes()?);
    let snapshot = clone.snapshot.map(PinName::new).transpose()?;
    let cloned = async {
        let at = match snapshot {
            Some(snapshot) => {
                let store = volumes.all.open(&from).await?;
                Some(slot_of(&*store, &snapshot).await?)
            }
            None => None,
        };
        volumes.all.clone_volume(&from, at, to).await?;
        Ok(StatusCode::CREATED.into_response())
    };
    backend.within(0, Kind::OutcomeUnknown, cloned).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    /// Whether problems are repaired; the value is ignored.
    repair: Option<String>,
    /// Whether the data are left out.
    metadata: Option<String>,
}

/// Checks a volume. It has no time limit, and ends if the client does not wait any more.
async fn check(request: Request, body: Body) -> Answer {
    let asked: Check = request.query("?repair&metadata")?;
    body::refuse(body, NO_BODY).await?;
    let name = volume_name(&request)?;
    let options = Options {
        blocks: asked.metadata.is_none(),
        repair: asked.repair.is_some(),
    };
    let report = request.backend.volumes()?.check(&name, options).await?;
    Ok(response::json(&report))
}

async fn list_snapshots(request: Request) -> Answer {
    request.refuse_query()?;
    let (backend, name) = (&request.backend, volume_name(&request)?);
    let volumes = backend.volumes()?;
    let pins = async { volumes.all.open(&name).await?.pins().await };
    let pins = backend.in_time(0, Kind::Unavailable, pins).await?;
    let pins = pins
        .iter()
        .map(|(name, slot)| json!({ "name": name.as_str(), "slot": slot.0 }));
    let pins: Vec<_> = pins.collect();
    Ok(response::json(&json!({ "snapshots": pins })))
}

async fn take_snapshot(request: Request, body: Body) -> Answer {
    let (backend, name) = (&request.backend, bare(&request, body).await?);
    let (volumes, pin) = (backend.volumes()?, PinName::new(request.name(SNAPSHOT)?)?);
    let taken = async {
        let store = volumes.all.open(&name).await?;
        let snapshot = store.snapshot().await?;
        // If a crash took this state back, the snapshot would belong to another history.
        store.externalize(snapshot.point).await?;
        store.pin(pin, snapshot.value.slot).await
    };
    backend.in_time(0, Kind::OutcomeUnknown, taken).await?;
    Ok(no_content())
}

async fn drop_snapshot(request: Request, body: Body) -> Answer {
    let (backend, name) = (&request.backend, bare(&request, body).await?);
    let (volumes, pin) = (backend.volumes()?, PinName::new(request.name(SNAPSHOT)?)?);
    let dropped = async { volumes.all.open(&name).await?.unpin(&pin).await };
    backend.in_time(0, Kind::OutcomeUnknown, dropped).await?;
    Ok(no_content())
}

/// The volume of a request without a query and a body.
async fn bare(request: &Request, body: Body) -> Result<VolumeName, Problem> {
    request.refuse_query()?;
    body::refuse(body, NO_BODY).await?;
    volume_name(request)
}
