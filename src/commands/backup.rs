//! `landfast backup` and `landfast restore`: the whole store in one file, and back.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, ensure};
use clap::Args;
use embedded::backup::{self as store, Contents, Target as Place};

use super::{print, print_aside, progress, request::Target, runtime};
use crate::{
    backups,
    provider::NamedObjects,
    settings::{ObjectSettings, Places},
    wiring::QuietStore,
};

/// The argument that stands for stdin or stdout.
const STANDARD: &str = "-";
/// The end of the name of a file that is not complete yet.
const UNFINISHED: &str = ".part";

/// The backup to take.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The file to write, which must not exist; - for stdout
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Open the data directory instead of asking a server, which must not run
    #[arg(long)]
    offline: bool,
    /// Read an existing FILE, check everything in it, and write nothing
    #[arg(long, conflicts_with = "offline")]
    verify: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    places: Places,
}

/// The backup to restore.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The file to read; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Read and check FILE, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    places: Places,
}

impl Backup {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        if self.verify {
            let contents = verified(&self.file)?;
            return report("verified", &contents, self.json, print);
        }
        if self.file == Path::new(STANDARD) {
            let contents = self.take(&mut io::stdout().lock())?;
            let aside = |text: &str| {
                print_aside(text);
                Ok(ExitCode::SUCCESS)
            };
            return report("backed up", &contents, self.json, aside);
        }
        let named = self.file.display();
        ensure!(
            fs::symlink_metadata(&self.file).is_err(),
            "{named} is there: choose another name, or remove it"
        );
        let mut part = OsString::from(&self.file);
        part.push(UNFINISHED);
        let part = PathBuf::from(part);
        let mut file = begin(&part).with_context(|| part.display().to_string())?;
        let taken = self.take(&mut file).and_then(|contents| {
            file.sync_all()?;
            Ok(contents)
        });
        let contents = taken
            .with_context(|| part.display().to_string())
            .and_then(|contents| {
                let renamed = rename_to_new(&part, &self.file);
                renamed.with_context(|| format!("rename {} to {named}", part.display()))?;
                Ok(contents)
            })
            .inspect_err(|_| {
                let _ = fs::remove_file(&part);
            })?;
        let above = self.file.parent().filter(|above| *above != Path::new(""));
        let synced = File::open(above.unwrap_or(Path::new("."))).and_then(|above| above.sync_all());
        synced.with_context(|| named.to_string())?;
        report("backed up", &contents, self.json, print)
    }

    fn take(&self, out: &mut dyn Write) -> anyhow::Result<Contents> {
        let bar = progress::bytes(None);
        if self.offline {
            return self.take_offline(&mut bar.wrap_write(out));
        }
        let body = self.target.stream("/v1/backup")?;
        let contents = store::verify(bar.wrap_read(Tee { body, out }))?;
        bar.finish_and_clear();
        Ok(contents)
    }

    fn take_offline(&self, out: &mut dyn Write) -> anyhow::Result<Contents> {
        let settings = self.places.settle()?;
        let runtime = runtime()?;
        // Its start refuses objects that are not those of the store.
        let store = runtime.block_on(QuietStore::open(&settings, false))?;
        let beside = runtime.block_on(async {
            store.require_objects(&settings).await?;
            let named = NamedObjects::open(&settings).await?;
            backups::beside(&settings, named.as_ref(), None).await
        });
        let taken = beside.and_then(|beside| {
            // A thread of the runtime's own could not wait for the runtime.
            let _entered = runtime.enter();
            store.provider().back_up(&beside, out)
        });
        runtime.block_on(store.close());
        taken
    }
}

impl Restore {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        if self.dry_run {
            let contents = verified(&self.file)?;
            return report("verified", &contents, self.json, print);
        }
        let settings = self.places.settle()?;
        let named = match settings.objects {
            Some(ObjectSettings::Directory(directory)) => Some(directory),
            _ => None,
        };
        let place = Place {
            data_dir: settings.data_dir,
            named,
        };
        let is_standard = self.file == Path::new(STANDARD);
        if !is_standard {
            // Damage is found before anything is written.
            verified(&self.file)?;
        }
        let contents = read(&self.file, |input| store::restore(input, &place))?;
        report("restored", &contents, self.json, print)
    }
}

/// Creates the file of a backup that is not complete, and locks it until it is closed. It takes the place
/// of one that an interrupted backup has left.
fn begin(part: &Path) -> anyhow::Result<File> {
    let lock = |file: &File, is_new| {
        let is_ours = store::is_locked_here(file, part, is_new);
        let advice = "another backup writes it: wait for its end, or remove it if none runs";
        is_ours.then_some(()).context(advice)
    };
    let created = match create(part) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let leftover = OpenOptions::new().read(true).write(true).open(part)?;
            lock(&leftover, false)?;
            ensure!(
                store::is_begun(&leftover)?,
                "it is there, and is not of a backup: choose another FILE, or remove it"
            );
            // Its content stays: an interrupted rename has left it under the name of a complete
            // backup too.
            fs::remove_file(part)?;
            create(part)?
        }
        created => created?,
    };
    lock(&created, true)?;
    Ok(created)
}

fn create(part: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Everything that the store holds is in it.
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    options.open(part)
}

/// Errors: there is a file of that name. It is not replaced.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        // The file system has no links.
        Err(error)
            if error.kind() != io::ErrorKind::AlreadyExists
                && fs::symlink_metadata(to).is_err() =>
        {
            fs::rename(from, to)
        }
        Err(error) => Err(error),
    }
}

fn verified(file: &Path) -> anyhow::Result<Contents> {
    read(file, |input| store::verify(input))
}

/// The result of reading the file or stdin.
fn read(
    file: &Path,
    act: impl FnOnce(&mut dyn Read) -> Result<Contents, store::BackupError>,
) -> anyhow::Result<Contents> {
    let named = || file.display().to_string();
    let (mut input, bytes): (Box<dyn Read>, _) = if file == Path::new(STANDARD) {
        (Box::new(io::stdin().lock()), None)
    } else {
        let opened = File::open(file).with_context(named)?;
        let bytes = opened.metadata().with_context(named)?.len();
        (Box::new(opened), Some(bytes))
    };
    let bar = progress::bytes(bytes);
    let contents = act(&mut bar.wrap_read(&mut input)).with_context(named)?;
    bar.finish_and_clear();
    Ok(contents)
}

/// Reads from the server, and writes what it read.
struct Tee<'out, R> {
    body: R,
    out: &'out mut dyn Write,
}

impl<R: Read> Read for Tee<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.body.read(buffer)?;
        let written = self.out.write_all(&buffer[..count]);
        written.map_err(|error| io::Error::new(error.kind(), format!("the file: {error}")))?;
        if count == 0 {
            self.out.flush()?;
        }
        Ok(count)
    }
}

fn report(
    done: &str,
    contents: &Contents,
    json: bool,
    print: impl Fn(&str) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    if json {
        return print(&format!("{}\n", serde_json::to_string(contents)?));
    }
    let Contents {
        records,
        objects,
        object_bytes,
        bytes,
        ..
    } = contents;
    let left_out = contents.absent_at.as_ref().map(|place| {
        let count = contents.absent_objects;
        format!("{count} objects in {place} are needed and not inside: keep them there, or copy them too\n")
    });
    let text = format!(
        "{done} {records} records and {objects} objects ({object_bytes} bytes): {bytes} bytes in the file\n{}",
        left_out.unwrap_or_default()
    );
    print(&text)
}
