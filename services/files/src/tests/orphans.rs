//! Unlinked files: their data stay while a session has them open, and go then.

use transactions::serializable::{
    VolumeStore as _,
    model::{At, KeyRange, PageLimits},
};

use super::*;
use crate::{Errno, Ino, inode, model::Privileges, reaper::reap};

const ROOT: Ino = Ino::ROOT;

fn open_files_survive(mutant: Mutant<Broken>) {
    simulated::run(async {
        let volume = volume();
        let server = client(&volume, 1, mutant).await;
        let files = client(&volume, 2, Mutant::NONE).await;
        let f = files.create(ROOT, ACCESS, &name("f")).await.expect("made");
        files.hold(f).await.expect("open");
        files.hold(f).await.expect("open again");
        let data = Bytes::from(vec![7; 3 * BLOCK as usize]);
        files
            .write(f, 0, Privileges::Keep, &data)
            .await
            .expect("written");
        files.unlink(ROOT, &name("f")).await.expect("unlinked");
        assert_eq!(reap(&server).await, Ok(0));
        files.close(f).await.expect("closed");
        assert_eq!(reap(&server).await, Ok(0));
        assert_eq!(files.read(f, 0, 3 * BLOCK).await, Ok(data));
        files.close(f).await.expect("closed");
        assert_eq!(reap(&server).await, Ok(1));
        refused(files.read(f, 0, 1).await, Errno::ENOENT);
        refused(files.hold(f).await, Errno::ENOENT);
    });
}

#[test]
fn an_unlinked_file_stays_while_it_is_open() {
    open_files_survive(Mutant::NONE);
    must_fail(|| open_files_survive(Mutant::of(Broken::ReapsHeld)));
}

/// The number of attributes and blocks that the volume stores of an inode.
async fn stored(volume: &ModelVolume, ino: Ino) -> usize {
    let mut count = 0;
    let attributes = inode::xattrs(ino).group().clone();
    let blocks = inode::block_range(ino, 0, None).group().clone();
    for group in [attributes, blocks] {
        let range = KeyRange::all(group).expect("a group");
        let page = volume.scan(At::Tail, &range, PageLimits::default()).await;
        count += page.expect("a page").value.entries.len();
    }
    count
}

fn late_writes_leave_nothing(mutant: Mutant<Broken>) {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, mutant).await;
        let f = files.create(ROOT, ACCESS, &name("f")).await.expect("made");
        let data = name("data");
        files
            .write(f, 0, Privileges::Keep, &data)
            .await
            .expect("written");
        let mut late = files.begin();
        late.lookup(ROOT, b".").await.expect("a snapshot");
        late.write(f, 5 * BLOCK, Privileges::Keep, &data)
            .await
            .expect("buffered");
        files.unlink(ROOT, &name("f")).await.expect("unlinked");
        assert_eq!(reap(&files).await, Ok(1));
        let _ = late.commit(None, || true).await;
        assert_eq!(stored(&volume, f).await, 0);
    });
}

#[test]
fn a_write_after_the_end_of_a_file_is_refused() {
    late_writes_leave_nothing(Mutant::NONE);
    must_fail(|| late_writes_leave_nothing(Mutant::of(Broken::WritesWithoutInode)));
}

#[test]
fn nothing_is_left_of_a_deleted_inode() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let f = files.create(ROOT, ACCESS, &name("f")).await.expect("made");
        let d = files.mkdir(ROOT, ACCESS, &name("d")).await.expect("made");
        let any = crate::model::SetMode::Any;
        let value = name("value");
        for ino in [f, d] {
            let set = files.setxattr(ino, any, &name("user.a"), &value).await;
            set.expect("set");
        }
        files
            .write(f, 9, Privileges::Keep, &value)
            .await
            .expect("written");
        // It clears an edge after the end of the file, which makes a block there.
        let punch = crate::model::Allocation::PunchHole;
        files
            .fallocate(f, punch, 0, 10 * BLOCK + 1)
            .await
            .expect("punched");
        files.link(f, d, &name("g")).await.expect("linked");
        files.unlink(ROOT, &name("f")).await.expect("unlinked");
        assert_eq!(reap(&files).await, Ok(0));
        assert!(stored(&volume, f).await > 0);
        files.unlink(d, &name("g")).await.expect("unlinked");
        files.rmdir(ROOT, &name("d")).await.expect("removed");
        assert_eq!(reap(&files).await, Ok(1));
        assert_eq!((stored(&volume, f).await, stored(&volume, d).await), (0, 0));
        assert_eq!(reap(&files).await, Ok(0));
    });
}

/// The reaper has marked the file and looks for holds next: a session that comes later is refused.
#[test]
fn a_file_that_is_about_to_go_is_not_opened() {
    simulated::run(async {
        let volume = volume();
        let files = client(&volume, 1, Mutant::NONE).await;
        let f = files.create(ROOT, ACCESS, &name("f")).await.expect("made");
        files.unlink(ROOT, &name("f")).await.expect("unlinked");
        let mut reaper = files.begin();
        reaper.overlay.put(inode::orphan(f), inode::DYING);
        reaper.commit(None, || true).await.expect("marked");
        refused(files.hold(f).await, Errno::ENOENT);
        let key = crate::file_system::hold_key(f);
        assert_eq!(volume.is_held(&key).await, Ok(false));
        assert_eq!(reap(&files).await, Ok(1));
    });
}
