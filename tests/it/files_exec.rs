//! The processes around the command of `files exec`, without a volume.

use std::{
    ffi::OsStr,
    fs,
    io::Read as _,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::process::{landfast, run, text};

/// Starts the guard as `files exec` of a user that may mount does.
fn guarded(directory: &Path, command: &[&str]) -> Command {
    let at = directory.to_str().expect("a text");
    landfast(
        directory,
        &[&["files-exec-guard", "same", at], command].concat(),
    )
}

/// Whether this machine lets the tests make namespaces; says so if not.
fn may_run(test: &str) -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    let tried = run(&mut guarded(directory.path(), &["true"]));
    if !tried.status.success() {
        let why = text(&tried.stderr);
        eprintln!("skipped: files_exec::{test}: this user may not make namespaces: {why}");
    }
    tried.status.success()
}

fn code_of(directory: &Path, command: &[&str]) -> (Option<i32>, String) {
    let output = run(&mut guarded(directory, command));
    (output.status.code(), text(&output.stderr))
}

#[test]
fn the_exit_code_is_the_commands() {
    if !may_run("the_exit_code_is_the_commands") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("plain"), "text").expect("a file");
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["sh", "-c", "kill -9 $$"], 128 + 9),
        // The crate that waits for it has no name for this signal.
        (&["sh", "-c", "kill -40 $$"], 128),
    ] {
        let (ended, said) = code_of(directory.path(), command);
        assert_eq!((ended, said), (Some(code), String::new()), "{command:?}");
    }
    let (ended, said) = code_of(directory.path(), &["landfast-has-no-such-command"]);
    assert_eq!(ended, Some(127));
    assert!(said.contains("no such command"), "{said}");
    let (ended, said) = code_of(directory.path(), &["./plain"]);
    assert_eq!(ended, Some(126));
    assert!(said.contains("ermission denied"), "{said}");
    let words = ["files-exec-guard", "same", "/landfast/missing", "true"];
    let output = run(&mut landfast(directory.path(), &words));
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    assert!(said.contains("/landfast/missing"), "{said}");
}

#[test]
fn the_command_has_its_arguments_environment_and_directory() {
    if !may_run("the_command_has_its_arguments_environment_and_directory") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let script = r#"printf '%s|' "$@" "$VARIABLE" "$(pwd)"; cat"#;
    let mut command = guarded(
        directory.path(),
        &["sh", "-c", script, "sh", "a b", "", "--"],
    );
    let output = run(command.env("VARIABLE", "value"));
    let directory = directory.path().canonicalize().expect("a path");
    assert_eq!(
        text(&output.stdout).trim_end(),
        format!("a b||--|value|{}|", directory.display())
    );
}

/// Processes that leave the group and the session of the command, too.
#[test]
fn no_process_outlives_the_command() {
    if !may_run("no_process_outlives_the_command") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let script = "sleep 1000 & setsid sleep 1000 & (trap '' TERM HUP; sleep 1000) & exit 5";
    // The output ends when the last process with it has ended.
    let output = run(&mut guarded(directory.path(), &["sh", "-c", script]));
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn processes_see_only_those_of_their_namespace() {
    if !may_run("processes_see_only_those_of_their_namespace") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let script = "ls -d /proc/[0-9]* | wc -l; kill -0 $PPID; echo $PPID";
    let output = run(&mut guarded(directory.path(), &["sh", "-c", script]));
    // Init, the shell, its subshell for `ls`, and `wc`; a shell may start these itself.
    let said = text(&output.stdout);
    let (count, parent) = said.trim().split_once('\n').expect("two lines");
    assert!(
        count.trim().parse::<u32>().expect("a number") <= 5,
        "{said}"
    );
    assert_eq!(parent, "1");
}

/// A command that writes a line, ignores signals, and never ends.
const STUBBORN: [&str; 3] = [
    "sh",
    "-c",
    "trap '' INT TERM HUP; echo up; sleep 1000; sleep 1000",
];

fn started(command: &mut Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a start");
    let mut line = [0; 3];
    let stdout = child.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut line).expect("a line");
    child
}

/// Waits until nothing holds the output any more.
fn ended_with_all(mut child: Child) -> Child {
    let mut rest = Vec::new();
    let stdout = child.stdout.as_mut().expect("a pipe");
    stdout.read_to_end(&mut rest).expect("the end");
    child
}

fn signal(child: &Child, name: &str) {
    let process = child.id().to_string();
    let sent = Command::new("kill").args([name, &process]).status();
    assert!(sent.expect("kill(1)").success());
}

#[test]
fn a_request_to_end_ends_the_whole_namespace() {
    if !may_run("a_request_to_end_ends_the_whole_namespace") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let child = started(&mut guarded(directory.path(), &STUBBORN));
    signal(&child, "-TERM");
    let mut child = ended_with_all(child);
    let status = child.wait().expect("its end");
    assert_eq!(status.code(), Some(128 + 9));
}

#[test]
fn the_namespace_dies_with_the_guard_and_with_its_parent() {
    if !may_run("the_namespace_dies_with_the_guard_and_with_its_parent") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let child = started(&mut guarded(directory.path(), &STUBBORN));
    signal(&child, "-KILL");
    let mut child = ended_with_all(child);
    assert_eq!(child.wait().expect("its end").signal(), Some(9));

    let guard = guarded(directory.path(), &STUBBORN);
    let mut shell = Command::new("sh");
    let words = [guard.get_program()].into_iter().chain(guard.get_args());
    shell
        .args(["-c", "\"$@\" & wait", "sh"].map(OsStr::new))
        .args(words);
    let child = started(&mut shell);
    signal(&child, "-KILL");
    ended_with_all(child).wait().expect("its end");
}
