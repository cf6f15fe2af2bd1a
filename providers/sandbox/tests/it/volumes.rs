//! Functions with a volume.

use std::fs;

use ports::volume_mounts::VolumeAt;
use sandbox::process::Enforcement;

use crate::processes::{block_on, world};

/// Writes its payload to a file of the volume, and answers with what lies there.
const WRITES: &str = "
import os

def handler(text, context):
    with open('/mnt/data/note', 'a') as note:
        note.write(text)
    return sorted(os.listdir('/mnt/data')) + [open('/mnt/data/note').read()]
";

/// VM1. Also the commit: it takes the mark of the begin away.
#[test]
fn a_function_writes_to_its_volume_in_a_transaction() {
    block_on(async {
        let world = world(Enforcement::probe);
        if Enforcement::probe(&world.program)
            .lacks_isolation()
            .is_some()
        {
            eprintln!("no namespaces here");
            return;
        }
        let function = world
            .function("writes", WRITES, |function| {
                function.volume = Some(VolumeAt {
                    folder: "/mnt/data".to_owned(),
                    volume: "demo".to_owned(),
                    is_read_only: false,
                });
            })
            .await;
        let first = world.said(&function, "\"one \"").await;
        assert_eq!(first, r#"["begun","note","one "]"#);
        let second = world.said(&function, "\"two\"").await;
        assert_eq!(second, r#"["begun","committed","note","one two"]"#);
        let folder = world.program.with_file_name("volumes/demo");
        assert_eq!(
            fs::read_to_string(folder.join("note")).expect("read"),
            "one two"
        );
        assert!(!folder.join("begun").exists(), "the second did not commit");
        world.close().await;
    });
}
