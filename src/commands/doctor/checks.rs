//! The checks, in the order in which a start would fail at them.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use embedded::{Inspection, OpenError as EmbeddedError, RecoveryReport};
use http_frontend::Status;
use listener::{Tls, TlsFiles};
use nix::sys::statvfs::statvfs;
use redis_provider::{OpenError, Redis};
use sandbox::process::Enforcement;

use super::{Finding, Verdict, fail, ok, warn};
use crate::{
    commands::{request::Target, status},
    open_files,
    settings::{Listen, Settings, StoreSettings},
};

const FREE_BYTES_FAIL: u64 = 64 * 1024 * 1024;
const FREE_BYTES_WARN: u64 = 1024 * 1024 * 1024;
const FILES_FAIL: usize = 256;
const FILES_WARN: usize = 4096;
const SYNC_ROUNDS: usize = 20;
const SYNC_BYTES: usize = 4096;
/// Above this, one client alone waits noticeably for each write.
const SYNC_SLOW: Duration = Duration::from_millis(20);
/// No disk is this fast: the directory is in memory, or the disk does not sync.
const SYNC_IMPLAUSIBLE: Duration = Duration::from_micros(15);
/// A clock before this (January 2026) was never set.
const CLOCK_SECONDS_MIN: u64 = 1_767_225_600;
/// How far the time of a file may be ahead of the clock.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(2);

const NOTHING_YET: &str = "nothing is kept there yet";
const NO_RIGHTS: &str = "give this user the right to read and write it";

/// Every check for a start with `settings`, and with `verify` that of the stored bytes. A running
/// server may respond at `target`.
pub(super) fn all(settings: &Settings, target: &Target, verify: bool) -> Vec<Finding> {
    let target = target.or_at(settings);
    let running = target
        .get("/v1/status")
        .and_then(|body| status::read(&body));
    let running = running.as_ref().ok();
    let (threads, kept) = (settings.threads, settings.place());
    let mut findings =
        vec![ok(format!("{threads} worker threads, data in {kept}")).of("configuration")];
    match &settings.store {
        StoreSettings::Embedded => findings.extend(of_data_dir(&settings.data_dir, running)),
        StoreSettings::Redis(config) => findings.push(redis(config).of("store")),
    }
    let zookeeper = port("--zookeeper", settings.zookeeper, running);
    let url = target.url();
    findings.extend([
        zookeeper.of("port zookeeper"),
        port("--http", settings.http, running).of("port http"),
        port("--s3", settings.s3, running).of("port s3"),
        port("--routes", settings.routes, running).of("port routes"),
        files().of("open files"),
        functions().of("functions"),
        clock(&settings.data_dir).of("clock"),
        match running {
            Some(status) => ok(format!("{} answers at {url}", status.version)),
            None => ok(format!("none answers at {url}")),
        }
        .of("server"),
    ]);
    let security = &settings.security;
    if security.zookeeper_secure != Listen::Off {
        let secure = port(
            "--zookeeper-secure-listen",
            security.zookeeper_secure,
            running,
        );
        findings.push(secure.of("port zookeeper-secure"));
    }
    if let Some(files) = &security.tls {
        findings.push(certificate(files).of("certificate"));
    }
    if verify {
        findings.push(stored_bytes(settings).of("stored bytes"));
    }
    findings
}

fn of_data_dir(data_dir: &Path, running: Option<&Status>) -> Vec<Finding> {
    let place = existing(data_dir);
    let format = format(data_dir);
    let is_readable = format.verdict == Verdict::Ok;
    let mut findings = vec![
        writable(data_dir, &place).of("data directory"),
        lock(data_dir, running).of("lock"),
        format.of("format"),
    ];
    if is_readable {
        findings.push(journal(data_dir).of("journal"));
    }
    findings.push(free_space(&place).of("free space"));
    findings.push(sync_latency(&place).of("fsync"));
    findings
}

/// The limits that this machine can impose on functions.
fn functions() -> Finding {
    let program = std::env::current_exe().unwrap_or_else(|_| "landfast".into());
    let enforcement = Enforcement::probe(&program);
    let measures = enforcement.measures();
    enforcement.remove();
    let lacking = measures
        .iter()
        .filter_map(|measure| Some(format!("{}: {}", measure.what, measure.lacks.as_ref()?)));
    let lacking: Vec<_> = lacking.collect();
    if lacking.is_empty() {
        let whats: Vec<_> = measures.iter().map(|measure| measure.what).collect();
        return ok(format!("held to {}", whats.join(", ")));
    }
    let advice = "run functions of people you trust alone, or let this user do it";
    warn(lacking.join("; "), advice)
}

/// Whether the store is reachable and as durable as configured.
fn redis(config: &redis_provider::Config) -> Finding {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let inspected = match runtime {
        Ok(runtime) => runtime.block_on(Redis::inspect(config)),
        Err(error) => return fail(error.to_string(), "look at the limits of this user"),
    };
    let acknowledged = config.acknowledged.name();
    let error = match inspected {
        Ok(warnings) if warnings.is_empty() => {
            let found = format!("{config} keeps what is acknowledged as {acknowledged}");
            return ok(found);
        }
        Ok(warnings) => {
            let found = format!("{config}, acknowledged as {acknowledged}");
            return warn(found, warnings.join("; ") + "; see docs/redis.md");
        }
        Err(error) => error,
    };
    let advice = match error {
        OpenError::Unreachable { .. } => "start the server, or correct --store",
        OpenError::NotAdmitted { .. } => {
            "correct the user and the password in --store (LANDFAST_STORE)"
        }
        OpenError::Unfit { .. } => {
            "change that setting, or ask for less with ?acknowledged=; see docs/redis.md"
        }
        _ => "correct --store",
    };
    fail(error.to_string(), advice)
}

/// The nearest existing directory at or above `data_dir`.
fn existing(data_dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let there = absolute.ancestors().find(|path| path.is_dir());
    there.unwrap_or(Path::new("/")).to_owned()
}

fn writable(data_dir: &Path, place: &Path) -> Finding {
    if let Some(path) = embedded::in_the_way(data_dir) {
        return fail(
            format!("{} is there and is not a directory", path.display()),
            "choose another --data-dir, or move it away",
        );
    }
    match probe_file(place) {
        Ok(_) if data_dir.is_dir() => ok(format!("{} is writable", data_dir.display())),
        Ok(_) => ok(format!("{} will be created", data_dir.display())),
        Err(error) => fail(
            format!("{}: {error}", place.display()),
            "choose another --data-dir, or give this user the right to write there",
        ),
    }
}

fn lock(data_dir: &Path, running: Option<&Status>) -> Finding {
    let file = match File::open(data_dir.join("LOCK")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return ok("free: nothing has run there yet");
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return fail(error.to_string(), "see the data directory above");
        }
        Err(error) => {
            return warn(error.to_string(), "check the directory's permissions");
        }
    };
    match (file.try_lock(), running) {
        (Ok(()), _) => ok("free"),
        (Err(TryLockError::WouldBlock), Some(_)) => ok("held by a running server"),
        (Err(TryLockError::WouldBlock), None) => warn(
            "held by another process",
            "a server may use this directory with another --http address: set LANDFAST_URL to it, or stop it",
        ),
        (Err(TryLockError::Error(error)), _) => {
            fail(error.to_string(), "use a file system that supports locks")
        }
    }
}

/// Whether this release can read the stored data.
fn format(data_dir: &Path) -> Finding {
    match embedded::format_of(data_dir) {
        _ if !data_dir.is_dir() => ok(NOTHING_YET),
        Ok(Some(format)) => ok(format!("{format}, which this release reads")),
        Ok(None) => ok(NOTHING_YET),
        Err(error) => {
            let advice = "do so before the next start, which would refuse it";
            fail(error.to_string(), advice)
        }
    }
}

/// Whether the next start would accept the journal.
fn journal(data_dir: &Path) -> Finding {
    if !data_dir.is_dir() {
        return ok(NOTHING_YET);
    }
    let Inspection {
        torn_head, journal, ..
    } = match embedded::inspect_journal(data_dir) {
        Ok(Some(inspection)) => inspection,
        Ok(None) => return ok(NOTHING_YET),
        Err(EmbeddedError::Locked { .. }) => {
            return ok("in use; it was read when the server started");
        }
        Err(error) if is_about_rights(&error) => return fail(error.to_string(), NO_RIGHTS),
        Err(error) => {
            let advice =
                "restore the whole data directory from a copy; the next start refuses this one";
            return fail(error.to_string(), advice);
        }
    };
    if let Some(file) = torn_head {
        let file = file.display();
        return warn(
            format!("one of the two heads of {file} is not whole, torn by a crash or damaged"),
            "nothing: the next start goes by the other one, and writes both again; if that was no crash, look after the disk",
        );
    }
    let RecoveryReport { records, cut, .. } = journal;
    let Some(cut) = cut else {
        return ok(format!("{records} records, each whole"));
    };
    let (file, missing, bytes) = (cut.file.display(), cut.missing, cut.bytes);
    if missing > 0 {
        return warn(
            format!(
                "{records} whole records, and {missing} bytes missing behind them in {file}: it was longer when it was made"
            ),
            "restore the whole data directory from a copy if there is one that is not older: no crash makes a file of the journal shorter, and the next start goes on with what there is",
        );
    }
    warn(
        format!("{records} whole records, and {bytes} torn bytes behind them in {file}"),
        "nothing: a write that a crash has broken off was never acknowledged, and the next start cuts it",
    )
}

/// Whether the permissions of the data are the only thing that may be wrong.
fn is_about_rights(error: &EmbeddedError) -> bool {
    matches!(error, EmbeddedError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether all blocks of the checkpoint store are intact. The journal is checked in any case.
fn stored_bytes(settings: &Settings) -> Finding {
    if !matches!(settings.store, StoreSettings::Embedded) {
        return ok("nothing is kept here but by the store");
    }
    match embedded::verify(&settings.data_dir) {
        Ok(Some(records)) => ok(format!(
            "{records} records, each read back as it was written"
        )),
        Ok(None) => ok(NOTHING_YET),
        Err(error @ EmbeddedError::Locked { .. }) => {
            warn(error.to_string(), "stop the server, then ask again")
        }
        Err(error) if is_about_rights(&error) => fail(error.to_string(), NO_RIGHTS),
        Err(error) => fail(
            error.to_string(),
            "restore the whole data directory from a copy; where a start still takes it, what is damaged is refused and the rest is served",
        ),
    }
}

fn free_space(place: &Path) -> Finding {
    let bytes = match statvfs(place) {
        Ok(found) => found
            .blocks_available()
            .saturating_mul(found.fragment_size()),
        Err(error) => return warn(format!("unknown: {error}"), "look for yourself"),
    };
    let found = format!("{} MiB in {}", bytes / (1024 * 1024), place.display());
    match bytes {
        0..FREE_BYTES_FAIL => fail(found, "make room: writes fail on a full disk"),
        FREE_BYTES_FAIL..FREE_BYTES_WARN => warn(found, "make room soon"),
        _ => ok(found),
    }
}

fn port(flag: &str, listen: Listen, running: Option<&Status>) -> Finding {
    let Listen::At(address) = listen else {
        return ok("off");
    };
    let shown = address.to_string();
    let ours = |status: &Status| status.listeners.values().any(|own| *own == shown);
    match TcpListener::bind(address) {
        Ok(_) => ok(format!("{address} is free")),
        Err(_) if running.is_some_and(ours) => ok(format!("{address} is the running server's")),
        Err(error) => fail(
            format!("{address}: {error}"),
            format!("stop what listens there, or choose another address with {flag}"),
        ),
    }
}

fn certificate(files: &TlsFiles) -> Finding {
    match Tls::load(files.clone()) {
        Ok(_) => ok(format!("{} loads", files.certificate.display())),
        Err(error) => fail(
            error.to_string(),
            "give a certificate and its key in PEM files, by --tls-cert and --tls-key",
        ),
    }
}

fn sync_latency(place: &Path) -> Finding {
    let measured = probe_file(place).and_then(|mut file| measure(&mut file));
    let (median, longest) = match measured {
        Ok(times) => times,
        Err(error) => return fail(error.to_string(), "see the data directory above"),
    };
    let found = format!("{median:.1?} median, {longest:.1?} longest of {SYNC_ROUNDS}");
    let advice = if median > SYNC_SLOW {
        "every write waits for this: use a local disk with a write cache it can trust"
    } else if median < SYNC_IMPLAUSIBLE {
        "too fast for a disk: memory does not survive a power cut; fine for a trial"
    } else {
        return ok(found);
    };
    warn(found, advice)
}

fn measure(file: &mut File) -> io::Result<(Duration, Duration)> {
    let block = [0x5a_u8; SYNC_BYTES];
    let mut times = Vec::with_capacity(SYNC_ROUNDS);
    for _ in 0..SYNC_ROUNDS {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok((times[SYNC_ROUNDS / 2], times[SYNC_ROUNDS - 1]))
}

/// A new file in `place` that is already unlinked, so that it never stays behind.
fn probe_file(place: &Path) -> io::Result<File> {
    let path = place.join(format!(".landfast-doctor-{}", std::process::id()));
    let file = File::create_new(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

fn files() -> Finding {
    let advice = "each client takes one: raise it with `ulimit -n 65536` or LimitNOFILE=65536";
    match open_files::limit() {
        Some(count @ 0..FILES_FAIL) => fail(format!("at most {count}"), advice),
        Some(count @ FILES_FAIL..FILES_WARN) => warn(format!("at most {count}"), advice),
        Some(usize::MAX) => ok("unlimited"),
        Some(count) => ok(format!("at most {count}")),
        None => warn("unknown: this system does not tell", "look at `ulimit -n`"),
    }
}

/// Sessions and ephemerals depend on the clock. A clock behind the files was set wrongly.
fn clock(data_dir: &Path) -> Finding {
    let now = SystemTime::now();
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let found = format!("{} s since 1970", since_1970.as_secs());
    if since_1970.as_secs() < CLOCK_SECONDS_MIN {
        return fail(found, "it was never set: switch on NTP");
    }
    let entries = fs::read_dir(data_dir).into_iter().flatten().flatten();
    let changed = entries.filter_map(|entry| entry.metadata().ok()?.modified().ok());
    let ahead = changed.max().and_then(|time| time.duration_since(now).ok());
    let ahead = ahead.unwrap_or_default();
    if ahead > CLOCK_AHEAD_MAX {
        let ahead = ahead.as_secs();
        let found = format!("{ahead} s behind the newest file in the data directory");
        let advice = "it was set back: switch on NTP, and expect sessions to last longer";
        return warn(found, advice);
    }
    ok(format!("plausible, {found}"))
}
