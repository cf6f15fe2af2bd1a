//! Kinds of znodes. A server does not tell clients whether a znode is a container or has a TTL.
//!
//! Patterns of the user say so, or a snapshot file of the source. Snapshots hold the kind in
//! `ephemeralOwner`, where the replies to clients hold zero.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use flate2::bufread::GzDecoder;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// The longest TTL of ZooKeeper, in milliseconds.
const TTL_MS_MAX: i64 = (1 << 40) - 1;
/// The longest text in a snapshot. Paths fit into packets, which are shorter.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Whether the end of something else ends a znode. Ephemeral ones are not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Persistent,
    /// Goes after its last child.
    Container,
    /// Goes when nothing changed it for these milliseconds.
    Ttl(i64),
}

impl Kind {
    /// The kind for an `ephemeralOwner`. `None` for an ephemeral znode.
    pub(super) fn of_owner(owner: i64) -> Option<Self> {
        match owner {
            0 => Some(Self::Persistent),
            i64::MIN => Some(Self::Container),
            owner if owner >> 40 == -1 << 16 => Some(Self::Ttl(owner & TTL_MS_MAX)),
            _ => None,
        }
    }
}

/// How the kinds of znodes are found.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Create missing znodes with these paths as containers, as in /locks/*; `**` stands for any levels. May be repeated
    #[arg(long, value_name = "PATTERN")]
    containers: Vec<Pattern>,
    /// Create missing znodes with these paths with a TTL in milliseconds, as in /sessions/*=60000. May be repeated
    #[arg(long, value_name = "PATTERN=MS")]
    ttl: Vec<TtlPattern>,
    /// Learn containers and TTLs from this snapshot file of the source ZooKeeper (version-2/snapshot.* in its dataDir)
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
}

impl Options {
    pub(super) fn kinds(&self) -> anyhow::Result<Kinds> {
        let containers = self.containers.iter();
        let containers = containers.map(|pattern| (pattern.clone(), Kind::Container));
        let ttl = self.ttl.iter();
        let ttl = ttl.map(|TtlPattern(pattern, ms)| (pattern.clone(), Kind::Ttl(*ms)));
        let known = match &self.snapshot {
            None => BTreeMap::new(),
            Some(file) => {
                read_file(file).with_context(|| format!("--snapshot {}", file.display()))?
            }
        };
        Ok(Kinds {
            patterns: containers.chain(ttl).collect(),
            known,
        })
    }
}

/// The kinds of the source's znodes, as far as they are known.
#[derive(Debug)]
pub(super) struct Kinds {
    patterns: Vec<(Pattern, Kind)>,
    known: BTreeMap<String, Kind>,
}

impl Kinds {
    /// Patterns come first, then the snapshot, then what the server said.
    pub(super) fn of(&self, path: &str, said: Kind) -> Kind {
        let mut patterns = self.patterns.iter();
        let matching = patterns.find(|(pattern, _)| pattern.matches(path));
        let kind = matching.map(|(_, kind)| *kind);
        kind.or_else(|| self.known.get(path).copied())
            .unwrap_or(said)
    }
}

/// A path with `*` for any text without a slash, and `**` for any levels, as in `.gitignore`.
#[derive(Debug, Clone)]
struct Pattern(Gitignore);

impl Pattern {
    fn matches(&self, path: &str) -> bool {
        // It counts nothing as a match for the root itself.
        path != "/" && self.0.matched(Path::new(path), false).is_ignore()
    }
}

impl FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let is_path = text.starts_with('/') && !text.ends_with('/');
        ensure!(is_path, "give a path from the root, as in /locks/*");
        let mut builder = GitignoreBuilder::new("/");
        builder.add_line(None, text)?;
        Ok(Self(builder.build()?))
    }
}

#[derive(Debug, Clone)]
struct TtlPattern(Pattern, i64);

impl FromStr for TtlPattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts = text.rsplit_once('=');
        let parts = parts.and_then(|(pattern, ms)| Some((pattern, ms.parse().ok()?)));
        match parts {
            Some((pattern, ms)) if (1..=TTL_MS_MAX).contains(&ms) => Ok(Self(pattern.parse()?, ms)),
            _ => bail!("give PATTERN=MS, with 1 to {TTL_MS_MAX} milliseconds"),
        }
    }
}

/// The containers and TTL znodes in a snapshot file.
fn read_file(path: &Path) -> anyhow::Result<BTreeMap<String, Kind>> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let read = if file.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        read_snapshot(BufReader::new(GzDecoder::new(file)))
    } else {
        read_snapshot(file)
    };
    read.context("it is not a whole snapshot of ZooKeeper (plain or gzip)")
}

pub(super) fn read_snapshot(mut snapshot: impl Read) -> anyhow::Result<BTreeMap<String, Kind>> {
    let from = &mut snapshot;
    ensure!(&array(from)? == b"ZKSN", "it begins otherwise");
    skip(from, 4 + 8)?; // version, database
    let sessions = int(from)?;
    skip(from, i64::from(sessions) * 12)?;
    for _acl in 0..int(from)? {
        skip(from, 8)?;
        for _grant in 0..int(from)? {
            skip(from, 4)?;
            text(from)?;
            text(from)?;
        }
    }
    let mut kinds = BTreeMap::new();
    loop {
        let path = text(from)?;
        // The root has an empty path.
        if path == "/" {
            return Ok(kinds);
        }
        let data = int(from)?;
        skip(from, i64::from(data.max(0)))?;
        skip(from, 8 + 4 * 8 + 3 * 4)?; // ACL, czxid to mtime, versions
        match Kind::of_owner(i64::from_be_bytes(array(from)?)) {
            Some(Kind::Persistent) | None => {}
            Some(kind) => drop(kinds.insert(path, kind)),
        }
        skip(from, 8)?; // pzxid
    }
}

fn array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn int(from: &mut impl Read) -> io::Result<i32> {
    Ok(i32::from_be_bytes(array(from)?))
}

fn text(from: &mut impl Read) -> anyhow::Result<String> {
    let length = usize::try_from(int(from)?).ok();
    let length = length.filter(|length| *length <= TEXT_BYTES_MAX);
    let length = length.context("it has a text of an impossible length")?;
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    ensure!(bytes.len() == length, "it ends within a text");
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn skip(from: &mut impl Read, bytes: i64) -> anyhow::Result<()> {
    let bytes = u64::try_from(bytes).context("it has a count below zero")?;
    let skipped = io::copy(&mut from.take(bytes), &mut io::sink())?;
    ensure!(skipped == bytes, "it ends early");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_in_the_owner() {
        assert_eq!(Kind::of_owner(0), Some(Kind::Persistent));
        assert_eq!(Kind::of_owner(i64::MIN), Some(Kind::Container));
        let ttl = 0xff00_0000_0000_ea60_u64 as i64;
        assert_eq!(Kind::of_owner(ttl), Some(Kind::Ttl(60_000)));
        assert_eq!(Kind::of_owner(0x0100_0000_0000_0001), None);
    }

    #[test]
    fn a_pattern_matches_whole_paths_from_the_root() {
        let options = Options {
            containers: vec!["/locks/*".parse().expect("a pattern")],
            ttl: vec!["/a/**/t=5".parse().expect("a pattern")],
            snapshot: None,
        };
        let kinds = options.kinds().expect("kinds");
        for (path, kind) in [
            ("/", Kind::Persistent),
            ("/locks", Kind::Persistent),
            ("/locks/a", Kind::Container),
            ("/locks/a/b", Kind::Persistent),
            ("/x/locks/a", Kind::Persistent),
            ("/a/t", Kind::Ttl(5)),
            ("/a/b/c/t", Kind::Ttl(5)),
        ] {
            assert_eq!(kinds.of(path, Kind::Persistent), kind, "{path}");
        }
        for wrong in ["locks", "/a/", ""] {
            Pattern::from_str(wrong).expect_err(wrong);
        }
        for wrong in ["/a", "/a=", "/a=0", "/a=1099511627776"] {
            TtlPattern::from_str(wrong).expect_err(wrong);
        }
    }

    /// A snapshot of one session, one ACL, the root and a container.
    fn snapshot() -> Vec<u8> {
        let mut bytes = b"ZKSN\0\0\0\x02\0\0\0\0\0\0\0\0".to_vec();
        let sized = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend_from_slice(&(text.len() as i32).to_be_bytes());
            bytes.extend_from_slice(text.as_bytes());
        };
        bytes.extend_from_slice(&[0, 0, 0, 1]);
        bytes.extend_from_slice(&[0; 12]);
        bytes.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 31]);
        sized(&mut bytes, "world");
        sized(&mut bytes, "anyone");
        for (path, owner) in [("", 0), ("/c", i64::MIN)] {
            sized(&mut bytes, path);
            sized(&mut bytes, "data");
            bytes.extend_from_slice(&[0; 52]);
            bytes.extend_from_slice(&owner.to_be_bytes());
            bytes.extend_from_slice(&[0; 8]);
        }
        sized(&mut bytes, "/");
        bytes
    }

    #[test]
    fn a_snapshot_names_its_containers_and_a_damaged_one_is_refused() {
        let whole = snapshot();
        let kinds = read_snapshot(&whole[..]).expect("a snapshot");
        assert_eq!(
            kinds.into_iter().collect::<Vec<_>>(),
            [("/c".to_owned(), Kind::Container)]
        );
        for length in 0..whole.len() {
            read_snapshot(&whole[..length]).expect_err("it is not whole");
        }
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] = 0x80;
            // It may be accepted, but it must end.
            let _ = read_snapshot(&damaged[..]);
        }
    }
}
