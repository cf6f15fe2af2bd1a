//! One directory with many files: the cost of each call while it grows and shrinks.
//!
//! Where the cost for each file is flat, the columns of 10 %, 50 % and 100 % are alike.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Result, ensure};

use super::{
    report::{Figures, Part},
    targets::Target,
};

/// Shares of the directory, in percent, at which the cost is measured.
const MARKS: [(usize, &str); 3] = [(10, "us at 10 %"), (50, "us at 50 %"), (100, "us at 100 %")];
/// Files whose status is asked at each mark.
const STATS: usize = 1000;

/// Creates, lists, asks and deletes `count` files. Lists and asks go to the second mount.
pub fn measure(target: &Target, count: usize) -> Result<Figures> {
    let mut figures = Figures::new(Part::Directory, target.kind);
    let directories = target.directory("directory")?;
    let path = |directory: &PathBuf, number: usize| directory.join(format!("file-{number:06}"));
    // The mean of the files of one tenth of the directory before the mark.
    let window = count / 10;
    let mut next = 0;
    for (percent, measure) in MARKS {
        let mark = count * percent / 100;
        for number in next..mark - window {
            File::create_new(path(&directories[0], number))?;
        }
        let begun = Instant::now();
        for number in mark - window..mark {
            File::create_new(path(&directories[0], number))?;
        }
        figures.push("create", measure, micros(begun, window));
        next = mark;
        let begun = Instant::now();
        let listed = fs::read_dir(&directories[1])?.count();
        figures.push("list", measure, micros(begun, listed));
        ensure!(listed == mark, "{listed} files of {mark} are listed");
        let begun = Instant::now();
        for step in 0..STATS.min(mark) {
            let number = step * 7919 % mark;
            fs::metadata(path(&directories[1], number))?;
        }
        figures.push("stat", measure, micros(begun, STATS.min(mark)));
    }
    for (percent, measure) in MARKS.into_iter().rev() {
        let mark = count * percent / 100;
        delete(&directories[0], mark..next, &path)?;
        let begun = Instant::now();
        delete(&directories[0], mark - window..mark, &path)?;
        figures.push("delete", measure, micros(begun, window));
        next = mark - window;
    }
    target.remove("directory")?;
    Ok(figures)
}

fn delete(
    directory: &Path,
    numbers: std::ops::Range<usize>,
    path: &impl Fn(&PathBuf, usize) -> PathBuf,
) -> Result<()> {
    let directory = directory.to_owned();
    for number in numbers.rev() {
        fs::remove_file(path(&directory, number))?;
    }
    Ok(())
}

fn micros(begun: Instant, count: usize) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6 / count.max(1) as f64
}
