//! The parsing of manifests, and the errors for faults.

mod hostile;

use std::time::Duration;

use ports::runtime::Language;

use super::*;

const WHOLE: &str = r#"
    name = "shop"
    [functions.resize]
    runtime = "python3"
    code = "functions"
    handler = "app.resize"
    memory_mb = 256
    timeout_s = 3
    concurrency = 2
    retries = 0
    on_failure = "tell"
    environment = { SIZE = "64" }
    triggers = [{ queue = "pictures", batch = 5 }, { every_s = 60 }, { http = "/pictures/{id}", methods = ["GET", "PUT"] }]
    [functions.tell]
    runtime = "executable"
    code = "bin"
    handler = "tell"
    triggers = [{ http = "/tell" }]
"#;

#[test]
fn a_manifest_describes_functions_and_their_triggers() {
    let manifest = Manifest::parse(WHOLE).expect("whole");
    let resize = &manifest.functions["resize"];
    let function = resize.function("resize", "archive", "1", 7);
    assert_eq!(
        (function.memory_bytes, function.timeout),
        (256 << 20, Duration::from_secs(3))
    );
    assert_eq!(
        (function.concurrency, function.language.clone()),
        (2, Language::Python(None))
    );
    assert_eq!(resize.timer(), Some(Duration::from_mins(1).into()));
    assert_eq!(
        resize
            .queues()
            .map(|queue| (&*queue.queue, queue.batch))
            .collect::<Vec<_>>(),
        [("pictures", 5)]
    );
    assert_eq!((resize.retries, manifest.functions["tell"].retries), (0, 2));
    let routes: Vec<_> = manifest
        .routes()
        .expect("routes")
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        routes,
        ["GET /pictures/{id}", "PUT /pictures/{id}", "ANY /tell"]
    );
}

/// A replacement, the text in [`WHOLE`] that it replaces, and a part of the error.
const FAULTS: &[(&str, &str, &str)] = &[
    (
        "memory_mb = 1",
        "memory_mb = 256",
        "memory_mb = 1 must be 16 to 65536",
    ),
    (
        "timeout_s = 901",
        "timeout_s = 3",
        "timeout_s = 901 must be 1 to 900",
    ),
    (
        "code = \"../x\"",
        "code = \"functions\"",
        "a folder beside the manifest",
    ),
    (
        "code = \"/etc\"",
        "code = \"functions\"",
        "a folder beside the manifest",
    ),
    (
        "handler = \"app\"",
        "handler = \"app.resize\"",
        "must be module.function",
    ),
    (
        "environment = { \"A-B\" = \"\" }",
        "environment = { SIZE = \"64\" }",
        "no name of a variable",
    ),
    ("[functions.\"a b\"]", "[functions.tell]", "letters, digits"),
    ("cores = 2", "retries = 0", "unknown field `cores`"),
    (
        "{ http = \"/tell/\" }",
        "{ http = \"/tell\" }",
        "functions.tell: http = \"/tell/\" must have no empty",
    ),
    (
        "{ http = \"/pictures/{other}\", methods = [\"PUT\"] }",
        "{ http = \"/tell\" }",
        "functions.tell: the route PUT /pictures/{other} is PUT /pictures/{id} of functions.resize",
    ),
    (
        "{ https = \"/tell\" }",
        "{ http = \"/tell\" }",
        "unknown field `https`",
    ),
    (
        "{ http = \"/tell\", batch = 1 }",
        "{ http = \"/tell\" }",
        "a trigger is { queue = NAME",
    ),
    (
        "[\"pictures\", 5]",
        "{ queue = \"pictures\", batch = 5 }",
        "triggers",
    ),
    (
        "runtime = { executable = {} }",
        "runtime = \"executable\"",
        "runtime",
    ),
    (
        "python = \"/p\"\nhandler = \"tell\"",
        "handler = \"tell\"",
        "python is for runtime",
    ),
];

#[test]
fn faults_are_named_with_a_hint() {
    for (instead, of, said) in FAULTS.iter().copied() {
        assert!(WHOLE.contains(of), "{of}");
        let refused = Manifest::parse(&WHOLE.replace(of, instead)).expect_err(instead);
        assert!(refused.contains(said), "{instead}: {refused}");
    }
    assert!(
        Manifest::parse(&WHOLE.replace("\"functions\"", "\"\"")).is_err(),
        "no folder"
    );
    for list in [
        "functions.f = [\"node\", \"c\", \"a.b\"]",
        "workflows.w = [[\"f\"]]",
    ] {
        let refused = Manifest::parse(list).expect_err(list);
        assert!(refused.contains("expected a table"), "{list}: {refused}");
    }
    assert!(
        Manifest::parse("")
            .expect_err("empty")
            .contains("1 to 1000 functions")
    );
}

#[test]
fn a_folder_has_one_spelling() {
    for (written, name) in [
        ("code/", "code"),
        ("./code", "code"),
        ("a//b/./", "a/b"),
        (".", "."),
        ("./", "."),
        ("..a", "..a"),
    ] {
        let text = WHOLE.replace("code = \"functions\"", &format!("code = {written:?}"));
        assert_eq!(
            Manifest::parse(&text).expect(written).functions["resize"].code,
            name
        );
    }
}

#[test]
fn objects_are_named_by_buckets_and_leave_the_keys_to_the_server() {
    let with = |line: &str| Manifest::parse(&WHOLE.replace("retries = 0", line));
    let manifest = with("objects = [\"photos\"]").expect("a bucket");
    let resize = &manifest.functions["resize"];
    let function = resize.function("resize", "archive", "1", 7);
    assert_eq!(
        (function.buckets.clone(), function.incarnation),
        (vec!["photos".to_owned()], 7)
    );
    for bucket in ["", "ab", "Photos", "a/b"] {
        let refused = with(&format!("objects = [{bucket:?}]")).expect_err(bucket);
        assert!(refused.contains("name of a bucket"), "{refused}");
    }
    let keys = WHOLE.replace("SIZE", "AWS_SECRET_ACCESS_KEY");
    Manifest::parse(&keys).expect("without objects");
    let keys = keys.replace("retries = 0", "objects = [\"photos\"]");
    let refused = Manifest::parse(&keys).expect_err("both");
    assert!(refused.contains("AWS_SECRET_ACCESS_KEY"), "{refused}");
}

#[test]
fn volumes_have_directories_below_mnt() {
    let with = |table: &str| {
        let line = format!("retries = 0\n    volumes = {table}");
        Manifest::parse(&WHOLE.replace("retries = 0", &line))
    };
    let volume = |table| {
        let manifest = with(table).expect(table);
        let function = manifest.functions["resize"].function("resize", "an-archive", "1", 0);
        let volume = function.volume.clone().expect("it has one");
        (volume.folder, volume.volume, volume.is_read_only)
    };
    let named = volume(r#"{ "/mnt/data" = "demo" }"#);
    assert_eq!(named, ("/mnt/data".into(), "demo".into(), false));
    let read = volume(r#"{ "/mnt/a/b" = { volume = "logs", read_only = true } }"#);
    assert_eq!(read, ("/mnt/a/b".into(), "logs".into(), true));
    for (table, said) in [
        (r#"{ "/mnt" = "demo" }"#, "a path below /mnt"),
        (r#"{ "/mnt/" = "demo" }"#, "a path below /mnt"),
        (r#"{ "/data" = "demo" }"#, "a path below /mnt"),
        (r#"{ "mnt/data" = "demo" }"#, "a path below /mnt"),
        (r#"{ "/mnt/a/../b" = "demo" }"#, "a path below /mnt"),
        (r#"{ "/mnt/a//b" = "demo" }"#, "a path below /mnt"),
        (r#"{ "/mnt/a\u0000" = "demo" }"#, "a path below /mnt"),
        (r#"{ "/mnt/data" = "Demo" }"#, "volumes"),
        (r#"{ "/mnt/1" = "1", "/mnt/2" = "2" }"#, "1 at most"),
    ] {
        let refused = with(table).expect_err(table);
        assert!(refused.contains(said), "{table}: {refused}");
    }
}

#[test]
fn manifests_that_cannot_run_are_refused() {
    let refusal = |of: &str, instead: &str| {
        assert!(WHOLE.contains(of), "{of}");
        Manifest::parse(&WHOLE.replace(of, instead))
    };
    let sized = |bytes: usize| format!("SIZE = \"{}\"", "x".repeat(bytes));
    refusal("SIZE = \"64\"", &sized(128 * 1024 - 6)).expect("as long as may be");
    for (of, instead, said) in [
        (
            "SIZE = \"64\"",
            &*sized(128 * 1024 - 5),
            "functions.resize: environment: SIZE has 131073 bytes",
        ),
        (
            "\"app.resize\"",
            r#""app.re\u001b[2Jsize""#,
            "functions.resize: handler",
        ),
        (
            "\"tell\"\n    triggers",
            "\"te\\u009bll\"\n    triggers",
            "functions.tell: handler",
        ),
    ] {
        let why = refusal(of, instead).expect_err(said);
        assert!(why.contains(said), "{why}");
    }
    refusal("name = \"shop\"", "").expect("the deployment names it");
}
