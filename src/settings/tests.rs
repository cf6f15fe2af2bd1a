use super::*;

fn written(file: &str) -> Options {
    toml::from_str(file).expect("a configuration file")
}

#[test]
fn an_option_given_above_hides_the_file_and_the_rest_shows_through() {
    let above = Options {
        http: Some(Listen::Off),
        threads: Some(3),
        ..Options::default()
    };
    let below = written(
        "http = \"127.0.0.1:1\"\nzookeeper = \"127.0.0.1:2\"\ndata_dir = \"d\"\nthreads = 9",
    );
    let settings = above.over(below).settle().expect("settings");
    assert_eq!(settings.http, Listen::Off);
    assert_eq!(
        settings.zookeeper,
        "127.0.0.1:2".parse().expect("an address")
    );
    assert_eq!(settings.data_dir, Path::new("d"));
    assert_eq!(settings.threads, 3);
}

#[test]
fn the_hosts_of_routes_are_names_without_a_port() {
    let file = "routes_hosts = [\"Shop.example\", \"[2001:DB8::1]\", \"10.0.0.1\", \"*\"]";
    let hosts = written(file).settle().expect("settings").routes_hosts;
    let hosts: Vec<_> = hosts.into_iter().map(|HostName(host)| host).collect();
    assert_eq!(hosts, ["shop.example", "[2001:db8::1]", "10.0.0.1", "*"]);
    for wrong in [
        "shop.example:80",
        "http://shop.example",
        "a b",
        "",
        "me@shop.example",
        "/",
    ] {
        let refused = wrong.parse::<HostName>().expect_err(wrong);
        assert!(refused.contains("a host without a port"), "{refused}");
    }
}

#[test]
fn what_this_build_lacks_is_refused_by_name() {
    for (file, complaint) in [
        (
            "provider = \"postgres\"",
            "provider \"postgres\" is not in this build",
        ),
        ("provider = \"redis\"", "--store redis://HOST:PORT"),
        ("provider = \"redis\"\nstore = \"http://h\"", "--store"),
        (
            "provider = \"redis\"\nstore = \"redis://h\"\nuser_store = \"objects\"",
            "--user-store",
        ),
        ("store = \"redis://h\"", "--store"),
        ("objects = \"s3://key:secret@b\"", "--objects s3"),
        ("objects = \"gs://b\"", "--objects gs: not in this build"),
        (
            "objects = \"file://host/b\"",
            "a path as it is, from the root",
        ),
        (
            "objects = \"file:///a%20b\"",
            "a path as it is, from the root",
        ),
        ("tls_cert = \"c\"", "TLS is not in this build"),
        (
            "zookeeper = \"off\"\nhttp = \"off\"\nroutes = \"off\"\ns3 = \"off\"",
            "nothing would be served",
        ),
        ("zookeeper = \"0.0.0.0:0\"", "--zookeeper 0.0.0.0:0"),
        ("http = \"[::]:0\"", "--insecure"),
        ("routes = \"0.0.0.0:0\"", "--routes 0.0.0.0:0"),
        ("advertise = \"host\"", "--advertise host: give HOST:PORT"),
        ("advertise = \"http://host:1/x\"", "--advertise"),
        ("advertise = \"host:0\"", "--advertise"),
        ("threads = 0", "--threads 0"),
        ("stop_wait_s = 901", "--stop-wait-s 901: give at most 900"),
        (
            "zookeeper_packet_bytes_max = 1023",
            "--zookeeper-packet-bytes-max 1023",
        ),
    ] {
        let refused = written(file).settle().expect_err(file).to_string();
        assert!(refused.contains(complaint), "{file}: {refused}");
    }
}

#[test]
fn the_address_for_others_is_taken_as_it_is() {
    for address in ["node-1.example:7600", "[2001:db8::1]:7600", "10.0.0.1:1"] {
        let settings = written(&format!("advertise = \"{address}\""))
            .settle()
            .expect("settings");
        assert_eq!(settings.advertise.as_deref(), Some(address));
    }
}

#[test]
fn objects_are_files_in_a_directory() {
    let settings = written("objects = \"file:///var/lib/landfast\"")
        .settle()
        .expect("settings");
    assert_eq!(
        settings.objects,
        Some(ObjectSettings::Directory("/var/lib/landfast".into()))
    );
    assert_eq!(Options::default().object_settings().expect("none"), None);
}

#[test]
fn a_shared_store_is_named_without_its_password() {
    let file = "provider = \"redis\"\nstore = \"redis://:hunter2@h:1?namespace=shop\"";
    let settings = written(file).settle().expect("settings");
    assert_eq!(settings.store.name(), "redis");
    assert_eq!(settings.place(), "redis h:1, namespace shop");
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[test]
fn listening_to_strangers_is_possible_when_asked_for() {
    let settings = written("http = \"0.0.0.0:0\"\ninsecure = true")
        .settle()
        .expect("settings");
    assert_eq!(settings.http, "0.0.0.0:0".parse().expect("an address"));
}

#[test]
fn s3_is_served_on_every_store() {
    let s3 = |text: &str| written(text).settle().map(|settings| settings.s3);
    assert_eq!(s3("").expect("settings"), Listen::loopback(7601));
    let redis = "provider = \"redis\"\nstore = \"redis://h\"\n";
    assert_eq!(s3(redis).expect("settings"), Listen::loopback(7601));
}

#[test]
fn a_misspelt_setting_is_an_error() {
    assert!(toml::from_str::<Options>("htpp = \"off\"").is_err());
    assert!(toml::from_str::<Options>("config = \"other.toml\"").is_err());
    assert!(toml::from_str::<Options>("http = \"7600\"").is_err());
}
