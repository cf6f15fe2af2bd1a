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
fn four_letter_words_are_a_list_or_one_text_as_in_zoo_cfg() {
    for file in ["[\"ruok\", \"srvr\"]", "\"ruok, srvr\""] {
        let settings = written(&format!("zookeeper_four_letter_words = {file}")).settle();
        let words = settings.expect("settings").zookeeper_four_letter_words;
        assert_eq!(words, ["ruok", "srvr"]);
    }
    let all = zookeeper_frontend::Config::FOUR_LETTER_WORDS.join(",");
    for file in ["*", "", "*, ruok", &all] {
        let settings = written(&format!("zookeeper_four_letter_words = {file:?}")).settle();
        settings.expect(file);
    }
    let empty = written("zookeeper_four_letter_words = []").settle();
    let empty = empty.expect("settings").zookeeper_four_letter_words;
    assert!(empty.is_empty());
}

#[test]
fn an_unknown_four_letter_word_is_refused_with_the_known_ones() {
    for file in ["\"foo\"", "[\"ruok\", \"foo\"]", "\"srvr, foo\""] {
        refuses(
            &format!("zookeeper_four_letter_words = {file}"),
            "--zookeeper-four-letter-words foo: give * for all words, or some of conf,cons,",
        );
    }
    // ZooKeeper has it, and this server does not answer it.
    refuses(
        "zookeeper_four_letter_words = \"hash\"",
        "--zookeeper-four-letter-words hash",
    );
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
        (
            "zookeeper_container_check_ms = 99",
            "--zookeeper-container-check-ms 99",
        ),
    ] {
        refuses(file, complaint);
    }
}

fn refuses(file: &str, complaint: &str) {
    let refused = written(file).settle().expect_err(file).to_string();
    assert!(refused.contains(complaint), "{file}: {refused}");
}

#[test]
fn timeouts_of_sessions_have_bounds() {
    for (file, complaint) in [
        (
            "zookeeper_session_timeout_min = 999",
            "--zookeeper-session-timeout-min 999: give 1000 to 60000",
        ),
        (
            "zookeeper_session_timeout_min = 60001\nzookeeper_session_timeout_max = 90000",
            "--zookeeper-session-timeout-min 60001: give 1000 to 60000",
        ),
        (
            "zookeeper_session_timeout_min = 50000",
            "it exceeds --zookeeper-session-timeout-max 40000",
        ),
        (
            "zookeeper_session_timeout_max = 86400001",
            "--zookeeper-session-timeout-max 86400001: give at most 86400000",
        ),
    ] {
        refuses(file, complaint);
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
fn half_of_what_makes_a_server_safe_is_refused() {
    for (file, complaint) in [
        ("tls_cert = \"c\"", "--tls-cert: give its key too"),
        ("tls_key = \"k\"", "--tls-key: give its certificate too"),
        (
            "tls_client_ca = \"a\"",
            "--tls-client-ca: it needs a certificate",
        ),
        (
            "zookeeper_secure_listen = \"127.0.0.1:0\"",
            "--zookeeper-secure-listen 127.0.0.1:0: it needs a certificate",
        ),
        (
            "tls_cert = \"c\"\ntls_key = \"k\"\ntls_client_certificates = \"optional\"",
            "--tls-client-certificates: give the authority",
        ),
        (
            "tls_client_certificates = \"http=required\"",
            "--tls-client-certificates: give the authority",
        ),
        (
            "tls_cert = \"c\"\ntls_key = \"k\"\nzookeeper = \"off\"\nzookeeper_secure_listen = \"127.0.0.1:0\"",
            "it is a second port beside --zookeeper",
        ),
        ("http_token_file = \"absent\"", "--http-token-file absent"),
        (
            "zookeeper_super_digest = \"super:password\"",
            "--zookeeper-super-digest: give super:",
        ),
    ] {
        let refused = written(file).settle().expect_err(file).to_string();
        assert!(refused.contains(complaint), "{file}: {refused}");
    }
}

const TLS: &str = "tls_cert = \"c\"\ntls_key = \"k\"\n";

/// TLS and authentication together open a port to others, and neither does alone.
#[test]
fn beyond_this_machine_each_port_needs_tls_and_authentication() {
    let directory = tempfile::tempdir().expect("a directory");
    let token = directory.path().join("token");
    std::fs::write(&token, "open-sesame\n").expect("written");
    let token = format!("http_token_file = {token:?}\n");
    let accounts = directory.path().join("accounts");
    std::fs::write(&accounts, "user:tpUq/4Pn5A64fVZyQ0gOJ8ZWqkY=\n").expect("written");
    let accounts = format!("zookeeper_accounts_file = {accounts:?}\n");
    let secure = "zookeeper_secure_listen = \"0.0.0.0:0\"\n";
    for (file, complaint) in [
        (
            token.clone() + "http = \"0.0.0.0:0\"",
            "--http 0.0.0.0:0: beyond this machine TLS",
        ),
        (
            TLS.to_owned() + "http = \"0.0.0.0:0\"",
            "give --http-token-file or LANDFAST_TOKEN",
        ),
        (
            TLS.to_owned()
                + "http = \"0.0.0.0:0\"\ntls_client_ca = \"a\"\ntls_client_certificates = \"http=optional\"",
            "give --http-token-file or LANDFAST_TOKEN, or --tls-client-ca",
        ),
        (
            TLS.to_owned() + secure,
            "give --zookeeper-require-auth and --zookeeper-accounts-file, or --tls-client-ca",
        ),
        (
            TLS.to_owned()
                + secure
                + "tls_client_ca = \"a\"\ntls_client_certificates = \"optional\"",
            "give --zookeeper-require-auth",
        ),
        (
            // Any password passes.
            TLS.to_owned() + secure + "zookeeper_require_auth = true",
            "give --zookeeper-require-auth and --zookeeper-accounts-file",
        ),
        (
            TLS.to_owned() + secure + &accounts,
            "give --zookeeper-require-auth and --zookeeper-accounts-file",
        ),
        (
            TLS.to_owned() + "zookeeper = \"0.0.0.0:0\"\nzookeeper_require_auth = true",
            "use --zookeeper-secure-listen",
        ),
        ("s3 = \"0.0.0.0:0\"".to_owned(), "--s3 0.0.0.0:0"),
    ] {
        let refused = written(&file).settle().expect_err(&file).to_string();
        assert!(refused.contains(complaint), "{file}: {refused}");
    }
    let open = "http = \"0.0.0.0:0\"\ns3 = \"0.0.0.0:0\"\nroutes = \"0.0.0.0:0\"\n";
    let required = accounts + "zookeeper_require_auth = true";
    for zookeeper in [required.as_str(), "tls_client_ca = \"a\""] {
        let file = TLS.to_owned() + &token + open + secure + zookeeper;
        let settings = written(&file).settle().expect("it is safe");
        let shown = format!("{settings:?}");
        assert!(!shown.contains("open-sesame") && !shown.contains("tpUq"));
    }
}

/// Which clients are asked for a certificate, port by port; where all need one, no token is needed.
#[test]
fn a_required_certificate_stands_for_the_token_and_each_port_has_its_own_rule() {
    use listener::ClientCertificates::{Optional, Required};
    let file = TLS.to_owned() + "http = \"0.0.0.0:0\"\ntls_client_ca = \"a\"\n";
    for (clients, expected) in [
        (None, [Some(Required); 4]),
        (
            Some("routes=none,s3=optional"),
            [Some(Required), None, Some(Optional), Some(Required)],
        ),
        (
            Some("none,http=required"),
            [Some(Required), None, None, None],
        ),
    ] {
        let clients = clients.map(|text| format!("tls_client_certificates = {text:?}"));
        let settings = written(&(file.clone() + &clients.unwrap_or_default()));
        let security = settings.settle().expect("it is safe").security;
        let asked = [Port::Http, Port::Routes, Port::S3, Port::Zookeeper].map(|port| {
            let files = security.tls_at(port).expect("it has TLS");
            files.client_ca.map(|(_, mode)| mode)
        });
        assert_eq!(asked, expected);
    }
    for wrong in [
        "need",
        "http=need",
        "ftp=none",
        "",
        "http",
        "s3=required,none",
        "none,required",
        "s3=none,s3=required",
        "=none",
    ] {
        wrong.parse::<ClientCertificates>().expect_err(wrong);
    }
}

/// They may run as another user, and nothing listens.
#[test]
fn commands_without_a_server_pass_the_rules_of_ports() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("landfast.toml");
    let text = "http = \"0.0.0.0:0\"\nhttp_token_file = \"absent\"\nzookeeper = \"127.0.0.1:3\"";
    std::fs::write(&config, text).expect("written");
    let zookeeper = super::zookeeper(Some(config)).expect("settings");
    assert_eq!(zookeeper, Listen::loopback(3));
}

#[test]
fn accounts_in_a_file_are_names_with_digests() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("accounts");
    let file = format!("zookeeper_accounts_file = {path:?}");
    for (bad, complaint) in [
        ("# none\n\n", "it names no account"),
        ("user:password\n", "line 1: give USER:"),
        (
            "# a\nuser:tpUq/4Pn5A64fVZyQ0gOJ8ZWqkY=x\n",
            "line 2: give USER:",
        ),
        (":tpUq/4Pn5A64fVZyQ0gOJ8ZWqkY=", "line 1: give USER:"),
    ] {
        std::fs::write(&path, bad).expect("written");
        let refused = written(&file).settle().expect_err(bad).to_string();
        assert!(refused.contains(complaint), "{refused}");
        assert!(!refused.contains("password\n") && !refused.contains("tpUq"));
    }
    std::fs::write(
        &path,
        "# two\nuser:tpUq/4Pn5A64fVZyQ0gOJ8ZWqkY=\n \nsuper:lK75jTNcA+U9vtVEw5vB51mj/w4=",
    )
    .expect("written");
    let security = written(&file).settle().expect("settings").security;
    assert_eq!(
        security.zookeeper_accounts.map(|accounts| accounts.0.len()),
        Some(2)
    );
}

#[test]
fn a_token_in_a_file_is_one_visible_word_and_asked_for_everywhere() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    let file = format!("http_token_file = {path:?}");
    for bad in [
        "",
        "\n",
        "two words",
        "new\nline",
        "\u{fc}",
        &"x".repeat(4097),
    ] {
        std::fs::write(&path, bad).expect("written");
        let refused = written(&file).settle().expect_err(bad).to_string();
        assert!(refused.contains("--http-token-file"), "{refused}");
    }
    std::fs::write(&path, " word\n").expect("written");
    let security = written(&file).settle().expect("settings").security;
    for address in ["127.0.0.1:1", "10.0.0.1:1"] {
        let address = address.parse().expect("an address");
        assert_eq!(security.token_at(address).as_deref(), Some("word"));
    }
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
