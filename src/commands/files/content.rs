//! The commands that copy the content of files in and out, in parts of bounded length.

use std::{
    fs::File,
    io::{self, Read as _, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Args;

use super::entries::Place;
use crate::commands::{
    print_bytes,
    request::{Request, segment},
};

/// The bytes of one request, at most.
const PART_BYTES: usize = 16 << 20;
/// The time for one part.
const PART_WAIT_MAX: Duration = Duration::from_mins(1);

/// The file to print.
#[derive(Debug, Args)]
pub(crate) struct Cat {
    #[command(flatten)]
    place: Place,
    /// As it was when this snapshot was taken
    #[arg(long)]
    snapshot: Option<String>,
}

/// The file to copy out.
#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    place: Place,
    /// The file to write; one that is there is replaced
    file: PathBuf,
    /// As it was when this snapshot was taken
    #[arg(long)]
    snapshot: Option<String>,
}

/// The file to copy in.
#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The file to read, or `-` for stdin
    file: PathBuf,
    #[command(flatten)]
    place: Place,
}

impl Cat {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut ended = ExitCode::SUCCESS;
        read(&self.place, self.snapshot.as_deref(), |part| {
            ended = print_bytes(part)?;
            Ok(())
        })?;
        Ok(ended)
    }
}

impl Get {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let file = &self.file;
        let unwritable = || format!("{} cannot be written", file.display());
        let mut written: Option<File> = None;
        read(&self.place, self.snapshot.as_deref(), |part| {
            // A file that is missing in the volume leaves nothing here.
            let written = match &mut written {
                Some(written) => written,
                None => written.insert(File::create(file).with_context(unwritable)?),
            };
            written.write_all(part).with_context(unwritable)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Gives the content of a file to `take`, part by part; an empty file is one empty part.
fn read(
    place: &Place,
    snapshot: Option<&str>,
    mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let snapshot = snapshot.map(|snapshot| format!("?snapshot={}", segment(snapshot)));
    let path = format!("{}{}", place.url(), snapshot.unwrap_or_default());
    let (mut first, mut etag) = (0_u64, None::<String>);
    loop {
        let range = format!("bytes={first}-{}", first + PART_BYTES as u64 - 1);
        let mut headers = vec![("Range", range.as_str())];
        headers.extend(etag.as_deref().map(|etag| ("If-Match", etag)));
        let request = Request {
            headers: &headers,
            wait_max: PART_WAIT_MAX,
            answer_bytes_max: PART_BYTES,
            ..Request::get(&path)
        };
        let answer = place.volume.target.ask(&request)?;
        if answer.status == 416 && first == 0 {
            return take(&[]);
        }
        if answer.status == 412 {
            bail!("{path} was changed while it was read: read it again, or read a snapshot");
        }
        let answer = answer.accepted(&place.volume.target, &path)?;
        take(&answer.body)?;
        first += answer.body.len() as u64;
        let size = answer.header("content-range").and_then(|range| {
            let (_, size) = range.split_once('/')?;
            size.parse::<u64>().ok()
        });
        let size = size.context("the answer is no part of a file")?;
        if first >= size {
            return Ok(());
        }
        etag = answer.header("etag").map(str::to_owned);
    }
}

impl Put {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        if self.file.as_os_str() == "-" {
            return self.copy(&mut io::stdin().lock());
        }
        let file = &self.file;
        let mut opened =
            File::open(file).with_context(|| format!("{} cannot be read", file.display()))?;
        self.copy(&mut opened)
    }

    /// A long file is written beside its place first, and then renamed to it.
    fn copy(&self, source: &mut impl io::Read) -> anyhow::Result<ExitCode> {
        let first = part_of(source)?;
        let url = self.place.url();
        if first.len() < PART_BYTES {
            self.send("PUT", &url, &first)?;
            return Ok(ExitCode::SUCCESS);
        }
        let beside = self.place.beside(|name| {
            let process = std::process::id();
            let name = &name[..name.floor_char_boundary(200)];
            format!(".{name}.put-{process}")
        });
        let copied = self.copy_rest(source, first, &beside.url);
        if copied.is_err() {
            // The name of the rest shows that it is no whole file, so a failure here does not
            // matter.
            let _ = self.place.change("DELETE", &beside.url);
        }
        copied?;
        let renamed = format!("{}?rename-to={}", beside.url, self.place.parameter());
        self.place.change("POST", &renamed)
    }

    fn copy_rest(
        &self,
        source: &mut impl io::Read,
        first: Vec<u8>,
        url: &str,
    ) -> anyhow::Result<()> {
        let (mut part, mut offset) = (first, 0);
        self.send("PUT", url, &part)?;
        loop {
            offset += part.len();
            part = part_of(source)?;
            if part.is_empty() {
                return Ok(());
            }
            self.send("PUT", &format!("{url}?offset={offset}"), &part)?;
        }
    }

    fn send(&self, method: &str, path: &str, part: &[u8]) -> anyhow::Result<()> {
        let request = Request {
            method,
            body: part,
            wait_max: PART_WAIT_MAX,
            ..Request::get(path)
        };
        self.place.volume.target.send(&request)?;
        Ok(())
    }
}

/// The next bytes of a file, fewer than [`PART_BYTES`] only at its end.
fn part_of(source: &mut impl io::Read) -> anyhow::Result<Vec<u8>> {
    let mut part = Vec::new();
    let mut limited = source.take(PART_BYTES as u64);
    limited
        .read_to_end(&mut part)
        .context("the file cannot be read")?;
    Ok(part)
}
