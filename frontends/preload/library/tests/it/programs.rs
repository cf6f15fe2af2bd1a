//! Unmodified programs.

use super::*;

#[test]
fn shell_redirections_and_cat_meet_in_the_volume() {
    let world = World::new();
    let server = world.transaction();
    let text = output(
        &server,
        "echo hello > $AT/f; echo world >> $AT/f; cat $AT/f; cat < $AT/f | tr a-z A-Z",
    );
    assert_eq!(text, "hello\nworld\nHELLO\nWORLD\n");
    assert_eq!(world.read("f"), None);
    assert!(world.commit(server.finish().expect("a transaction")));
    assert_eq!(world.read("f").as_deref(), Some("hello\nworld\n"));
}

#[test]
fn each_call_is_a_transaction_without_one_around() {
    let world = World::new();
    let server = world.calls();
    output(&server, "echo hello > $AT/f");
    assert_eq!(world.read("f").as_deref(), Some("hello\n"));
}

#[test]
fn python_opens_reads_and_writes() {
    let world = World::new();
    let server = world.transaction();
    let script = "
import os
at = os.environ['AT']
with open(at + '/f', 'w') as f: f.write('hello')
with open(at + '/f') as f: assert f.read() == 'hello'
os.mkdir(at + '/d')
os.rename(at + '/f', at + '/d/g')
print(os.listdir(at), os.listdir(at + '/d'), os.stat(at + '/d/g').st_size)
";
    let output = command(&server, "python3").args(["-c", script]).output();
    let output = output.expect("python starts");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "['d'] ['g'] 5\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
