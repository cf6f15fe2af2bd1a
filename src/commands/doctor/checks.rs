//! The checks, in the order in which a start would fail at them.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use embedded::{Inspection, OpenError as EmbeddedError, RecoveryReport};
use http_frontend::Status;
use redis_provider::{OpenError, Redis};
use sandbox::process::Enforcement;

use super::{Finding, Verdict};
use crate::{
    commands::{request::Target, status},
    config::{Listen, Settings, StoreSettings},
    open_files,
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

/// Every check for a start with `settings`. A running server may respond at `target`.
pub(super) fn all(settings: &Settings, target: &Target) -> Vec<Finding> {
    let target = target.or_at(&settings.http);
    let running = target
        .get("/v1/status")
        .ok()
        .and_then(|body| status::read(&body).ok());
    let place = existing(&settings.data_dir);
    let mut findings = vec![Finding::ok(
        "configuration",
        format!(
            "{} worker threads, data in {}",
            settings.threads,
            settings.place()
        ),
    )];
    match &settings.store {
        StoreSettings::Embedded => {
            findings.push(writable(&settings.data_dir, &place));
            findings.push(lock(&settings.data_dir, running.as_ref()));
            let format = format(&settings.data_dir);
            if format.verdict == Verdict::Ok {
                findings.extend([format, journal(&settings.data_dir)]);
            } else {
                findings.push(format);
            }
            findings.push(free_space(&place));
            findings.push(sync_latency(&place));
        }
        StoreSettings::Redis(config) => findings.push(redis(config)),
    }
    findings.push(port(
        "port zookeeper",
        "--zookeeper",
        settings.zookeeper,
        running.as_ref(),
    ));
    findings.push(port("port http", "--http", settings.http, running.as_ref()));
    findings.push(files());
    findings.push(functions());
    findings.push(clock(&settings.data_dir));
    findings.push(match running {
        Some(status) => Finding::ok(
            "server",
            format!("{} answers at {}", status.version, target.url()),
        ),
        None => Finding::ok("server", format!("none answers at {}", target.url())),
    });
    findings
}

/// The limits that this machine can impose on functions.
fn functions() -> Finding {
    const NAME: &str = "functions";
    let program = std::env::current_exe().unwrap_or_else(|_| "landfast".into());
    let enforcement = Enforcement::probe(&program);
    let lacking: Vec<_> = enforcement
        .measures()
        .into_iter()
        .filter_map(|measure| Some(format!("{}: {}", measure.what, measure.lacks.as_ref()?)))
        .collect();
    enforcement.remove();
    if lacking.is_empty() {
        let whats: Vec<_> = enforcement
            .measures()
            .into_iter()
            .map(|measure| measure.what)
            .collect();
        return Finding::ok(NAME, format!("held to {}", whats.join(", ")));
    }
    let advice = "run functions of people you trust alone, or let this user do it";
    Finding::warn(NAME, lacking.join("; "), advice)
}

/// Whether the store is reachable and as durable as configured.
fn redis(config: &redis_provider::Config) -> Finding {
    const NAME: &str = "store";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let inspected = match runtime {
        Ok(runtime) => runtime.block_on(Redis::inspect(config)),
        Err(error) => {
            return Finding::fail(NAME, error.to_string(), "look at the limits of this user");
        }
    };
    let acknowledged = config.acknowledged.name();
    match inspected {
        Ok(warnings) if warnings.is_empty() => Finding::ok(
            NAME,
            format!("{config} keeps what is acknowledged as {acknowledged}"),
        ),
        Ok(warnings) => Finding::warn(
            NAME,
            format!("{config}, acknowledged as {acknowledged}"),
            format!("{}; see docs/redis.md", warnings.join("; ")),
        ),
        Err(error @ OpenError::Unreachable { .. }) => Finding::fail(
            NAME,
            error.to_string(),
            "start the server, or correct --store",
        ),
        Err(error @ OpenError::Unfit { .. }) => Finding::fail(
            NAME,
            error.to_string(),
            "change that setting, or ask for less with ?acknowledged=; see docs/redis.md",
        ),
        Err(error) => Finding::fail(NAME, error.to_string(), "correct --store"),
    }
}

/// The nearest existing directory at or above `data_dir`.
fn existing(data_dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let there = absolute
        .ancestors()
        .find(|path| path.is_dir())
        .map(Path::to_owned);
    there.unwrap_or_else(|| PathBuf::from("/"))
}

fn writable(data_dir: &Path, place: &Path) -> Finding {
    const NAME: &str = "data directory";
    if let Some(path) = embedded::in_the_way(data_dir) {
        return Finding::fail(
            NAME,
            format!("{} is there and is not a directory", path.display()),
            "choose another --data-dir, or move it away",
        );
    }
    match probe_file(place) {
        Ok(_) if data_dir.is_dir() => {
            Finding::ok(NAME, format!("{} is writable", data_dir.display()))
        }
        Ok(_) => Finding::ok(NAME, format!("{} will be created", data_dir.display())),
        Err(error) => Finding::fail(
            NAME,
            format!("{}: {error}", place.display()),
            "choose another --data-dir, or give this user the right to write there",
        ),
    }
}

fn lock(data_dir: &Path, running: Option<&Status>) -> Finding {
    const NAME: &str = "lock";
    let file = match File::open(data_dir.join("LOCK")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Finding::ok(NAME, "free: nothing has run there yet");
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Finding::fail(NAME, error.to_string(), "see the data directory above");
        }
        Err(error) => {
            return Finding::warn(NAME, error.to_string(), "check the directory's permissions");
        }
    };
    match (file.try_lock(), running) {
        (Ok(()), _) => Finding::ok(NAME, "free"),
        (Err(TryLockError::WouldBlock), Some(_)) => Finding::ok(NAME, "held by a running server"),
        (Err(TryLockError::WouldBlock), None) => Finding::warn(
            NAME,
            "held by another process",
            "a server may use this directory with another --http address: set LANDFAST_URL to it, or stop it",
        ),
        (Err(TryLockError::Error(error)), _) => Finding::fail(
            NAME,
            error.to_string(),
            "use a file system that supports locks",
        ),
    }
}

/// Whether this release can read the stored data.
fn format(data_dir: &Path) -> Finding {
    const NAME: &str = "format";
    if !data_dir.is_dir() {
        return Finding::ok(NAME, "nothing is kept there yet");
    }
    match embedded::format_of(data_dir) {
        Ok(Some(format)) => Finding::ok(NAME, format!("{format}, which this release reads")),
        Ok(None) => Finding::ok(NAME, "nothing is kept there yet"),
        Err(error) => Finding::fail(
            NAME,
            error.to_string(),
            "do so before the next start, which would refuse it",
        ),
    }
}

/// Whether the next start would accept the journal.
fn journal(data_dir: &Path) -> Finding {
    const NAME: &str = "journal";
    if !data_dir.is_dir() {
        return Finding::ok(NAME, "nothing is kept there yet");
    }
    match embedded::inspect_journal(data_dir) {
        Ok(None) => Finding::ok(NAME, "nothing is kept there yet"),
        Ok(Some(Inspection {
            torn_head: Some(file),
            ..
        })) => Finding::warn(
            NAME,
            format!(
                "one of the two heads of {} is not whole, torn by a crash or damaged",
                file.display()
            ),
            "nothing: the next start goes by the other one, and writes both again; if that was no crash, look after the disk",
        ),
        Ok(Some(Inspection {
            journal: RecoveryReport { records, cut: None },
            ..
        })) => Finding::ok(NAME, format!("{records} records, each whole")),
        Ok(Some(Inspection {
            journal:
                RecoveryReport {
                    records,
                    cut: Some(cut),
                },
            ..
        })) if cut.missing > 0 => Finding::warn(
            NAME,
            format!(
                "{records} whole records, and {} bytes missing behind them in {}: it was longer when it was made",
                cut.missing,
                cut.file.display()
            ),
            "restore the whole data directory from a copy if there is one that is not older: no crash makes a file of the journal shorter, and the next start goes on with what there is",
        ),
        Ok(Some(Inspection {
            journal:
                RecoveryReport {
                    records,
                    cut: Some(cut),
                },
            ..
        })) => Finding::warn(
            NAME,
            format!(
                "{records} whole records, and {} torn bytes behind them in {}",
                cut.bytes,
                cut.file.display()
            ),
            "nothing: a write that a crash has broken off was never acknowledged, and the next start cuts it",
        ),
        Err(EmbeddedError::Locked { .. }) => {
            Finding::ok(NAME, "in use; it was read when the server started")
        }
        Err(error) if is_about_rights(&error) => Finding::fail(
            NAME,
            error.to_string(),
            "give this user the right to read and write it",
        ),
        Err(error) => Finding::fail(
            NAME,
            error.to_string(),
            "restore the whole data directory from a copy; the next start refuses this one",
        ),
    }
}

/// Whether the permissions of the data are the only thing that may be wrong.
fn is_about_rights(error: &EmbeddedError) -> bool {
    matches!(error, EmbeddedError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether all blocks of the checkpoint store are intact. The journal is checked in any case.
pub(super) fn stored_bytes(settings: &Settings) -> Finding {
    const NAME: &str = "stored bytes";
    if !matches!(settings.store, StoreSettings::Embedded) {
        return Finding::ok(NAME, "nothing is kept here but by the store");
    }
    match embedded::verify(&settings.data_dir) {
        Ok(Some(records)) => Finding::ok(
            NAME,
            format!("{records} records, each read back as it was written"),
        ),
        Ok(None) => Finding::ok(NAME, "nothing is kept there yet"),
        Err(error @ EmbeddedError::Locked { .. }) => {
            Finding::warn(NAME, error.to_string(), "stop the server, then ask again")
        }
        Err(error) if is_about_rights(&error) => Finding::fail(
            NAME,
            error.to_string(),
            "give this user the right to read and write it",
        ),
        Err(error) => Finding::fail(
            NAME,
            error.to_string(),
            "restore the whole data directory from a copy; where a start still takes it, what is damaged is refused and the rest is served",
        ),
    }
}

/// Asks `df`, so that no system call needs unsafe code here.
fn free_space(place: &Path) -> Finding {
    const NAME: &str = "free space";
    let output = Command::new("df").arg("-Pk").arg(place).output();
    let text = output
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let available = text
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    let Some(bytes) = available.map(|kib| kib.saturating_mul(1024)) else {
        return Finding::warn(NAME, "unknown: df did not tell", "look for yourself");
    };
    let found = format!("{} MiB in {}", bytes / (1024 * 1024), place.display());
    match bytes {
        0..FREE_BYTES_FAIL => Finding::fail(NAME, found, "make room: writes fail on a full disk"),
        FREE_BYTES_FAIL..FREE_BYTES_WARN => Finding::warn(NAME, found, "make room soon"),
        _ => Finding::ok(NAME, found),
    }
}

fn port(check: &'static str, flag: &str, listen: Listen, running: Option<&Status>) -> Finding {
    let Listen::At(address) = listen else {
        return Finding::ok(check, "off");
    };
    let ours = |status: &Status| {
        status
            .listeners
            .values()
            .any(|own| *own == address.to_string())
    };
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok(check, format!("{address} is free")),
        Err(_) if running.is_some_and(ours) => {
            Finding::ok(check, format!("{address} is the running server's"))
        }
        Err(error) => Finding::fail(
            check,
            format!("{address}: {error}"),
            format!("stop what listens there, or choose another address with {flag}"),
        ),
    }
}

fn sync_latency(place: &Path) -> Finding {
    const NAME: &str = "fsync";
    let measured = probe_file(place).and_then(|mut file| measure(&mut file));
    let (median, longest) = match measured {
        Ok(times) => times,
        Err(error) => {
            return Finding::fail(NAME, error.to_string(), "see the data directory above");
        }
    };
    let found = format!("{median:.1?} median, {longest:.1?} longest of {SYNC_ROUNDS}");
    if median > SYNC_SLOW {
        Finding::warn(
            NAME,
            found,
            "every write waits for this: use a local disk with a write cache it can trust",
        )
    } else if median < SYNC_IMPLAUSIBLE {
        Finding::warn(
            NAME,
            found,
            "too fast for a disk: memory does not survive a power cut; fine for a trial",
        )
    } else {
        Finding::ok(NAME, found)
    }
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
    const NAME: &str = "open files";
    let advice = "each client takes one: raise it with `ulimit -n 65536` or LimitNOFILE=65536";
    match open_files::limit() {
        Some(count @ 0..FILES_FAIL) => Finding::fail(NAME, format!("at most {count}"), advice),
        Some(count @ FILES_FAIL..FILES_WARN) => {
            Finding::warn(NAME, format!("at most {count}"), advice)
        }
        Some(usize::MAX) => Finding::ok(NAME, "unlimited"),
        Some(count) => Finding::ok(NAME, format!("at most {count}")),
        None => Finding::warn(
            NAME,
            "unknown: this system does not tell",
            "look at `ulimit -n`",
        ),
    }
}

/// Sessions and ephemerals depend on the clock. A clock behind the files was set wrongly.
fn clock(data_dir: &Path) -> Finding {
    const NAME: &str = "clock";
    let now = SystemTime::now();
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    if seconds < CLOCK_SECONDS_MIN {
        return Finding::fail(
            NAME,
            format!("{seconds} s since 1970"),
            "it was never set: switch on NTP",
        );
    }
    let entries = fs::read_dir(data_dir).into_iter().flatten().flatten();
    let newest = entries
        .filter_map(|entry| entry.metadata().ok()?.modified().ok())
        .max();
    let ahead = newest
        .and_then(|time| time.duration_since(now).ok())
        .unwrap_or_default();
    if ahead > CLOCK_AHEAD_MAX {
        let found = format!(
            "{} s behind the newest file in the data directory",
            ahead.as_secs()
        );
        return Finding::warn(
            NAME,
            found,
            "it was set back: switch on NTP, and expect sessions to last longer",
        );
    }
    Finding::ok(NAME, format!("plausible, {seconds} s since 1970"))
}
