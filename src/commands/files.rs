//! `landfast files`: volumes of files, of a running server.

mod check;
mod content;
mod entries;
pub(crate) mod exec;
mod export;
mod import;
mod mount;
mod server;
mod size;
mod transfer;
mod volumes;
mod xattrs;

use std::process::ExitCode;

use clap::Subcommand;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create an empty volume, whose root directory is yours
    Create(volumes::Create),
    /// List the volumes with the space that they take
    List(volumes::List),
    /// Show a volume: its space, its quota and its snapshots
    Show(volumes::Show),
    /// Change the most space that a volume may take
    Quota(volumes::Quota),
    /// Take, list and delete snapshots, which keep a volume as it was
    #[command(subcommand)]
    Snapshot(volumes::Snapshot),
    /// Create a volume with the content of another one, without copying it
    Clone(volumes::Clone),
    /// Delete a volume with all its files and snapshots
    Delete(volumes::Delete),
    /// Check every rule of a volume's files, also while it is used; exits 1 if a problem is left
    Check(check::Check),
    /// List a directory of a volume
    Ls(entries::List),
    /// Make a directory; one that is there is no error
    Mkdir(entries::MakeDirectory),
    /// Remove a file or an empty directory
    Rm(entries::Remove),
    /// Rename a file or a directory, and replace what is there
    Mv(entries::Rename),
    /// Print a file, byte for byte
    Cat(content::Cat),
    /// Copy a file out of a volume
    Get(content::Get),
    /// Copy a file into a volume, where it appears whole or not at all
    Put(content::Put),
    /// Run a program as one transaction on a volume
    ///
    /// The program sees the volume at --at, in a mount namespace of its own, as it was when the program started. If it ends with
    /// exit code 0, all of its changes take effect at once, and then its output is printed. Otherwise nothing of it takes effect,
    /// its stderr is printed, and its exit code is the exit code here. If another transaction changed what it read, it runs again.
    Exec(exec::Exec),
    /// Mount a volume on a directory of this machine, until Ctrl-C or an unmount
    ///
    /// Several mounts of a volume see each other's changes at once, and locks hold across them. Memory that is mapped shared is
    /// coherent within one mount only.
    Mount(mount::Mount),
    /// Copy a directory of this machine into a volume
    ///
    /// Keeps modes, owners, times, symbolic and hard links and holes, but no extended attributes. Run it again to continue after an
    /// interruption: files of the same length, time and checksum are not copied. Each copy is read back and compared.
    Import(import::Import),
    /// Copy a directory of a volume, as it is at one moment, to this machine
    ///
    /// Keeps and checks the same as import does.
    Export(export::Export),
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Exec(exec) => Ok(exec::run(exec)),
        Command::Mount(mount) => mount.run(),
        Command::Create(create) => create.run(),
        Command::List(list) => list.run(),
        Command::Show(show) => show.run(),
        Command::Quota(quota) => quota.run(),
        Command::Snapshot(snapshot) => snapshot.run(),
        Command::Clone(clone) => clone.run(),
        Command::Delete(delete) => delete.run(),
        Command::Check(check) => check.run(),
        Command::Ls(list) => list.run(),
        Command::Mkdir(make) => make.run(),
        Command::Rm(remove) => remove.run(),
        Command::Mv(rename) => rename.run(),
        Command::Cat(cat) => cat.run(),
        Command::Get(get) => get.run(),
        Command::Put(put) => put.run(),
        Command::Import(import) => import.run(),
        Command::Export(export) => export.run(),
    }
}
