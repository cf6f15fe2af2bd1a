//! Times of calls, by hand: `cargo test --release -p landfast-preload-library -- --ignored figures`.

#![allow(unsafe_code)] // It calls what the library replaces.

use std::{ffi::CString, time::Instant};

use super::*;

const ROUNDS: u32 = 20_000;

#[test]
#[ignore = "it measures"]
fn figures() {
    let world = World::new();
    let server = world.transaction();
    let test = std::env::current_exe().expect("this program");
    let mut client = command(&server, test.to_str().expect("text"));
    client.args(["--ignored", "--exact", "figures::client", "--nocapture"]);
    assert!(client.status().expect("it starts").success());
}

/// The program that [`figures`] starts with the library.
#[test]
#[ignore = "figures starts it"]
fn client() {
    let Ok(at) = std::env::var("AT") else {
        return;
    };
    let path = CString::new(format!("{at}/figures")).expect("no NUL");
    let mut bytes = vec![1_u8; 1_024];
    // SAFETY: the path is a string, and the memory has that many bytes.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600);
        assert!(fd >= 0);
        let all = vec![2_u8; 1 << 20];
        assert_eq!(libc::pwrite(fd, all.as_ptr().cast(), all.len(), 0), 1 << 20);
        let offset = |round: u32| i64::from(round % 1_000) * 1_024;
        let to = bytes.as_mut_ptr();
        measure("pread of 1 KiB, cached", |round| {
            libc::pread(fd, to.cast(), 1_024, offset(round)) == 1_024
        });
        measure("lseek and read of 1 KiB, cached", |round| {
            libc::lseek(fd, offset(round), libc::SEEK_SET);
            libc::read(fd, to.cast(), 1_024) == 1_024
        });
        measure("pwrite of 1 KiB", |round| {
            libc::pwrite(fd, to.cast(), 1_024, offset(round)) == 1_024
        });
        measure("a request: pread past the end", |_| {
            libc::pread(fd, to.cast(), 1_024, 1 << 30) == 0
        });
        let mut stat = std::mem::zeroed::<libc::stat>();
        measure("stat", |_| libc::stat(path.as_ptr(), &raw mut stat) == 0);
        measure("open and close", |_| {
            let fd = libc::open(path.as_ptr(), libc::O_RDONLY);
            libc::close(fd) == 0
        });
        libc::close(fd);
    }
}

fn measure(name: &str, mut call: impl FnMut(u32) -> bool) {
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|round| {
            let start = Instant::now();
            assert!(call(round), "{name}");
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100];
    println!("{name}: median {} ns, 99 % {} ns", at(50), at(99));
}
