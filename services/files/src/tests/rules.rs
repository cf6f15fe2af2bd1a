//! The rules of each call, from its manual page.

use futures_util::FutureExt as _;

use super::*;
use crate::{
    Errno::*,
    Ino, Listing,
    model::{
        Allocation, Follow, Kind, Privileges, RenameMode, Seek, SetAttributes, SetMode, SetTime,
        Time,
    },
};

const ROOT: Ino = Ino::ROOT;

async fn file(files: &FileSystem, text: &str) -> Ino {
    let created = files.create(ROOT, ACCESS, &name(text)).await;
    created.expect("created")
}

async fn directory(files: &FileSystem, parent: Ino, text: &str) -> Ino {
    let made = files.mkdir(parent, ACCESS, &name(text)).await;
    made.expect("made")
}

#[test]
fn names_are_bound_once() {
    simulated::run(async {
        let files = fresh().await;
        let a = file(&files, "a").await;
        let found = files.lookup(ROOT, &name("a")).await.expect("found");
        assert_eq!((found.ino, found.kind), (a, Kind::File));
        assert_eq!(found.access, ACCESS);
        refused(files.create(ROOT, ACCESS, &name("a")).await, EEXIST);
        refused(files.mkdir(ROOT, ACCESS, &name("a")).await, EEXIST);
        refused(files.create(ROOT, ACCESS, &name(".")).await, EEXIST);
        refused(files.create(a, ACCESS, &name("b")).await, ENOTDIR);
        refused(files.create(Ino(9), ACCESS, &name("b")).await, ENOENT);
        refused(files.lookup(ROOT, &name("b")).await, ENOENT);
        refused(files.lookup(a, &name("b")).await, ENOTDIR);
        let long = name(&"x".repeat(256));
        refused(files.create(ROOT, ACCESS, &long).await, ENAMETOOLONG);
        refused(files.lookup(ROOT, &long).await, ENAMETOOLONG);
        file(&files, &"x".repeat(255)).await;
        refused(files.create(ROOT, ACCESS, &name("a/b")).await, EINVAL);
        let bytes = Bytes::from_static(b"\xff\xfe\x01");
        files.create(ROOT, ACCESS, &bytes).await.expect("any bytes");
        let of = |bits: u32| Access {
            mode: bits | 0o644,
            ..ACCESS
        };
        for (bits, kind) in [
            (0o010_000, Kind::Fifo),
            (0o140_000, Kind::Socket),
            (0o020_000, Kind::CharacterDevice),
            (0o060_000, Kind::BlockDevice),
        ] {
            let special = name(&format!("s{bits}"));
            let ino = files.mknod(ROOT, of(bits), 0x103, &special).await;
            let found = files.getattr(ino.expect("made")).await.expect("there");
            let device = if kind.is_device() { 0x103 } else { 0 };
            assert_eq!((found.kind, found.size, found.device), (kind, 0, device));
            assert_eq!((kind.type_bits(), found.access.mode), (bits, 0o644));
            refused(files.read(found.ino, 0, 1).await, EINVAL);
            files.unlink(ROOT, &special).await.expect("unlinked");
        }
        for bits in [0o040_000, 0o120_000] {
            refused(files.mknod(ROOT, of(bits), 0, &name("s")).await, EPERM);
        }
        let regular = Access {
            mode: 0o100_600,
            ..ACCESS
        };
        let made = files
            .mknod(ROOT, regular, 0, &name("r"))
            .await
            .expect("made");
        let attributes = files.getattr(made).await.expect("attributes");
        assert_eq!(
            (attributes.kind, attributes.access.mode),
            (Kind::File, 0o600)
        );
    });
}

#[test]
fn directories_count_their_directories_and_go_empty() {
    simulated::run(async {
        let files = fresh().await;
        let d = directory(&files, ROOT, "d").await;
        let e = directory(&files, d, "e").await;
        let links = async |ino| files.getattr(ino).await.expect("there").links;
        assert_eq!(
            (links(ROOT).await, links(d).await, links(e).await),
            (3, 3, 2)
        );
        refused(files.rmdir(ROOT, &name("d")).await, ENOTEMPTY);
        refused(files.unlink(ROOT, &name("d")).await, EISDIR);
        refused(files.rmdir(ROOT, &name(".")).await, EINVAL);
        refused(files.rmdir(ROOT, &name("..")).await, ENOTEMPTY);
        refused(files.rmdir(ROOT, &name("none")).await, ENOENT);
        file(&files, "f").await;
        refused(files.rmdir(ROOT, &name("f")).await, ENOTDIR);
        let up = files.lookup(e, &name("..")).await.expect("found");
        assert_eq!(up.ino, d);
        files.rmdir(d, &name("e")).await.expect("removed");
        files.rmdir(ROOT, &name("d")).await.expect("removed");
        assert_eq!(links(ROOT).await, 2);
        refused(files.create(d, ACCESS, &name("late")).await, ENOENT);
        refused(files.getattr(e).await, ENOENT);
    });
}

#[test]
fn a_directory_with_the_set_group_id_bit_gives_its_group() {
    simulated::run(async {
        let files = fresh().await;
        let shared = Access {
            mode: 0o2775,
            uid: 1,
            gid: 7,
        };
        let d = files.mkdir(ROOT, shared, &name("d")).await.expect("made");
        let below = files.mkdir(d, ACCESS, &name("e")).await.expect("made");
        let f = files.create(d, ACCESS, &name("f")).await.expect("made");
        let access = async |ino| files.getattr(ino).await.expect("there").access;
        assert_eq!(access(below).await.gid, 7);
        assert_eq!(access(below).await.mode, 0o2644);
        assert_eq!((access(f).await.gid, access(f).await.mode), (7, 0o644));
    });
}

#[test]
fn links_are_names_of_one_inode() {
    simulated::run(async {
        let files = fresh().await;
        let a = file(&files, "a").await;
        let d = directory(&files, ROOT, "d").await;
        files.link(a, d, &name("b")).await.expect("linked");
        assert_eq!(files.getattr(a).await.expect("there").links, 2);
        refused(files.link(a, d, &name("b")).await, EEXIST);
        refused(files.link(d, ROOT, &name("e")).await, EPERM);
        refused(files.link(a, a, &name("e")).await, ENOTDIR);
        files.unlink(ROOT, &name("a")).await.expect("unlinked");
        files.unlink(d, &name("b")).await.expect("unlinked");
        assert_eq!(files.getattr(a).await.expect("an orphan").links, 0);
        refused(files.link(a, d, &name("c")).await, ENOENT);
        refused(files.unlink(d, &name("b")).await, ENOENT);
    });
}

#[test]
fn paths_lead_over_symbolic_links() {
    simulated::run(async {
        let files = fresh().await;
        let d = directory(&files, ROOT, "d").await;
        let f = files.create(d, ACCESS, &name("f")).await.expect("created");
        let link = async |parent, text: &str, target: &str| {
            let (text, target) = (name(text), name(target));
            let made = files.symlink(parent, ACCESS, &text, &target).await;
            made.expect("made")
        };
        let s = link(ROOT, "s", "d/../d").await;
        link(d, "up", "/s/f").await;
        link(ROOT, "loop", "loop").await;
        let to = async |path: &str, follow| {
            let found = files.resolve(ROOT, follow, &name(path)).await;
            found.map(|found| found.ino)
        };
        assert_eq!(to("s/f", Follow::Yes).await, Ok(f));
        assert_eq!(to("/d/up", Follow::Yes).await, Ok(f));
        assert_eq!(to("s", Follow::No).await, Ok(s));
        assert_eq!(to("s/", Follow::No).await, Ok(d));
        assert_eq!(to("/..//./", Follow::Yes).await, Ok(ROOT));
        refused(to("loop", Follow::Yes).await, ELOOP);
        refused(to("d/f/", Follow::Yes).await, ENOTDIR);
        refused(to("", Follow::Yes).await, ENOENT);
        refused(to(&"a/".repeat(2_048), Follow::Yes).await, ENAMETOOLONG);
        for number in 0..41 {
            link(ROOT, &format!("{}", number + 1), &format!("{number}")).await;
        }
        file(&files, "0").await;
        assert!(to("40", Follow::Yes).await.is_ok());
        refused(to("41", Follow::Yes).await, ELOOP);
        assert_eq!(files.getattr(s).await.expect("there").size, 6);
        assert_eq!(files.readlink(s).await, Ok(name("d/../d")));
        refused(files.readlink(f).await, EINVAL);
        refused(files.read(s, 0, 1).await, EINVAL);
        let long = name(&"t".repeat(4_096));
        refused(
            files.symlink(ROOT, ACCESS, &name("t"), &long).await,
            ENAMETOOLONG,
        );
    });
}

#[test]
fn a_rename_replaces_what_fits() {
    use RenameMode::*;
    simulated::run(async {
        let files = fresh().await;
        let (a, b) = (file(&files, "a").await, file(&files, "b").await);
        let d = directory(&files, ROOT, "d").await;
        let e = directory(&files, d, "e").await;
        let rename = async |from, from_name: &str, to, to_name: &str, mode| {
            let (from_name, to_name) = (name(from_name), name(to_name));
            files.rename(from, to, mode, &from_name, &to_name).await
        };
        refused(rename(ROOT, "a", ROOT, "b", NoReplace).await, EEXIST);
        refused(rename(ROOT, "a", ROOT, "none", Exchange).await, ENOENT);
        refused(rename(ROOT, "none", ROOT, "b", Replace).await, ENOENT);
        refused(rename(ROOT, "a", ROOT, "d", Replace).await, EISDIR);
        refused(rename(ROOT, "d", ROOT, "a", Replace).await, ENOTDIR);
        refused(rename(ROOT, "d", e, "x", Replace).await, EINVAL);
        refused(rename(ROOT, "d", d, "x", Replace).await, EINVAL);
        refused(rename(d, "e", ROOT, "d", Replace).await, ENOTEMPTY);
        refused(rename(d, "e", ROOT, "d", Exchange).await, EINVAL);
        refused(rename(ROOT, "a", b, "x", Replace).await, ENOTDIR);
        refused(rename(ROOT, ".", ROOT, "x", Replace).await, EBUSY);
        refused(rename(ROOT, "a", ROOT, "..", NoReplace).await, EEXIST);
        rename(ROOT, "a", ROOT, "b", Replace)
            .await
            .expect("replaced");
        assert_eq!(files.getattr(b).await.expect("an orphan").links, 0);
        files.link(a, ROOT, &name("a2")).await.expect("linked");
        rename(ROOT, "a2", ROOT, "b", Replace)
            .await
            .expect("nothing");
        assert_eq!(files.getattr(a).await.expect("there").links, 2);
        rename(ROOT, "b", d, "e", Exchange)
            .await
            .expect("exchanged");
        let links = async |ino| files.getattr(ino).await.expect("there").links;
        assert_eq!((links(ROOT).await, links(d).await), (4, 2));
        let up = files.lookup(e, &name("..")).await.expect("found");
        assert_eq!(up.ino, ROOT);
        rename(ROOT, "d", e, "d", NoReplace).await.expect("moved");
        assert_eq!((links(ROOT).await, links(e).await), (3, 3));
    });
}

#[test]
fn files_are_sparse() {
    simulated::run(async {
        let files = fresh().await;
        let f = file(&files, "f").await;
        let far = 3 * BLOCK + 10;
        let keep = Privileges::Keep;
        files
            .write(f, far, keep, &name("end"))
            .await
            .expect("written");
        assert_eq!(files.getattr(f).await.expect("there").size, far + 3);
        assert_eq!(files.read(f, far - 2, 9).await, Ok(name("\0\0end")));
        assert_eq!(files.seek(f, Seek::Data, 1).await, Ok(3 * BLOCK));
        assert_eq!(files.seek(f, Seek::Hole, 1).await, Ok(1));
        assert_eq!(files.seek(f, Seek::Hole, far).await, Ok(far + 3));
        refused(files.seek(f, Seek::Data, far + 3).await, ENXIO);
        files.truncate(f, far + 1).await.expect("cut");
        files.truncate(f, 2 * far).await.expect("grown");
        assert_eq!(files.read(f, far, 4).await, Ok(name("e\0\0\0")));
        let punch = Allocation::PunchHole;
        files
            .fallocate(f, punch, BLOCK, 3 * BLOCK)
            .await
            .expect("punched");
        refused(files.seek(f, Seek::Data, 0).await, ENXIO);
        assert_eq!(files.getattr(f).await.expect("there").size, 2 * far);
        let extend = Allocation::Extend;
        files
            .fallocate(f, extend, 0, 9 * BLOCK)
            .await
            .expect("longer");
        assert_eq!(files.getattr(f).await.expect("there").size, 9 * BLOCK);
        refused(files.fallocate(f, extend, 0, 0).await, EINVAL);
        let max = i64::MAX as u64;
        refused(files.fallocate(f, extend, 1, max).await, EFBIG);
        refused(files.write(f, max, keep, &name("x")).await, EFBIG);
        files
            .write(f, max - 1, keep, &name("x"))
            .await
            .expect("the last");
        assert_eq!(files.read(f, max - 1, 9).await, Ok(name("x")));
        files
            .truncate(f, 5)
            .await
            .expect("few blocks of a huge file");
        refused(files.truncate(f, max + 1).await, EFBIG);
        refused(files.read(ROOT, 0, 1).await, EISDIR);
        refused(files.write(ROOT, 0, keep, &name("x")).await, EISDIR);
        refused(files.truncate(ROOT, 0).await, EISDIR);
        let large: Bytes = (0..300_000_u32).map(|byte| byte as u8).collect();
        files.write(f, 7, keep, &large).await.expect("staged");
        assert_eq!(files.read(f, 7, 300_000).await, Ok(large));
    });
}

#[test]
fn attributes_are_set_one_by_one() {
    simulated::run(async {
        let files = fresh().await;
        let f = file(&files, "f").await;
        let set = async |set| files.setattr(f, set).await;
        let with = SetAttributes::default();
        let mode = |mode| SetAttributes {
            mode: Some(mode),
            ..with
        };
        set(mode(0o106_775)).await.expect("changed");
        let attributes = async || files.getattr(f).await.expect("there");
        assert_eq!(attributes().await.access.mode, 0o6775);
        let owner = SetAttributes {
            uid: Some(5),
            ..with
        };
        set(owner).await.expect("changed");
        assert_eq!(attributes().await.access.mode, 0o775);
        assert_eq!(attributes().await.access.uid, 5);
        set(mode(0o6644)).await.expect("changed");
        let clear = Privileges::Clear;
        files.write(f, 0, clear, &name("x")).await.expect("written");
        assert_eq!(attributes().await.access.mode, 0o2644);
        let time = Time {
            seconds: -5,
            nanoseconds: 999_999_999,
        };
        let times = SetAttributes {
            mtime: Some(SetTime::To(time)),
            atime: Some(SetTime::Now),
            size: Some(9),
            ..with
        };
        set(times).await.expect("changed");
        let found = attributes().await;
        assert_eq!((found.mtime, found.size), (time, 9));
        assert_eq!(found.atime, found.ctime);
        let wrong = SetTime::To(Time {
            nanoseconds: 1_000_000_000,
            ..time
        });
        let wrong = SetAttributes {
            mtime: Some(wrong),
            ..with
        };
        refused(set(wrong).await, EINVAL);
        refused(files.setattr(Ino(9), with).await, ENOENT);
    });
}

#[test]
fn extended_attributes_have_their_modes() {
    simulated::run(async {
        let files = fresh().await;
        let f = file(&files, "f").await;
        let set = async |mode, text: &str, value: &str| {
            let (text, value) = (name(text), name(value));
            files.setxattr(f, mode, &text, &value).await
        };
        refused(set(SetMode::Replace, "user.a", "1").await, ENODATA);
        set(SetMode::Create, "user.a", "1").await.expect("set");
        refused(set(SetMode::Create, "user.a", "2").await, EEXIST);
        set(SetMode::Replace, "user.a", "3").await.expect("set");
        set(SetMode::Any, "user.b", "").await.expect("set");
        assert_eq!(files.getxattr(f, &name("user.a")).await, Ok(name("3")));
        let names = files.listxattr(f).await.expect("listed");
        assert_eq!(names, [name("user.a"), name("user.b")]);
        files
            .removexattr(f, &name("user.a"))
            .await
            .expect("removed");
        refused(files.removexattr(f, &name("user.a")).await, ENODATA);
        refused(files.getxattr(f, &name("user.a")).await, ENODATA);
        refused(set(SetMode::Any, &"x".repeat(256), "").await, ERANGE);
        refused(set(SetMode::Any, "", "").await, ERANGE);
        refused(set(SetMode::Any, "v", &"x".repeat(65_537)).await, E2BIG);
        set(SetMode::Any, "v", &"x".repeat(65_536))
            .await
            .expect("the longest");
    });
}

#[test]
fn a_listing_skips_nothing_while_names_go() {
    simulated::run(async {
        let files = fresh().await;
        let names: Vec<Bytes> = (0..2_500).map(|n| name(&format!("{n:04}"))).collect();
        for name in &names {
            files.create(ROOT, ACCESS, name).await.expect("created");
        }
        let (mut listing, mut cookie, mut seen) = (Listing::new(ROOT), 0, Vec::new());
        loop {
            let page = files.list(&mut listing, cookie, 700).await.expect("a page");
            let Some(last) = page.last() else { break };
            cookie = last.cookie;
            for entry in page.into_iter().filter(|entry| entry.kind == Kind::File) {
                files.unlink(ROOT, &entry.name).await.expect("unlinked");
                seen.push(entry.name);
            }
        }
        assert_eq!(seen, names);
        let again = files.list(&mut listing, 3, 2).await.expect("a page");
        let again: Vec<Bytes> = again.into_iter().map(|entry| entry.name).collect();
        assert_eq!(again, names[1..3]);
        let mut rewound = Listing::new(ROOT);
        let dots = files.list(&mut rewound, 0, 9).await.expect("a page");
        let dots: Vec<Bytes> = dots.into_iter().map(|entry| entry.name).collect();
        assert_eq!(dots, [name("."), name("..")]);
    });
}

/// Pages of a client that has only a name and a slot are one state.
#[test]
fn a_listing_continues_after_any_name_at_its_slot() {
    simulated::run(async {
        let files = fresh().await;
        for text in ["a", "b", "d"] {
            file(&files, text).await;
        }
        let mut first = files.begin();
        first.getattr(ROOT).await.expect("there");
        let slot = first.slot().expect("it has read");
        file(&files, "e").await;
        for (after, expected) in [("a", &["b", "d"][..]), ("c", &["d"]), ("d", &[])] {
            let (mut listing, cookie) = Listing::after(ROOT, name(after));
            let mut transaction = files.begin_at(slot);
            let page = transaction.list(&mut listing, cookie, 9).await;
            let page = page.expect("a page").into_iter();
            let names: Vec<Bytes> = page.map(|entry| entry.name).collect();
            assert_eq!(names, expected);
        }
    });
}

#[test]
fn a_listing_outlives_its_snapshot() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        for text in ["a", "b", "c"] {
            file(&files, text).await;
        }
        let mut listing = Listing::new(ROOT);
        let first = files.list(&mut listing, 0, 3).await.expect("a page");
        assert_eq!(first[2].name, "a");
        file(&files, "bb").await;
        volume.collect(transactions::serializable::model::Slot(u64::MAX));
        let rest = files.list(&mut listing, 3, 9).await.expect("a page");
        let rest: Vec<Bytes> = rest.into_iter().map(|entry| entry.name).collect();
        assert_eq!(rest, ["b", "bb", "c"].map(name));
    });
}

/// `O_TMPFILE`: a file without a name lives while it is open, or once it has one.
#[test]
fn a_file_without_a_name_may_get_one() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let server = client(&volume, 2, Mutant::NONE).await;
        let reap = async || crate::reaper::reap(&server).await.expect("reaped");
        let f = files.open_unnamed(ROOT, ACCESS).await.expect("made");
        let keep = Privileges::Keep;
        files.write(f, 0, keep, &name("x")).await.expect("written");
        assert_eq!(files.getattr(f).await.expect("there").links, 0);
        assert_eq!(reap().await, 0, "it is open");
        files.link(f, ROOT, &name("f")).await.expect("linked");
        assert_eq!(files.getattr(f).await.expect("there").links, 1);
        files.close(f).await.expect("closed");
        assert_eq!(reap().await, 0, "it has a name");
        files.hold(f).await.expect("open");
        files.unlink(ROOT, &name("f")).await.expect("unlinked");
        refused(files.link(f, ROOT, &name("f")).await, ENOENT);
        files.close(f).await.expect("closed");
        assert_eq!(reap().await, 1);
        let g = files.open_unnamed(ROOT, ACCESS).await.expect("made");
        files.close(g).await.expect("closed");
        assert_eq!(reap().await, 1);
        refused(files.link(g, ROOT, &name("g")).await, ENOENT);
        refused(files.open_unnamed(g, ACCESS).await, ENOENT);
        let mut transaction = files.begin();
        let h = transaction
            .create_unnamed(ROOT, ACCESS)
            .await
            .expect("made");
        transaction.link(h, ROOT, b"h").await.expect("linked");
        transaction.commit(None, || true).await.expect("committed");
        assert_eq!(files.getattr(h).await.expect("there").links, 1);
        assert_eq!(reap().await, 0);
    });
}

/// The rules of `relatime`: an access is noted after a change, and once a day.
#[test]
fn accesses_are_noted_after_changes_and_once_a_day() {
    simulated::run(async {
        let world = World::new(1);
        let clock = world.clock();
        let opened = FileSystem::open(
            volume(),
            clock.clone(),
            world.entropy(),
            SessionId(1),
            ACCESS,
        );
        let files = opened.await.expect("opened");
        let f = file(&files, "f").await;
        let atime = async || files.getattr(f).await.expect("there").atime;
        let wait = async |seconds| clock.sleep(std::time::Duration::from_secs(seconds)).await;
        let made = atime().await;
        wait(2).await;
        files.note_access(f).await.expect("noted");
        let first = atime().await;
        assert!(first > made, "it was not read since it was made");
        wait(2).await;
        files.note_access(f).await.expect("not noted");
        assert_eq!(atime().await, first);
        files
            .write(f, 0, Privileges::Keep, &name("x"))
            .await
            .expect("written");
        wait(2).await;
        files.note_access(f).await.expect("noted");
        let second = atime().await;
        assert!(second > first);
        wait(24 * 60 * 60).await;
        files.note_access(f).await.expect("noted");
        assert!(atime().await > second);
        refused(files.note_access(Ino(9)).await, ENOENT);
    });
}

#[test]
fn data_are_copied_between_files() {
    simulated::run(async {
        let files = fresh().await;
        let (f, g, keep) = (
            file(&files, "f").await,
            file(&files, "g").await,
            Privileges::Keep,
        );
        files
            .write(f, 0, keep, &name("0123456789"))
            .await
            .expect("written");
        assert_eq!(files.copy(f, 6, g, BLOCK, 99, keep).await, Ok(4));
        assert_eq!(files.read(g, BLOCK - 1, 9).await, Ok(name("\x006789")));
        assert_eq!(files.copy(f, 0, f, 5, 5, keep).await, Ok(5));
        assert_eq!(files.read(f, 0, 99).await, Ok(name("0123401234")));
        refused(files.copy(f, 0, f, 4, 5, keep).await, EINVAL);
        refused(files.copy(f, 0, ROOT, 0, 5, keep).await, EISDIR);
        assert_eq!(files.getattr(f).await.expect("there").blocks(), 1);
    });
}

#[test]
fn a_full_volume_refuses_data_and_lets_them_go() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let f = file(&files, "f").await;
        let used = files.statfs().await.expect("a figure");
        assert_eq!(used.block_bytes, BLOCK as u32);
        volume.set_quota(Some(20 * BLOCK));
        let large = Bytes::from(vec![1; 30 * BLOCK as usize]);
        refused(files.write(f, 0, Privileges::Keep, &large).await, EDQUOT);
        assert_eq!(files.getattr(f).await.expect("there").size, 0);
        let space = files.statfs().await.expect("a figure");
        assert_eq!(space.blocks, 20);
        assert!(space.blocks_free < 20);
        files.unlink(ROOT, &name("f")).await.expect("unlinked");
    });
}

/// An fsync after a restart of the server fails once, and the synced files are there.
#[test]
fn fsync_keeps_and_a_loss_is_told_once() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        file(&files, "kept").await;
        files.fsync().await.expect("durable");
        file(&files, "lost").await;
        volume.crash();
        refused(files.lookup(ROOT, &name("lost")).await, ENOENT);
        refused(files.fsync().await, EIO);
        files.fsync().await.expect("durable");
        files.lookup(ROOT, &name("kept")).await.expect("kept");
    });
}

/// Each file that lost changes reports that once, whichever file is synced first.
#[test]
fn each_file_reports_its_own_loss() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let [a, b, c] = [
            file(&files, "a").await,
            file(&files, "b").await,
            file(&files, "c").await,
        ];
        files.fsync_of(a).await.expect("durable");
        for ino in [a, b] {
            let written = files.write(ino, 0, Privileges::Keep, &name("lost")).await;
            written.expect("written");
        }
        volume.crash();
        let again = files.write(c, 0, Privileges::Keep, &name("kept")).await;
        again.expect("written");
        files.fsync_of(c).await.expect("it lost nothing");
        for ino in [b, a] {
            refused(files.fsync_of(ino).await, EIO);
            files.fsync_of(ino).await.expect("it is told once");
        }
    });
}

/// A commit that the server has lost is not acknowledged, although later calls went through.
#[test]
fn a_lost_commit_is_not_durable() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let f = file(&files, "f").await;
        files.fsync().await.expect("durable");
        let write = |text: &'static str| {
            files.transact_durably(move |transaction| {
                let text = name(text);
                async move { transaction.write(f, 0, Privileges::Keep, &text).await }.boxed()
            })
        };
        write("one").await.expect("durable");
        volume.crash();
        assert_eq!(files.read(f, 0, 9).await, Ok(name("one")));
    });
}

/// Front ends spawn calls.
#[test]
fn calls_may_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    simulated::run(async {
        let (files, name) = (fresh().await, name("a"));
        is_send(&files.rename(ROOT, ROOT, RenameMode::Replace, &name, &name));
        is_send(&files.hold(ROOT));
        is_send(&files.list(&mut Listing::new(ROOT), 0, 1));
        is_send(&files.fsync());
        is_send(&crate::reaper::reap(&files));
        is_send(&files.begin().commit(None, || true));
    });
}
