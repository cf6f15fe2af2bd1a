use super::*;

fn entry(permissions: i32, scheme: &str, id: &str) -> Acl {
    Acl {
        permissions,
        scheme: scheme.to_owned(),
        id: id.to_owned(),
    }
}

fn identities(of: &[(&str, &str)]) -> Identities {
    let identity = |(scheme, id): &(&str, &str)| Identity {
        scheme: (*scheme).to_owned(),
        id: (*id).to_owned(),
    };
    let all: Vec<Identity> = of.iter().map(identity).collect();
    Identities::of(&all)
}

/// Whether a connection with this identity gets `permissions` by the ACL.
fn allows(acl: &[Acl], identity: (&str, &str), permissions: i32) -> bool {
    check(&encode(acl), &identities(&[identity]), permissions).is_ok()
}

#[test]
fn the_open_acl_is_stored_as_nothing_and_allows_everything() {
    assert!(encode(&open()).is_empty());
    assert_eq!(decode(b"").expect("it decodes"), open());
    assert_eq!(check(b"", &Identities::default(), ADMIN), Ok(()));
}

#[test]
fn each_entry_gives_its_own_permissions_to_its_own_identity() {
    let acl = [
        entry(READ, "world", "anyone"),
        entry(WRITE | CREATE, "digest", "user:hash"),
        entry(DELETE, "x509", "CN=a,O=b"),
        entry(!ALL, "digest", "odd:hash"),
    ];
    let given = |identity| {
        let permissions = [READ, WRITE, CREATE, DELETE, ADMIN].into_iter();
        permissions
            .filter(|permission| allows(&acl, identity, *permission))
            .sum::<i32>()
    };
    assert_eq!(given(("ip", "127.0.0.1")), READ);
    assert_eq!(given(("digest", "user:hash")), READ | WRITE | CREATE);
    assert_eq!(given(("digest", "user:other")), READ);
    assert_eq!(given(("x509", "user:hash")), READ);
    assert_eq!(given(("x509", "CN=a,O=b")), READ | DELETE);
    assert_eq!(given(("digest", "odd:hash")), READ);
    assert_eq!(given(("super", "")), ALL);
    assert!(
        allows(&acl, ("digest", "user:hash"), WRITE | ADMIN),
        "one is enough"
    );
}

#[test]
fn an_acl_that_does_not_decode_allows_nothing() {
    let anyone = identities(&[("digest", "user:hash")]);
    assert_eq!(check(&[9, 9], &anyone, READ), Err(Error::NotAuthorized));
}

#[test]
fn addresses_match_by_their_leading_bits() {
    let cases = [
        ("127.0.0.1", "127.0.0.1", true),
        ("127.0.0.1", "127.0.0.2", false),
        ("127.0.0.2/8", "127.9.9.9", true),
        ("127.0.0.2/31", "127.0.0.3", true),
        ("127.0.0.2/31", "127.0.0.4", false),
        ("1.2.3.4/0", "200.1.1.1", true),
        ("1.2.3.4/0", "0:0:0:0:0:0:0:1", false),
        ("::1", "0:0:0:0:0:0:0:1", true),
        ("fe80::/10", "fe9f:0:0:0:0:0:0:1", true),
        ("fe80::/10", "fec0:0:0:0:0:0:0:1", false),
        ("::/0", "fe80:0:0:0:0:0:0:1", true),
        ("::/0", "127.0.0.1", false),
    ];
    for (pattern, peer, expected) in cases {
        let acl = [entry(READ, "ip", pattern)];
        assert_eq!(
            allows(&acl, ("ip", peer), READ),
            expected,
            "{pattern} {peer}"
        );
    }
}

/// The oracle's conversation `acl-rules` has many more.
#[test]
fn ids_that_no_provider_knows_are_refused() {
    let client = identities(&[("ip", "127.0.0.1"), ("digest", "user:hash")]);
    let refused = [
        ("world", "nobody"),
        ("digest", "user:"),
        ("digest", ":"),
        ("digest", "a:b:c"),
        ("ip", "127.0.0.1/33"),
        ("ip", "127.0.0"),
        ("ip", "1::2::3"),
        ("ip", "::ffff:1.2.3.4"),
        ("x509", "nobody"),
        ("super", ""),
        ("sasl", "user"),
        ("", ""),
    ];
    for (scheme, id) in refused {
        let acl = [entry(ALL, "world", "anyone"), entry(ALL, scheme, id)];
        assert_eq!(
            resolve(&acl, &client),
            Err(Error::InvalidAcl),
            "{scheme}:{id}"
        );
    }
    assert_eq!(resolve(&[], &client), Err(Error::InvalidAcl));
}

#[test]
fn auth_stands_for_what_the_connection_has_proved() {
    let client = identities(&[
        ("ip", "127.0.0.1"),
        ("super", ""),
        ("x509", "CN=a"),
        ("digest", "user:hash"),
    ]);
    let acl = [
        entry(READ, "auth", "ignored"),
        entry(WRITE, "ip", "127.0.0.1"),
        entry(READ, "auth", "ignored"),
    ];
    let resolved = resolve(&acl, &client).expect("it is valid");
    let expected = [
        entry(READ, "x509", "CN=a"),
        entry(READ, "digest", "user:hash"),
        entry(WRITE, "ip", "127.0.0.1"),
    ];
    assert_eq!(decode(&resolved).expect("it decodes"), expected);
    let unproved = identities(&[("ip", "127.0.0.1"), ("super", "")]);
    assert_eq!(resolve(&acl, &unproved), Err(Error::InvalidAcl));
}

#[test]
fn an_acl_of_any_size_is_refused_or_stored_within_its_bound() {
    let client = identities(&[("digest", &format!("{}:hash", "u".repeat(BYTES_MAX / 2)))]);
    let long = "n".repeat(BYTES_MAX);
    for acl in [
        vec![entry(ALL, "world", "anyone"); ENTRIES_MAX + 1],
        vec![entry(ALL, "world", "anyone"); 1 << 20],
        vec![entry(ALL, "digest", &format!("{long}:hash"))],
        vec![entry(1, "auth", ""), entry(2, "auth", "")],
    ] {
        assert_eq!(resolve(&acl, &client), Err(Error::InvalidAcl));
    }
    let many: Vec<Acl> = (0..ENTRIES_MAX)
        .map(|number| entry(number as i32, "ip", "1.2.3.4"))
        .collect();
    assert!(resolve(&many, &client).is_ok_and(|encoded| encoded.len() <= BYTES_MAX));
}

#[test]
fn hashes_are_shown_to_none_but_the_administrator() {
    let acl = vec![entry(ALL, "digest", "user:a:b"), entry(ALL, "ip", "::1")];
    assert_eq!(
        without_hashes(acl),
        [entry(ALL, "digest", "user:x"), entry(ALL, "ip", "::1")]
    );
    let shown = |(scheme, id)| without_hash(identities(&[(scheme, id)]).decode().remove(0)).id;
    assert_eq!(shown(("digest", "user:hash")), "user");
    assert_eq!(shown(("ip", "0:0:0:0:0:0:0:1")), "0:0:0:0:0:0:0:1");
    assert_eq!(shown(("super", "")), "");
}
