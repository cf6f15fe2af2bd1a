//! Latency of single calls on files of 1 KiB.
//!
//! *Cached*: the same mount made the call on the same file before. *Uncached*: the other mount made
//! the file, this one never saw it, and the kernel's caches were dropped. *Remote*: the other mount
//! has just changed the file. *In a transaction*: this program makes the cached calls again under
//! `landfast files exec`, on its mount or with its preload library.

use std::{
    fs::{self, File, OpenOptions},
    io::{Seek as _, SeekFrom},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    content::FileId,
    functions::Server,
    functions::VOLUME,
    report::{Figures, Part},
    targets::{Target, drop_caches},
};

const FILE_BYTES: usize = 1024;
/// Entries of the directory that is listed.
const LISTED: usize = 100;

/// Calls that are no matter of a cache.
const KERNEL_OR_DISK: [&str; 3] = ["lseek", "fsync of 1 KiB", "close"];
/// How a program gets into a transaction, with the options of `exec`.
const WAYS: [(&str, &[&str]); 2] = [
    ("in a transaction", &[]),
    ("in a transaction by the library", &["--preload"]),
];

/// The times of calls, each with its name.
type Times = Vec<(String, Vec<Duration>)>;

/// How many calls of each kind.
#[derive(Debug, Clone, Copy)]
pub struct Calls {
    /// Cached ones, creates and unlinks.
    pub cached: usize,
    /// Uncached ones, remote ones and fsyncs.
    pub uncached: usize,
}

impl Calls {
    /// As many as a whole run makes.
    pub const ALL: Self = Self {
        cached: 5000,
        uncached: 500,
    };
    /// As many as a quick run makes.
    pub const QUICK: Self = Self {
        cached: 1000,
        uncached: 100,
    };
}

/// Measures all calls.
pub fn measure(target: &Target, calls: Calls) -> Result<Figures> {
    let mut figures = Figures::new(Part::Operations, target.kind);
    let directories = target.directory("operations")?;
    for (case, times) in cached(&directories[0], calls)? {
        let suffix = if KERNEL_OR_DISK.contains(&case.as_str()) {
            ""
        } else {
            ", cached"
        };
        figures.push_times(&format!("{case}{suffix}"), times);
    }
    if let Some(server) = &target.server {
        for (way, options) in WAYS {
            match in_transaction(server, options, calls) {
                Ok(all) => all.into_iter().for_each(|(case, times)| {
                    figures.push_times(&format!("{case}, {way}"), times);
                }),
                Err(error) => eprintln!("no figures {way}: {error:#}"),
            }
        }
    }
    uncached(&directories, calls, &mut figures)?;
    remote(&directories, calls, &mut figures)?;
    names(&directories[0], calls, &mut figures)?;
    target.remove("operations")?;
    Ok(figures)
}

fn id(number: usize) -> FileId {
    FileId {
        number: number as u32,
        generation: 0,
    }
}

fn make(path: &Path, id: FileId) -> Result<()> {
    let mut content = [0; FILE_BYTES];
    id.fill(&mut content, 0);
    fs::write(path, content).with_context(|| path.display().to_string())
}

fn timed<T>(times: &mut Vec<Duration>, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = call();
    times.push(begun.elapsed());
    result
}

/// Makes the cached calls, and prints their times for [`in_transaction`].
pub fn print_cached(directory: &Path, calls: Calls) -> Result<()> {
    println!("{}", serde_json::to_string(&cached(directory, calls)?)?);
    Ok(())
}

/// The cached calls in one transaction that commits.
fn in_transaction(server: &Server, options: &[&str], calls: Calls) -> Result<Times> {
    let at = Path::new("/mnt").join(VOLUME);
    let mut command = Command::new(&server.program);
    command.args(["files", "exec", VOLUME]).args(options);
    command.arg("--data-dir").arg(&server.data).arg("--");
    command.arg(std::env::current_exe()?);
    command.arg("--cached-calls-in").arg(at.join("operations"));
    command.args((calls.cached < Calls::ALL.cached).then_some("--quick"));
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "landfast files exec: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn cached(directory: &Path, calls: Calls) -> Result<Times> {
    let path = directory.join("cached");
    make(&path, id(1))?;
    let mut buffer = [0; FILE_BYTES];
    let (mut opens, mut closes, mut stats) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..calls.cached {
        let file = timed(&mut opens, || File::open(&path))?;
        timed(&mut closes, || drop(file));
        timed(&mut stats, || fs::metadata(&path))?;
    }
    let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
    let (mut seeks, mut reads, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..calls.cached {
        timed(&mut seeks, || file.seek(SeekFrom::Start(0)))?;
        let read = timed(&mut reads, || file.read_at(&mut buffer, 0))?;
        ensure!(
            read == FILE_BYTES && id(1).is_in(&buffer, 0),
            "a cached read returned other content"
        );
    }
    // Reads and writes in turns would measure the invalidation of one by the other.
    for _ in 0..calls.cached {
        timed(&mut writes, || file.write_at(&buffer, 0))?;
    }
    let mut syncs = Vec::new();
    for _ in 0..calls.uncached {
        file.write_all_at(&buffer, 0)?;
        timed(&mut syncs, || file.sync_all())?;
    }
    let times = [
        ("open", opens),
        ("lseek", seeks),
        ("pread", reads),
        ("pwrite", writes),
        ("fsync of 1 KiB", syncs),
        ("close", closes),
        ("stat", stats),
    ];
    Ok(times.map(|(case, times)| (case.to_owned(), times)).into())
}

fn uncached(directories: &[PathBuf; 2], calls: Calls, figures: &mut Figures) -> Result<()> {
    for number in 0..calls.uncached {
        make(&directories[0].join(format!("u{number}")), id(number))?;
        make(&directories[0].join(format!("s{number}")), id(number))?;
    }
    drop_caches();
    let mut buffer = [0; FILE_BYTES];
    let (mut opens, mut reads) = (Vec::new(), Vec::new());
    let (mut writes, mut stats) = (Vec::new(), Vec::new());
    for number in 0..calls.uncached {
        let path = directories[1].join(format!("u{number}"));
        let mut options = OpenOptions::new();
        let file = timed(&mut opens, || options.read(true).write(true).open(&path))?;
        let read = timed(&mut reads, || file.read_at(&mut buffer, 0))?;
        ensure!(
            read == FILE_BYTES && id(number).is_in(&buffer, 0),
            "an uncached read returned other content"
        );
        timed(&mut writes, || file.write_at(&buffer[..512], 256))?;
        let path = directories[1].join(format!("s{number}"));
        timed(&mut stats, || fs::metadata(&path))?;
    }
    figures.push_times("open, uncached", opens);
    figures.push_times("pread, uncached", reads);
    figures.push_times("pwrite of 512 bytes, first", writes);
    figures.push_times("stat, uncached", stats);
    Ok(())
}

/// Also counts the answers that lack the change of the other mount.
fn remote(directories: &[PathBuf; 2], calls: Calls, figures: &mut Figures) -> Result<()> {
    let [here, there] = [0, 1].map(|mount: usize| directories[mount].join("remote"));
    make(&here, id(0))?;
    let writer = OpenOptions::new().write(true).open(&here)?;
    let reader = File::open(&there)?;
    let mut buffer = [0; FILE_BYTES];
    let (mut reads, mut stats) = (Vec::new(), Vec::new());
    let (mut stale_reads, mut stale_stats) = (0, 0);
    for number in 1..=calls.uncached {
        id(number).fill(&mut buffer, 0);
        writer.write_all_at(&buffer, 0)?;
        writer.set_len((FILE_BYTES + number) as u64)?;
        let read = timed(&mut reads, || reader.read_at(&mut buffer, 0))?;
        let attributes = timed(&mut stats, || fs::metadata(&there))?;
        let is_new = read == FILE_BYTES && id(number).is_in(&buffer, 0);
        stale_reads += u32::from(!is_new);
        stale_stats += u32::from(attributes.len() != (FILE_BYTES + number) as u64);
    }
    let percent = |stale: u32| f64::from(stale) * 100.0 / calls.uncached as f64;
    for (case, times, stale) in [
        ("pread after a remote write", reads, stale_reads),
        ("stat after a remote write", stats, stale_stats),
    ] {
        figures.push_times(case, times);
        figures.push(case, "stale %", percent(stale));
    }
    Ok(())
}

fn names(directory: &Path, calls: Calls, figures: &mut Figures) -> Result<()> {
    let listed = directory.join("listed");
    fs::create_dir(&listed)?;
    for number in 0..LISTED {
        File::create(listed.join(format!("n{number}")))?;
    }
    let mut lists = Vec::new();
    for _ in 0..calls.uncached {
        let entries = timed(&mut lists, || fs::read_dir(&listed).map(Iterator::count))?;
        ensure!(
            entries == LISTED,
            "{entries} entries of {LISTED} are listed"
        );
    }
    let made = directory.join("made");
    fs::create_dir(&made)?;
    let path = |number| made.join(format!("n{number}"));
    let (mut creates, mut renames, mut unlinks) = (Vec::new(), Vec::new(), Vec::new());
    let (mut makes, mut removes) = (Vec::new(), Vec::new());
    for number in 0..calls.uncached {
        timed(&mut creates, || File::create_new(path(number)))?;
    }
    for number in 0..calls.uncached {
        let (from, to) = (path(number), made.join(format!("m{number}")));
        timed(&mut renames, || fs::rename(&from, &to))?;
        timed(&mut unlinks, || fs::remove_file(&to))?;
    }
    for number in 0..calls.uncached {
        timed(&mut makes, || fs::create_dir(path(number)))?;
        timed(&mut removes, || fs::remove_dir(path(number)))?;
    }
    figures.push_times("readdir of 100 entries", lists);
    figures.push_times("create", creates);
    figures.push_times("rename", renames);
    figures.push_times("unlink", unlinks);
    figures.push_times("mkdir", makes);
    figures.push_times("rmdir", removes);
    Ok(())
}
