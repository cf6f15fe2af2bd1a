use std::{fs, io::Write as _};

use flate2::{Compression, write::GzEncoder};
use proptest::{collection::vec, prelude::*, sample::select};
use tar::Header;
use tempfile::TempDir;

use super::*;

/// One entry of an archive, valid or not.
#[derive(Debug, Clone)]
struct Piece {
    kind: EntryType,
    path: Vec<u8>,
    link: Vec<u8>,
    content: Vec<u8>,
    /// The size in its header, if that differs from its content's.
    claims: Option<u64>,
}

impl Piece {
    fn new(kind: EntryType, path: &str, link: &str, content: &[u8]) -> Self {
        let (path, link, content) = (path.into(), link.into(), content.to_owned());
        Self {
            kind,
            path,
            link,
            content,
            claims: None,
        }
    }

    fn file(path: &str) -> Self {
        Self::new(EntryType::Regular, path, "", b"content")
    }

    fn link(path: &str, to: &str) -> Self {
        Self::new(EntryType::Symlink, path, to, b"")
    }

    fn folder(path: &str) -> Self {
        Self::new(EntryType::Directory, path, "", b"")
    }

    /// Its bytes in the tar file. Names that are too long for its header come before it.
    fn write(&self, tape: &mut Vec<u8>) {
        for (kind, long) in [
            (EntryType::GNULongName, &self.path),
            (EntryType::GNULongLink, &self.link),
        ] {
            if long.len() > 100 {
                let content = [long.as_slice(), b"\0"].concat();
                Self {
                    kind,
                    path: b"long".into(),
                    link: Vec::new(),
                    content,
                    claims: None,
                }
                .write(tape);
            }
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(self.kind);
        header.set_mode(0o6755);
        header.set_size(self.claims.unwrap_or(self.content.len() as u64));
        let old = header.as_old_mut();
        let fill = |place: &mut [u8; 100], bytes: &[u8]| {
            let length = bytes.len().min(100);
            place[..length].copy_from_slice(&bytes[..length]);
        };
        fill(&mut old.name, &self.path);
        fill(&mut old.linkname, &self.link);
        header.set_cksum();
        tape.extend_from_slice(header.as_bytes());
        tape.extend_from_slice(&self.content);
        tape.resize(tape.len().next_multiple_of(512), 0);
    }
}

fn archive(pieces: &[Piece]) -> Vec<u8> {
    let mut tape = Vec::new();
    for piece in pieces {
        piece.write(&mut tape);
    }
    tape.resize(tape.len() + 1024, 0);
    compressed(&tape)
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .expect("written")
}

/// Unpacks beside a file that must not change, and checks the rules that hold for every archive.
fn unpacked(content: &[u8]) -> (TempDir, io::Result<()>) {
    let home = tempfile::tempdir().expect("a directory");
    let inside = home.path().join("inside");
    fs::create_dir_all(home.path().join("beside/a")).expect("made");
    fs::create_dir(&inside).expect("made");
    fs::write(home.path().join("beside/canary"), "sings").expect("written");
    let outcome = unpack(content, &inside);
    let mut beside: Vec<_> = walk(home.path());
    beside.retain(|path| !path.starts_with(&inside));
    assert_eq!(beside.len(), 4, "something was made beside: {beside:?}");
    assert_eq!(
        fs::read(home.path().join("beside/canary")).expect("read"),
        b"sings"
    );
    let root = inside.canonicalize().expect("there");
    for path in walk(&inside) {
        let kind = fs::symlink_metadata(&path).expect("there").file_type();
        assert!(
            kind.is_file() || kind.is_dir() || kind.is_symlink(),
            "{path:?} is {kind:?}"
        );
        if let Ok(leads) = path.canonicalize() {
            assert!(leads.starts_with(&root), "{path:?} leads to {leads:?}");
        }
    }
    if let Err(error) = &outcome {
        let is_the_archives = matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof
        );
        assert!(is_the_archives, "{error:?}");
    }
    (home, outcome)
}

/// All paths below a folder, and itself, without following links.
fn walk(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    if fs::symlink_metadata(path).expect("there").is_dir() {
        for entry in fs::read_dir(path).expect("listed") {
            all.extend(walk(&entry.expect("an entry").path()));
        }
    }
    all
}

fn refusal(pieces: &[Piece]) -> String {
    unpacked(&archive(pieces))
        .1
        .expect_err("it is refused")
        .to_string()
}

#[test]
fn files_folders_and_links_are_put_where_they_say_they_lie() {
    let long = format!("code/{}/{}", "d".repeat(90), "f".repeat(90));
    let pieces = [
        Piece::folder("code/"),
        Piece::file("code/app.py"),
        Piece::file(&long),
        Piece::link("code/bin/tool", "../app.py"),
        Piece::link("code/latest", "bin"),
        Piece::folder("code"),
        Piece::file("./code/./other.py"),
    ];
    let (home, outcome) = unpacked(&archive(&pieces));
    outcome.expect("nothing is wrong with it");
    let read =
        |path: &str| fs::read_to_string(home.path().join("inside").join(path)).expect("there");
    for path in ["code/app.py", &long, "code/latest/tool", "code/other.py"] {
        assert_eq!(read(path), "content", "{path}");
    }
    let mode = fs::metadata(home.path().join("inside/code/app.py"))
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o755, "nothing runs as another user");
}

#[test]
fn entries_that_lie_or_lead_outside_are_refused() {
    for pieces in [
        vec![Piece::file("../outside")],
        vec![Piece::file("/tmp/outside")],
        vec![Piece::file("a/../../outside")],
        vec![Piece::link("link", "/etc/passwd")],
        vec![Piece::link("a/link", "../../x")],
        vec![Piece::link("link", "")],
        // Its folder is a link that leads up.
        vec![
            Piece::link("d/up", ".."),
            Piece::link("d/up/out", "../beside"),
            Piece::folder("out/made"),
        ],
        // Up again after a name that is a link.
        vec![
            Piece::link("here", "."),
            Piece::link("out", "here/../beside"),
            Piece::folder("out/made"),
        ],
        // The same with names that are too long for a header.
        vec![Piece::file(&format!("{}outside", "../".repeat(60)))],
        vec![Piece::link("link", &"../".repeat(60))],
        // Nothing is put through a link, and nothing replaces one.
        vec![
            Piece::folder("real"),
            Piece::link("via", "real"),
            Piece::file("via/file"),
        ],
        vec![Piece::link("file", "real"), Piece::file("file")],
    ] {
        let said = refusal(&pieces);
        assert!(!said.is_empty(), "{pieces:?}");
    }
}

#[test]
fn a_refusal_names_the_entry_with_a_hint() {
    let said = refusal(&[Piece::link("code/l", "/etc/passwd")]);
    for part in [
        "\"code/l\" to \"/etc/passwd\"",
        "relative path",
        "a copy in its place",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let long = refusal(&[Piece::link("code/l", &"../".repeat(10_000))]);
    assert!(long.len() < 2 * PATH_BYTES_MAX, "{} bytes", long.len());
    let twice = refusal(&[Piece::file("code/a"), Piece::file("code/a")]);
    assert!(twice.contains("\"code/a\""), "{twice}");
    let outside = refusal(&[Piece::file("../a")]);
    assert!(
        outside.contains("\"../a\"") && outside.contains("from the top of the archive"),
        "{outside}"
    );
}

#[test]
fn entries_that_are_neither_file_folder_nor_link_are_refused() {
    for kind in [
        EntryType::Link,
        EntryType::Char,
        EntryType::Block,
        EntryType::Fifo,
        EntryType::GNUSparse,
        EntryType::new(b'Z'),
    ] {
        assert!(
            refusal(&[Piece::new(kind, "x", "/dev/sda", b"")]).contains("is neither"),
            "{kind:?}"
        );
    }
}

#[test]
fn two_of_one_name_and_names_that_no_file_can_have_are_the_archives_fault() {
    let long = "n".repeat(300);
    for (pieces, said) in [
        (
            vec![Piece::file("a"), Piece::file("a")],
            "two entries of one name",
        ),
        (
            vec![Piece::file("a"), Piece::file("a/b")],
            "two entries of one name",
        ),
        (
            vec![Piece::folder("a"), Piece::file("a")],
            "two entries of one name",
        ),
        (vec![Piece::file(&long)], "no file can have"),
        (vec![Piece::file(&"d/".repeat(2000))], "outside"),
        (vec![Piece::file("")], ""),
    ] {
        assert!(refusal(&pieces).contains(said), "{:?}", refusal(&pieces));
    }
}

/// A pax record: `LENGTH KEY=VALUE`.
fn pax(key: &str, value: &str) -> Piece {
    let rest = format!(" {key}={value}\n");
    let length =
        (1..1_000_000).find(|length: &usize| length.to_string().len() + rest.len() == *length);
    let record = format!("{}{rest}", length.expect("some length fits"));
    Piece::new(EntryType::XHeader, "pax", "", record.as_bytes())
}

#[test]
fn pax_headers_obey_the_same_rules() {
    let (home, outcome) = unpacked(&archive(&[pax("path", "named/so"), Piece::file("x")]));
    outcome.expect("nothing is wrong with it");
    assert!(home.path().join("inside/named/so").is_file());
    for pieces in [
        vec![pax("path", "../outside"), Piece::file("x")],
        vec![pax("linkpath", "/etc/passwd"), Piece::link("x", "y")],
        vec![pax("size", "1"), Piece::file("x")],
        vec![pax("GNU.sparse.major", "1"), Piece::file("x")],
        vec![pax("path", "a"), pax("path", "b"), Piece::file("x")],
        vec![
            Piece::new(EntryType::XHeader, "pax", "", b"no record"),
            Piece::file("x"),
        ],
    ] {
        refusal(&pieces);
    }
}

#[test]
fn bombs_of_size_and_count_are_refused_before_they_cost_anything() {
    let mut large = Piece::file("zeros");
    large.claims = Some(UNPACKED_BYTES_MAX + 1);
    assert!(refusal(&[large]).contains("holds more than"));
    let mut comment = Piece::new(EntryType::XGlobalHeader, "g", "", b"");
    comment.claims = Some(UNPACKED_BYTES_MAX + 1);
    assert!(refusal(&[comment]).contains("holds more than"));
    // Many names, with a hundred parent folders each.
    let deep = |number: usize| Piece::folder(&format!("{number}/{}", "d/".repeat(100)));
    let pieces: Vec<_> = (0..20).map(deep).collect();
    let bounds = Bounds {
        bytes: 1 << 20,
        entries: 1000,
    };
    let home = tempfile::tempdir().expect("a directory");
    let refused = unpack_within(&archive(&pieces), home.path(), bounds).expect_err("too many");
    assert!(
        refused.to_string().contains("1000 files and folders"),
        "{refused}"
    );
    assert!(walk(home.path()).len() <= 1001, "more was made than may be");
    let files: Vec<_> = (0..1001)
        .map(|number| Piece::link(&number.to_string(), "x"))
        .collect();
    let home = tempfile::tempdir().expect("a directory");
    unpack_within(&archive(&files[1..]), home.path(), bounds).expect("as many as may be");
    let home = tempfile::tempdir().expect("a directory");
    unpack_within(&archive(&files), home.path(), bounds).expect_err("one more");
}

#[test]
fn a_truncated_archive_is_refused_wherever_it_ends() {
    let mut tape = Vec::new();
    Piece::new(EntryType::Regular, "file", "", &[7; 1500]).write(&mut tape);
    for length in [600, 1023, 1500, 2011] {
        unpacked(&compressed(&tape[..length]))
            .1
            .expect_err("the tape ends within the file");
    }
    let whole = archive(&[Piece::file("file")]);
    for length in 0..whole.len() {
        unpacked(&whole[..length])
            .1
            .expect_err("the compressed bytes end early");
    }
}

fn names() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        6 => select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned),
        2 => select(vec![".", "..", "", "\u{e9}", "beside", "inside"]).prop_map(str::to_owned),
        1 => Just("x".repeat(120)),
    ];
    (any::<bool>(), vec(part, 0..5)).prop_map(|(is_absolute, parts)| {
        let path = parts.join("/");
        if is_absolute && parts.len() % 4 == 0 {
            format!("/{path}")
        } else {
            path
        }
    })
}

fn pieces() -> impl Strategy<Value = Piece> {
    let kind = prop_oneof![
        4 => Just(EntryType::Regular),
        4 => Just(EntryType::Symlink),
        3 => Just(EntryType::Directory),
        1 => any::<u8>().prop_map(EntryType::new),
    ];
    let claims = prop_oneof![8 => Just(None), 1 => any::<u64>().prop_map(Some), 1 => (0_u64..2000).prop_map(Some)];
    (kind, names(), names(), vec(any::<u8>(), 0..700), claims).prop_map(
        |(kind, path, link, content, claims)| {
            let content = if kind == EntryType::Regular {
                content
            } else {
                Vec::new()
            };
            let claims = claims.map(|size| size & ((1 << 33) - 1));
            Piece {
                kind,
                path: path.into(),
                link: link.into(),
                content,
                claims,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn whatever_an_archive_says_nothing_is_made_outside_nor_leads_there(pieces in vec(pieces(), 0..8)) {
        drop(unpacked(&archive(&pieces)));
    }

    #[test]
    fn damage_anywhere_is_refused_or_harmless(pieces in vec(pieces(), 1..4), flips in vec((any::<usize>(), any::<u8>()), 1..6)) {
        let mut tape = Vec::new();
        for piece in pieces {
        piece.write(&mut tape);
    }
        for (place, byte) in flips {
            let place = place % tape.len();
            tape[place] = byte;
        }
        drop(unpacked(&compressed(&tape)));
    }

    #[test]
    fn noise_is_no_archive(noise in vec(any::<u8>(), 0..2000)) {
        drop(unpacked(&noise));
        drop(unpacked(&compressed(&noise)));
    }
}
