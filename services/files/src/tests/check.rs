//! The check of a volume: it names each rule that is broken, and makes all possible repairs.

use std::{sync::atomic::Ordering, time::Duration};

use super::{lossy::Counted, *};
use crate::{
    Ino, Transaction,
    check::{self, Counts, Options, Problem, Repair, Report},
    inode::{self, Field},
    model::{Kind, Privileges},
    reaper::reap,
};
use transactions::serializable::VolumeStore;

const ROOT: Ino = Ino::ROOT;
const REPAIR: Options = Options {
    blocks: true,
    repair: true,
};

pub(super) async fn checked(store: Arc<dyn VolumeStore>, options: Options) -> Report {
    let world = World::new(9);
    let mut last = Counts::default();
    let progress = &mut |counts: &Counts| {
        assert!(counts.inodes >= last.inodes && counts.bytes >= last.bytes);
        last = *counts;
    };
    let report = check::run(store, world.clock(), world.entropy(), options, progress);
    report.await.expect("a report")
}

/// The inodes of a small tree: `/d`, `/d/e`, `/d/f` with two blocks, `/g`, and `/s`.
#[derive(Clone, Copy)]
struct Small {
    d: Ino,
    e: Ino,
    f: Ino,
    g: Ino,
    s: Ino,
}

#[allow(clippy::many_single_char_names)]
async fn small(files: &FileSystem) -> Small {
    let d = files.mkdir(ROOT, ACCESS, &name("d")).await.expect("made");
    let e = files.mkdir(d, ACCESS, &name("e")).await.expect("made");
    let f = files.create(d, ACCESS, &name("f")).await.expect("made");
    let g = files.create(ROOT, ACCESS, &name("g")).await.expect("made");
    let link = files.symlink(ROOT, ACCESS, &name("s"), &name("d/f")).await;
    let data = Bytes::from(vec![7; BLOCK as usize + 10]);
    let written = files.write(f, 0, Privileges::Keep, &data).await;
    written.expect("written");
    let s = link.expect("made");
    Small { d, e, f, g, s }
}

type Damage = fn(&mut Transaction, Small);
type Expected = Vec<(Option<&'static str>, Problem)>;

/// Damages a small tree, and expects exactly these problems at these paths. Then it repairs them,
/// and expects none, if they can be repaired.
fn is_named(damage: Damage, expected: fn(Small) -> Expected) {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let small = small(&files).await;
        assert!(checked(volume.clone(), REPAIR).await.is_clean());
        let mut transaction = files.begin();
        damage(&mut transaction, small);
        transaction.commit(None, || true).await.expect("damaged");
        let report = checked(volume.clone(), Options::default()).await;
        let found = report.findings.iter().map(|finding| {
            let path = finding.path.clone();
            (path, finding.problem.clone())
        });
        let found: Vec<(Option<String>, Problem)> = found.collect();
        let expected: Vec<(Option<String>, Problem)> = expected(small)
            .into_iter()
            .map(|(path, problem)| (path.map(str::to_owned), problem))
            .collect();
        assert_eq!(found, expected);
        let report = checked(volume.clone(), REPAIR).await;
        let left = checked(volume.clone(), REPAIR).await;
        let is_possible = |report: &Report| {
            let mut repairs = report.findings.iter().map(|finding| finding.repair);
            repairs.all(|repair| repair != Repair::Impossible)
        };
        if is_possible(&report) {
            assert_eq!(report.unrepaired(), 0, "{report:?}");
            assert!(left.is_clean(), "{left:?}");
        } else {
            assert!(left.unrepaired() > 0);
        }
    });
}

#[test]
fn entries_lead_to_living_inodes_of_their_kind() {
    is_named(
        |t, small| t.bind(small.d, b"x", Ino(9_999_999), Kind::File),
        |_| vec![(Some("/d/x"), Problem::DanglingEntry { to: 9_999_999 })],
    );
    is_named(
        |t, small| {
            t.overlay.delete(inode::field(small.g, Field::Existence));
            t.overlay.delete(inode::field(small.g, Field::Access));
        },
        |small| vec![(Some("/g"), Problem::DanglingEntry { to: small.g.0 })],
    );
    is_named(
        |t, small| t.bind(ROOT, b"g", small.g, Kind::Symlink),
        |small| vec![(Some("/g"), Problem::WrongKind { to: small.g.0 })],
    );
    is_named(
        |t, small| t.overlay.put(inode::entry(small.d, b"x"), name("no entry")),
        |_| vec![(Some("/d/x"), Problem::DamagedEntry)],
    );
}

#[test]
fn link_counts_are_the_numbers_of_names() {
    is_named(
        |t, small| t.overlay.put_number(inode::field(small.f, Field::Links), 5),
        |_| {
            let (stored, counted) = (5, 1);
            vec![(Some("/d/f"), Problem::WrongLinks { stored, counted })]
        },
    );
    is_named(
        |t, small| t.bind(ROOT, b"f", small.f, Kind::File),
        |_| {
            let (stored, counted) = (1, 2);
            vec![(Some("/f"), Problem::WrongLinks { stored, counted })]
        },
    );
    is_named(
        |t, small| t.overlay.put_number(inode::field(small.d, Field::Links), 2),
        |_| {
            let (stored, counted) = (2, 3);
            vec![(Some("/d"), Problem::WrongLinks { stored, counted })]
        },
    );
}

#[test]
fn directories_have_one_parent_and_form_no_circle() {
    is_named(
        |t, small| t.bind(ROOT, b"e2", small.e, Kind::Directory),
        |small| vec![(Some("/e2"), Problem::SecondName { to: small.e.0 })],
    );
    is_named(
        |t, small| t.bind(small.e, b"r", ROOT, Kind::Directory),
        |_| vec![(Some("/d/e/r"), Problem::SecondName { to: 1 })],
    );
    is_named(
        |t, small| {
            let parent = inode::field(small.e, Field::Parent);
            t.overlay.put_number(parent, ROOT.0);
        },
        |small| {
            let listed_in = small.d.0;
            vec![(Some("/d/e"), Problem::WrongParent { listed_in })]
        },
    );
    // `/d` moves into `/d/e`.
    is_named(
        |t, small| {
            t.overlay.delete(inode::entry(ROOT, b"d"));
            t.bind(small.e, b"d", small.d, Kind::Directory);
            let parent = inode::field(small.d, Field::Parent);
            t.overlay.put_number(parent, small.e.0);
            t.overlay.add(inode::field(ROOT, Field::Links), -1);
            t.overlay.add(inode::field(small.e, Field::Links), 1);
        },
        |small| {
            let listed_in = small.e.0;
            vec![(Some("d/e/d"), Problem::Circle { listed_in })]
        },
    );
}

#[test]
fn inodes_without_a_name_are_orphans_or_lost() {
    is_named(
        |t, small| t.overlay.delete(inode::entry(small.d, b"f")),
        |_| vec![(None, Problem::Lost)],
    );
    is_named(
        |t, small| {
            t.overlay.delete(inode::entry(small.d, b"e"));
            t.overlay.add(inode::field(small.d, Field::Links), -1);
        },
        |_| vec![(None, Problem::Lost)],
    );
    is_named(
        |t, small| {
            t.overlay.delete(inode::entry(small.d, b"f"));
            t.overlay.put_number(inode::field(small.f, Field::Links), 0);
        },
        |_| vec![(None, Problem::Unreaped)],
    );
    is_named(
        |t, small| t.overlay.put(inode::orphan(small.g), name("no candidate")),
        |_| vec![(None, Problem::DamagedOrphan)],
    );
}

#[test]
fn fields_decode() {
    is_named(
        |t, small| {
            t.overlay
                .put(inode::field(small.g, Field::Access), name("x"));
            t.overlay.delete(inode::field(small.g, Field::Mtime));
            t.overlay.delete(inode::field(small.s, Field::Target));
            t.overlay
                .put(inode::field(small.f, Field::Existence), name("xx"));
        },
        |_| {
            let damaged = |path, field| (Some(path), Problem::DamagedField { field });
            vec![
                damaged("/d/f", "existence"),
                damaged("/g", "access"),
                damaged("/g", "mtime"),
                damaged("/s", "target"),
            ]
        },
    );
}

#[test]
fn blocks_end_with_their_file() {
    const SIZE: u64 = BLOCK + 10;
    is_named(
        |t, small| t.overlay.put(inode::block(small.f, 7), name("late")),
        |_| {
            let (block, size) = (7, SIZE);
            vec![(Some("/d/f"), Problem::DataBeyondEnd { block, size })]
        },
    );
    is_named(
        |t, small| {
            let rest = Bytes::from(vec![7; 11]);
            t.overlay.put(inode::block(small.f, 1), rest);
            // Zeros after the end are no fault.
            let zeros = Bytes::from(vec![0; 9]);
            t.overlay.put(inode::block(small.f, 2), zeros);
        },
        |_| {
            let (block, size) = (1, SIZE);
            vec![(Some("/d/f"), Problem::DataBeyondEnd { block, size })]
        },
    );
    is_named(
        |t, small| {
            let long = Bytes::from(vec![7; BLOCK as usize + 1]);
            t.overlay.put(inode::block(small.f, 0), long);
        },
        |_| vec![(Some("/d/f"), Problem::LongBlock { block: 0 })],
    );
}

/// Inodes that move to the directory for lost inodes are there, with their content.
#[test]
fn lost_inodes_keep_their_content() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let small = small(&files).await;
        let mut damage = files.begin();
        damage.overlay.delete(inode::entry(ROOT, b"d"));
        damage.overlay.add(inode::field(ROOT, Field::Links), -1);
        damage.commit(None, || true).await.expect("damaged");
        let report = checked(volume.clone(), REPAIR).await;
        assert_eq!((report.findings.len(), report.unrepaired()), (1, 0));
        let path = format!("/lost+found/#{}/f", small.d.0);
        let path = name(&path);
        let found = files.resolve(ROOT, crate::model::Follow::No, &path);
        assert_eq!(found.await.expect("found").ino, small.f);
        let data = files.read(small.f, BLOCK, 99).await;
        assert_eq!(data, Ok(Bytes::from(vec![7; 10])));
        assert!(checked(volume, REPAIR).await.is_clean());
    });
}

/// Stored bytes that do not decode are named, and the rest is checked.
#[test]
fn a_damaged_value_is_named_alone() {
    simulated::run(async {
        let (volume, files) = Counted::open(&World::new(1)).await;
        let small = small(&files).await;
        let keys = [
            inode::block(small.f, 1),
            inode::field(small.g, Field::Access),
        ];
        volume.damaged.lock().extend(keys);
        let report = checked(volume.clone(), REPAIR).await;
        let found: Vec<_> = report
            .findings
            .iter()
            .map(|finding| (finding.path.as_deref(), &finding.problem, finding.repair))
            .collect();
        let field = Problem::DamagedField { field: "access" };
        let block = Problem::DamagedBlock { block: 1 };
        let impossible = Repair::Impossible;
        let expected = [
            (Some("/g"), &field, impossible),
            (Some("/d/f"), &block, impossible),
        ];
        assert_eq!(found, expected);
        volume.lost_every.store(3, Ordering::Relaxed);
        assert_eq!(checked(volume, REPAIR).await, report, "answers are lost");
    });
}

/// A damaged page of the store spans absent blocks, too, after the end of a file up to any number.
#[test]
fn a_damaged_page_of_the_store_is_named_by_its_blocks() {
    simulated::run(async {
        let (volume, files) = Counted::open(&World::new(1)).await;
        let small = small(&files).await;
        let page = inode::block_range(small.f, 1, Some(u64::MAX));
        *volume.damaged_page.lock() = Some(page);
        let report = checked(volume.clone(), REPAIR).await;
        let found = report.findings.iter().map(|finding| &finding.problem);
        let block = |block| Problem::DamagedBlock { block };
        assert!(found.eq(&[block(1), block(2)]), "{report:?}");
        // A size that does not decode is any size.
        let damaged = inode::field(small.f, Field::Size);
        volume.damaged.lock().insert(damaged);
        let report = checked(volume.clone(), REPAIR).await;
        assert!(report.findings.len() < 1_100, "{}", report.findings.len());
        // A store that looks again at each of them: the check ends, with what it has found by then.
        let all_fields = (1_024..1_424).map(|number| inode::field(Ino(number), Field::Existence));
        volume.damaged.lock().extend(all_fields);
        *volume.damaged_takes.lock() = Duration::from_millis(100);
        let report = checked(volume.clone(), REPAIR).await;
        assert_eq!(report.findings_left_off, 1, "{report:?}");
    });
}

/// A repair that another client's change has made wrong is not done.
#[test]
fn a_repair_does_not_undo_what_happened_meanwhile() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let small = small(&files).await;
        let mut damage = files.begin();
        let links = inode::field(small.g, Field::Links);
        damage.overlay.put_number(links, 5);
        damage.commit(None, || true).await.expect("damaged");
        let world = World::new(9);
        // The volume is in use between the reading and the repair.
        let progress = &mut |counts: &Counts| {
            if counts.blocks == 0 {
                return;
            }
            let h = name("h");
            let linked = files.link(small.g, small.d, &h);
            let _ = futures_util::FutureExt::now_or_never(linked);
        };
        let store: Arc<dyn VolumeStore> = volume.clone();
        let report = check::run(store, world.clock(), world.entropy(), REPAIR, progress).await;
        let report = report.expect("a report");
        let repairs: Vec<Repair> = report
            .findings
            .iter()
            .map(|finding| finding.repair)
            .collect();
        assert_eq!(repairs, [Repair::Changed]);
        let report = checked(volume, REPAIR).await;
        assert_eq!(report.unrepaired(), 0);
        assert_eq!(files.getattr(small.g).await.expect("there").links, 2);
    });
}

#[test]
fn open_files_without_a_name_are_no_problem() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let small = small(&files).await;
        files.hold(small.f).await.expect("open");
        files.unlink(small.d, &name("f")).await.expect("unlinked");
        assert!(checked(volume.clone(), REPAIR).await.is_clean());
        files.close(small.f).await.expect("closed");
        assert_eq!(reap(&files).await, Ok(1));
        assert!(checked(volume, REPAIR).await.is_clean());
    });
}
